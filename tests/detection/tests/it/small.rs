//! Tests a few labelled fleets at every change. `just detection` evaluates thousands.

use std::collections::BTreeMap;
use std::time::Duration;

use epwatch_detection::{FaultOutcome, Healthy, Keys, Outcome, RunOptions, batches, evaluate};

/// The first seed, below 500000, where the seeds of `docs/detection.md` begin.
const FIRST_SEED: u64 = 300_000;

fn outcomes(scenarios: &[&str], families: u64) -> Vec<Outcome> {
    outcomes_with(Keys::Unknown, scenarios, families)
}

pub(super) fn outcomes_with(keys: Keys, scenarios: &[&str], families: u64) -> Vec<Outcome> {
    let options = RunOptions {
        first_seed: FIRST_SEED,
        keys,
        history: 0,
        threads: 2,
        no_longer_than: Duration::MAX,
        verbose: false,
    };
    let chosen = scenarios
        .iter()
        .flat_map(|name| batches(families, Some(name)));
    evaluate(&chosen.collect::<Vec<_>>(), options, |_| Ok(())).unwrap()
}

fn healthy(outcomes: &[Outcome]) -> Healthy {
    let mut sum = Healthy::default();
    let all = outcomes.iter().flat_map(|outcome| outcome.healthy.values());
    all.for_each(|healthy| sum.add(healthy));
    sum
}

/// No confounder and no other event of healthy fleets causes a page.
#[test]
fn healthy_fleets_do_not_page() {
    let all = healthy(&outcomes(&["confounders", "others"], 2));
    assert!(all.windows_after > 500, "{all:?}");
    assert_eq!(all.pages, 0, "{all:?}");
}

/// Sessions on big and little cores, before a fleet has rates of its own.
#[test]
fn sessions_in_two_speeds_do_not_page() {
    let all = healthy(&outcomes(&["two speeds"], 20));
    assert!(all.windows_after > 100, "{all:?}");
    assert_eq!(all.pages, 0, "{all:?}");
}

/// Two models on different devices share load. One model vetoes the other's page, or one of its devices lowers it to a
/// ticket. A cohort of a dozen devices may by chance have no such device in two windows: in one of 200 apps.
#[test]
fn load_that_two_models_share_does_not_page() {
    let found = outcomes(&["shared load"], 80);
    let all = healthy(&found);
    assert_eq!(all.pages, 0, "{all:?}");
    let mut verdicts: BTreeMap<&str, u64> = BTreeMap::new();
    for (class, n) in found
        .iter()
        .flat_map(|outcome| &outcome.verdicts["SharedLoad"])
    {
        *verdicts.entry(class).or_default() += n;
    }
    let vetoed = verdicts["thermal_or_load"];
    assert!(
        vetoed >= 10 * verdicts["slow_without_placement"],
        "{verdicts:?}"
    );
}

/// Devices that report a thermal state leave out their hot runs. Devices that report none look slower.
#[test]
fn heat_that_devices_cannot_report_does_not_page() {
    let all = healthy(&outcomes(&["unseen heat"], 20));
    assert!(all.windows_after > 100, "{all:?}");
    assert_eq!(all.pages, 0, "{all:?}");
}

/// A limit of 1.3 counts the same devices and some more, and makes only a ticket.
#[test]
fn a_milder_ratio_takes_no_page_away() {
    let found = outcomes(&["half of the devices, 2x, no placements, 100 devices"], 60);
    let faults: Vec<&FaultOutcome> = found.iter().flat_map(|o| &o.faults).collect();
    assert_eq!(faults.len(), 6);
    assert!(faults.iter().all(|fault| fault.found_first), "{faults:?}");
}

/// With half of 20 devices at 2x without placements, earlier neither of two rules fired.
#[test]
fn half_of_twenty_devices_at_twice_the_latency_page() {
    let found = outcomes(&["half of the devices, 2x, no placements, 20 devices"], 60);
    let faults: Vec<&FaultOutcome> = found.iter().flat_map(|o| &o.faults).collect();
    assert_eq!(faults.len(), 6);
    assert!(
        faults.iter().all(|fault| fault.paged_in.is_some()),
        "{faults:?}"
    );
}

/// Three robots whose placements all got worse, at three times the latency. The store has the past of the robots that
/// report none.
#[test]
fn nearly_all_fleets_of_three_devices_page_at_total_fallback() {
    let found = outcomes(&["total, 3x, 3 devices"], 300);
    let faults: Vec<&FaultOutcome> = found.iter().flat_map(|o| &o.faults).collect();
    let paged = faults.iter().filter(|fault| fault.paged_in.is_some());
    assert!(10 * paged.count() >= 9 * faults.len(), "{faults:?}");
}

#[test]
fn fleets_of_five_devices_page_at_total_fallback() {
    let found = outcomes(&["total, 3x, 5 devices", "total, 2x, 5 devices"], 300);
    let faults: Vec<&FaultOutcome> = found.iter().flat_map(|o| &o.faults).collect();
    let paged = faults.iter().filter(|fault| fault.paged_in.is_some());
    assert_eq!((paged.count(), faults.len()), (60, 60), "{faults:?}");
}

/// Nearly all of these runs are below twice the device's earlier p95.
#[test]
fn a_seventh_of_the_runs_at_twice_the_latency_pages() {
    let found = outcomes(&["15 % of the runs, 2x, 30 devices"], 60);
    let faults: Vec<&FaultOutcome> = found.iter().flat_map(|o| &o.faults).collect();
    assert_eq!(faults.len(), 6);
    let paged = faults.iter().filter(|fault| fault.paged_in.is_some());
    assert!(paged.count() >= 5, "{faults:?}");
}

/// Two kinds are excepted: intermittent faults with an unknown input shape, which are tickets, and intermittent faults
/// that few devices show in a window.
#[test]
fn faults_worth_a_page_page_by_their_name() {
    let found = outcomes(&["total", "some devices", "intermittent runs", "drift"], 4);
    let all: Vec<&FaultOutcome> = found
        .iter()
        .flat_map(|outcome| &outcome.faults)
        .filter(|fault| fault.is_page_worthy)
        .collect();
    let (mut n_sure, mut n_right) = (0, 0);
    for fault in &all {
        let is_intermittent = fault.kind.starts_with("intermittent");
        let is_weak = fault.factor < 3.0 || fault.runs_share < 0.15 || fault.devices < 20;
        if is_intermittent && (is_weak || !fault.shape_known) {
            continue;
        }
        assert!(fault.paged_in.is_some(), "{fault:?}");
        n_sure += 1;
        n_right += u32::from(fault.is_right());
    }
    assert!(n_sure >= 10, "{n_sure} of {}", all.len());
    assert!(n_right * 20 >= n_sure * 19, "{n_right} of {n_sure}");
    let others = healthy(&found);
    assert_eq!(others.pages, 0, "{others:?}");
}

/// If devices run often enough, incidents end within a day and do not come back. They never end while the fault lasts.
#[test]
fn repaired_faults_end_sooner_and_do_not_come_again() {
    let found = outcomes(&["repaired, 50 runs a day"], 120);
    let repairs = found.iter().flat_map(|outcome| &outcome.repairs);
    let fired: Vec<_> = repairs.filter(|repair| repair.fired).collect();
    let ended: Vec<i64> = fired.iter().filter_map(|r| r.ended_after_h).collect();
    assert!(ended.len() >= 10, "{fired:?}");
    assert!(ended.iter().all(|hours| *hours >= 6), "{fired:?}");
    let soon = ended.iter().filter(|hours| **hours <= 24).count();
    assert!(5 * soon >= 4 * ended.len(), "{fired:?}");
    assert!(fired.iter().all(|repair| !repair.came_again), "{fired:?}");
}

/// The detector judges eight times a day for nine days.
#[test]
fn faults_that_last_do_not_end() {
    let found = outcomes(&["lasting, 50 runs a day"], 120);
    let faults = found.iter().flat_map(|outcome| &outcome.repairs);
    let fired: Vec<_> = faults.filter(|fault| fault.fired).collect();
    assert!(fired.len() >= 10, "{fired:?}");
    assert!(
        fired.iter().all(|fault| fault.ended_after_h.is_none()),
        "{fired:?}"
    );
}
