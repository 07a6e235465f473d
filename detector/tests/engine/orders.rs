//! Orders of people: from rows of the store to what the leader does, over restarts.

use std::sync::Arc;

use epwatch_detector::DetectorConfig;
use epwatch_detector::notify::Occasion;
use epwatch_detector::read::Source;
use epwatch_detector::replay::{ReplayOptions, replay};
use epwatch_server::ManualClock;
use epwatch_test_support::until;
use jiff::Timestamp;

use crate::incidents::{Pager, Running, healthy_window, rolled_out};
use crate::support::{Place, Reports, TestStore, V2_FALLEN, config};
use crate::windows::after;

/// A version with most of its work on the CPU.
const V3_FALLEN: Place = Place {
    fingerprint: 31,
    npu_nodes: 10,
    cpu_nodes: 5,
    npu_macs_share: Some(0.3),
    cpu_ops: &["Conv", "Conv", "Conv", "Gemm", "Softmax"],
};

/// A person's order, as the command and the page write it.
struct Order {
    n: u64,
    kind: &'static str,
    who: &'static str,
    until: Option<Timestamp>,
}

impl Order {
    fn new(n: u64, kind: &'static str) -> Self {
        Self {
            n,
            kind,
            who: "Ada",
            until: None,
        }
    }

    async fn put(&self, store: &TestStore) {
        let insert = "INSERT INTO incident_orders (order_id, incident_id, order_number, order_kind, who, until, why, source, app_id, \
            environment, model_id, model_version) SELECT concat(?, toString(?)), incident_id, ?, ?, ?, \
            if(? = 0, NULL, fromUnixTimestamp64Milli(?)), 'on it', 'command', app_id, environment, model_id, \
            model_version FROM incidents_v1 ORDER BY changed_at DESC LIMIT 1";
        let until = self.until.map_or(0, Timestamp::as_millisecond);
        let query = store.client().query(insert).bind(self.who).bind(self.n);
        let query = query
            .bind(self.n)
            .bind(self.kind)
            .bind(self.who)
            .bind(until)
            .bind(until);
        query.execute().await.unwrap();
    }
}

/// Stores a version's runs on SM8635 in the minute after `at`.
async fn run(store: &TestStore, at: Timestamp, version: &'static str, place: Place, p50_us: f64) {
    let previous = match version {
        "2.0.0" => ("1.0.0", 8_200.0),
        _ => ("2.0.0", 24_000.0),
    };
    let reports = Reports {
        version,
        place,
        p50_us,
        previous: Some(previous),
        ..Reports::default()
    };
    reports.store(store, at).await;
}

struct Watched {
    store: TestStore,
    clock: Arc<ManualClock>,
    pager: Pager,
    base: Timestamp,
}

impl Watched {
    /// Starts a fleet whose incident fires two minutes after its start.
    async fn firing() -> (Self, Running) {
        let (store, base, clock, pager) = rolled_out(120).await;
        let running = Running::start(&store, &clock, &pager);
        running.judged(after(base, 120)).await;
        let watched = Self {
            store,
            clock,
            pager,
            base,
        };
        watched.told(&[Occasion::Firing]).await;
        (watched, running)
    }

    fn occasions(&self) -> Vec<Occasion> {
        let told = self.pager.told().into_iter();
        told.map(|(occasion, _)| occasion).collect()
    }

    async fn told(&self, expected: &[Occasion]) {
        let is_told = || std::future::ready(self.occasions().len() >= expected.len());
        until("a notification", is_told).await;
        assert_eq!(self.occasions(), expected);
    }

    /// Waits until the stored incident has the number of an order.
    async fn obeyed(&self, n: u64) {
        let stored = format!(
            "SELECT toUInt64(count()) FROM incidents_v1 WHERE JSONExtractUInt(document, 'orders', 'last') = {n}"
        );
        until("the order in the incident", || async {
            self.store.count(&stored).await == 1
        })
        .await;
    }

    async fn judge(&self, running: &Running, second: i64) {
        self.clock.set(after(self.base, second));
        running.judged(after(self.base, second)).await;
    }

    fn at(&self, second: i64) -> Timestamp {
        after(self.base, second)
    }
}

#[tokio::test]
async fn the_leader_obeys_what_counts_and_a_resolved_fault_stays_quiet_over_a_restart() {
    use Occasion::{Acknowledged, Firing, Reopened, Resolved};
    let (watched, running) = Watched::firing().await;
    let store = &watched.store;
    Order::new(1, "ack").put(store).await;
    let rival = Order {
        who: "Bob",
        ..Order::new(1, "resolve")
    };
    rival.put(store).await;
    watched.told(&[Firing, Acknowledged]).await;
    // Notifiers get the state first, then the store.
    watched.obeyed(1).await;
    let by_ada = "SELECT count() FROM incidents_v1 WHERE state = 'firing' \
                  AND JSONExtractString(document, 'orders', 'ack', 'who') = 'Ada'";
    assert_eq!(store.count(by_ada).await, 1);
    let counted = "SELECT count() FROM incident_orders_v1 WHERE is_counted = (who = 'Ada')";
    assert_eq!(store.count(counted).await, 2);

    // The pager holds no alerts by itself, so it gets no notification of a mute.
    let mute = Order {
        until: Some(watched.at(7_200)),
        ..Order::new(2, "mute")
    };
    mute.put(store).await;
    watched.obeyed(2).await;
    // An order of a kind from a newer version, which this detector skips.
    Order::new(3, "escalate").put(store).await;
    Order::new(4, "reopen").put(store).await;
    watched.told(&[Firing, Acknowledged, Reopened]).await;

    Order::new(5, "resolve").put(store).await;
    let quiet = [Firing, Acknowledged, Reopened, Resolved];
    watched.told(&quiet).await;
    run(store, watched.at(130), "2.0.0", V2_FALLEN, 24_000.0).await;
    watched.judge(&running, 180).await;
    running.stop().await;
    let running = Running::start(store, &watched.clock, &watched.pager);
    run(store, watched.at(190), "2.0.0", V2_FALLEN, 24_000.0).await;
    watched.judge(&running, 240).await;
    let at_fault = "SELECT count() FROM cohort_windows_v1 WHERE severity = 'page'";
    assert!(
        store.count(at_fault).await >= 3,
        "its verdicts are stored as they are"
    );
    assert_eq!(watched.occasions(), quiet);
    assert_eq!(store.count("SELECT count() FROM incidents_v1").await, 1);

    // After a clean window, the fault notifies again.
    healthy_window(store, watched.at(250)).await;
    watched.judge(&running, 300).await;
    run(store, watched.at(310), "2.0.0", V2_FALLEN, 24_000.0).await;
    watched.judge(&running, 360).await;
    watched
        .told(&[Firing, Acknowledged, Reopened, Resolved, Firing])
        .await;
    assert_eq!(store.count("SELECT count() FROM incidents_v1").await, 2);
    running.stop().await;
    watched.store.stop().await;
}

#[tokio::test]
async fn what_was_accepted_is_the_reference_until_the_next_version() {
    use Occasion::{Firing, Resolved};
    let (watched, running) = Watched::firing().await;
    let store = &watched.store;
    Order::new(1, "accept").put(store).await;
    watched.told(&[Firing, Resolved]).await;
    run(store, watched.at(130), "2.0.0", V2_FALLEN, 24_000.0).await;
    watched.judge(&running, 180).await;
    // The next version is as slow as the accepted one.
    run(store, watched.at(190), "2.1.0", V2_FALLEN, 24_000.0).await;
    watched.judge(&running, 240).await;
    let as_before = "SELECT count() FROM cohort_windows_v1 WHERE model_version = '2.1.0' AND verdict = 'healthy'";
    assert_eq!(store.count(as_before).await, 1);
    assert_eq!(watched.occasions(), [Firing, Resolved]);
    // The version after it is worse.
    run(store, watched.at(250), "3.0.0", V3_FALLEN, 72_000.0).await;
    watched.judge(&running, 300).await;
    watched.told(&[Firing, Resolved, Firing]).await;
    running.stop().await;
    watched.store.stop().await;
}

/// A page that was called false ends. A replay counts it with its reason and signals, until a reopen cancels that.
#[tokio::test]
async fn a_page_that_was_called_false_ends_and_a_replay_counts_it() {
    use Occasion::{Firing, Reopened, Resolved};
    let (watched, running) = Watched::firing().await;
    let store = &watched.store;
    let options = ReplayOptions {
        config: DetectorConfig {
            step: config().window,
            ..config()
        },
        from: None,
        to: None,
        all: false,
        modes: false,
    };
    let replayed = async || {
        let source = Source::new(store.client(), 100_000);
        let mut keep = |_| Ok(());
        let replayed = replay(source, &options, &mut keep).await.unwrap();
        replayed.summary
    };
    assert_eq!(replayed().await.called_false, None);

    Order::new(1, "false").put(store).await;
    watched.told(&[Firing, Resolved]).await;
    watched.obeyed(1).await;
    run(store, watched.at(130), "2.0.0", V2_FALLEN, 24_000.0).await;
    watched.judge(&running, 180).await;
    assert_eq!(watched.occasions(), [Firing, Resolved], "the same finding");
    let summary = replayed().await;
    let called = summary.called_false.unwrap();
    assert_eq!((called.fired, called.raised_again), (1, 1), "{called:#?}");
    let only = &called.incidents[0].incident;
    assert_eq!((&*only.who, &*only.why), ("Ada", "on it"));
    assert_eq!(called.by_verdict, [(only.verdict.clone(), 1)].into());
    assert!(
        called.by_signal.keys().eq(only.signals.iter()) && called.by_signal.len() > 1,
        "{called:#?}"
    );

    Order::new(2, "reopen").put(store).await;
    watched.told(&[Firing, Resolved, Reopened]).await;
    assert_eq!(replayed().await.called_false, None);
    running.stop().await;
    watched.store.stop().await;
}

/// An order waits in the store for a detector.
#[tokio::test]
async fn an_order_outlives_a_restart_of_all() {
    let (watched, running) = Watched::firing().await;
    Order::new(1, "ack").put(&watched.store).await;
    running.stop().await;
    let dir = watched.store.halt().await;
    let store = TestStore::resume(dir).await;
    let running = Running::start(&store, &watched.clock, &watched.pager);
    until("the ack after the restart", || {
        let told = watched.pager.told();
        std::future::ready(told.iter().any(|(told, _)| *told == Occasion::Acknowledged))
    })
    .await;
    running.stop().await;
    store.stop().await;
}

/// Orders of a kind that only a newer version knows stay undone, so they are read again each time.
#[tokio::test]
async fn ten_thousand_orders_before_it_keep_no_order_back() {
    use Occasion::{Acknowledged, Firing};
    let (watched, running) = Watched::firing().await;
    let undone = "INSERT INTO incident_orders (order_id, incident_id, order_number, order_kind, who, why, source, app_id, \
        environment, model_id, model_version) SELECT toString(number), incident_id, number + 1, 'escalate', 'Bob', 'x', \
        'command', app_id, environment, model_id, model_version \
        FROM (SELECT * FROM incidents_v1 ORDER BY changed_at DESC LIMIT 1) AS i CROSS JOIN numbers(10000) AS n";
    watched
        .store
        .client()
        .query(undone)
        .execute()
        .await
        .unwrap();
    Order::new(10_001, "ack").put(&watched.store).await;
    watched.told(&[Firing, Acknowledged]).await;
    watched.obeyed(10_001).await;
    running.stop().await;
    watched.store.stop().await;
}
