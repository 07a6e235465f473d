//! The file of baselines: processes share it, it counts as lost if it cannot be read, and it never delays a report.

use std::{fs, path::Path};

use epwatch_proto::{BaselineAbsence, Baselines, Phase};
use epwatch_sdk::{Watch, policy::COLD_RUNS};

use crate::support::{self, KEY, TIMEOUT, collector::Collector, session_of};

fn start(dir: &Path, collector: &Collector) -> Watch {
    support::start(support::config(dir, &collector.endpoint()))
}

/// Records warm runs of a version.
fn run(watch: &Watch, version: &str, runs: u64) {
    support::run(&session_of(watch, "m", version), COLD_RUNS + runs);
}

/// Baselines of the last report's warm series.
fn reported(collector: &Collector) -> Baselines {
    let report = collector.reports().pop().unwrap();
    let warm = report
        .series
        .into_iter()
        .find(|s| s.stratum.phase == Phase::Warm);
    warm.unwrap().baselines
}

#[test]
fn processes_of_an_app_share_one_file_of_baselines() {
    let dir = tempfile::tempdir().unwrap();
    let collector = Collector::start(KEY);
    let both = [start(dir.path(), &collector), start(dir.path(), &collector)];
    for watch in &both {
        run(watch, "1", 30);
        watch.flush(TIMEOUT).unwrap();
    }
    assert!(both.iter().all(|watch| watch.stop(TIMEOUT).is_ok()));

    let next = start(dir.path(), &collector);
    run(&next, "2", 10);
    next.flush(TIMEOUT).unwrap();
    let Baselines::Known(known) = reported(&collector) else {
        panic!("{:?}", reported(&collector));
    };
    assert_eq!((known[0].model_version.as_str(), known[0].n), ("1", 60));
    next.stop(TIMEOUT).unwrap();
}

#[test]
fn a_damaged_file_is_reported_as_lost_and_later_baselines_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let collector = Collector::start(KEY);
    let file = dir.path().join("baselines");
    fs::write(&file, b"{\"is_lost\": false, \"entries\": [[{}, 7").unwrap();
    for (version, runs) in [("1", 30), ("2", 10)] {
        let watch = start(dir.path(), &collector);
        run(&watch, version, runs);
        watch.flush(TIMEOUT).unwrap();
        watch.stop(TIMEOUT).unwrap();
        match version {
            "1" => assert_eq!(reported(&collector).absence(), Some(BaselineAbsence::Lost)),
            _ => assert_eq!(reported(&collector).known()[0].n, 30),
        }
    }
}

#[test]
fn updates_wait_until_they_can_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let collector = Collector::start(KEY);
    let file = dir.path().join("baselines");
    fs::create_dir(&file).unwrap();
    let watch = start(dir.path(), &collector);
    run(&watch, "1", 30);
    // The report arrives nevertheless.
    let error = watch.flush(TIMEOUT).map_err(|e| e.to_string());
    assert_eq!(collector.reports().len(), 1, "{error:?}");
    fs::remove_dir(&file).unwrap();
    run(&watch, "1", 5);
    watch.flush(TIMEOUT).unwrap();
    watch.stop(TIMEOUT).unwrap();

    let next = start(dir.path(), &collector);
    run(&next, "2", 10);
    next.flush(TIMEOUT).unwrap();
    assert_eq!(reported(&collector).known()[0].n, 35);
    next.stop(TIMEOUT).unwrap();
}
