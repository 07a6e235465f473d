//! From verdicts to people, over restarts.

use std::sync::{Arc, Mutex};

use epwatch_detector::notify::{Notification, Notifier, NotifyError, Occasion, Stdout};
use epwatch_detector::{Detector, DetectorConfig};
use epwatch_server::{ManualClock, TaskSet};
use epwatch_test_support::until;
use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::support::{MODEL_SHA256, Reports, TestStore, base, config};
use crate::windows::{after, roll_out};

/// Returns a store with a roll-out that falls back, its start, a clock so many seconds later, and a pager.
pub(crate) async fn rolled_out(seconds: i64) -> (TestStore, Timestamp, Arc<ManualClock>, Pager) {
    let (store, base) = (TestStore::start().await, base());
    roll_out(&store, base).await;
    let clock = Arc::new(ManualClock::at(after(base, seconds)));
    (store, base, clock, Pager::default())
}

/// The notification of that roll-out's fault.
pub(crate) fn page() -> (Occasion, Vec<String>) {
    (Occasion::Firing, vec!["SM8635".to_owned()])
}

/// A channel that keeps the notifications it received, and refuses them while it is down.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pager {
    told: Arc<Mutex<Vec<Notification>>>,
    is_down: Arc<Mutex<bool>>,
}

impl Pager {
    pub(crate) fn told(&self) -> Vec<(Occasion, Vec<String>)> {
        let told = self.told.lock().unwrap();
        told.iter()
            .map(|n| (n.occasion, n.incident.chipsets()))
            .collect()
    }
}

impl Notifier for Pager {
    fn name(&self) -> &str {
        "pager"
    }

    fn notify<'a>(
        &'a self,
        notification: &'a Notification,
        _now: Timestamp,
    ) -> BoxFuture<'a, Result<(), NotifyError>> {
        let result = if *self.is_down.lock().unwrap() {
            Err(NotifyError::Busy {
                channel: "pager".into(),
                status: 503,
                after: None,
            })
        } else {
            self.told.lock().unwrap().push(notification.clone());
            Ok(())
        };
        std::future::ready(result).boxed()
    }
}

pub(crate) struct Running {
    pub(crate) detector: Detector,
    cancel: CancellationToken,
}

impl Running {
    pub(crate) fn start(store: &TestStore, clock: &Arc<ManualClock>, pager: &Pager) -> Running {
        Self::start_over(store.client(), clock, pager)
    }

    pub(crate) fn start_over(
        client: clickhouse::Client,
        clock: &Arc<ManualClock>,
        pager: &Pager,
    ) -> Running {
        let notifiers: Vec<Arc<dyn Notifier>> = vec![
            Arc::new(pager.clone()),
            Arc::new(Stdout::new(std::io::sink())),
        ];
        Self::start_in(TaskSet::default(), config(), client, clock, notifiers)
    }

    pub(crate) fn start_in(
        tasks: TaskSet,
        config: DetectorConfig,
        client: clickhouse::Client,
        clock: &Arc<ManualClock>,
        notifiers: Vec<Arc<dyn Notifier>>,
    ) -> Running {
        let cancel = CancellationToken::new();
        let (clock, stop) = (clock.clone(), cancel.clone());
        let detector = Detector::start_in(tasks, config, client, notifiers, clock, stop);
        Running {
            detector: detector.unwrap(),
            cancel,
        }
    }

    pub(crate) async fn judged(&self, end: Timestamp) {
        let verdicts = self.detector.verdicts();
        let is_there = || {
            let judged = verdicts
                .borrow()
                .iter()
                .any(|verdict| verdict.window_end == end);
            std::future::ready(judged)
        };
        until("the window's verdict", is_there).await;
    }

    pub(crate) async fn stop(self) {
        self.cancel.cancel();
        self.detector.stopped().await;
    }
}

pub(crate) async fn healthy_window(store: &TestStore, at: Timestamp) {
    Reports::v2().store(store, at).await;
}

#[tokio::test]
async fn a_restart_neither_repeats_nor_forgets() {
    let (store, base, clock, pager) = rolled_out(60).await;

    let running = Running::start(&store, &clock, &pager);
    running.judged(after(base, 60)).await;
    assert_eq!(pager.told(), []);
    clock.set(after(base, 120));
    running.judged(after(base, 120)).await;
    let page = (Occasion::Firing, vec!["SM8635".to_owned()]);
    until("the page", || {
        std::future::ready(pager.told() == [page.clone()])
    })
    .await;
    running.stop().await;
    let firing = "SELECT count() FROM incidents_v1 WHERE state = 'firing' AND severity = 'page' \
                  AND verdict = 'partial_fallback' AND chipsets = ['SM8635'] AND devices_hit = 30 \
                  AND has(cpu_ops, 'Gemm')";
    assert_eq!(store.count(firing).await, 1);
    let named = format!("{firing} AND position(document, '{MODEL_SHA256}') > 0");
    assert_eq!(store.count(&named).await, 1, "the model's file");
    assert_eq!(store.count("SELECT count() FROM incidents_v1").await, 1);

    // The next detector gets the same evidence again, and then three clean windows.
    let running = Running::start(&store, &clock, &pager);
    clock.set(after(base, 125));
    running.judged(after(base, 125)).await;
    assert_eq!(pager.told(), std::slice::from_ref(&page));
    for minute in 2..6 {
        healthy_window(&store, after(base, 60 * minute + 10)).await;
        clock.set(after(base, 60 * (minute + 1) + 10));
        running.judged(after(base, 60 * (minute + 1) + 10)).await;
    }
    let over = (Occasion::Resolved, vec!["SM8635".to_owned()]);
    let told = [page, over];
    until("the all-clear", || std::future::ready(pager.told() == told)).await;
    running.stop().await;
    assert_eq!(
        store
            .count("SELECT count() FROM incidents_v1 WHERE state = 'resolved'")
            .await,
        1
    );

    // No news is left to deliver.
    let running = Running::start(&store, &clock, &pager);
    healthy_window(&store, after(base, 60 * 6 + 12)).await;
    clock.set(after(base, 60 * 6 + 15));
    running.judged(after(base, 60 * 6 + 15)).await;
    running.stop().await;
    assert_eq!(pager.told(), told);

    let stored = "SELECT count() FROM cohort_windows_v1 WHERE verdict = 'partial_fallback' \
                  AND isNotNull(cv_within) AND isNotNull(cv_between) AND isNotNull(dip) \
                  AND has(signal_id, 'slower_with_placement_change')
                  AND has(signal_id, 'placement_change') AND has(signal_id, 'slower_than_2.0x')";
    assert_eq!(store.count(stored).await, 2);
    store.stop().await;
}

/// A page waits in the store, not in memory.
#[tokio::test]
async fn a_page_that_could_not_be_delivered_is_delivered_after_a_restart() {
    let (store, base, clock, pager) = rolled_out(120).await;
    *pager.is_down.lock().unwrap() = true;

    let running = Running::start(&store, &clock, &pager);
    running.judged(after(base, 120)).await;
    running.stop().await;
    assert_eq!(pager.told(), []);

    *pager.is_down.lock().unwrap() = false;
    let running = Running::start(&store, &clock, &pager);
    let page = [(Occasion::Firing, vec!["SM8635".to_owned()])];
    until("the page", || std::future::ready(pager.told() == page)).await;
    running.stop().await;
    assert_eq!(pager.told(), page);
    store.stop().await;
}

/// A healthy roll-out of the same shape notifies nobody.
#[tokio::test]
async fn a_healthy_roll_out_is_quiet() {
    let store = TestStore::start().await;
    let base = base();
    for chipset in ["SM8635", "SM8650", "SM8550"] {
        Reports {
            chipset,
            ..Reports::default()
        }
        .store(&store, after(base, 10))
        .await;
        let v2 = Reports {
            chipset,
            ..Reports::v2()
        };
        v2.store(&store, after(base, 70)).await;
    }
    let clock = Arc::new(ManualClock::at(after(base, 60)));
    let pager = Pager::default();
    let running = Running::start(&store, &clock, &pager);
    running.judged(after(base, 60)).await;
    clock.set(after(base, 120));
    running.judged(after(base, 120)).await;
    running.stop().await;
    assert_eq!(pager.told(), []);
    assert_eq!(store.count("SELECT count() FROM incidents").await, 0);
    let healthy = "SELECT count() FROM cohort_windows_v1 WHERE verdict = 'healthy'";
    assert_eq!(store.count(healthy).await, 6);
    store.stop().await;
}

#[tokio::test]
async fn a_wrong_configuration_is_refused_whole() {
    let mut config = config();
    config.lookback = epwatch_server::Period(std::time::Duration::from_secs(1));
    config.step = epwatch_server::Period(std::time::Duration::from_secs(7200));
    let cancel = CancellationToken::new();
    let client = clickhouse::Client::default();
    let clock = Arc::new(ManualClock::at(base()));
    let error = Detector::start(config, client, Vec::new(), clock, cancel).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("lookback") && text.contains("step"), "{text}");
}

/// The window that could not be judged is judged when the store is back, with one notification.
#[tokio::test]
async fn a_store_that_is_away_loses_no_page() {
    let (store, base, clock, pager) = rolled_out(60).await;
    let running = Running::start(&store, &clock, &pager);
    running.judged(after(base, 60)).await;

    let dir = store.halt().await;
    clock.set(after(base, 120));
    let metrics = running.detector.metrics();
    until("a failed evaluation", || {
        std::future::ready(metrics.failures() > 0)
    })
    .await;
    assert_eq!(pager.told(), []);

    let store = TestStore::resume(dir).await;
    running.judged(after(base, 120)).await;
    let page = [(Occasion::Firing, vec!["SM8635".to_owned()])];
    until("the page", || std::future::ready(pager.told() == page)).await;
    running.stop().await;
    assert_eq!(pager.told(), page);
    assert_eq!(
        store
            .count("SELECT count() FROM incidents_v1 WHERE state = 'firing'")
            .await,
        1
    );
    store.stop().await;
}
