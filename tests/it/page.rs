//! The built-in page over a real engine. Its fleet has a second version that falls back to the CPU. It also tests a
//! store that is unreachable, slow, or has another schema.

mod access;
mod hostile;
mod served;
mod terminal;

use std::time::{Duration, Instant};

use clickhouse::Client;
use epwatch_page::PageConfig;
use hyper::Method;
use serde_json::Value;
use tokio::net::TcpListener;

pub(crate) use served::{Answer, HOSTILE, Served, check_page, percent};

use self::{
    served::{json_of, json_when, links, page_when},
    terminal::{check_devices, check_rollout, check_watch},
};
use epwatch_test_support::until;

use crate::{
    browser::Browser,
    dashboards::lose_window,
    fleet::{APP, MODEL, WatchedFleet},
    grafana_picture,
    support::{Store, check_fails, check_succeeds, epwatch, json},
};

/// Checks the changes, a new version and a person's mark, on both pages and in the terminal. Returns the address of the
/// roll-out page, which the cohort's page links to.
async fn check_changes(
    watched: &WatchedFleet,
    page: &Served,
    (cohort, incident): (&str, &str),
    environment: &str,
) -> String {
    let store = watched.store.address();
    let at_shell = |words: &[&str]| {
        let mut command = epwatch("");
        command.args(words).args(["--clickhouse", &store]);
        command.args(["--environment", environment]);
        command
    };
    let mark = [
        "mark",
        "server 7 <deployed>",
        "--app",
        APP,
        "--model",
        MODEL,
        "--who",
        "Ada",
    ];
    let text = check_succeeds(&mut at_shell(&mark));
    assert!(!text.contains("no page shows it"), "{text}");
    for link in [cohort, incident] {
        json_when(page, &json_of(link), |document| {
            let changes = document["changes"].as_array().unwrap();
            let has = |kind: &str, text: &str| {
                let mut all = changes.iter();
                all.any(|of| of["kind"] == kind && of["text"].as_str().unwrap().contains(text))
            };
            has("version", "Version 2 first seen") && has("mark", "server 7 <deployed> (Ada)")
        })
        .await;
        let shown = page_when(page, link, "server 7 &lt;deployed&gt; (Ada)").await;
        check_page(link, &shown);
        assert!(shown.text.contains("class=\"chg-l\""), "{}", shown.text);
    }
    let show = ["show", APP, MODEL, "2", "SM8635"];
    let text = check_succeeds(&mut at_shell(&show));
    for part in [
        "what changed\n- ",
        "Version 2 first seen",
        "server 7 <deployed> (Ada)",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let shown = page.get(cohort).await;
    let rollout = links(&shown.text, "/rollout?").remove(0);
    let shown = page.get(&rollout).await;
    check_page(&rollout, &shown);
    for part in [
        "<h1>Stop: ",
        " 2 is at fault on SM8635</h1>",
        "the incident</a>",
    ] {
        assert!(shown.text.contains(part), "{part}: {}", shown.text);
    }
    let document = page.get(&json_of(&rollout)).await.json();
    assert_eq!(document["answer"], "stop", "{document}");
    let unknown = rollout.replace("version=2", "version=nosuch");
    assert_eq!(page.get(&unknown).await.status, 404);
    rollout
}

#[tokio::test(flavor = "multi_thread")]
async fn every_page_shows_the_fallback_of_a_real_fleet() {
    let watched = WatchedFleet::start(Vec::new()).await;
    let page = Served::start(watched.store.client()).await;
    let row = |document: &Value, at: usize| document["models"][0]["rows"][at].clone();
    let document = json_when(&page, "/fleet.json", |document| {
        let (bad, fine) = (row(document, 0), row(document, 1));
        let verdict = bad["verdict"].as_str().unwrap_or_default();
        document["open"][0]["severity"] == "page"
            && (bad["severity"] == "page" && verdict.ends_with("fallback"))
            && bad["latencies"]["runs"].as_u64() > Some(100)
            && fine["chipset"] == "SM8650"
    })
    .await;
    assert_eq!(document["app"], APP);
    let bad = row(&document, 0);
    assert_eq!(bad["chipset"], "SM8635");
    assert_eq!(
        (&bad["version"], &bad["before"]),
        (&"2".into(), &"1".into())
    );

    let fleet = page.get("/").await;
    check_page("/", &fleet);
    assert!(fleet.text.contains("ne page"), "{}", fleet.text);
    let cohorts = links(&fleet.text, "/cohort?");
    assert_eq!(cohorts.len(), 2, "{cohorts:?}");
    for link in &cohorts {
        let document = json_when(&page, &json_of(link), |document| {
            document["evidence"]["latencies"].is_object()
        })
        .await;
        assert_eq!(document["query"]["model"], MODEL);
        let cohort = page_when(&page, link, "Latency of clean runs, now and before").await;
        check_page(link, &cohort);
        check_drawings(&page, &cohort.text).await;
    }
    let fallen = json_when(&page, &json_of(&cohorts[0]), |document| {
        document["placement"].is_object() && document["cpu_nodes"] != serde_json::json!([])
    })
    .await;
    let share = fallen["placement"]["npu_macs_share"].as_f64().unwrap();
    assert!((0.7..0.8).contains(&share), "{fallen:#}");
    assert!(
        fallen["cpu_nodes"].to_string().contains("Gemm"),
        "{fallen:#}"
    );
    let asked = fallen["placement"]["requested_eps"].to_string();
    assert!(asked.contains("QNN"), "{fallen:#}");
    assert_eq!(fallen["placement"]["selection_policy"], "", "{fallen:#}");
    assert_eq!(fallen["placement"]["devices"], serde_json::json!([]));
    // The window's row itself has the firing signals.
    let signals = fallen["cohort"]["signals"].as_array().unwrap();
    let fires = |id: &str| {
        signals
            .iter()
            .any(|of| of["id"] == id && of["fires"] == true)
    };
    assert!(
        fires("placement_change") && !fires("start_failure"),
        "{fallen:#}"
    );

    // Devices that moved to the CPU are slower than their own past; devices of the other chipset are the control.
    let is_shown = |document: &Value| {
        let slow = devices_beyond(&document["evidence"]["ratios"], 2.0);
        slow > [5, 0] && document["controls"]["SM8650"].is_object()
    };
    let fallen = json_when(&page, &json_of(&cohorts[0]), is_shown).await;
    let control = &fallen["controls"]["SM8650"]["ratios"];
    assert_eq!(devices_beyond(control, 2.0), [0, 0], "{control}");
    assert!(fallen["latencies_before"]["runs"].is_u64(), "{fallen:#}");

    // The page shows the same ratio as its JSON, in the same unit.
    let cv = async || {
        let document = page.get(&json_of(&cohorts[0])).await.json();
        document["cohort"]["cv_between"].as_f64()
    };
    until("a window's CV is shown", async || {
        let (before, shown, after) = (cv().await, page.get(&cohorts[0]).await, cv().await);
        let is_whole = shown.text.contains("aria-label=\"Latency distribution\"");
        let Some(cv) = before.filter(|_| before == after && is_whole) else {
            return false;
        };
        // The first occurrence of a term links to its explanation.
        let told = format!("</abbr></a> {cv:.3} between devices");
        let told = [told, format!("CV {cv:.3} between devices")];
        let is_told = told.iter().any(|told| shown.text.contains(told));
        assert!(is_told, "none of {told:?}: {}", shown.text);
        true
    })
    .await;

    // A window that is missing in the store is a labelled gap.
    lose_window(&watched.store.client()).await;
    let gaps = |document: &Value| document["gaps"] != serde_json::json!([]);
    json_when(&page, &json_of(&cohorts[0]), gaps).await;
    for link in [cohorts[0].as_str(), "/"] {
        let shown = page_when(&page, link, "healthy then is not known").await;
        check_page(link, &shown);
        assert!(shown.text.contains("class=\"w-gap\""), "{}", shown.text);
    }

    let incidents = page.get("/incidents").await;
    check_page("/incidents", &incidents);
    let link = &links(&incidents.text, "/incident?")[0];
    json_when(&page, &json_of(link), |document| {
        let verdict = document["verdict"].as_str().unwrap_or_default();
        let is_kept = document["evidence"]["latencies"].is_object();
        verdict.ends_with("fallback") && document["reasons"] != serde_json::json!([]) && is_kept
    })
    .await;
    let incident = page_when(&page, link, "Devices against their own past").await;
    check_page(link, &incident);
    let document = json_when(&page, &json_of(link), |document| {
        document["history"]["news"] != serde_json::json!([]) && document["seen_in"].is_object()
    })
    .await;
    // Each window at fault is counted in one slot.
    let slots = document["slots"].as_array().unwrap().iter();
    let at_fault: u64 = slots
        .map(|slot| slot["windows_at_fault"].as_u64().unwrap())
        .sum();
    assert_eq!(document["seen_in"]["windows"], at_fault, "{document}");
    assert!(at_fault > 0, "{document}");
    let history = &document["history"];
    let told = history["news"][0]["text"].as_str().unwrap();
    assert!(
        told.contains("on SM8635") && told.contains("devices"),
        "{told}"
    );
    let states: Vec<_> = history["changes"].as_array().unwrap().iter().collect();
    assert!(
        states.iter().any(|change| change["state"] == "firing"),
        "{history}"
    );
    let incident = page_when(&page, link, "The text as it was sent").await;
    assert!(incident.text.contains("What happened"), "{}", incident.text);
    check_drawings(&page, &incident.text).await;
    page_when(&page, link, "; seen in ").await;
    json_when(&page, &json_of(link), |document| {
        let asked = document["asked_for"].as_str().unwrap_or_default();
        asked.contains("QNNExecutionProvider")
    })
    .await;
    // The page has the next step once, as numbered steps with separate commands.
    assert!(incident.text.contains("<ol class=\"steps\"><li>"));
    let command = "<pre class=\"cmd\" tabindex=\"0\"><span>epwatch inspect MODEL</span> <span>--soc=SM8635</span></pre>";
    assert_eq!(
        incident.text.matches(command).count(),
        1,
        "{}",
        incident.text
    );

    for (shown, terms) in [
        (&incident, &["cv", "npu", "macs"][..]),
        (
            &page.get(&cohorts[0]).await,
            &["cv", "npu", "chance", "window", "placement-change"],
        ),
    ] {
        for term in terms {
            let link = format!("href=\"#term-{term}\"");
            assert!(shown.text.contains(&link), "{term}: {}", shown.text);
        }
    }
    let environment = document["environment"].as_str().unwrap();
    let rollout = check_changes(&watched, &page, (&cohorts[0], link), environment).await;

    let ledger = json_when(&page, "/ledger.json", |document| {
        document["entries"] != serde_json::json!([])
    })
    .await;
    for entry in ledger["entries"].as_array().unwrap() {
        let n = |name: &str| entry[name].as_i64().unwrap();
        let known = n("stored") + n("dropped") + n("refused") + n("missing");
        assert_eq!(n("recorded"), known, "{entry}");
    }
    // A sum has its newest day.
    let day = &ledger["entries"][0]["day"];
    json_when(&page, "/fleet.json", |document| {
        document["ledger"]["day"] == *day
    })
    .await;
    let shown = page_when(&page, "/ledger", "Where the reports went").await;
    check_page("/ledger", &shown);
    check_drawings(&page, &shown.text).await;
    let fleet = page_when(&page, "/fleet", "Latency by chipset, now and before").await;
    check_drawings(&page, &fleet.text).await;
    assert_eq!(page.get("/cohort/latency.svg").await.status, 404);
    assert_eq!(page.get("/health/latency.svg").await.status, 404);
    check_page("/health", &page.get("/health").await);

    let mut browser = Browser::start();
    let base = format!("http://{}", page.server.address());
    for (name, path) in [
        ("fleet", "/fleet"),
        ("cohort", &*cohorts[0]),
        ("cohort-fine", &*cohorts[1]),
        ("incidents", "/incidents"),
        ("incident", &**link),
        ("rollout", &*rollout),
        ("ledger", "/ledger"),
        ("health", "/health"),
    ] {
        browser.check(&base, name, path);
    }
    browser.check_print(&base, "incident", link);
    browser.upper_part(&format!("{base}/fleet"), "readme-fleet", 980);
    browser.upper_part(&format!("{base}{}", cohorts[0]), "readme-cohort", 1_240);
    grafana_picture::draw(&watched, &mut browser).await;

    let store = watched.store.address();
    let at_shell = |words: &[&str]| {
        let mut command = epwatch("");
        command.args(words).args(["--clickhouse", &store]);
        command
    };
    let text = check_succeeds(&mut at_shell(&["status"]));
    assert!(
        text.contains("ne page") && text.contains("SM8635"),
        "{text}"
    );
    // The ledger has been read already, because its page was shown above.
    assert!(text.contains("MISSING  DUPLICATE  CONFLICT"), "{text}");
    page_when(&page, "/fleet", " in conflict</a>").await;
    // The evidence of a verdict is about a kilobyte.
    let of_evidence = "SELECT toUInt64(sum(byteSize(*)) / count()) FROM cohort_evidence";
    let bytes = watched.store.count(of_evidence).await;
    println!("evidence: {bytes} bytes a row");
    assert!((100..2_000).contains(&bytes), "{bytes}");
    let listed = json(&mut at_shell(&["incident"]));
    let id = listed["incidents"][0]["incident"].as_str().unwrap();
    assert_eq!(json(&mut at_shell(&["incident", id]))["incident"], id);
    let text = check_succeeds(&mut at_shell(&["incident", id]));
    for part in [
        "## What to do\n\n1. On call",
        "\n2. ",
        "epwatch inspect MODEL --soc=SM8635",
        "## Devices",
        "Gemm",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let model = [
        "show",
        APP,
        MODEL,
        "2",
        "SM8635",
        "--environment",
        environment,
    ];
    let text = check_succeeds(&mut at_shell(&model));
    for part in ["P90", "Gemm", "TIMES ITS OWN PAST", "CC"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    check_rollout(&at_shell, environment);
    check_fails(&mut at_shell(&["incident", "x"]), 1, "has this name");
    // A typing error must not look like a healthy fleet.
    let slip = format!("{MODEL}x");
    let near = format!("is called {slip}; did you mean {MODEL}?");
    let of = ["--environment", environment];
    let shows = |words: &[&str], expected: &str| {
        check_fails(at_shell(&["show"]).args(words).args(of), 1, expected);
    };
    shows(&[APP, &slip], &near);
    shows(&[APP, &slip, "2", "SM8635"], &near);
    shows(
        &["nosuch", MODEL],
        "no app that was judged in the last day is called nosuch",
    );
    shows(&[APP, MODEL, "2", "SM8653"], "did you mean SM8635?");
    check_fails(
        &mut at_shell(&["status", "--app", "nosuch"]),
        1,
        "is called nosuch",
    );
    // The link of a test notification.
    let test = page.get("/incident?id=test-1764230400000").await;
    assert_eq!(test.status, 200);
    assert!(
        test.text.contains("This was a test, sent at"),
        "{}",
        test.text
    );
    check_devices(&at_shell, document["environment"].as_str().unwrap());
    check_watch(&mut at_shell(&["status", "--watch"]), "ne page");
    check_unweighed(&watched.store.client(), &at_shell, &page).await;
    check_watch(&mut at_shell(&["devices", "--latest", "--follow"]), MODEL);

    // A page with automatic refresh says so, and how to stop it.
    let link = "href=\"/fleet?q=a%26b&#38;refresh=10\"";
    let fleet = page.get("/fleet?q=a%26b").await;
    assert_eq!(fleet.header("refresh"), "");
    assert!(fleet.text.contains(link), "{}", fleet.text);
    let again = page.get("/fleet?q=a%26b&refresh=10").await;
    assert_eq!(again.header("refresh"), "10");
    assert!(
        again.text.contains("href=\"/fleet?q=a%26b\""),
        "{}",
        again.text
    );

    // Files that the browser has already are not sent again.
    let style = page.get("/style.css").await;
    let known = [("if-none-match", style.header("etag"))];
    let again = page.ask(Method::GET, "/style.css", &known, "").await;
    assert_eq!((again.status, &*again.text), (304, ""));
    page.stop().await;
    watched.stop().await;
}

/// Checks that a sentence warns about reports of a public key from private addresses, once most reports are such.
async fn check_unweighed(
    store: &Client,
    at_shell: &dyn Fn(&[&str]) -> std::process::Command,
    page: &Served,
) {
    let sentence = "with a public key came from private addresses in the last hour";
    let text = check_succeeds(&mut at_shell(&["status"]));
    assert!(!text.contains(sentence), "{text}");
    let sql = "INSERT INTO reports SELECT * REPLACE (false AS is_own, toUInt32(0) AS network, \
               wal_offset + 1000000000000 AS wal_offset, now64(3) AS received_at) FROM reports LIMIT 20";
    store.query_raw(sql).execute().await.unwrap();
    let text = check_succeeds(&mut at_shell(&["status"]));
    assert!(text.contains(sentence), "{text}");
    until("the page of health names the proxy", async || {
        page.get("/health").await.text.contains(sentence)
    })
    .await;
}

/// Returns the devices on the CPU and on the NPU from this ratio on.
fn devices_beyond(ratios: &Value, ratio: f64) -> [u64; 2] {
    let first = ratios["first"].as_f64().unwrap_or_default();
    let begin = |at: usize| ((first + at as f64) / 8.0).exp2();
    ["on_cpu", "on_npu"].map(|place| {
        let devices = ratios[place].as_array().into_iter().flatten().enumerate();
        let beyond = devices.filter(|(at, _)| begin(*at) >= ratio);
        beyond.filter_map(|(_, n)| n.as_u64()).sum()
    })
}

/// Checks that each drawing that a page links to stands alone, with its own style and nothing from elsewhere.
async fn check_drawings(page: &Served, text: &str) {
    let linked: Vec<String> = links(text, "/")
        .into_iter()
        .filter(|link| link.contains(".svg"))
        .collect();
    assert!(!linked.is_empty(), "{text}");
    for link in linked {
        // On a busy machine one read may lack the part.
        let drawing = page_when(page, &link, "xmlns=").await;
        let text = &drawing.text;
        assert_eq!(drawing.status, 200, "{link}: {text}");
        assert_eq!(drawing.header("content-type"), "image/svg+xml", "{link}");
        let begin = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"";
        assert!(
            text.starts_with(begin) && text.ends_with("</svg>"),
            "{link}: {text}"
        );
        assert_eq!(text.matches("<style>").count(), 1, "{link}");
        for wrong in [
            "var(",
            "<script",
            " style=",
            "NaN",
            "href",
            "class=\"narrow",
        ] {
            assert!(!text.contains(wrong), "{link} has {wrong}: {text}");
        }
        let policy = drawing.header("content-security-policy");
        assert!(policy.contains("style-src 'sha256-"), "{link}: {policy}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_slow_or_of_another_schema_is_a_page() {
    let store = Store::start().await;
    let page = Served::start(store.client()).await;
    let empty = page.get("/fleet").await;
    check_page("/fleet", &empty);
    assert!(empty.text.contains("No report yet"), "{}", empty.text);
    let mut browser = Browser::start();
    let base = format!("http://{}", page.server.address());
    browser.check(&base, "empty", "/fleet");
    for list in ["orders", "incidents", "ledger", "health"] {
        browser.check(&base, &format!("{list}-none"), &format!("/{list}"));
    }
    // Without a verdict, an empty list does not mean that all is well.
    let incidents = page.get("/incidents").await;
    let expected = "was judged, so no fault can have been found";
    assert!(incidents.text.contains(expected), "{}", incidents.text);
    for (name, path) in [
        ("rollout-none", "/rollout?app=a&model=m&version=2"),
        (
            "cohort-none",
            "/cohort?app=a&environment=e&model=m&version=2&chipset=c",
        ),
    ] {
        browser.check_answer(&base, (name, path, None), 404);
    }
    browser.check_answer(&base, ("unknown", "/incident?id=x", None), 404);
    assert_eq!(page.get("/cohort?app=a").await.status, 404);
    assert_eq!(page.get("/nothing.json").await.status, 404);
    store.engine.stop().await;
    until("the page says so", async || {
        let stale = page.get("/fleet").await;
        check_page("/fleet", &stale);
        stale.text.contains("The store does not answer")
    })
    .await;
    let unread = page.get("/ledger?days=7").await;
    assert_eq!(unread.status, 503, "{}", unread.text);
    assert!(
        unread.text.contains("It last answered at"),
        "{}",
        unread.text
    );
    browser.check(&base, "stale", "/fleet");
    browser.check_answer(&base, ("error", "/ledger?days=7", None), 503);
    drop(browser);
    let json = page.get("/fleet.json").await;
    assert_eq!(json.status, 503);
    assert!(json.json()["error"].is_string());
    page.stop().await;

    // Accepts connections, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    let target = epwatch_store::StoreTarget::parse(&address, "epwatch").unwrap();
    let page = Served::as_is(epwatch_store::client(&target), PageConfig::default()).await;
    let asked = Instant::now();
    let slow = page.get("/fleet").await;
    assert_eq!(slow.status, 503, "{}", slow.text);
    assert!(
        slow.text.contains("did not answer in time"),
        "{}",
        slow.text
    );
    assert!(
        asked.elapsed() < Duration::from_secs(30),
        "{:?}",
        asked.elapsed()
    );
    page.stop().await;

    let other = Store::without_schema().await;
    let client = other.engine.client("");
    client
        .query("CREATE DATABASE other")
        .execute()
        .await
        .unwrap();
    let page = Served::start(other.engine.client("other")).await;
    let wrong = page.get("/fleet").await;
    assert_eq!(wrong.status, 503, "{}", wrong.text);
    assert!(wrong.text.contains("epwatch migrate"), "{}", wrong.text);
    page.stop().await;
    other.engine.stop().await;
}
