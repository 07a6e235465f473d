//! Detectors and people's orders on a store that shows rows late, like a lagging replica. Leaders are killed, frozen or
//! stopped while people give orders. Two detectors never lead at once, and every confirmed order is obeyed.

use std::{
    collections::BTreeSet,
    fmt,
    io::Write,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use clickhouse::{Client, Row};
use epwatch_collector::schema::{self, DATABASE, Retention};
use epwatch_detector::{Detector, DetectorConfig};
use epwatch_faults::Proxy;
use epwatch_model::{
    Cause, Headline, Incident, IncidentKey, ModelKey, OrderKind, Severity, State, VerdictClass,
    write_document,
};
use epwatch_page::{NewOrder, OrderError};
use epwatch_runtimes::is_nightly;
use epwatch_server::{Period, SystemClock};
use epwatch_store::migrate;
use epwatch_test_support::{DEADLINE, until};
use jiff::Timestamp;
use serde::Deserialize;
use tokio::{sync::mpsc, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;
use tracing::{Event, Metadata, Subscriber, field, span};

use crate::support::Store;

/// The detectors' lease. Each detector's lease is some milliseconds longer, which identifies its beats. A beat may take
/// 6 s. With a lease of 4 s, a machine at thirty times its load had no leader at all.
const LEASE_MS: u32 = 8_000;

/// A lease that no leader loses because the machine is busy.
const CALM_LEASE_MS: u32 = 12_000;

/// Part of the statement with which a detector reads orders.
const ORDERS: &str = "incident_orders_v1";

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

/// Collects the orders that a detector obeys from its log.
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
    /// The leader ends at once, as by SIGKILL: its tasks never run again.
    Kill,
    /// The leader freezes for this long, and then continues.
    Freeze(Duration),
    /// The leader gives the lease back.
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
            // No window is judged, so the leader only obeys orders.
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

    async fn end(self, end: End) {
        self.end.send(end).unwrap();
        // The join blocks, and the proxies need the runtime's threads in the meantime.
        let ended = tokio::task::spawn_blocking(move || self.thread.join());
        ended.await.unwrap().unwrap();
    }
}

#[derive(Debug, Row, Deserialize)]
struct LeadBeat {
    holder: u64,
    detector: u32,
    at_ms: i64,
}

/// Returns the stored beats of leaders, in order of time.
async fn lead_beats(client: &Client) -> Vec<LeadBeat> {
    let sql = "SELECT holder, lease_ms AS detector, toUnixTimestamp64Milli(beaten_at) AS at_ms \
               FROM detector_beats WHERE leads ORDER BY beaten_at, beat";
    client.query(sql).fetch_all().await.unwrap()
}

/// Waits until another detector than `last` leads, and returns its id.
async fn leader(client: &Client, last: u32) -> u32 {
    let sql = "SELECT lease_ms FROM detector_beats WHERE leads ORDER BY beaten_at DESC, beat DESC LIMIT 1";
    let found = Mutex::new(None);
    until("another detector leads", async || {
        let latest = client.query(sql).fetch_optional::<u32>().await.unwrap();
        *found.lock().unwrap() = latest;
        latest.is_some_and(|latest| latest != last)
    })
    .await;
    found.into_inner().unwrap().unwrap()
}

/// Stores an open incident that people were notified of, and returns its id.
async fn fire(client: &Client, n: usize) -> String {
    let (id, model, now) = (format!("late-{n}"), format!("m{n}"), Timestamp::now());
    let key = IncidentKey {
        model: ModelKey::of(("com.example", "production"), &model),
        model_version: "1".to_owned(),
        cause: Cause::Slower,
    };
    let document = write_document(&Incident {
        id: id.clone(),
        state: State::Firing,
        fired_at: Some(now),
        headline: Some(Headline {
            severity: Severity::Page,
            class: VerdictClass::PartialFallback,
            chipsets: BTreeSet::from(["SM8650".to_owned()]),
        }),
        news: 1,
        ..Incident::begin(key, (now, Duration::ZERO), now)
    });
    let insert = "INSERT INTO incidents (incident_id, changed_at, state, severity, verdict, app_id, environment, \
                  model_id, model_version, chipsets, started_at, document) \
                  SELECT ?, now64(3), 'firing', 'page', 'partial_fallback', 'com.example', 'production', ?, '1', \
                  ['SM8650'], now64(3), ?";
    let insert = client.query(insert).bind(&id).bind(&model);
    insert.bind(document).execute().await.unwrap();
    id
}

/// Gives orders to one incident one after another, and returns the numbers of the confirmed ones.
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
            // The store was slow, so it may have stored the order. A repeated order may then come second to it.
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

/// Checks that no two detectors lead at once, and that only the latest leader obeys.
fn check_leaders(beats: &[LeadBeat], obeyed: &[Obeyed]) -> Figures {
    let mut over = BTreeSet::new();
    let mut figures = Figures::default();
    let mut last_ms = None;
    for term in beats.chunk_by(|a, b| a.holder == b.holder) {
        let (holder, detector) = (term[0].holder, term[0].detector);
        assert!(
            over.insert(holder),
            "{detector} leads beside another one: {beats:?}"
        );
        figures.terms += 1;
        let without_ms = term[0].at_ms - last_ms.unwrap_or(term[0].at_ms);
        figures.without_leader_ms = figures.without_leader_ms.max(without_ms);
        last_ms = term.last().map(|beat| beat.at_ms);
    }
    for order in obeyed {
        let last = beats.iter().rfind(|beat| beat.at_ms <= order.at_ms);
        let last = last.unwrap_or_else(|| panic!("nobody led: {order:?}"));
        assert_eq!(last.detector, order.detector, "{order:?}");
    }
    figures
}

/// Counts of a drill.
#[derive(Debug, Default)]
struct Figures {
    fail_overs: u64,
    /// Number of leaders' terms, at least one more than fail-overs.
    terms: u64,
    /// Longest time from the last beat of a leader to the first one of the next.
    without_leader_ms: i64,
    /// Confirmed, and obeyed.
    orders: usize,
}

/// Size of a part of a drill, which has two detectors, people, and its own database.
#[derive(Debug, Clone, Copy)]
struct Size {
    fail_overs: u64,
    incidents: usize,
    /// Orders of each incident.
    orders: usize,
}

async fn pair(store: Arc<Store>, database: String, hidden_s: u64, size: Size) -> Figures {
    let (engine, database) = (&store.engine, &*database);
    let values = schema::single_server(Retention::default());
    let target = engine.target(database);
    migrate(&target, schema::MIGRATIONS, &values).await.unwrap();
    let client = engine.client(database);
    let hidden_for = Duration::from_secs(hidden_s);
    let proxy = Proxy::hiding_rows(engine, database, hidden_for);
    let proxy = proxy.await.unwrap();
    let mut ids = Vec::new();
    for n in 0..size.incidents {
        ids.push(fire(&client, n).await);
    }
    tokio::time::sleep(hidden_for).await;

    let obeyed = Arc::<Mutex<Vec<Obeyed>>>::default();
    let mut detectors = LEASE_MS..;
    let mut start = || Running::start(detectors.next().unwrap(), proxy.client(), obeyed.clone());
    // Both are started at once, so neither has a head start.
    let mut running = vec![start(), start()];
    let authors: Vec<_> = ids
        .into_iter()
        .map(|id| tokio::spawn(author(proxy.client(), id, size.orders)))
        .collect();
    let mut last = 0;
    for n in 0..size.fail_overs {
        last = leader(&client, last).await;
        // Each leader ends at a different moment of its term.
        tokio::time::sleep(Duration::from_millis(n * 37 % 1_500)).await;
        let at = running.iter().position(|one| one.id == last).unwrap();
        match n % 3 {
            0 => running.remove(at).end(End::Kill).await,
            1 => running.remove(at).end(End::Release).await,
            _ => {
                let spell = Duration::from_millis(u64::from(LEASE_MS) + 1_000 * hidden_s + 3_000);
                let began = Instant::now();
                loop {
                    running[at].end.send(End::Freeze(spell)).unwrap();
                    // On a busy machine the leader may be back before the other detector claims the lease, and leads on.
                    if timeout(2 * spell, leader(&client, last)).await.is_ok() {
                        break;
                    }
                    assert!(began.elapsed() < DEADLINE, "{last} leads, frozen or not");
                }
                continue;
            }
        }
        running.push(start());
    }
    leader(&client, last).await;
    let mut confirmed = BTreeSet::new();
    for author in authors {
        confirmed.extend(author.await.unwrap());
    }
    assert_eq!(confirmed.len(), size.incidents * size.orders);
    until("every order is obeyed", async || {
        let obeyed = obeyed.lock().unwrap();
        let obeyed = obeyed.iter().map(|order| (order.incident.clone(), order.n));
        confirmed.is_subset(&obeyed.collect())
    })
    .await;
    for one in running {
        one.end(End::Release).await;
    }
    let obeyed = obeyed.lock().unwrap().clone();
    let found = check_leaders(&lead_beats(&client).await, &obeyed);
    assert!(found.terms > size.fail_overs, "{found:?}");
    Figures {
        fail_overs: size.fail_overs,
        orders: confirmed.len(),
        ..found
    }
}

/// The long drills of nightly runs take turns, so that each has the machine.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

async fn drill(hidden_s: u64) {
    let is_long = is_nightly("97 of 100 fail-overs of detectors, and 980 of 1,000 orders");
    let _turn = match is_long {
        true => Some(TURN.lock().await),
        false => None,
    };
    let began = Instant::now();
    // Most of the time is waiting, for a lease's end or a person's turn, so four pairs share an engine.
    let (pairs, size) = if is_long {
        let size = Size {
            fail_overs: 25,
            incidents: 10,
            orders: 25,
        };
        (4, size)
    } else {
        let size = Size {
            fail_overs: 3,
            incidents: 4,
            orders: 5,
        };
        (1, size)
    };
    let store = Arc::new(Store::without_schema().await);
    let pairs = (0..pairs).map(|n| pair(store.clone(), format!("epwatch_{n}"), hidden_s, size));
    let mut all = Figures::default();
    for one in pairs.collect::<JoinSet<_>>().join_all().await {
        all.fail_overs += one.fail_overs;
        all.terms += one.terms;
        all.without_leader_ms = all.without_leader_ms.max(one.without_leader_ms);
        all.orders += one.orders;
    }
    // This does not use `eprintln!`, whose lines are hidden if the test passes.
    let took = began.elapsed().as_secs();
    let line = format!("reads {hidden_s} s late, {took} s: {all:?}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    Arc::into_inner(store).unwrap().engine.stop().await;
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

/// A detector with its own proxy to the store, which a test can block.
struct Apart {
    running: Running,
    proxy: Proxy,
}

/// Starts two detectors on a store with an incident, and returns the one that leads first.
async fn two_apart(store: &Store, obeyed: &Arc<Mutex<Vec<Obeyed>>>) -> (Apart, Apart) {
    let proxy = || Proxy::hiding_rows(&store.engine, DATABASE, Duration::ZERO);
    let proxies = [proxy().await.unwrap(), proxy().await.unwrap()];
    // A detector reads this incident when it begins to lead.
    fire(&store.client(), 0).await;
    let mut both = Vec::new();
    for (id, proxy) in (CALM_LEASE_MS..).zip(proxies) {
        let running = Running::start(id, proxy.client(), obeyed.clone());
        both.push(Apart { running, proxy });
    }
    let first = leader(&store.client(), 0).await;
    let (second, other) = (both.pop().unwrap(), both.pop().unwrap());
    if second.running.id == first {
        (second, other)
    } else {
        (other, second)
    }
}

/// The network delays a leader's beats for longer than its lease.
#[tokio::test(flavor = "multi_thread")]
async fn the_store_refuses_a_beat_that_comes_after_its_lease() {
    let store = Store::start().await;
    let (mut first, second) = two_apart(&store, &Arc::default()).await;
    first.proxy.hold("INSERT INTO detector_beats").await;
    let next = leader(&store.client(), first.running.id).await;
    assert_eq!(next, second.running.id);
    first.proxy.let_go().await;
    check_leaders(&lead_beats(&store.client()).await, &[]);
    first.running.end(End::Release).await;
    second.running.end(End::Release).await;
    store.engine.stop().await;
}

/// The detector was the leader when it began to read the orders.
#[tokio::test(flavor = "multi_thread")]
async fn a_detector_whose_lease_ended_while_it_read_orders_obeys_none() {
    let store = Store::start().await;
    let obeyed = Arc::<Mutex<Vec<Obeyed>>>::default();
    let (mut first, second) = two_apart(&store, &obeyed).await;
    // Its first read shows the order. The second read, after which it would obey, takes long.
    first.proxy.hold(ORDERS).await;
    author(store.client(), "late-0".to_owned(), 1).await;
    first.proxy.hold_the_next().await;
    first.proxy.hold("INSERT INTO detector_beats").await;
    leader(&store.client(), first.running.id).await;
    until("the order is obeyed", async || {
        !obeyed.lock().unwrap().is_empty()
    })
    .await;
    first.proxy.let_go().await;
    // Its read continues until it waits for the lease.
    first.running.end(End::Release).await;
    let obeyed = obeyed.lock().unwrap().clone();
    check_leaders(&lead_beats(&store.client()).await, &obeyed);
    second.running.end(End::Release).await;
    store.engine.stop().await;
}
