//! Detectors and people's orders before a store that shows rows late, as a replica does that lags. Leaders are killed,
//! frozen or stopped while people order. At no time do two lead, and every order that was confirmed is obeyed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use clickhouse::{Client, Row};
use epwatch_detector::{Detector, DetectorConfig};
use epwatch_faults::LateReads;
use epwatch_page::{NewOrder, OrderError, OrderKind};
use epwatch_runtimes::is_nightly;
use epwatch_server::{Period, SystemClock};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{Event, Metadata, Subscriber, field, span};

use crate::support::{Store, until};

/// Lease of the detectors. Each has some milliseconds more, by which its beats are known.
const LEASE_MS: u32 = 4_000;

/// An order that a detector obeyed, with the wall clock's time in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Obeyed {
    at_ms: i64,
    detector: u32,
    incident: String,
    n: u64,
}

fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_millis()).unwrap()
}

/// Reads the detector's log for the orders that it obeys.
struct Log {
    detector: u32,
    obeyed: Arc<Mutex<Vec<Obeyed>>>,
}

#[derive(Default)]
struct Fields {
    message: String,
    incident: String,
    n: u64,
}

impl field::Visit for Fields {
    fn record_u64(&mut self, field: &field::Field, value: u64) {
        if field.name() == "n" {
            self.n = value;
        }
    }

    fn record_str(&mut self, field: &field::Field, value: &str) {
        if field.name() == "incident" {
            value.clone_into(&mut self.incident);
        }
    }

    fn record_debug(&mut self, field: &field::Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "incident" => self.incident = format!("{value:?}").trim_matches('"').to_owned(),
            _ => {}
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("epwatch_detector")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        if fields.message == "an order is obeyed" {
            self.obeyed.lock().unwrap().push(Obeyed {
                at_ms: now_ms(),
                detector: self.detector,
                incident: fields.incident,
                n: fields.n,
            });
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// How a leader ends.
#[derive(Debug, Clone, Copy)]
enum End {
    /// At once, as by SIGKILL: its tasks never run again.
    Kill,
    /// It stands still for so long, and goes on.
    Freeze(Duration),
    /// It gives the lease back.
    Release,
}

/// A detector on a thread of its own.
struct Running {
    id: u32,
    end: mpsc::UnboundedSender<End>,
    thread: thread::JoinHandle<()>,
}

impl Running {
    fn start(id: u32, client: Client, obeyed: Arc<Mutex<Vec<Obeyed>>>) -> Self {
        let (end, mut ends) = mpsc::unbounded_channel();
        let config = DetectorConfig {
            lease: Period(Duration::from_millis(u64::from(id))),
            // Nothing is judged: obeying orders is what the leader does.
            ingest_delay: Some(Period(Duration::from_secs(20_000 * 365 * 86_400))),
            stdout: false,
            ..DetectorConfig::for_demo()
        };
        let thread = thread::spawn(move || {
            let _log = tracing::subscriber::set_default(Log {
                detector: id,
                obeyed,
            });
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().unwrap();
            runtime.block_on(async {
                let cancel = CancellationToken::new();
                let clock = Arc::new(SystemClock);
                let started = Detector::start(config, client, Vec::new(), clock, cancel.clone());
                let detector = started.unwrap();
                loop {
                    match ends.recv().await {
                        Some(End::Freeze(spell)) => thread::sleep(spell),
                        Some(End::Release) => {
                            cancel.cancel();
                            return detector.stopped().await;
                        }
                        Some(End::Kill) | None => return,
                    }
                }
            });
            runtime.shutdown_background();
        });
        Self { id, end, thread }
    }

    fn end(self, end: End) {
        self.end.send(end).unwrap();
        self.thread.join().unwrap();
    }
}

#[derive(Debug, Row, Deserialize)]
struct LeadBeat {
    holder: u64,
    detector: u32,
    at_ms: i64,
}

/// The beats of leaders, the first first, as they are stored.
async fn lead_beats(client: &Client) -> Vec<LeadBeat> {
    let sql = "SELECT holder, lease_ms AS detector, toUnixTimestamp64Milli(beaten_at) AS at_ms \
               FROM detector_beats WHERE leads ORDER BY beaten_at, beat";
    in_force(client.query(sql).fetch_all().await.unwrap())
}

/// Leaves out beats that a detector wrote before it was frozen and that arrived after its lease. It judges nothing then:
/// its own clock says so.
fn in_force(beats: Vec<LeadBeat>) -> Vec<LeadBeat> {
    let mut last = BTreeMap::new();
    let is_in_time = |beat: &LeadBeat| {
        let before = last.insert(beat.holder, beat.at_ms);
        before.is_none_or(|before| beat.at_ms - before < i64::from(beat.detector))
    };
    beats.into_iter().filter(is_in_time).collect()
}

/// Waits until another detector than `last` leads, and returns its id.
async fn leader(client: &Client, last: u32) -> u32 {
    let found = Mutex::new(None);
    until("another detector leads", async || {
        let beats = lead_beats(client).await;
        let latest = beats.last().map(|beat| beat.detector);
        *found.lock().unwrap() = latest;
        latest.is_some_and(|latest| latest != last)
    })
    .await;
    found.into_inner().unwrap().unwrap()
}

/// Stores an open incident that people were notified of, and returns its id.
async fn fire(client: &Client, n: usize) -> String {
    let (id, model, now) = (format!("late-{n}"), format!("m{n}"), Timestamp::now());
    let document = json!({
        "version": 1,
        "id": id,
        "key": {
            "model": {"app_id": "com.example", "environment": "production", "model_id": model},
            "model_version": "1",
            "cause": "slower",
        },
        "state": "firing",
        "started_at": now,
        "fired_at": now,
        "cohorts": [],
        "headline": {"severity": "page", "class": "partial_fallback", "chipsets": ["SM8650"]},
        "news": 1,
        "delivered": {},
    });
    let insert = "INSERT INTO incidents (incident_id, changed_at, state, severity, verdict, app_id, environment, \
                  model_id, model_version, chipsets, started_at, document) \
                  SELECT ?, now64(3), 'firing', 'page', 'partial_fallback', 'com.example', 'production', ?, '1', \
                  ['SM8650'], now64(3), ?";
    let insert = client.query(insert).bind(&id).bind(&model);
    insert.bind(document.to_string()).execute().await.unwrap();
    id
}

/// Orders one after another of one incident, and returns the numbers of those that were confirmed.
async fn author(client: Client, incident: String, orders: usize) -> Vec<(String, u64)> {
    let mut confirmed = Vec::new();
    let mut kind = OrderKind::Ack;
    while confirmed.len() < orders {
        let new = NewOrder {
            incident: incident.clone(),
            kind,
            who: "Ada".to_owned(),
            why: "drill".to_owned(),
            mute_for: None,
            seen: None,
            source: "command",
        };
        match epwatch_page::order(client.clone(), new).await {
            Ok(placed) => {
                let placed = serde_json::to_value(placed).unwrap();
                confirmed.push((incident.clone(), placed["n"].as_u64().unwrap()));
                kind = other(kind);
            }
            // The store was slow, so it may or may not have it; then it may come second to itself.
            Err(OrderError::Store(_) | OrderError::Hidden | OrderError::CameSecond { .. }) => {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            // It had it.
            Err(OrderError::State(text))
                if text.contains("already") || text.contains("no order") =>
            {
                kind = other(kind);
            }
            Err(error) => panic!("{incident}: {error}"),
        }
    }
    confirmed
}

fn other(kind: OrderKind) -> OrderKind {
    match kind {
        OrderKind::Ack => OrderKind::Reopen,
        _ => OrderKind::Ack,
    }
}

/// No two detectors lead at once, and only the latest to lead obeys.
fn check_leaders(beats: &[LeadBeat], obeyed: &[Obeyed]) -> usize {
    let mut over = BTreeSet::new();
    let mut terms = 0;
    for pair in beats.chunk_by(|a, b| a.holder == b.holder) {
        let (holder, detector) = (pair[0].holder, pair[0].detector);
        assert!(
            over.insert(holder),
            "{detector} leads beside another one: {beats:?}"
        );
        terms += 1;
    }
    for order in obeyed {
        let last = beats.iter().rfind(|beat| beat.at_ms <= order.at_ms);
        let last = last.unwrap_or_else(|| panic!("nobody led: {order:?}"));
        assert_eq!(last.detector, order.detector, "{order:?}");
    }
    terms
}

async fn drill(hidden_s: u64) {
    let is_whole = is_nightly("97 of 100 fail-overs of detectors, and 980 of 1,000 orders");
    let (fail_overs, incidents, orders) = if is_whole { (100, 8, 125) } else { (3, 4, 5) };
    let store = Store::start().await;
    let hidden_for = Duration::from_secs(hidden_s);
    let proxy = LateReads::before(&store.engine, hidden_for).await.unwrap();
    let mut ids = Vec::new();
    for n in 0..incidents {
        ids.push(fire(&store.client(), n).await);
    }
    tokio::time::sleep(hidden_for).await;

    let obeyed = Arc::<Mutex<Vec<Obeyed>>>::default();
    let mut detectors = LEASE_MS..;
    let mut start = || Running::start(detectors.next().unwrap(), proxy.client(), obeyed.clone());
    // Both at once: neither has a head start.
    let mut running = vec![start(), start()];
    let authors: Vec<_> = ids
        .into_iter()
        .map(|id| tokio::spawn(author(proxy.client(), id, orders)))
        .collect();
    let mut last = 0;
    for n in 0..fail_overs {
        last = leader(&store.client(), last).await;
        // At different moments of its term.
        tokio::time::sleep(Duration::from_millis(n * 37 % 1_500)).await;
        let at = running.iter().position(|one| one.id == last).unwrap();
        match n % 3 {
            0 => running.remove(at).end(End::Kill),
            1 => running.remove(at).end(End::Release),
            _ => {
                let spell = Duration::from_millis(u64::from(LEASE_MS) + 1_000 * hidden_s + 3_000);
                running[at].end.send(End::Freeze(spell)).unwrap();
                continue;
            }
        }
        running.push(start());
    }
    leader(&store.client(), last).await;
    let mut confirmed = BTreeSet::new();
    for author in authors {
        confirmed.extend(author.await.unwrap());
    }
    assert_eq!(confirmed.len(), incidents * orders);
    until("every order is obeyed", async || {
        let obeyed = obeyed.lock().unwrap();
        let obeyed = obeyed.iter().map(|order| (order.incident.clone(), order.n));
        confirmed.is_subset(&obeyed.collect())
    })
    .await;
    for one in running {
        one.end(End::Release);
    }
    let obeyed = obeyed.lock().unwrap().clone();
    let terms = check_leaders(&lead_beats(&store.client()).await, &obeyed);
    assert!(
        terms > usize::try_from(fail_overs).unwrap(),
        "{terms} terms"
    );
    store.engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_detector_leads_and_no_order_is_lost_where_reads_are_through_a_proxy() {
    drill(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_detector_leads_and_no_order_is_lost_where_reads_are_a_second_late() {
    drill(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_detector_leads_and_no_order_is_lost_where_reads_are_five_seconds_late() {
    drill(5).await;
}
