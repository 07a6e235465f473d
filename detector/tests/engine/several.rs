//! Several detectors on one store: one judges and notifies, and another takes over when it ends.

use epwatch_test_support::until;

use crate::incidents::{Pager, Running, healthy_window, page, rolled_out};
use crate::support::{Reports, TestStore};
use crate::windows::after;

async fn stands(store: &TestStore, leaders: u64, of: u64) {
    let sql = "SELECT countIf(led) * 1000 + count() FROM (SELECT argMax(leads, beat) AS led \
               FROM detector_beats GROUP BY holder)";
    until("a leader among the detectors", || async {
        store.count(sql).await == leaders * 1_000 + of
    })
    .await;
}

#[tokio::test]
async fn two_detectors_on_one_store_page_once_and_hand_over() {
    let (store, base, clock, pager) = rolled_out(60).await;
    let first = Running::start(&store, &clock, &pager);
    first.judged(after(base, 60)).await;
    let second = Running::start(&store, &clock, &pager);
    stands(&store, 1, 2).await;

    clock.set(after(base, 120));
    first.judged(after(base, 120)).await;
    until("the page", || std::future::ready(pager.told() == [page()])).await;
    let judged_by_second = second.detector.verdicts().borrow().len();
    assert_eq!(judged_by_second, 0, "the second one stands by");

    // The first detector gives the lease back, and the second continues where it stopped.
    first.stop().await;
    Reports::fallen().store(&store, after(base, 130)).await;
    clock.set(after(base, 140));
    second.judged(after(base, 140)).await;
    second.stop().await;
    assert_eq!(pager.told(), [page()]);
    let open = "SELECT count() FROM incidents_v1 WHERE state = 'firing'";
    assert_eq!(store.count(open).await, 1);
    store.stop().await;
}

/// Both start at once: neither has a head start.
#[tokio::test]
async fn of_detectors_that_start_at_once_one_judges() {
    let (store, _, clock, pager) = rolled_out(120).await;
    let all = [(); 3].map(|()| Running::start(&store, &clock, &pager));
    until("the page", || std::future::ready(!pager.told().is_empty())).await;
    stands(&store, 1, 3).await;
    for running in all {
        running.stop().await;
    }
    assert_eq!(pager.told(), [page()]);
    store.stop().await;
}

/// A detector that was killed does not give its lease back; its beats just stop.
#[tokio::test]
async fn a_detector_takes_over_from_one_that_is_silent_and_not_from_one_that_beats() {
    let (store, _, clock, pager) = rolled_out(120).await;
    let beats = |ago_s: u64| {
        let insert = "INSERT INTO detector_beats (holder, beat, leads, is_gone, beaten_at) \
                      SELECT 7, toUInt64(100 - ?), true, false, now64(3) - toIntervalSecond(?)";
        let client = store.client();
        async move {
            let insert = client.query(insert).bind(ago_s).bind(ago_s);
            insert.execute().await.unwrap();
        }
    };
    // Its lease has some seconds left.
    beats(14).await;
    let running = Running::start(&store, &clock, &pager);
    let claims = "SELECT count() FROM detector_beats WHERE holder != 7 AND NOT leads";
    until("a claim", || async { store.count(claims).await > 0 }).await;
    until("the page", || std::future::ready(pager.told() == [page()])).await;
    let early = "SELECT count() FROM detector_beats WHERE holder != 7 AND leads AND beaten_at < \
                 (SELECT max(beaten_at) FROM detector_beats WHERE holder = 7) + INTERVAL 20 SECOND";
    assert_eq!(
        store.count(early).await,
        0,
        "the lease of the other one held"
    );
    // On a busy machine a claim may end and another one begin, so only a holder that led counts.
    let waited = "SELECT count() FROM detector_beats WHERE NOT leads AND NOT is_gone \
                  AND holder IN (SELECT holder FROM detector_beats WHERE leads AND holder != 7) AND beaten_at >= \
                  (SELECT max(beaten_at) FROM detector_beats WHERE holder = 7) + INTERVAL 20 SECOND";
    let leaders = "SELECT uniqExact(holder) FROM detector_beats WHERE leads AND holder != 7";
    let limit = 2 * store.count(leaders).await;
    assert!(
        store.count(waited).await <= limit,
        "two beats after its end"
    );
    running.stop().await;
    store.stop().await;
}

/// After a step back, windows that were judged come again. After a step forward, some are left out and judged later.
#[tokio::test]
async fn a_clock_that_steps_repeats_and_loses_no_page() {
    let (store, base, clock, pager) = rolled_out(60).await;
    let running = Running::start(&store, &clock, &pager);
    running.judged(after(base, 60)).await;
    // The clock is a quarter of an hour ahead, and the window with the fault is among the windows left out.
    healthy_window(&store, after(base, 890)).await;
    clock.set(after(base, 900));
    running.judged(after(base, 900)).await;
    until("the page", || std::future::ready(pager.told() == [page()])).await;
    // And back again.
    clock.set(after(base, 120));
    let restarted = Pager::default();
    running.stop().await;
    let running = Running::start(&store, &clock, &restarted);
    clock.set(after(base, 901));
    running.judged(after(base, 901)).await;
    running.stop().await;
    assert_eq!(pager.told(), [page()]);
    assert_eq!(restarted.told(), []);
    store.stop().await;
}

/// A day ahead there is nothing to judge; the detector must not wait there for a day.
#[tokio::test]
async fn a_clock_a_day_ahead_and_back_loses_and_repeats_no_page() {
    let (store, base, clock, pager) = rolled_out(60).await;
    let running = Running::start(&store, &clock, &pager);
    running.judged(after(base, 60)).await;
    let leap = || async {
        clock.set(after(base, 86_400));
        let verdicts = running.detector.verdicts();
        until("a window without anything", || {
            std::future::ready(verdicts.borrow().is_empty())
        })
        .await;
    };
    leap().await;
    clock.set(after(base, 120));
    running.judged(after(base, 120)).await;
    until("the page", || std::future::ready(pager.told() == [page()])).await;
    // The clock steps once more while the incident fires.
    leap().await;
    clock.set(after(base, 125));
    running.judged(after(base, 125)).await;
    running.stop().await;
    assert_eq!(pager.told(), [page()]);
    let open = "SELECT count() FROM incidents_v1 WHERE state = 'firing'";
    assert_eq!(store.count(open).await, 1);
    store.stop().await;
}
