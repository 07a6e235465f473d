//! A fleet in real time against a strict collector in this process.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use epwatch_fleet::{Fleet, Live, Placements, Progress, RecordedModel, Scenario};
use epwatch_strict_collector::{Answer, Collector};
use tonic::Status;

const DEADLINE: Duration = Duration::from_secs(300);
const APP_KEY: &str = "fleet-test-key";

fn collector(answer: Option<Answer>) -> Collector {
    let collector = Collector::start(APP_KEY);
    collector.answer_from_now_on(answer);
    collector
}

fn down() -> Status {
    Status::unavailable("down for the test")
}

fn start(collector: &Collector, n_devices: usize) -> Live {
    let mut scenario = Scenario::new("app.test", "mixed", "1", n_devices);
    scenario.report_interval = Duration::from_millis(100);
    scenario.runs_per_second = 40.0;
    let placements = Placements::recorded(&[("1", RecordedModel::INT8)]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let now = i64::try_from(now.as_millis()).unwrap();
    let fleet = Fleet::new(scenario, placements, now).unwrap();
    Live::start(fleet, &collector.endpoint(), APP_KEY).unwrap()
}

/// Waits until the progress meets a condition. It polls, because the fleet runs in real time.
async fn wait_for(live: &Live, what: &str, holds: impl Fn(Progress) -> bool) {
    let waited = tokio::time::timeout(DEADLINE, async {
        while !holds(live.progress()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    if waited.await.is_err() {
        panic!("no {what} within {DEADLINE:?}: {:?}", live.progress());
    }
}

/// Checks that the collector has each sealed report once, without a gap.
fn assert_all_home(collector: &Collector, progress: Progress) {
    assert_eq!(progress.pending, 0, "{progress:?}");
    assert_eq!(progress.acked, progress.sealed, "{progress:?}");
    let stored = collector.stored();
    assert_eq!(stored.len() as u64, progress.sealed);
    let mut streams = BTreeMap::<_, Vec<u64>>::new();
    let mut n_runs = 0;
    for (key, bytes) in &stored {
        let stream = streams.entry((key.installation, key.stream)).or_default();
        stream.push(key.sequence.get());
        let report = epwatch_proto::Report::parse(bytes).unwrap();
        n_runs += report.series.iter().map(|series| series.n).sum::<u64>();
    }
    assert_eq!(n_runs, progress.runs);
    assert_eq!(streams.len() as u64, progress.devices);
    for sequences in streams.values() {
        let expected: Vec<u64> = (1..=sequences.len() as u64).collect();
        assert_eq!(*sequences, expected);
    }
}

#[tokio::test]
async fn every_report_comes_home() {
    let collector = collector(None);
    let live = start(&collector, 50);
    wait_for(&live, "second round of reports", |progress| {
        progress.acked >= 150
    })
    .await;
    let progress = live.drain(DEADLINE).await;
    assert_eq!(progress.retried, 0);
    assert_all_home(&collector, progress);
}

/// Checks that every report arrives, once, after a time in which the collector gives this answer. Returns the collector,
/// and the progress at the end of that time.
async fn check_recovers(answer: Answer, retried: u64) -> (Collector, Progress) {
    let collector = collector(Some(answer));
    let live = start(&collector, 20);
    wait_for(&live, "retry of each device", |p| p.retried >= retried).await;
    let before = live.progress();
    collector.answer_from_now_on(None);
    let progress = live.drain(DEADLINE).await;
    assert_all_home(&collector, progress);
    (collector, before)
}

#[tokio::test]
async fn nothing_is_lost_while_the_collector_is_down() {
    let (_, before) = check_recovers(Answer::Fail(down()), 40).await;
    assert_eq!(before.acked, 0);
}

#[tokio::test]
async fn a_lost_ack_brings_the_same_bytes_again() {
    let (collector, _) = check_recovers(Answer::StoreAndFail(down()), 20).await;
    assert!(collector.n_duplicates() > 0);
}

#[tokio::test]
async fn reports_refused_for_now_come_again() {
    let (_, before) = check_recovers(Answer::Overloaded, 20).await;
    assert_eq!(before.refused, 0);
}

#[tokio::test]
async fn a_drain_that_cannot_end_says_what_is_pending() {
    let collector = collector(Some(Answer::Fail(down())));
    let live = start(&collector, 5);
    wait_for(&live, "report", |progress| progress.sealed >= 5).await;
    let progress = live.drain(Duration::from_millis(200)).await;
    assert!(progress.pending >= 5, "{progress:?}");
    assert_eq!(progress.acked, 0);
}
