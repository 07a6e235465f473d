//! Effects of the same version on other chipsets.

use epwatch_model::CohortVerdict;

use super::*;

fn judged_among(window: &CohortWindow, chipsets: &[&CohortWindow]) -> CohortVerdict {
    let controls = Controls {
        previous: None,
        peers: &PeerRatios::default(),
        chipsets,
    };
    judged_with_controls(window, controls, &reference())
}

fn weighing(seed: u64, weight: f64) -> CohortWindow {
    let fleet = Fleet {
        seed,
        weight,
        ..Fleet::default()
    };
    fleet.window()
}

#[test]
fn a_model_twice_as_heavy_on_all_chipsets_is_a_ticket() {
    let (least, most) = (weighing(2, 1.3), weighing(3, 2.3));
    let uneven = judged_among(&weighing(1, 1.9), &[&least, &most]);
    assert_eq!(uneven.severity, Ticket);

    let own = weighing(1, 2.0);
    let (other, third) = (weighing(2, 2.2), weighing(3, 1.8));
    let verdict = judged_among(&own, &[&other, &third]);
    check(&verdict, SlowWithoutPlacement, Ticket);
    let why = verdict.reasons[0].to_string();
    assert!(
        why.contains("2 other chipsets") && why.contains("heavier"),
        "{why}"
    );
    assert!(verdict.next_step.contains("MACs"), "{}", verdict.next_step);
}

/// The other chipsets got a heavier model, and this one fell back as well. Or at most one of two others slowed down
/// too.
#[test]
fn a_chipset_that_slows_down_more_than_the_others_pages() {
    for (own, others) in [(3.0, [1.7, 1.8]), (2.0, [1.0, 2.1]), (2.0, [1.0, 1.0])] {
        let others = [weighing(2, others[0]), weighing(3, others[1])];
        let verdict = judged_among(&weighing(1, own), &[&others[0], &others[1]]);
        check(&verdict, SlowWithoutPlacement, Page);
    }
}

/// A model that is heavier everywhere does not hide devices that are far slower than that.
#[test]
fn some_devices_slower_than_the_heavier_model_makes_all_page() {
    let some = Fleet {
        weight: 1.2,
        hit_share: 0.3,
        slow_factor: 5.0,
        ..Fleet::default()
    };
    let others = [weighing(2, 1.2), weighing(3, 1.2)];
    let verdict = judged_among(&some.window(), &[&others[0], &others[1]]);
    check(&verdict, SlowWithoutPlacement, Page);
}

/// No new version makes a model this much heavier.
#[test]
fn all_chipsets_four_times_slower_page() {
    let verdict = judged_among(&weighing(1, 4.0), &[&weighing(2, 4.0), &weighing(3, 5.0)]);
    check(&verdict, SlowWithoutPlacement, Page);
}

/// If placements show a fallback, it is one, however many chipsets have it.
#[test]
fn a_fallback_on_all_chipsets_pages_with_its_placement() {
    let fallen = |seed, slow_factor| Fleet {
        seed,
        slow_factor,
        ..Fleet::with_fallback(1.0)
    };
    let (own, other) = (fallen(1, 2.0).window(), fallen(2, 2.1).window());
    let verdict = judged_among(&own, &[&other]);
    check(&verdict, PartialFallback, Page);
}

/// Larger inputs without an input shape, on some devices of every chipset.
#[test]
fn some_devices_of_all_chipsets_that_slow_down_as_inputs_do_are_a_ticket() {
    let shifted = |seed, hit_share| {
        let fleet = Fleet {
            seed,
            hit_share,
            slow_factor: 3.0,
            ..Fleet::default()
        };
        let mut window = fleet.window();
        for vote in &mut window.votes {
            vote.shape_key = "".into();
        }
        window
    };
    let verdict = judged_among(&shifted(1, 0.4), &[&shifted(2, 0.3), &shifted(3, 0.5)]);
    check(&verdict, SlowWithoutPlacement, Ticket);
    let verdict = judged_among(&shifted(1, 0.4), &[&shifted(2, 0.0), &shifted(3, 0.02)]);
    check(&verdict, SlowWithoutPlacement, Page);
}

#[test]
fn runs_that_are_slow_at_times_page_unless_all_chipsets_have_them() {
    let (own, other) = (noisy(0.5), noisy(0.4));
    let quiet = Fleet::default().window();
    let verdict = judged_among(&own, &[&quiet, &quiet]);
    check(&verdict, IntermittentFallback, Page);
    let verdict = judged_among(&own, &[&other, &other]);
    check(&verdict, IntermittentFallback, Ticket);
    // The version before has none of the effect in the same window, so this version is the cause, wherever it runs.
    let controls = Controls {
        previous: Some(&quiet),
        peers: &PeerRatios::default(),
        chipsets: &[&other],
    };
    let verdict = judged_with_controls(&own, controls, &reference());
    check(&verdict, IntermittentFallback, Page);
}

/// Larger inputs would appear on all chipsets.
#[test]
fn slow_runs_of_unknown_shape_page_where_other_chipsets_have_none() {
    let unknown = |share| {
        let mut window = noisy(share);
        for vote in &mut window.votes {
            vote.shape_key = "".into();
        }
        window
    };
    let (own, few, none) = (unknown(0.5), unknown(0.3), unknown(0.0));
    check(&judged_among(&own, &[]), IntermittentFallback, Ticket);
    let verdict = judged_among(&own, &[&few]);
    check(&verdict, IntermittentFallback, Ticket);
    let verdict = judged_among(&own, &[&none, &none]);
    check(&verdict, IntermittentFallback, Page);
    let why = verdict.reasons[1].to_string();
    assert!(why.contains("2 other chipsets show it on none"), "{why}");
}

/// Made-up devices on other chipsets do not prevent a page.
#[test]
fn other_chipsets_answer_with_devices_that_were_known_before() {
    let mut forged = weighing(2, 2.0);
    for vote in &mut forged.votes {
        vote.is_proven = false;
    }
    let verdict = judged_among(&weighing(1, 2.0), &[&forged]);
    check(&verdict, SlowWithoutPlacement, Page);
}
