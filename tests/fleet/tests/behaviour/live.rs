//! A fleet in real time against a strict collector in this process.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::strict_server::{APP_KEY, Mood, StrictServer};
use epwatch_fleet::{Fleet, Live, LiveOptions, Placements, Progress, RecordedModel, Scenario};
use tokio_util::sync::CancellationToken;

const DEADLINE: Duration = Duration::from_secs(30);

fn start(server: &StrictServer, n_devices: usize) -> Live {
    let mut scenario = Scenario::new("app.test", "mixed", "1", n_devices);
    scenario.report_interval = Duration::from_millis(100);
    scenario.runs_per_second = 40.0;
    let placements = Placements::recorded(&[("1", RecordedModel::Int8)]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let now = i64::try_from(now.as_millis()).unwrap();
    let fleet = Fleet::new(scenario, placements, now).unwrap();
    let options = LiveOptions::new(&server.endpoint(), APP_KEY);
    Live::start(fleet, &options, CancellationToken::new()).unwrap()
}

/// Waits until the fleet has done something; polls, since the fleet runs in real time.
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

/// Everything that was sealed is on the server, once, without a gap.
fn assert_all_home(server: &StrictServer, progress: Progress) {
    assert_eq!(progress.pending, 0, "{progress:?}");
    assert_eq!(progress.acked, progress.sealed, "{progress:?}");
    server.seen(|seen| {
        assert_eq!(seen.complaints, Vec::<String>::new());
        assert_eq!(seen.stored.len() as u64, progress.sealed);
        let mut streams = BTreeMap::<_, Vec<u64>>::new();
        let mut n_runs = 0;
        for ((installation, stream, sequence), bytes) in &seen.stored {
            streams
                .entry((installation, stream))
                .or_default()
                .push(*sequence);
            let report = epwatch_proto::Report::parse(bytes).unwrap();
            n_runs += report.series.iter().map(|series| series.n).sum::<u64>();
        }
        assert_eq!(n_runs, progress.runs);
        assert_eq!(streams.len() as u64, progress.devices);
        for sequences in streams.values() {
            let expected: Vec<u64> = (1..=sequences.len() as u64).collect();
            assert_eq!(*sequences, expected);
        }
    });
}

#[tokio::test]
async fn every_report_comes_home() {
    let server = StrictServer::start(Mood::Accepts).await;
    let live = start(&server, 50);
    wait_for(&live, "second round of reports", |progress| {
        progress.acked >= 150
    })
    .await;
    let progress = live.drain(DEADLINE).await;
    assert_eq!(progress.retried, 0);
    assert_all_home(&server, progress);
}

#[tokio::test]
async fn nothing_is_lost_while_the_collector_is_down() {
    let server = StrictServer::start(Mood::Unavailable).await;
    let live = start(&server, 20);
    wait_for(&live, "failed upload of each device", |progress| {
        progress.retried >= 40
    })
    .await;
    assert_eq!(live.progress().acked, 0);
    server.set_mood(Mood::Accepts);
    let progress = live.drain(DEADLINE).await;
    assert_all_home(&server, progress);
}

#[tokio::test]
async fn a_lost_ack_brings_the_same_bytes_again() {
    let server = StrictServer::start(Mood::LosesAcks).await;
    let live = start(&server, 20);
    wait_for(&live, "lost ack of each device", |progress| {
        progress.retried >= 20
    })
    .await;
    server.set_mood(Mood::Accepts);
    let progress = live.drain(DEADLINE).await;
    assert!(server.seen(|seen| seen.n_duplicates) > 0);
    assert_all_home(&server, progress);
}

#[tokio::test]
async fn reports_refused_for_now_come_again() {
    let server = StrictServer::start(Mood::Overloaded).await;
    let live = start(&server, 20);
    wait_for(&live, "refusal of each device", |progress| {
        progress.retried >= 20
    })
    .await;
    assert_eq!(live.progress().refused, 0);
    server.set_mood(Mood::Accepts);
    let progress = live.drain(DEADLINE).await;
    assert_all_home(&server, progress);
}

#[tokio::test]
async fn a_drain_that_cannot_end_says_what_is_pending() {
    let server = StrictServer::start(Mood::Unavailable).await;
    let live = start(&server, 5);
    wait_for(&live, "report", |progress| progress.sealed >= 5).await;
    let progress = live.drain(Duration::from_millis(200)).await;
    assert!(progress.pending >= 5, "{progress:?}");
    assert_eq!(progress.acked, 0);
}
