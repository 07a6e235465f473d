//! Ends each task of a collector by a fault. Tasks without which reports are not taken or stored end the collector, and
//! the others are started again.

use std::sync::Arc;
use std::time::Duration;

use epwatch_collector::Collector;
use epwatch_server::{End, FaultPoints, SystemClock, TaskSet};
use epwatch_test_support::until;
use tokio_util::sync::CancellationToken;

use crate::support::{
    COUNTED, Store, TIMEOUT, config, connect, metric, report, request, send, start,
};

/// Tasks that end the process, as the table in ARCHITECTURE.md says.
const ESSENTIAL: [&str; 7] = [
    "deletions",
    "device-port",
    "roll-up",
    "wal-completion",
    "wal-housekeeper",
    "wal-writer",
    "writer",
];

/// Tasks that are started again.
const RESTARTED: [&str; 6] = [
    "admin-port",
    "directives",
    "known-installations",
    "loss-ledger",
    "rebuilds",
    "reload",
];

async fn start_in(store: &Store, wal: &str) -> (Collector, TaskSet, FaultPoints) {
    let faults = FaultPoints::default();
    let tasks = TaskSet::with_faults(faults.clone(), Duration::from_millis(100));
    let config = config(&store.dir.path().join(wal));
    let (client, stop) = (store.client.clone(), CancellationToken::new());
    let clock = Arc::new(SystemClock);
    let collector = Collector::start_in(tasks.clone(), config, client, stop, clock).await;
    (collector.unwrap(), tasks, faults)
}

fn ends(collector: &Collector, task: &str) -> f64 {
    metric(
        collector,
        &format!("epwatch_task_ends_total{{task=\"{task}\"}}"),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_reports_need_ends_the_collector_and_loses_nothing() {
    let store = Store::start().await;
    for (n, task) in (1..).zip(ESSENTIAL) {
        for (end, wal) in [(End::Panic, "panics"), (End::Return, "returns")] {
            let wal = format!("{task}-{wal}");
            let (collector, tasks, faults) = start_in(&store, &wal).await;
            let mut device = connect(&collector).await;
            send(
                &mut device,
                &[report(1, 10 * n, 1 + u64::from(end == End::Return))],
            )
            .await;
            faults.end(task, end);
            // The threads of the WAL end at their next group, so a report is sent. It may be acknowledged or not,
            // because the collector may have ended already.
            let lost = report(2, 10 * n, 1 + u64::from(end == End::Return));
            let _ = device.upload(request(std::slice::from_ref(&lost))).await;
            let failed = tokio::time::timeout(TIMEOUT, tasks.failed()).await;
            let failed = failed.unwrap_or_else(|_| panic!("{task} goes on"));
            assert!(failed.contains(task), "{failed}");
            assert_eq!(ends(&collector, task), 1.0, "{task}");
            let reasons = tasks.not_ready();
            let is_named = reasons.iter().any(|reason| reason.contains(task));
            assert!(is_named, "{task}: {reasons:?}");
            let ended = tokio::time::timeout(TIMEOUT, collector.stopped()).await;
            ended.unwrap_or_else(|_| panic!("the collector goes on without {task}"));
            collector.stop().await;

            let again = start(&store, &wal).await;
            let mut device = connect(&again).await;
            send(&mut device, &[lost]).await;
            until("all is stored", async || again.is_drained()).await;
            again.stop().await;
        }
        store.eventually(COUNTED, 4 * n).await;
    }
    store.engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_reports_do_not_need_is_started_again() {
    let store = Store::start().await;
    let (collector, tasks, faults) = start_in(&store, "wal").await;
    let mut device = connect(&collector).await;
    for (n, task) in (1..).zip(RESTARTED) {
        for (times, end) in [(1.0, End::Panic), (2.0, End::Return)] {
            faults.end(task, end);
            until(task, async || ends(&collector, task) == times).await;
            let reasons = tasks.not_ready();
            let is_named = reasons.iter().any(|reason| reason.contains(task));
            assert!(is_named, "{task}: {reasons:?}");
            let up = format!("epwatch_task_up{{task=\"{task}\"}}");
            until("it runs again", async || metric(&collector, &up) == 1.0).await;
        }
        send(&mut device, &[report(1, 1, n)]).await;
    }
    let is_ready = || tasks.not_ready().is_empty();
    until("the collector is ready again", async || is_ready()).await;
    store.eventually(COUNTED, RESTARTED.len() as u64).await;
    store.end(collector).await;
}
