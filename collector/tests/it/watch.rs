//! Metrics and readiness that operators watch: the lag of the store, and whether the writer runs.

use std::backtrace::Backtrace;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use epwatch_collector::Collector;
use epwatch_collector::config::CollectorConfig;
use epwatch_proto::v1;
use epwatch_server::Period;
use epwatch_server::{Clock, SystemClock};
use epwatch_test_support::until;
use tokio_util::sync::CancellationToken;

use crate::support::{
    COUNTED, Store, TIMEOUT, config, connect, metric, report, request, send, start, started,
};

/// The machine's clock, moved ahead by this many microseconds.
#[derive(Debug, Default)]
struct Ahead(AtomicU64);

impl Clock for Ahead {
    fn now_us(&self) -> u64 {
        SystemClock.now_us() + self.0.load(Ordering::Relaxed)
    }
}

async fn start_with_clock(
    store: &Store,
    config: CollectorConfig,
    clock: Arc<dyn Clock>,
) -> Collector {
    let (client, stop) = (store.client.clone(), CancellationToken::new());
    let starting = Collector::start_with_clock(config, client, stop, clock);
    starting.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_nobody_sends_to_does_not_lag() {
    const HOUR_US: u64 = 3_600_000_000;
    let store = Store::start().await;
    let clock = Arc::new(Ahead::default());
    let config = config(&store.dir.path().join("wal"));
    let collector = start_with_clock(&store, config, clock.clone()).await;
    let lag = || metric(&collector, "epwatch_collector_wal_lag_seconds");
    until("it is complete", async || lag() < 600.0).await;
    clock.0.store(HOUR_US, Ordering::Relaxed);
    until("it is complete an hour later", async || lag() < 600.0).await;
    collector.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_started_again_knows_that_nothing_waits() {
    let (store, collector, mut device) = started().await;
    send(&mut device, &[report(1, 1, 1), report(1, 1, 2)]).await;
    until("all is stored", async || collector.is_drained()).await;
    collector.stop().await;

    let again = start(&store, "wal").await;
    until("nothing waits", async || again.is_drained()).await;
    assert_eq!(metric(&again, "epwatch_collector_wal_lag_bytes"), 0.0);
    again.stop().await;
}

/// A clock that panics in functions of one module, as a mistake there would.
#[derive(Debug)]
struct Trap {
    module: &'static str,
    is_set: AtomicBool,
}

impl Trap {
    fn within(module: &'static str) -> Arc<Self> {
        let is_set = AtomicBool::new(false);
        Arc::new(Self { module, is_set })
    }

    fn set(&self) {
        self.is_set.store(true, Ordering::Relaxed);
    }
}

impl Clock for Trap {
    fn now_us(&self) -> u64 {
        if self.is_set.load(Ordering::Relaxed) {
            // Symbols contain the module's name even without debug information.
            let callers = Backtrace::force_capture().to_string();
            assert!(
                !callers.contains(self.module),
                "{} steps into the trap of a test",
                self.module
            );
        }
        SystemClock.now_us()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_whose_writer_died_ends_and_loses_nothing() {
    let store = Store::start().await;
    let clock = Trap::within("epwatch_collector::writer::");
    let first = config(&store.dir.path().join("wal"));
    let collector = start_with_clock(&store, first, clock.clone()).await;
    let mut device = connect(&collector).await;
    clock.set();
    // The report may be acknowledged or not, because the collector may have ended already.
    let _ = device.upload(request(&[report(1, 1, 1)])).await;
    tokio::time::timeout(TIMEOUT, collector.stopped())
        .await
        .expect("it ends by itself");
    let ends = "epwatch_task_ends_total{task=\"writer\"}";
    assert_eq!(metric(&collector, ends), 1.0);
    collector.stop().await;

    let again = start(&store, "wal").await;
    let mut device = connect(&again).await;
    send(&mut device, &[report(1, 1, 1)]).await;
    store.eventually(COUNTED, 1).await;
    again.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_carries_out_no_deletions_any_more_ends() {
    let store = Store::start().await;
    let clock = Trap::within("epwatch_collector::deletions::worker::");
    let mut config = config(&store.dir.path().join("wal"));
    config.refresh = Period(Duration::from_millis(50));
    let collector = start_with_clock(&store, config, clock.clone()).await;
    let mut device = connect(&collector).await;
    clock.set();
    let secret = vec![1; 32].into();
    let unknown = v1::DeleteInstallationRequest { secret };
    // The collector may have ended already.
    let _ = device.delete_installation(unknown).await;
    tokio::time::timeout(TIMEOUT, collector.stopped())
        .await
        .expect("it ends by itself");
    collector.stop().await;
}

/// The page has values next to their limits, so that the time left can be computed by a division.
#[tokio::test(flavor = "multi_thread")]
async fn sizes_limits_and_free_space_are_on_the_page() {
    let store = Store::start().await;
    let mut config = config(&store.dir.path().join("wal"));
    config.refresh = Period(Duration::from_millis(10));
    let collector = crate::support::start_with(&store, config).await;
    let of = |name: &str| metric(&collector, &format!("epwatch_collector_{name}"));
    let is_read = || of("store_disk_bytes ") > 0.0 && of("store_disk_free_bytes ") > 0.0;
    until("the store's size is read", async || is_read()).await;
    assert!(of("wal_free_bytes ") > of("wal_min_free_bytes "));
    assert_eq!(of("wal_max_bytes "), f64::from(64 << 20));
    assert!(of("connections_max ") >= 100.0);
    assert_eq!(of("tls_not_after_timestamp_seconds "), 0.0);
    store.end(collector).await;
}
