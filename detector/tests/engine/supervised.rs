//! Tests of a detector whose tasks end by a fault, one after another. Another detector leads, or the same one
//! continues, and no page is lost or repeated. Other tests check that windows are due by the wall clock, whatever the
//! start.

use std::sync::Arc;
use std::time::Duration;

use epwatch_detector::DetectorConfig;
use epwatch_detector::notify::Notifier;
use epwatch_server::{End, FaultPoints, ManualClock, Period, TaskSet, open_metrics};
use epwatch_test_support::until;

use crate::incidents::{Running, page, rolled_out};
use crate::support::{Reports, TestStore, base, config};
use crate::windows::after;

/// A set whose tasks a test ends; they are started again after `pause`.
fn faulty(pause: Duration) -> (TaskSet, FaultPoints) {
    let faults = FaultPoints::default();
    (TaskSet::with_faults(faults.clone(), pause), faults)
}

/// A pause that is never over within a test.
const NEVER: Duration = Duration::from_secs(3_600);

async fn until_ended(tasks: &TaskSet, task: &str) {
    let line = format!("epwatch_task_ends_total{{task=\"{task}\"}} 1");
    until("the end of the task", || {
        let page = open_metrics([&tasks.registry()]);
        std::future::ready(page.lines().any(|found| found == line))
    })
    .await;
}

#[track_caller]
fn check_not_ready(tasks: &TaskSet, task: &str) {
    let reasons = tasks.not_ready();
    let text = format!("the task {task} ended");
    assert!(reasons.iter().any(|one| one.contains(&text)), "{reasons:?}");
}

/// The detector that ends gives its lease back, even in a panic. So the standby leads at its second beat at the latest.
#[tokio::test]
async fn a_standby_leads_within_two_beats_of_the_end_of_a_task() {
    for task in ["detector", "lease"] {
        let (store, base, clock, pager) = rolled_out(60).await;
        let (tasks, faults) = faulty(NEVER);
        let notifier = Arc::new(pager.clone());
        let notifiers: Vec<Arc<dyn Notifier>> = vec![notifier.clone()];
        let first = Running::start_in(tasks.clone(), config(), store.client(), &clock, notifiers);
        first.judged(after(base, 60)).await;
        let second = Running::start(&store, &clock, &pager);
        let holders = "SELECT uniqExact(holder) FROM detector_beats";
        until("a standby", || async { store.count(holders).await == 2 }).await;

        faults.end(task, End::Panic);
        until_ended(&tasks, task).await;
        check_not_ready(&tasks, task);
        // Notifiers and watchdogs end with the detector. Then only the test and the detector's restart hold the
        // notifier.
        let held = || Arc::strong_count(&notifier) == 2;
        until("the end of the notifier", || std::future::ready(held())).await;
        clock.set(after(base, 120));
        second.judged(after(base, 120)).await;
        until("the page", || std::future::ready(pager.told() == [page()])).await;
        let waited = "SELECT count() FROM detector_beats WHERE NOT leads AND NOT is_gone AND beaten_at > \
                      (SELECT max(beaten_at) FROM detector_beats WHERE is_gone)";
        assert!(store.count(waited).await <= 2, "{task}");
        first.stop().await;
        second.stop().await;
        store.stop().await;
    }
}

/// Without a standby the same process continues, and a notifier that ended delivers the outstanding news.
#[tokio::test]
async fn a_detector_alone_goes_on_after_the_end_of_each_task() {
    let (store, base, clock, pager) = rolled_out(60).await;
    let (tasks, faults) = faulty(Duration::from_millis(50));
    let notifiers: Vec<Arc<dyn Notifier>> = vec![Arc::new(pager.clone())];
    let running = Running::start_in(tasks.clone(), config(), store.client(), &clock, notifiers);
    running.judged(after(base, 60)).await;
    for (n, task) in (1..).zip(["detector", "lease", "notifier:pager"]) {
        faults.end(task, End::Return);
        until_ended(&tasks, task).await;
        clock.set(after(base, 60 + n));
        running.judged(after(base, 60 + n)).await;
    }
    clock.set(after(base, 120));
    running.judged(after(base, 120)).await;
    until("the page", || std::future::ready(pager.told() == [page()])).await;
    running.stop().await;
    assert_eq!(pager.told(), [page()]);
    store.stop().await;
}

/// A detector that cannot read an incident does not change it, and says so.
#[tokio::test]
async fn an_incident_of_another_version_stays_as_it_is() {
    let (store, base, clock, pager) = rolled_out(60).await;
    let insert = "INSERT INTO incidents (incident_id, changed_at, state, severity, verdict, app_id, environment, \
        model_id, model_version, chipsets, started_at, devices_hit, devices_seen, document) \
        SELECT 'newer-1', now64(3), 'firing', 'page', 'partial_fallback', 'camera', 'production', 'model', '2', \
        ['SM8635'], now64(3), 10, 12, '{\"version\":99,\"id\":\"newer-1\"}'";
    store.client().query(insert).execute().await.unwrap();
    let running = Running::start(&store, &clock, &pager);
    running.judged(after(base, 60)).await;
    clock.set(after(base, 120));
    running.judged(after(base, 120)).await;
    until("the page", || std::future::ready(pager.told() == [page()])).await;
    let registries = running.detector.registries();
    let metrics = open_metrics(&registries);
    let line = "epwatch_detector_unreadable_incidents 1";
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
    running.stop().await;
    let states = "SELECT count() FROM incidents WHERE incident_id = 'newer-1'";
    assert_eq!(store.count(states).await, 1);
    store.stop().await;
}

/// Rows that the store refuses are written once it accepts them.
#[tokio::test]
async fn a_store_that_takes_no_rows_for_a_while_leaves_no_hole() {
    let (store, base, clock, pager) = rolled_out(60).await;
    let run = |sql: &'static str| store.client().query(sql).execute();
    run("RENAME TABLE cohort_evidence TO aside").await.unwrap();
    let running = Running::start(&store, &clock, &pager);
    running.judged(after(base, 60)).await;
    clock.set(after(base, 120));
    running.judged(after(base, 120)).await;
    run("RENAME TABLE aside TO cohort_evidence").await.unwrap();
    for table in ["judged_windows_v1", "cohort_windows_v1"] {
        let n = format!("SELECT uniqExact(window_end) FROM {table}");
        until(table, || async { store.count(&n).await == 2 }).await;
    }
    assert!(store.count("SELECT count() FROM cohort_evidence").await > 0);
    running.stop().await;
    store.stop().await;
}

/// Checks [O1]. A detector that starts in the middle of a step judges the window before at once. It judges the next
/// window when its reports can have arrived.
#[tokio::test]
async fn windows_are_due_by_the_wall_clock_whatever_the_start() {
    let (store, base) = (TestStore::start().await, base());
    let config = DetectorConfig {
        step: Period(Duration::from_secs(60)),
        ingest_delay: None,
        ..config()
    };
    for second in [10, 70, 130] {
        Reports::default().store(&store, after(base, second)).await;
    }
    let clock = Arc::new(ManualClock::at(after(base, 95)));
    let running = Running::start_in(
        TaskSet::default(),
        config,
        store.client(),
        &clock,
        Vec::new(),
    );
    running.judged(after(base, 60)).await;
    // The clock is a second before the end of the wait of two seconds.
    clock.set(after(base, 121));
    let looks = Duration::from_secs(3);
    let early = tokio::time::timeout(looks, running.judged(after(base, 120))).await;
    assert!(early.is_err(), "its reports may be under way");
    clock.set(after(base, 122));
    running.judged(after(base, 120)).await;
    clock.set(after(base, 182));
    running.judged(after(base, 180)).await;
    running.stop().await;
    store.stop().await;
}

/// Checks [O14]: an evaluation takes four steps. The newest window comes next, and the windows before it when none is
/// due.
#[tokio::test]
async fn a_detector_slower_than_its_step_judges_the_newest_window_first_and_says_how_far_behind_it_is()
 {
    const POINT: &str = "evaluation";
    let (store, base) = (TestStore::start().await, base());
    let seconds = |n| Period(Duration::from_secs(n));
    let config = DetectorConfig {
        window: seconds(3),
        step: seconds(3),
        lookback: seconds(600),
        ..config()
    };
    for second in (57..78).step_by(3) {
        Reports::default().store(&store, after(base, second)).await;
    }
    let clock = Arc::new(ManualClock::at(after(base, 60)));
    let (tasks, faults) = faulty(NEVER);
    let client = store.client();
    let running = Running::start_in(tasks.clone(), config, client, &clock, Vec::new());
    running.judged(after(base, 60)).await;
    assert_eq!(tasks.notes(), Vec::<String>::new());
    faults.hold(POINT);
    let is_held = || std::future::ready(faults.is_waiting(POINT));
    let behind = |n: usize| {
        let text = format!("{n} windows behind");
        let is_told = tasks.notes().iter().any(|note| note.contains(&text));
        std::future::ready(is_told)
    };
    // The evaluation of the window until 63 lasts until 75.
    clock.set(after(base, 63));
    until("the evaluation", is_held).await;
    clock.set(after(base, 75));
    faults.pass(POINT, 1);
    running.judged(after(base, 63)).await;
    faults.pass(POINT, 1);
    running.judged(after(base, 75)).await;
    until("three windows behind", || behind(3)).await;
    let metrics = open_metrics(&running.detector.registries());
    let line = "epwatch_detector_windows_behind 3";
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
    let late = "the window that ended";
    assert!(!tasks.not_ready().iter().any(|one| one.contains(late)));
    // While an earlier window is judged, the next window becomes due. It comes before the other two.
    until("an earlier window", is_held).await;
    clock.set(after(base, 78));
    faults.pass(POINT, 2);
    running.judged(after(base, 78)).await;
    until("two windows behind", || behind(2)).await;
    faults.pass(POINT, 2);
    let all = "SELECT uniqExact(window_end) FROM judged_windows_v1";
    until("all windows", || async { store.count(all).await == 7 }).await;
    let missing = "SELECT count() FROM missing_windows_v1";
    assert_eq!(store.count(missing).await, 0);
    let is_told = || std::future::ready(tasks.notes().is_empty());
    until("nothing is behind", is_told).await;
    running.stop().await;
    store.stop().await;
}
