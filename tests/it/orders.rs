//! Orders of people from the command and from the page: to a real Alertmanager, two at once, and refused ones.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use clickhouse::Client;
use epwatch_detector::notify::AlertmanagerConfig;
use epwatch_page::PageConfig;
use epwatch_test_support::until;
use hyper::Method;
use serde_json::Value;

use crate::{
    alertmanager::{Alertmanager, CONFIG, notifiers},
    browser::Browser,
    fleet::WatchedFleet,
    page::{Answer, HOSTILE, Served, check_page, percent},
    support::{Store, check_ended, check_fails, check_succeeds, epwatch, get, json},
};

const READERS: &str = "readers-may-only-read";
const ORDERS: &str = "these-may-order-too";

/// A page with both tokens.
async fn serve(store: &Store) -> Served {
    let file = |name: &str, token: &str| -> Option<PathBuf> {
        let path = store.dir.path().join(name);
        std::fs::write(&path, token).unwrap();
        Some(path)
    };
    let config = PageConfig {
        token_file: file("readers", READERS),
        orders_token_file: file("orders", ORDERS),
        ..PageConfig::default()
    };
    Served::with(store.client(), config).await
}

/// Returns the cookie of a browser that presented a token.
async fn sign_in(page: &Served, token: &str) -> String {
    let headers = [("sec-fetch-site", "same-origin")];
    let body = format!("token={token}&to=%2F");
    let answer = page.ask(Method::POST, "/token", &headers, &body).await;
    assert_eq!(answer.status, 303, "{}", answer.text);
    let cookie = answer.header("set-cookie");
    cookie.split(';').next().unwrap().to_owned()
}

/// Returns the value of a hidden field.
fn hidden(text: &str, name: &str) -> String {
    let (_, rest) = text
        .split_once(&format!("name=\"{name}\" type=\"hidden\" value=\""))
        .unwrap_or_else(|| panic!("no {name}: {text}"));
    rest.split('"').next().unwrap().to_owned()
}

/// A browser's session on the page of an incident.
struct Session<'a> {
    page: &'a Served,
    cookie: String,
    id: String,
}

impl<'a> Session<'a> {
    async fn new(page: &'a Served, id: &str) -> Self {
        Self {
            page,
            cookie: sign_in(page, ORDERS).await,
            id: id.to_owned(),
        }
    }

    async fn open(&self) -> Answer {
        let path = format!("/incident?id={}", percent(&self.id));
        let headers = [("cookie", &*self.cookie)];
        self.page.ask(Method::GET, &path, &headers, "").await
    }

    /// Fills in the form that was opened, and presses a button.
    async fn press(&self, opened: &Answer, kind: &str, who: &str, why: &str) -> Answer {
        let field = |name| percent(&hidden(&opened.text, name));
        let (seen, form) = (field("seen"), field("form"));
        let (id, who, why) = (percent(&self.id), percent(who), percent(why));
        let body =
            format!("incident={id}&seen={seen}&form={form}&who={who}&why={why}&for=1h&kind={kind}");
        let headers = [("cookie", &*self.cookie), ("sec-fetch-site", "same-origin")];
        self.page.ask(Method::POST, "/order", &headers, &body).await
    }

    async fn order(&self, kind: &str, who: &str, why: &str) {
        let answer = self.press(&self.open().await, kind, who, why).await;
        assert_eq!(answer.status, 303, "{}", answer.text);
        let back = answer.header("location");
        assert!(back.starts_with("/incident?id="), "{back}");
    }
}

fn order(store: &str, words: &[&str]) -> Command {
    let mut command = epwatch("incident");
    command.args(words).args(["--clickhouse", store]);
    command
}

/// A mark has one line and a known time, and a warning names an unknown name.
#[tokio::test(flavor = "multi_thread")]
async fn a_mark_is_stored_once_and_a_slip_in_it_is_a_clear_line() {
    let store = Store::start().await;
    put(&store.client(), "open-1", "firing", "partial_fallback").await;
    let at = store.address();
    let mark = |words: &[&str]| {
        let mut command = epwatch("mark");
        command.args(words).args(["--clickhouse", &at]);
        command
    };
    let text = check_succeeds(&mut mark(&[
        "server 7 deployed",
        "--who",
        "Ada",
        "--app",
        "app",
    ]));
    assert!(text.starts_with("marked "), "{text}");
    assert!(
        text.contains("for app, all models, all chipsets: server 7 deployed"),
        "{text}"
    );
    assert!(text.contains("no page shows it yet"), "{text}");
    let placed = json(&mut mark(&[
        "x",
        "--who",
        "Ada",
        "--at",
        "2026-01-02T03:04:05Z",
    ]));
    assert_eq!(placed["effective_at"], "2026-01-02T03:04:05Z", "{placed:#}");
    assert_eq!(placed["is_known"], false);
    for (words, expected) in [
        (&[" "][..], "TEXT must not be empty"),
        (&["x", "--model", "m"], "--app"),
        (&["x", "--at", "soon"], "--at"),
        (
            &["x", "--at", "2100-01-01T00:00:00Z"],
            "--at must be at most a day ahead",
        ),
        (
            &["x", "--chipset", ""],
            "--chipset must have 1 to 256 bytes",
        ),
    ] {
        check_fails(mark(words).args(["--who", "Ada"]), 2, expected);
    }
    let shown = "SELECT count() FROM marks_v1";
    assert_eq!(store.count(shown).await, 2);
    let id = placed["mark"].as_str().unwrap();
    let undo = |id: &str| mark(&["--undo", id, "--who", "Bob"]);
    let wrong = "no mark has the id nosuch; the latest marks:";
    check_fails(&mut undo("nosuch"), 1, wrong);
    check_fails(&mut undo("nosuch"), 1, id);
    let text = check_succeeds(&mut undo(id));
    assert_eq!(text.trim(), "taken back: x");
    assert_eq!(store.count(shown).await, 1);
    check_fails(&mut undo(id), 1, "no mark has the id");
    check_fails(undo(id).arg("text"), 2, "cannot be used with");
    store.engine.stop().await;
}

/// Returns the alert of an incident, if Alertmanager has it.
async fn alert(manager: &Alertmanager, id: &str) -> Option<Value> {
    let alerts = manager.alerts().await.into_iter();
    let mut alerts = alerts.filter(|alert| alert["labels"]["incident"] == id);
    alerts.next()
}

/// Returns the states of an incident's silences.
async fn silences(manager: &Alertmanager, id: &str) -> Vec<String> {
    let answer = get(&format!("{}/api/v2/silences", manager.url))
        .await
        .unwrap();
    let all: Vec<Value> = serde_json::from_str(&answer.text).unwrap();
    let of_incident = all.iter().filter(|silence| {
        let matchers = silence["matchers"].as_array().unwrap();
        silence["createdBy"] == "epwatch"
            && matchers
                .iter()
                .any(|one| one["value"] == id && one["name"] == "incident")
    });
    let state = |silence: &Value| silence["status"]["state"].as_str().unwrap().to_owned();
    of_incident.map(state).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_of_command_and_page_reach_a_real_alertmanager() {
    let Some(manager) = Alertmanager::start(CONFIG).await else {
        return;
    };
    let channels = notifiers(vec![AlertmanagerConfig::new(&manager.url)]);
    let fleet = WatchedFleet::start(channels).await;
    let fired = manager.page().await;
    let id = fired["labels"]["incident"].as_str().unwrap();
    let store = fleet.store.address();
    let annotation = async |name: &str| {
        let alert = alert(&manager, id).await;
        alert.map_or(Value::Null, |alert| alert["annotations"][name].clone())
    };
    // Channels get the news before the store does, so each check of the store or of a page waits.
    let client = fleet.store.client();
    until("the incident is stored", async || {
        let sql = "SELECT count() FROM incidents_v1 WHERE incident_id = ?";
        let n = client.query(sql).bind(id).fetch_one::<u64>().await;
        n.unwrap() > 0
    })
    .await;

    let words = ["ack", id, "--who", "Ada", "--why", "on it"];
    let text = check_succeeds(&mut order(&store, &words));
    assert!(text.contains("by Ada: on it"), "{text}");
    until("the ack is an annotation", async || {
        annotation("acknowledged").await == "by Ada: on it"
    })
    .await;
    assert_eq!(
        alert(&manager, id).await.unwrap()["labels"]["severity"],
        fired["labels"]["severity"]
    );

    let page = serve(&fleet.store).await;
    let session = Session::new(&page, id).await;
    until("the list has the ack", async || {
        let list = check_succeeds(epwatch("incident").args(["--clickhouse", &store]));
        list.contains("acknowledged by Ada")
    })
    .await;
    session
        .order("mute", "Bob", "known, until the next release")
        .await;
    until("the silence is there", async || {
        silences(&manager, id).await == ["active"]
    })
    .await;
    let headers = [("cookie", &*session.cookie)];
    for path in ["/incidents", "/fleet"] {
        until(&format!("{path} has both orders"), async || {
            let shown = page.ask(Method::GET, path, &headers, "").await;
            shown.text.contains("acknowledged by Ada, muted until ")
        })
        .await;
    }
    until("the alert is silenced", async || {
        let alert = alert(&manager, id).await;
        alert.is_some_and(|alert| alert["status"]["state"] == "suppressed")
    })
    .await;
    let words = ["reopen", id, "--who", "Ada", "--why", "it got worse"];
    check_succeeds(&mut order(&store, &words));
    until("the silence ends", async || {
        silences(&manager, id).await == ["expired"]
    })
    .await;
    until("the annotation is gone", async || {
        annotation("acknowledged").await == Value::Null
    })
    .await;
    session.order("ack", "Bob", "mine now").await;
    until("the ack of the page is an annotation", async || {
        annotation("acknowledged").await == "by Bob: mine now"
    })
    .await;

    session.order("resolve", "Bob", "rolled back").await;
    until("the alert ends", async || {
        alert(&manager, id).await.is_none()
    })
    .await;
    until("the end is stored", async || {
        json(&mut order(&store, &[id]))["state"] == "resolved"
    })
    .await;
    let shown = json(&mut order(&store, &[id]));
    assert_eq!(shown["document"]["orders"]["end"]["who"], "Bob");
    let kinds = shown["orders"].as_array().unwrap().iter();
    let kinds: Vec<&Value> = kinds.map(|order| &order["kind"]).collect();
    assert_eq!(kinds, ["ack", "mute", "reopen", "ack", "resolve"]);
    page.stop().await;
    fleet.stop().await;
}

/// Writes an incident.
async fn put(store: &Client, id: &str, state: &str, verdict: &str) {
    let incident = "INSERT INTO incidents (incident_id, changed_at, state, severity, verdict, app_id, environment, \
        model_id, model_version, chipsets, started_at, devices_hit, devices_seen, document) \
        SELECT ?, now64(3), ?, 'page', ?, 'app', 'production', 'model', '2', ['SM8635'], now64(3), 10, 10, '{}'";
    let insert = store.query(incident).bind(id).bind(state).bind(verdict);
    insert.execute().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_that_cannot_be_are_a_clear_line_and_of_two_one_wins() {
    let store = Store::start().await;
    let client = store.client();
    for (id, state, verdict) in [
        ("open-1", "firing", "partial_fallback"),
        ("open-2", "firing", "partial_fallback"),
        ("wrong-1", "firing", "wrong_outputs"),
        ("over-1", "resolved", "partial_fallback"),
        ("young-1", "pending", "partial_fallback"),
    ] {
        put(&client, id, state, verdict).await;
    }
    let at = store.address();
    let why = ["--who", "Ada", "--why", "x"];
    let fails = |words: &[&str], code, expected| {
        check_fails(order(&at, words).args(why), code, expected);
    };
    fails(&["ack", "x' OR 1"], 1, "no incident has the id x' OR 1");
    fails(&["ack", "over-1"], 1, "incident over-1 is over");
    fails(&["ack", "young-1"], 1, "nobody was notified");
    fails(
        &["reopen", "open-1"],
        1,
        "no order of incident open-1 is in force",
    );
    fails(&["accept", "wrong-1"], 1, "never accepted");
    fails(
        &["mute", "open-1", "--for", "31d"],
        2,
        "at most 30d, got 31d",
    );
    fails(&["mute", "open-1", "--for", "soon"], 2, "a duration like");
    fails(&["mute", "open-1"], 2, "--for");
    let without = |who, why| {
        let mut command = order(&at, &["ack", "open-1", "--who", who, "--why", why]);
        check_fails(&mut command, 2, "must");
    };
    without("Ada", " ");
    without("", "x");
    without("Ada", "a\nb");
    without("Ada", &"x".repeat(501));
    // Without variables the name comes from the account, so the only problem is the incident.
    let mut unnamed = order(&at, &["ack", "over-1", "--why", "x"]);
    for name in ["SUDO_USER", "USER", "LOGNAME"] {
        unnamed.env_remove(name);
    }
    check_fails(&mut unnamed, 1, "incident over-1 is over");
    let none = client.query("SELECT count() FROM incident_orders");
    assert_eq!(none.fetch_one::<u64>().await.unwrap(), 0);

    // Two orders are given at once. Whichever comes second gets an error.
    let start = |who: &str| {
        let mut command = order(&at, &["ack", "open-1", "--who", who, "--why", "mine"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let (ada, bob) = (start("Ada"), start("Bob"));
    let (ada, bob) = (
        ada.wait_with_output().unwrap(),
        bob.wait_with_output().unwrap(),
    );
    let (won, lost, winner) = match ada.status.success() {
        true => (ada, bob, "Ada"),
        false => (bob, ada, "Bob"),
    };
    check_ended(&won, 0);
    let (_, told) = check_ended(&lost, 1);
    assert!(told.contains(winner), "{told}");
    let counted =
        "SELECT count() FROM incident_orders_v1 WHERE incident_id = 'open-1' AND is_counted";
    assert_eq!(store.count(counted).await, 1);

    // Feedback may come the morning after, also about an incident that is over.
    fails(&["false", "young-1"], 1, "nobody was notified");
    fails(&["reopen", "over-1"], 1, "is in force to take back");
    let words = ["false", "over-1", "--who", "Ada", "--why", "lab phones"];
    let text = check_succeeds(&mut order(&at, &words));
    assert!(
        text.starts_with("false of incident over-1 by Ada: lab phones"),
        "{text}"
    );
    fails(&["false", "over-1"], 1, "was called false already, by Ada");
    // A busy store may have no time for the orders of a page.
    until("the incident was called false", async || {
        let text = check_succeeds(&mut order(&at, &["over-1"]));
        assert!(!text.contains("waits for the detector"), "{text}");
        text.contains("called a false alarm")
    })
    .await;
    let called = "SELECT count() FROM false_incidents_v1 WHERE incident_id = 'over-1' AND why = 'lab phones'";
    assert_eq!(store.count(called).await, 1);

    // This form was opened before the order.
    let page = serve(&store).await;
    let session = Session::new(&page, "open-2").await;
    let opened = session.open().await;
    check_page("/incident", &opened);
    let ack = session.press(&opened, "ack", "Ada", "on it").await;
    assert_eq!(ack.status, 303, "{}", ack.text);
    let shown = session.open().await;
    assert!(
        shown.text.contains("waits for the detector"),
        "{}",
        shown.text
    );
    let over = Session::new(&page, "over-1").await;
    until("the page has the feedback", async || {
        let shown = over.open().await;
        let is_shown = shown.text.contains("called a false alarm");
        assert!(
            !is_shown || !shown.text.contains("value=\"false\""),
            "{}",
            shown.text
        );
        is_shown
    })
    .await;
    let again = |kind, why| [kind, "over-1", "--who", "Bob", "--why", why];
    check_succeeds(&mut order(&at, &again("reopen", "it was one")));
    assert_eq!(store.count(called).await, 0);
    check_succeeds(&mut order(&at, &again("false", "it was none")));
    let late = session.press(&opened, "resolve", "Bob", "gone").await;
    assert_eq!(late.status, 409, "{}", late.text);
    assert!(late.text.contains("Ada was first: ack"), "{}", late.text);
    let long = session.press(&opened, "ack", &"x".repeat(65), "y").await;
    assert_eq!(long.status, 400, "{}", long.text);
    let unknown = session.press(&opened, "explode", "Ada", "y").await;
    assert_eq!(unknown.status, 400, "{}", unknown.text);
    page.stop().await;
    store.engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_orders_token_writes_and_hostile_texts_stay_texts() {
    let store = Store::start().await;
    put(&store.client(), "open-1", "firing", "partial_fallback").await;
    let page = serve(&store).await;
    let session = Session::new(&page, "open-1").await;
    let opened = session.open().await;
    let form = hidden(&opened.text, "form");
    let body = |form: &str| format!("incident=open-1&seen=0&form={form}&who=Ada&why=x&kind=ack");
    let ask = async |headers: &[(&str, &str)], form: &str| {
        let answer = page.ask(Method::POST, "/order", headers, &body(form)).await;
        answer.status
    };
    let same = ("sec-fetch-site", "same-origin");
    let reader = sign_in(&page, READERS).await;
    let (reader, writer) = (("cookie", &*reader), ("cookie", &*session.cookie));
    assert_eq!(ask(&[same, reader], &form).await, 403);
    assert_eq!(ask(&[same], &form).await, 401);
    assert_eq!(ask(&[writer], &form).await, 403, "no origin");
    for site in ["cross-site", "same-site", "none"] {
        let headers = [("sec-fetch-site", site), writer];
        assert_eq!(ask(&headers, &form).await, 403, "{site}");
    }
    assert_eq!(ask(&[same, writer], "").await, 403, "no token of the form");
    let other = Session::new(&page, "open-1").await;
    let other = hidden(&other.open().await.text, "form");
    assert_eq!(ask(&[same, writer], &other).await, 403, "another session's");
    let bearer = format!("Bearer {READERS}");
    assert_eq!(ask(&[("authorization", &bearer)], "").await, 403);
    let get = page.ask(Method::GET, "/order", &[writer], "").await;
    assert_eq!(get.status, 404);
    let readable = page
        .ask(Method::GET, "/incident?id=open-1", &[reader], "")
        .await;
    assert!(
        !readable.text.contains("action=\"/order\""),
        "{}",
        readable.text
    );
    assert!(
        readable.text.contains("Enter the token for orders"),
        "{}",
        readable.text
    );
    let none = store.count("SELECT count() FROM incident_orders").await;
    assert_eq!(none, 0);

    // The request of a program.
    let bearer = format!("Bearer {ORDERS}");
    let headers = [("authorization", &*bearer)];
    let body = "incident=open-1&who=robot&why=known&for=8h&kind=mute";
    let placed = page.ask(Method::POST, "/order.json", &headers, body).await;
    assert_eq!(placed.status, 200, "{}", placed.text);
    assert_eq!(placed.json()["who"], "robot");
    let refused = page
        .ask(Method::POST, "/order.json", &headers, "kind=ack")
        .await;
    assert_eq!(refused.status, 400);
    assert!(refused.json()["error"].is_string(), "{}", refused.text);
    let as_json = [headers[0], ("content-type", "application/json")];
    let ack = serde_json::json!({
        "incident": "open-1", "kind": "ack", "who": "robot", "why": "known", "seen": placed.json()["n"],
    });
    let ack = ack.to_string();
    let placed = page.ask(Method::POST, "/order.json", &as_json, &ack).await;
    assert_eq!(placed.status, 200, "{}", placed.text);
    let misspelt = r#"{"kind": "ack", "reason": "a"}"#;
    let doubled = r#"{"kind": "ack", "kind": "resolve"}"#;
    for body in ["", "[1]", r#"{"kind": ["ack"]}"#, misspelt, doubled] {
        let refused = page.ask(Method::POST, "/order.json", &as_json, body).await;
        let error = refused.json()["error"].as_str().unwrap().to_owned();
        assert_eq!(refused.status, 400);
        assert!(error.contains("expected an object like"), "{error}");
    }
    for (body, says) in [
        ("incident=open-1&reason=a", "unknown field `reason`"),
        ("kind=ack&kind=resolve", "duplicate field `kind`"),
        (&*ack, "`Content-Type: application/json`"),
        (
            "incident=open-1&who=robot&why=known&kind=mute",
            "for is missing: how long, for example 8h or 7d",
        ),
    ] {
        let refused = page.ask(Method::POST, "/order.json", &headers, body).await;
        let error = refused.json()["error"].as_str().unwrap().to_owned();
        assert_eq!(refused.status, 400);
        assert!(error.contains(says), "{error}");
    }
    let wrong = [
        ("authorization", "Bearer not-one-of-the-tokens"),
        as_json[1],
    ];
    let refused = page.ask(Method::POST, "/order.json", &wrong, "").await;
    assert_eq!(refused.status, 401);
    assert_eq!(refused.json()["error"], "That is not the token.");
    let readers = format!("Bearer {READERS}");
    let long = "x".repeat(20_000);
    for (headers, body, status, expected) in [
        (
            &[("authorization", &*readers), as_json[1]][..],
            "",
            403,
            "may read, not order",
        ),
        (&[as_json[1]], "", 401, "`Authorization: Bearer TOKEN`"),
        (&[writer, as_json[1]], "", 403, "must come from this page"),
        (&[same, as_json[1]], "", 401, "a token is needed"),
        (&[same, reader, as_json[1]], "", 403, "may read, not order"),
        (&[same, writer, as_json[1]], "{}", 403, "of another session"),
        (&as_json, &long, 413, "too long"),
        (
            &[("host", "evil.example"), headers[0]],
            "",
            421,
            "page.hosts",
        ),
    ] {
        let refused = page.ask(Method::POST, "/order.json", headers, body).await;
        assert_eq!(refused.status, status, "{}", refused.text);
        let error = refused.json()["error"].as_str().unwrap().to_owned();
        assert!(error.contains(expected), "{error}");
    }
    let other = page.ask(Method::PUT, "/order.json", &as_json, "").await;
    assert_eq!(other.status, 405);
    assert_eq!(other.json()["error"], "this address only answers POST");
    // Ten wrong tokens of a minute are answered as wrong.
    until("wrong tokens are refused for a minute", async || {
        let refused = page.ask(Method::POST, "/order.json", &wrong, "").await;
        let error = refused.json()["error"].as_str().unwrap().to_owned();
        match refused.status {
            429 => error.contains("try again in a minute") || panic!("{error}"),
            _ => false,
        }
    })
    .await;

    let names = HOSTILE.iter().filter(|name| !name.is_empty());
    for (at, name) in names.enumerate() {
        let id = format!("hostile-{at}-{name}");
        put(&store.client(), &id, "firing", "partial_fallback").await;
        let session = Session::new(&page, &id).await;
        session.order("ack", name, name).await;
        let shown = session.open().await;
        check_page(&id, &shown);
        let mut command = order(&store.address(), &[&id]);
        let document = json(&mut command);
        assert_eq!(document["orders"][0]["who"], name.trim());
        let text = check_succeeds(&mut order(&store.address(), &[&id]));
        assert!(text.contains("## Orders"), "{text}");
        assert!(!text.contains(['\u{202e}', '\u{2066}']), "{text}");
    }
    let audit = page.ask(Method::GET, "/orders", &headers, "").await;
    check_page("/orders", &audit);
    let document = page
        .ask(Method::GET, "/orders.json", &headers, "")
        .await
        .json();
    // The list has the orders of the two programs, and one for each name that is not empty.
    assert_eq!(
        document["orders"].as_array().unwrap().len(),
        HOSTILE.len() + 1
    );
    let mut browser = Browser::start();
    let base = format!("http://{}", page.server.address());
    browser.set_cookie(&base, &session.cookie);
    browser.check(&base, "orders", "/orders");
    browser.check(&base, "incident-order", "/incident?id=open-1");
    // The form was opened before the robot's order.
    let late = "const field = name => document.querySelector(`form.order [name=${name}]`); field('seen').value = 0; \
        field('who').value = 'Bob'; field('why').value = 'late'; field('kind').click();";
    let pressed = ("order-refused", "/incident?id=open-1", Some(late));
    browser.check_answer(&base, pressed, 409);
    // An automatic refresh would clear the form.
    let refresh = async |headers: &[(&str, &str)]| {
        let path = "/incident?id=open-1&refresh=10";
        let answer = page.ask(Method::GET, path, headers, "").await;
        answer.header("refresh").to_owned()
    };
    assert_eq!(refresh(&[writer]).await, "");
    assert_eq!(refresh(&[reader]).await, "10");
    page.stop().await;

    // Without the token no order from the page is accepted, on loopback either.
    let page = Served::with(store.client(), PageConfig::default()).await;
    let answer = page.ask(Method::POST, "/order", &[same], body).await;
    assert_eq!(answer.status, 403);
    assert!(
        answer.text.contains("page.orders_token_file"),
        "{}",
        answer.text
    );
    let program = page.ask(Method::POST, "/order.json", &headers, body).await;
    assert_eq!(program.status, 403);
    let error = program.json()["error"].as_str().unwrap().to_owned();
    assert!(error.contains("page.orders_token_file"), "{error}");
    page.stop().await;
    store.engine.stop().await;
}
