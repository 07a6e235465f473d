//! The built-in page over a real engine. The tests have a fleet with a fallback, hostile names, access, and a store
//! that is away, slow, or of another schema.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::Bytes;
use clickhouse::Client;
use epwatch_model::{CohortKey, ModelKey, write_document};
use epwatch_page::{PageConfig, PageServer};
use epwatch_server::{Clock, SystemClock};
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Method, Request};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    browser::Browser,
    dashboards::lose_window,
    fleet::{APP, MODEL, WatchedFleet},
    grafana_picture,
    support::{Store, check_fails, check_succeeds, epwatch, incident_of, json, until},
};

/// Names that try to leave their place in HTML, a link, SQL or a path.
pub(crate) const HOSTILE: [&str; 9] = [
    "\"><script>alert(1)</script>",
    "javascript:alert(1)",
    "../../etc/passwd",
    "%2f%00",
    "x\\' OR 1=1 -- ",
    "a\u{202e}b\u{2066}c",
    "",
    "</title><svg onload=alert(1)>",
    "'; DROP TABLE incidents; --",
];

/// An answer of the page.
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).map(|value| value.to_str().unwrap());
        value.unwrap_or_default()
    }
}

/// A page that a test asks.
pub(crate) struct Served {
    pub(crate) server: PageServer,
    stop: CancellationToken,
}

impl Served {
    pub(crate) async fn start(store: Client) -> Self {
        Self::with(store, PageConfig::default()).await
    }

    /// With timeouts that are long enough for a machine full of tests.
    pub(crate) async fn with(store: Client, mut config: PageConfig) -> Self {
        config.timeout_factor = 8;
        Self::as_is(store, config).await
    }

    async fn as_is(store: Client, config: PageConfig) -> Self {
        Self::at(store, config, Arc::new(SystemClock)).await
    }

    /// Whose present is the clock's.
    pub(crate) async fn at(store: Client, mut config: PageConfig, clock: Arc<dyn Clock>) -> Self {
        config.listen.set_port(0);
        let stop = CancellationToken::new();
        let server = PageServer::start(&config, store, Box::new(Vec::new), clock, stop.clone());
        Self {
            server: server.await.unwrap(),
            stop,
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask(Method::GET, path, &[], "").await
    }

    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let url = format!("http://{}{path}", self.server.address());
        let mut request = Request::builder().method(method).uri(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = Full::new(Bytes::copy_from_slice(body.as_bytes()));
        let client = HttpClient::builder(TokioExecutor::new()).build_http();
        let answer = client.request(request.body(body).unwrap()).await.unwrap();
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        Answer {
            status,
            headers,
            text: String::from_utf8(body.to_vec()).unwrap(),
        }
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.server.stopped().await;
    }
}

/// Checks that every page must pass, whatever it shows.
#[track_caller]
pub(crate) fn check_page(path: &str, answer: &Answer) {
    assert_eq!(answer.status, 200, "{path}: {}", answer.text);
    let text = &answer.text;
    assert!(text.starts_with("<!doctype html>"), "{path}: {text}");
    assert_eq!(text.matches("<h1>").count(), 1, "{path}");
    for wrong in [
        "<script",
        " style=",
        "http://",
        "https://",
        "<svg onload",
        "NaN",
    ] {
        assert!(!text.contains(wrong), "{path} has {wrong}: {text}");
    }
    // A form sends back exactly what it was given.
    let parts = text.split(" value=\"").enumerate();
    let shown = parts.map(|(at, part)| match at {
        0 => part,
        _ => part.split_once('"').map_or("", |(_, rest)| rest),
    });
    for part in shown {
        assert!(!part.contains(['\u{202e}', '\u{2066}']), "{path}: {part}");
    }
    // Each term is explained once, where it first stands, and at the foot.
    let parts = text.split("href=\"#term-").skip(1);
    for term in parts.filter_map(|rest| rest.split('"').next()) {
        let link = format!("href=\"#term-{term}\"><abbr title=\"");
        assert_eq!(text.matches(&link).count(), 1, "{path}: {term}");
        assert!(
            text.contains(&format!("<dt id=\"term-{term}\">")),
            "{path}: {term}"
        );
    }
    let policy = answer.header("content-security-policy");
    assert!(policy.starts_with("default-src 'none'"), "{path}: {policy}");
    assert_eq!(answer.header("x-content-type-options"), "nosniff");
    assert_eq!(answer.header("access-control-allow-origin"), "");
}

/// Returns the addresses of a page's links, without the escapes of an attribute.
fn links(text: &str, prefix: &str) -> Vec<String> {
    let attributes = text.split("href=\"").skip(1);
    let links = attributes.filter_map(|rest| rest.split('"').next());
    let links = links.filter(|link| link.starts_with(prefix));
    links.map(|link| link.replace("&amp;", "&")).collect()
}

fn json_of(link: &str) -> String {
    let (path, query) = link.split_once('?').unwrap();
    format!("{path}.json?{query}")
}

/// Returns a page's JSON once `condition` holds for it, and nothing is left out of it. A busy machine may need several
/// readings.
async fn json_when(page: &Served, path: &str, condition: impl Fn(&Value) -> bool) -> Value {
    let read = Mutex::new(Value::Null);
    until(path, async || {
        let answer = page.get(path).await;
        let document = answer.json();
        let is_whole = document["left_out"].as_array().is_none_or(Vec::is_empty);
        let is_it = answer.status == 200 && is_whole && condition(&document);
        *read.lock().unwrap() = document;
        is_it
    })
    .await;
    read.into_inner().unwrap()
}

/// Returns a page once it has a part and leaves none out, as [`json_when`] does.
async fn page_when(page: &Served, path: &str, part: &str) -> Answer {
    let read = Mutex::new(None);
    until(path, async || {
        let answer = page.get(path).await;
        let is_it = answer.text.contains(part) && !answer.text.contains("could not be read");
        *read.lock().unwrap() = Some(answer);
        is_it
    })
    .await;
    read.into_inner().unwrap().unwrap()
}

/// What changed: the version that came, and a person's mark, on both pages and at a shell. Returns the address of the page of
/// the roll-out, which the cohort's page links.
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
    // The window's row itself says which signals fire.
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

    // One unit: the page shows the ratio that its JSON has.
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
        // The first of its kind is a link to its explanation.
        let told = format!("</abbr></a> {cv:.3} between devices");
        let told = [told, format!("CV {cv:.3} between devices")];
        let is_told = told.iter().any(|told| shown.text.contains(told));
        assert!(is_told, "none of {told:?}: {}", shown.text);
        true
    })
    .await;

    // A window that is not in the store is a gap with words.
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
    // The next step stands there once, in numbered steps with their commands apart.
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
    // The ledger was read: its page was shown above.
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
    // A typing error is not a healthy fleet.
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
    // The link of a test page.
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

    // A page that reads itself again says so, and how to stop it.
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

/// Reports of a public key from private addresses are told of, once they are most.
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

/// Each drawing that a page links stands alone: its own style, and nothing from elsewhere.
async fn check_drawings(page: &Served, text: &str) {
    let linked: Vec<String> = links(text, "/")
        .into_iter()
        .filter(|link| link.contains(".svg"))
        .collect();
    assert!(!linked.is_empty(), "{text}");
    for link in linked {
        // A reading may lack the part.
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

/// A command that prints again, until Ctrl-C.
#[track_caller]
fn check_watch(command: &mut std::process::Command, part: &str) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let twice = lines.filter(|line| line.as_ref().unwrap().contains(part));
    assert_eq!(twice.take(2).count(), 2, "{part}");
    let pid = child.id().to_string();
    let sent = std::process::Command::new("kill")
        .args(["-s", "INT", &pid])
        .status();
    assert!(sent.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

/// May the version that was paged go on? On SM8635 it may not, and the other chipsets do not change that.
#[track_caller]
fn check_rollout(at_shell: &dyn Fn(&[&str]) -> std::process::Command, environment: &str) {
    let rollout = |model: &str, version: &str, more: &[&str]| {
        let mut command = at_shell(&["rollout", APP, model, version, "--environment", environment]);
        let output = command.args(more).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let (code, text) = rollout(MODEL, "2", &[]);
    assert_eq!(code, Some(1), "{text}");
    for part in [
        "Stop: ",
        " 2 is at fault on SM8635\n",
        "stop",
        "; epwatch incident ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (_, text) = rollout(MODEL, "2", &["--json"]);
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["answer"], "stop");
    let chipsets = answer["chipsets"].as_array().unwrap();
    assert_eq!(
        (&chipsets[0]["chipset"], &chipsets[0]["answer"]),
        (&"SM8635".into(), &"stop".into())
    );
    assert!(
        chipsets[1..].iter().all(|of| of["answer"] != "stop"),
        "{text}"
    );
    // A typing error does not get an answer, and a caller has to wait for a version that is not judged yet.
    let slip = format!("{MODEL}x");
    assert_eq!(rollout(&slip, "2", &[]).0, Some(2));
    let (code, text) = rollout(MODEL, "nosuch", &[]);
    assert_eq!(code, Some(3), "{text}");
}

/// Devices of the fleet at a shell: the list, one by the first digits of its id, and ids of none.
#[track_caller]
fn check_devices(at_shell: &dyn Fn(&[&str]) -> std::process::Command, environment: &str) {
    let listed = json(&mut at_shell(&["devices", "--app", APP]));
    let rows = listed["installations"].as_array().unwrap();
    let ids: std::collections::BTreeSet<_> = rows.iter().map(|row| row["id"].as_str()).collect();
    assert!(rows.len() > 10 && ids.len() == rows.len(), "{listed}");
    let id = rows[0]["id"].as_str().unwrap();
    let short = id.get(..8).unwrap();
    let one = json(&mut at_shell(&["devices", short]));
    assert_eq!(one["installation"]["id"], id);
    assert_eq!(one["installation"]["environment"], environment);
    let (session, runs) = (&one["models"][0], &one["latencies"][0]);
    assert_eq!(
        (&session["model"], &runs["model"]),
        (&MODEL.into(), &MODEL.into())
    );
    let nodes = ["npu_nodes", "cpu_nodes"].map(|key| session[key].as_u64().unwrap());
    assert_eq!(
        Some(nodes.iter().sum()),
        session["n_nodes"].as_u64(),
        "{one}"
    );
    let times = ["min_us", "mean_us", "max_us"].map(|key| runs[key].as_f64().unwrap());
    assert!(0.0 < times[0] && times.is_sorted(), "{one}");
    assert_eq!(one["left_out"], serde_json::json!([]));
    let text = check_succeeds(&mut at_shell(&["devices", &id.to_uppercase()]));
    assert!(text.contains(id) && text.contains(MODEL), "{text}");
    let text = check_succeeds(&mut at_shell(&["devices"]));
    // The fleet has more devices than a list, so another list may have others; each has the digits to ask for.
    let digits = text.lines().nth(1).and_then(|line| line.get(..8)).unwrap();
    assert!(!text.contains(id), "{text}");
    let first = json(&mut at_shell(&["devices", digits]));
    let first = first["installation"]["id"].as_str().unwrap();
    assert!(first.starts_with(digits), "{text}");
    // Devices of the fleet still send.
    let last = json(&mut at_shell(&["devices", "--latest", "--app", APP]));
    let received = |row: &Value| row["last_received_ms"].as_i64().unwrap();
    assert_eq!(last["installation"]["app"], APP);
    assert!(
        received(&last["installation"]) >= received(&rows[0]),
        "{last}"
    );
    let absent = "00000000000000000000000000000000";
    check_fails(&mut at_shell(&["devices", absent]), 1, "no such device");
    check_fails(
        &mut at_shell(&["devices", "x' OR 1"]),
        2,
        "8 to 32 hexadecimal",
    );
    check_fails(
        &mut at_shell(&["devices", "--latest", "--app", "no.such"]),
        1,
        "no device has reported",
    );
}

/// Writes a judged window and an incident of hostile names.
async fn put_hostile(store: &Client, name: &str, at: usize) {
    let window = "INSERT INTO cohort_windows (window_end, window_seconds, app_id, environment, model_id, model_version, \
        chipset, devices, devices_hit, p50_us, npu_share, deadline_us, late_share, verdict, severity, reasons, signal_id, signal_value, \
        signal_p, signal_hits, signal_devices, judged_at) SELECT now64(3) - 10, 3600, ?, 'production', ?, ?, ?, 10, 10, \
        60000, 0.5, 33300, 0.4, 'partial_fallback', 'page', [?], ['placement_change', ?], [1, nan], [0, 1], [10, 0], [10, 0], now64(3)";
    let insert = store.query(window).bind(APP);
    let insert = insert
        .bind(name)
        .bind(name)
        .bind(name)
        .bind(name)
        .bind(name);
    insert.execute().await.unwrap();
    let mut document = incident_of(CohortKey {
        model: ModelKey::of((APP, "production"), name),
        model_version: name.to_owned(),
        chipset: name.to_owned(),
        firmware: Some(name.to_owned()),
    });
    let verdict = &mut document.cohorts[0].verdict;
    verdict.next_step = format!("`{name}` {name} keep version {name} on");
    verdict.follows = Some(name.to_owned());
    verdict.cpu_ops = vec![name.to_owned()];
    (document.delivered, document.news) = ([(name.to_owned(), 1)].into(), 1);
    let incident = "INSERT INTO incidents (incident_id, changed_at, state, severity, verdict, app_id, environment, \
        model_id, model_version, chipsets, started_at, devices_hit, devices_seen, cpu_ops, document) \
        SELECT ?, now64(3), 'firing', 'page', ?, ?, 'production', ?, ?, [?], now64(3), 10, 10, [?], ?";
    let insert = store.query(incident).bind(format!("{at}{name}")).bind(name);
    let insert = insert.bind(APP).bind(name).bind(name).bind(name).bind(name);
    insert
        .bind(write_document(&document))
        .execute()
        .await
        .unwrap();
    let ledger = "INSERT INTO loss_ledger_readings (app_id, environment, day, kind, reports, read_at) \
        SELECT ?, ?, today(), arrayJoin(['recorded', 'stored']), 10, now64(3)";
    let insert = store.query(ledger).bind(name).bind(name);
    insert.execute().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_names_go_round_through_link_page_and_json() {
    let store = Store::start().await;
    let long = "\u{e9}".repeat(2_048);
    let mut names = HOSTILE.to_vec();
    names.push(&long);
    for (at, name) in names.iter().enumerate() {
        put_hostile(&store.client(), name, at).await;
    }
    let page = Served::start(store.client()).await;
    let fleet = page.get("/fleet").await;
    check_page("/fleet", &fleet);
    let mut seen = Vec::new();
    for link in links(&fleet.text, "/cohort?") {
        let cohort = page.get(&link).await;
        check_page(&link, &cohort);
        let document = page.get(&json_of(&link)).await.json();
        let name = document["query"]["model"].as_str();
        let name = name.unwrap_or_else(|| panic!("{document}")).to_owned();
        assert_eq!(document["cohort"]["chipset"], *name, "{link}");
        assert_eq!(document["cohort"]["late_share"], 0.4, "{link}");
        assert!(cohort.text.contains("Runs later than 33.3"), "{link}");
        seen.push(name);
    }
    seen.sort();
    let mut expected = names.clone();
    expected.sort_unstable();
    assert_eq!(seen, expected);

    let incidents = page.get("/incidents").await;
    check_page("/incidents", &incidents);
    let open = links(&incidents.text, "/incident?");
    assert_eq!(open.len(), names.len());
    let mut browser = Browser::start();
    let base = format!("http://{}", page.server.address());
    let cohort = &links(&fleet.text, "/cohort?")[0];
    for (name, path) in [
        ("hostile-fleet", "/fleet"),
        ("hostile-cohort", &**cohort),
        ("hostile-incidents", "/incidents"),
        ("hostile-incident", &*open[0]),
        ("hostile-ledger", "/ledger"),
        ("hostile-health", "/health"),
    ] {
        browser.check(&base, name, path);
    }
    for link in open {
        check_page(&link, &page.get(&link).await);
        let document = page.get(&json_of(&link)).await.json();
        let incident = document["incident"].as_str().unwrap();
        assert!(
            incident.ends_with(document["model"].as_str().unwrap()),
            "{incident}"
        );
    }
    // A name as a filter finds only itself, or nothing.
    for name in names {
        let name = percent(name);
        check_page(
            "/ledger",
            &page.get(&format!("/ledger?app={name}&days={name}")).await,
        );
        check_page(
            "/incidents",
            &page.get(&format!("/incidents?app={name}")).await,
        );
        let other = format!("/fleet?app={name}&environment={name}&q={name}&show={name}");
        check_page(&other, &page.get(&other).await);
        let unknown = page.get(&format!("/incident?id={name}x")).await;
        assert_eq!(unknown.status, 404, "{}", unknown.text);
        assert!(!unknown.text.contains("<script"), "{}", unknown.text);
    }
    let count = store.count("SELECT count() FROM incidents").await;
    assert_eq!(count, 10);
    page.stop().await;
    store.engine.stop().await;
}

pub(crate) fn percent(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
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
    browser.check(&base, "orders-none", "/orders");
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
    let unread = page.get("/incidents").await;
    assert_eq!(unread.status, 503, "{}", unread.text);
    assert!(
        unread.text.contains("It last answered at"),
        "{}",
        unread.text
    );
    browser.check(&base, "stale", "/fleet");
    browser.check_answer(&base, ("error", "/incidents", None), 503);
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

/// Sends the form as a browser does.
async fn sign_in(page: &Served, site: &str, token: &str) -> Answer {
    let body = format!("token={token}&to=%2Fincidents%3Fapp%3Da");
    let headers = [("sec-fetch-site", site)];
    page.ask(Method::POST, "/token", &headers, &body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn only_this_machine_and_the_token_open_the_page() {
    let dir = tempfile::tempdir().unwrap();
    let token_file = dir.path().join("token");
    std::fs::write(&token_file, "correct-horse-battery\n").unwrap();
    // Nothing is behind it: access is decided first.
    let target = epwatch_store::StoreTarget::unix(&dir.path().join("none.sock"), "epwatch");
    let config = PageConfig {
        token_file: Some(token_file.clone()),
        hosts: vec!["page.example".to_owned()],
        trusted_proxies: vec!["127.0.0.1".parse().unwrap()],
        ..PageConfig::default()
    };
    let page = Served::with(epwatch_store::client(&target), config.clone()).await;
    let rebound = page
        .ask(Method::GET, "/fleet", &[("host", "evil.example")], "")
        .await;
    assert_eq!(rebound.status, 421);
    assert!(!rebound.text.contains('<'), "{}", rebound.text);
    let form = page.get("/fleet").await;
    assert_eq!(form.status, 401);
    assert!(form.text.contains("name=\"token\""), "{}", form.text);
    assert_eq!(page.get("/style.css").await.status, 200);
    for method in [Method::PUT, Method::DELETE, Method::POST, Method::OPTIONS] {
        assert_eq!(page.ask(method, "/fleet", &[], "").await.status, 405);
    }

    let cross = sign_in(&page, "cross-site", "correct-horse-battery").await;
    assert_eq!(cross.status, 403);
    let wrong = sign_in(&page, "same-origin", "wrong").await;
    assert_eq!(wrong.status, 401);
    // The form leads on to where it was opened.
    assert!(
        wrong.text.contains("value=\"/incidents?app=a\""),
        "{}",
        wrong.text
    );
    let mut browser = Browser::start();
    let base = format!("http://{}", page.server.address());
    browser.check_answer(&base, ("token", "/fleet", None), 401);
    drop(browser);
    let signed_in = sign_in(&page, "same-origin", "correct-horse-battery").await;
    assert_eq!(signed_in.status, 303);
    assert_eq!(signed_in.header("location"), "/incidents?app=a");
    let cookie = signed_in.header("set-cookie").to_owned();
    for part in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    let cookie = cookie.split(';').next().unwrap();
    // It is let in, and finds that the store is away.
    let inside = page
        .ask(Method::GET, "/fleet", &[("cookie", cookie)], "")
        .await;
    assert_eq!(inside.status, 503, "{}", inside.text);
    let bearer = [
        ("authorization", "Bearer correct-horse-battery"),
        ("host", "page.example"),
    ];
    assert_eq!(
        page.ask(Method::HEAD, "/fleet", &bearer, "").await.status,
        503
    );

    let wrong = [("authorization", "Bearer no")];
    for _ in 0..9 {
        assert_eq!(
            page.ask(Method::GET, "/fleet", &wrong, "").await.status,
            401
        );
    }
    let limited = page.ask(Method::GET, "/fleet", &wrong, "").await;
    assert_eq!((limited.status, limited.header("retry-after")), (429, "60"));
    let inside = page
        .ask(Method::GET, "/fleet", &[("cookie", cookie)], "")
        .await;
    assert_eq!(inside.status, 503, "an open session is not limited");
    // A caller with the right token is not limited either: a stranger behind the same proxy locks no one out.
    assert_eq!(
        page.ask(Method::HEAD, "/fleet", &bearer, "").await.status,
        503
    );
    let signed_in = sign_in(&page, "same-origin", "correct-horse-battery").await;
    assert_eq!(signed_in.status, 303);
    // The test's proxy is trusted, so other browsers behind it have their own count.
    let other = [wrong[0], ("x-forwarded-for", "198.51.100.7")];
    assert_eq!(
        page.ask(Method::GET, "/fleet", &other, "").await.status,
        401
    );
    page.stop().await;

    std::fs::write(&token_file, "short\n").unwrap();
    let stop = CancellationToken::new();
    let refused = PageServer::start(
        &config,
        epwatch_store::client(&target),
        Box::new(Vec::new),
        Arc::new(SystemClock),
        stop,
    );
    let error = refused.await.unwrap_err().to_string();
    assert!(error.contains("16 bytes or more"), "{error}");
}
