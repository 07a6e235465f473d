//! A night on call, from a roll-out to the end of its incident: page, acknowledgement, a wrong fix, a second page, the
//! right fix. The detector is killed twice, and the store gets no CPU time once. `night.txt` has the texts of each
//! channel, the page, a terminal and Grafana at each moment; `EPWATCH_BLESS=1` writes it again.
//!
//! Store, detector, notifiers and page are the real ones. The detector's clock only moves when the test sets it, and
//! the test only waits for states. So the night takes as long as the machine needs, and its texts are the same each
//! time. No collector runs: reports are written as its rows, and no bucket is ever closed. So the list of changes does
//! not have first sights of versions.

mod receivers;
mod said;

use std::{
    env, fs,
    process::Command,
    sync::{Arc, Mutex},
    time::Duration,
};

use epwatch_detector::{Detector, DetectorConfig, notify};
use epwatch_page::{PageConfig, PartStatus, TerminalPage};
use epwatch_server::{Clock, FaultPoints, ManualClock, Period, TaskSet};
use epwatch_store::embedded::EngineState;
use epwatch_test_support::until;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

use crate::{
    dashboards::{Names, Range, Reader, names, queries},
    fleet::{APP, MODEL},
    one_fleet::{FIRST, SECOND, Version},
    page::{Served, check_page},
    support::{Store, check_succeeds, epwatch},
};

use receivers::{CHANNELS, Receivers};
use said::{Said, page_lines};

const RECORD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/night/night.txt");

/// Length of a window, and the time from one to the next.
const WINDOW_MIN: i64 = 30;

/// The first version, on the chipset that never falls back.
const OTHER: Version = Version {
    fleet: 1,
    chipset: "SM8650",
    run_us: 6_000,
    ..FIRST
};

/// 2.0.0 on that chipset, as fast as 1.0.0.
const OTHER_SECOND: Version = Version {
    name: SECOND.name,
    before: Some((OTHER.name, OTHER.run_us)),
    ..OTHER
};

/// The wrong fix, as slow as 2.0.0.
const WRONG_FIX: Version = Version {
    name: "2.0.1",
    before: Some((SECOND.name, SECOND.run_us)),
    ..SECOND
};

/// The right fix, as fast as 1.0.0.
const RIGHT_FIX: Version = Version {
    name: "2.0.2",
    before: Some((WRONG_FIX.name, WRONG_FIX.run_us)),
    ..FIRST
};

/// A detector that can be killed, because it runs on its own threads.
struct Running {
    runtime: Runtime,
    tasks: TaskSet,
    _detector: Detector,
}

impl Running {
    /// Kills the detector: no task continues, and the lease is not given back.
    fn kill(self) {
        self.runtime.shutdown_background();
    }
}

struct Night {
    began: Timestamp,
    clock: Arc<ManualClock>,
    store: Store,
    receivers: Receivers,
    config: DetectorConfig,
    page: Served,
    said: Said,
}

impl Night {
    async fn begin() -> Self {
        let store = Store::start().await;
        // The last whole day, so the night is always in the past when the test begins.
        let day = Timestamp::now().as_second().div_euclid(86_400) - 1;
        let began = Timestamp::from_second(86_400 * day).unwrap();
        let clock = Arc::new(ManualClock::at(began));
        let receivers = Receivers::start(&clock);
        let minutes = |n: i64| Period(Duration::from_secs(60 * n.unsigned_abs()));
        let config = DetectorConfig {
            window: minutes(WINDOW_MIN),
            step: minutes(WINDOW_MIN),
            bucket: Period(Duration::from_secs(1)),
            lookback: minutes(12 * 60),
            dashboard_url: Some("https://epwatch.example/incident?id={incident}".to_owned()),
            runbook_url: Some("https://epwatch.example/oncall.md".to_owned()),
            ..receivers.config(store.dir.path())
        };
        let page = Served::at(store.client(), PageConfig::default(), clock.clone()).await;
        Self {
            said: Said::of(began),
            began,
            clock,
            store,
            receivers,
            config,
            page,
        }
    }

    fn at(&self, hours: i64, minutes: i64) -> Timestamp {
        self.began + SignedDuration::from_mins(60 * hours + minutes)
    }

    fn set(&self, hours: i64, minutes: i64) {
        self.clock.set(self.at(hours, minutes));
    }

    async fn reported(&self, version: Version, hours: i64, minutes: i64) {
        version
            .store(self.store.client(), self.at(hours, minutes))
            .await;
    }

    fn detector(&self, faults: &FaultPoints) -> Running {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        let runtime = runtime.unwrap();
        let on_it = runtime.enter();
        let tasks = TaskSet::with_faults(faults.clone(), Duration::from_millis(50));
        let detector = Detector::start_in(
            tasks.clone(),
            self.config.clone(),
            self.store.client(),
            notify::notifiers(&self.config, std::io::sink()).unwrap(),
            self.clock.clone(),
            CancellationToken::new(),
        );
        let _detector = detector.unwrap();
        drop(on_it);
        Running {
            runtime,
            tasks,
            _detector,
        }
    }

    /// Waits until the window that ends at this time is judged.
    async fn judged(&self, hours: i64, minutes: i64) {
        let end = self.at(hours, minutes).as_millisecond();
        let sql = format!(
            "SELECT count() FROM judged_windows_v1 WHERE toUnixTimestamp64Milli(window_end) = {end}"
        );
        until("the window is judged", async || {
            self.store.count(&sql).await > 0
        })
        .await;
    }

    /// Returns the documents of all incidents, as the store has them.
    async fn incidents(&self) -> Vec<Value> {
        let sql = "SELECT document FROM incidents_v1 ORDER BY started_at, incident_id";
        let documents = self.store.client().query(sql).fetch_all::<String>().await;
        let documents = documents.unwrap().into_iter();
        documents
            .map(|text| serde_json::from_str(&text).unwrap())
            .collect()
    }

    /// Waits until these channels have all news.
    async fn told(&self, channels: &[&str]) {
        until("the channels have all news", async || {
            let incidents = self.incidents().await;
            let mut sent = incidents
                .iter()
                .filter(|incident| incident["part_of"].is_null());
            sent.all(|incident| {
                let of = |channel: &&str| incident["delivered"][*channel].as_u64().unwrap_or(0);
                let news = incident["news"].as_u64().unwrap();
                channels.iter().all(|channel| of(channel) >= news)
            })
        })
        .await;
    }

    /// Lets the detector judge the window that ends at this time, a minute and a half later.
    async fn goes_on(&mut self, hours: i64, minutes: i64, event: &str) {
        let judged_at = self.at(hours, minutes) + SignedDuration::from_secs(90);
        self.clock.set(judged_at);
        self.judged(hours, minutes).await;
        self.told(&CHANNELS).await;
        self.look(event).await;
    }

    /// Records the present texts of all speakers.
    async fn look(&mut self, event: &str) {
        self.said.moment(self.clock.now(), event);
        let told = self.receivers.take();
        self.said.by_channels(&told);
        let fleet = self.shown("/fleet").await;
        self.said.by("page /fleet", &fleet);
        let list = self.shown("/incidents").await;
        self.said.by("page /incidents", &list);
        let incidents = self.incidents().await;
        let ids: Vec<&str> = incidents
            .iter()
            .map(|of| of["id"].as_str().unwrap())
            .collect();
        for id in &ids {
            let shown = self.shown(&format!("/incident?id={id}")).await;
            // The page also repeats the texts as they were sent, which are recorded elsewhere.
            let sent = shown
                .iter()
                .position(|line| line.starts_with("The text as it was sent"));
            let shown = &shown[..sent.unwrap_or(shown.len())];
            self.said.by(
                &format!("page of incident {}", version_of(&incidents, id)),
                shown,
            );
        }
        let status = TerminalPage::Fleet {
            app: None,
            environment: None,
            search: String::new(),
        };
        let lines = self.at_shell(status).await;
        self.said.by("epwatch status", &lines);
        for id in &ids {
            let one = TerminalPage::Incident {
                id: (*id).to_owned(),
                link: None,
                is_ticket: false,
            };
            let lines = self.at_shell(one).await;
            self.said.by(
                &format!("epwatch incident {}", version_of(&incidents, id)),
                &lines,
            );
        }
        self.grafana().await;
    }

    /// Returns a page as text, once no part is left out and it shows the present state.
    async fn shown(&self, path: &str) -> Vec<String> {
        let now = self.clock.now().to_string();
        let (page, query) = path.split_once('?').unwrap_or((path, ""));
        let json = format!("{page}.json?{query}");
        until(&json, async || {
            let document = self.page.get(&json).await.json();
            let left_out = document["left_out"].as_array().is_none_or(Vec::is_empty);
            document["read_at"] == now.as_str() && left_out
        })
        .await;
        // The page has what was read for the document, or later.
        let is_whole = async |shown: &str| {
            let is_old = ["could not be read", "The store does not answer"];
            !is_old.iter().any(|text| shown.contains(text))
        };
        self.shown_when(path, is_whole).await
    }

    /// Returns a page as text, once the condition holds for it.
    async fn shown_when(&self, path: &str, condition: impl AsyncFn(&str) -> bool) -> Vec<String> {
        let lines = Mutex::new(Vec::new());
        until(path, async || {
            let answer = self.page.get(path).await;
            let is_it = condition(&answer.text).await;
            *lines.lock().unwrap() = page_lines(&answer.text);
            is_it
        })
        .await;
        lines.into_inner().unwrap()
    }

    async fn at_shell(&self, question: TerminalPage) -> Vec<String> {
        let read = async || {
            let facts = Box::pin(std::future::ready(Vec::<PartStatus>::new()));
            let answer = epwatch_page::ask(
                self.store.client(),
                question.clone(),
                facts,
                self.clock.clone(),
            );
            let answer = answer.await.ok()?;
            let document: Value = serde_json::from_slice(&answer.json).unwrap();
            let is_whole = document["left_out"].as_array().is_none_or(Vec::is_empty);
            is_whole.then_some(answer.text)
        };
        let text = Mutex::new(String::new());
        until("an answer at a shell", async || match read().await {
            Some(answer) => {
                *text.lock().unwrap() = answer;
                true
            }
            None => false,
        })
        .await;
        text.into_inner()
            .unwrap()
            .lines()
            .filter(|line| !line.is_empty())
            .map(str::to_owned)
            .collect()
    }

    async fn grafana(&mut self) {
        let range = Range::at(self.clock.now());
        let mut names: Names<'_> = names(&["2.0.0"], &[FIRST.chipset]);
        names.insert("baseline", Some(vec!["1.0.0"]));
        let reader = Reader::on(&self.store);
        for (name, sql) in queries() {
            // Annotations get names like panels.
            let columns = PANELS
                .iter()
                .find(|(panel, _)| *panel == name && !sql.contains(" AS timeEnd"));
            let Some((_, columns)) = columns else {
                continue;
            };
            let rows = reader.rows(&name, &range.expanded(&sql, &names)).await;
            let rows = rows.iter().map(|row| {
                let row: Vec<Value> = serde_json::from_str(row).unwrap();
                row.iter()
                    .take(*columns)
                    .map(Value::to_string)
                    .collect::<Vec<_>>()
                    .join(" ")
            });
            let rows: Vec<String> = rows.collect();
            self.said.by(&format!("Grafana: {name}"), &rows);
        }
    }

    /// Sends a signal to the store's process. Stopped, it gets no CPU time, as on a thrashing machine.
    fn signal_store(&self, signal: &str) {
        let EngineState::Ready { pid, .. } = *self.store.engine.state().borrow() else {
            panic!("the engine is not ready");
        };
        let sent = Command::new("kill")
            .args(["-s", signal, &pid.to_string()])
            .status();
        assert!(sent.unwrap().success());
    }

    /// Stores an order with the night's time, because the store would stamp it with the machine's clock.
    async fn ordered(&self, incident: &str, kind: &str, who: &str, why: &str) {
        let insert = "INSERT INTO incident_orders (order_id, incident_id, order_number, order_kind, who, why, source, app_id, \
            environment, model_id, model_version, ordered_at) \
            SELECT 'order-1', ?, 1, ?, ?, ?, 'page', ?, 'production', ?, '2.0.0', fromUnixTimestamp64Milli(?)";
        let client = self.store.client();
        let insert = client
            .query(insert)
            .bind(incident)
            .bind(kind)
            .bind(who)
            .bind(why)
            .bind(APP)
            .bind(MODEL);
        insert
            .bind(self.clock.now().as_millisecond())
            .execute()
            .await
            .unwrap();
        until("the detector obeys", async || {
            self.incidents()
                .await
                .iter()
                .any(|incident| incident["orders"]["last"] == 1)
        })
        .await;
    }
}

/// Panels that are recorded during the night, with the number of columns.
const PANELS: [(&str, usize); 4] = [
    ("\"Open incidents\" of \"Fleet\"", 3),
    ("\"Devices by chipset\" of \"Fleet\"", 3),
    (
        "\"From the start of a fault to its page\" of \"Incidents\"",
        2,
    ),
    ("\"Incidents\" of \"Incidents\"", 4),
];

fn version_of<'a>(incidents: &'a [Value], id: &str) -> &'a str {
    let mut of_id = incidents.iter().filter(|incident| incident["id"] == id);
    of_id.next().unwrap()["key"]["model_version"]
        .as_str()
        .unwrap()
}

/// Checks [O17]: the link of a test notification opens a page that says that it was a test.
#[tokio::test(flavor = "multi_thread")]
async fn the_link_of_a_test_page_opens_a_page_that_says_so() {
    let store = Store::start().await;
    let receivers = Receivers::start(&Arc::new(ManualClock::at(Timestamp::now())));
    let page = Served::start(store.client()).await;
    let base = format!("http://{}", page.server.address());
    let config = store.dir.path().join("epwatch.toml");
    let toml = format!(
        "[detector]\nstdout = false\ndashboard_url = \"{base}/incident?id={{incident}}\"\n\
         [[detector.alertmanager]]\nurl = \"{}\"\n",
        receivers.url()
    );
    fs::write(&config, toml).unwrap();
    check_succeeds(epwatch("detector test-page --config").arg(&config));
    let told = receivers.take();
    let link = told[0].1["annotations"]["dashboard_url"].as_str().unwrap();
    let opened = page.get(link.strip_prefix(&base).unwrap()).await;
    check_page(link, &opened);
    let text = &opened.text;
    for part in [
        "<h1>This was a test, sent at ",
        "You reached the right place",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    page.stop().await;
    store.engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_night_from_a_roll_out_to_its_end_says_the_same_each_time() {
    let mut night = Night::begin().await;
    let healthy = FaultPoints::default();
    let mut detector = night.detector(&healthy);
    for (hours, minutes) in [(0, 0), (0, 30), (1, 0)] {
        night.reported(FIRST, hours, minutes + 10).await;
        night.reported(OTHER, hours, minutes + 11).await;
        night.clock.set(night.at(hours, minutes + 31));
        night.judged(hours, minutes + 30).await;
    }
    night.set(1, 32);
    night.look("All is well: 1.0.0 on both chipsets.").await;

    // 2.0.0 is rolled out. The detector is killed while it judges the window.
    night.reported(FIRST, 1, 35).await;
    night.reported(OTHER, 1, 36).await;
    night.reported(SECOND, 1, 45).await;
    night.reported(OTHER_SECOND, 1, 46).await;
    healthy.hold("evaluation");
    night.clock.set(night.at(2, 1));
    until("it judges", async || healthy.is_waiting("evaluation")).await;
    detector.kill();
    assert!(night.receivers.take().is_empty());
    detector = night.detector(&FaultPoints::default());
    night.goes_on(2, 0, "2.0.0 is out since 01:45. The detector was killed while it judged, and another one took over.").await;

    night.set(2, 10);
    let incident = night.incidents().await[0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    night.ordered(&incident, "ack", "Ada", "on it").await;
    night.told(&CHANNELS).await;
    night.look("Ada acknowledges.").await;

    night.reported(SECOND, 2, 15).await;
    night.reported(OTHER_SECOND, 2, 16).await;
    night.signal_store("STOP");
    night.set(2, 42);
    night.said.moment(
        night.clock.now(),
        "The store is starved. A window is over and not judged.",
    );
    let is_stale = async |shown: &str| shown.contains("The store does not answer");
    let stale = night.shown_when("/fleet", is_stale).await;
    night.said.by("page /fleet", &stale);
    assert!(night.receivers.take().is_empty());
    night.signal_store("CONT");
    night.judged(2, 30).await;
    night.set(2, 44);
    night.told(&CHANNELS).await;
    night
        .look("The store has time again. The window is judged late.")
        .await;

    // [O11]: no device ran 1.0.0 in this window, but its earlier runs are drawn.
    let document = night
        .page
        .get(&format!("/incident.json?id={incident}"))
        .await
        .json();
    let reference = &document["evidence"]["reference"];
    assert!(
        reference["version"] == FIRST.name && reference["latencies"].is_object(),
        "{reference}"
    );

    // Slack is unreachable while the second page is sent, and the detector is killed before Slack has the page.
    night.reported(WRONG_FIX, 2, 50).await;
    night.reported(OTHER_SECOND, 2, 51).await;
    night.receivers.slack_is_away(true);
    night.clock.set(night.at(3, 1));
    night.judged(3, 0).await;
    let but_slack: Vec<&str> = CHANNELS
        .into_iter()
        .filter(|name| *name != "slack")
        .collect();
    night.told(&but_slack).await;
    // The fifth attempt in a row that fails is recorded, and no other for ten minutes.
    until("Slack's failures are recorded", async || {
        let incidents = night.incidents().await;
        incidents[0]["failing"]["slack"]["times"] == 5
    })
    .await;
    night
        .look("2.0.1 is out since 02:50, and mends nothing. Slack is away.")
        .await;
    detector.kill();
    night.receivers.slack_is_away(false);
    detector = night.detector(&FaultPoints::default());
    night.told(&CHANNELS).await;
    night.set(3, 5);
    night
        .look("The detector was killed. The next one tells Slack.")
        .await;

    night.reported(RIGHT_FIX, 3, 20).await;
    night.reported(OTHER_SECOND, 3, 21).await;
    night
        .goes_on(3, 30, "2.0.2 is out since 03:20, the right fix.")
        .await;
    for (hours, minutes, event) in [
        (4, 0, "The second clean window."),
        (4, 30, "The third clean window ends the incident."),
        (5, 0, "The window after."),
    ] {
        night.reported(RIGHT_FIX, hours, minutes - 10).await;
        night.reported(OTHER_SECOND, hours, minutes - 9).await;
        night.goes_on(hours, minutes, event).await;
    }
    assert_eq!(detector.tasks.not_ready(), Vec::<String>::new());
    detector.kill();
    night.page.stop().await;

    let said = night.said.text();
    if env::var_os("EPWATCH_BLESS").is_some() {
        fs::write(RECORD, said).unwrap();
    }
    let record = fs::read_to_string(RECORD).unwrap_or_default();
    let differs = said
        .lines()
        .zip(record.lines())
        .position(|(said, record)| said != record);
    assert!(
        said == record,
        "the night says other things than night.txt, from line {differs:?} on:\n{said}"
    );
    night.store.engine.stop().await;
}
