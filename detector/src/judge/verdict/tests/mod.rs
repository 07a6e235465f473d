mod cross_chipset;

use std::collections::BTreeMap;

use epwatch_model::Severity::{Info, Page, Ticket};
use epwatch_model::VerdictClass::*;
use epwatch_model::{
    BEYOND_TENTHS, CohortVerdict, Origin, PlacementReference, Severity, SignalId, VerdictClass,
    WorkUnit,
};

use crate::judge::base_rates::BaseRates;
use crate::judge::baseline::Baseline;
use crate::judge::placement::tests::placed;
use crate::judge::signals::{Controls, PeerRatios};
use crate::judge::tally::{BaseRate, Tally};
use crate::judge::window::{AgainstSelf, CohortWindow, MissingBaseline, Voteless};
use crate::testing::{
    Fleet, device, judged, judged_with_controls, judged_with_peers, noisy, peers, reference,
};

#[track_caller]
fn check(verdict: &CohortVerdict, class: VerdictClass, severity: Severity) {
    let found = (verdict.class, verdict.severity);
    assert_eq!(found, (class, severity), "{:#?}", verdict.reasons);
}

fn certified(placement: epwatch_model::Placement) -> Baseline {
    Baseline {
        placements: vec![PlacementReference::Placement {
            origin: Origin::Certified,
            placement,
        }],
        ..Baseline::default()
    }
}

fn fallen_by(hit_share: f64, slow_factor: f64) -> Fleet {
    Fleet {
        slow_factor,
        ..Fleet::with_fallback(hit_share)
    }
}

fn others(npu_share: f64) -> Baseline {
    Baseline {
        placements: vec![PlacementReference::MedianShare {
            method: placed(1, 1, 1, None).method,
            npu_share,
            unit: WorkUnit::Macs,
            chipsets: 3,
        }],
        ..Baseline::default()
    }
}

#[test]
fn part_of_the_model_on_the_cpu_and_slower_for_it_pages_with_its_numbers() {
    let verdict = judged(&Fleet::with_fallback(1.0).window(), None, &reference());
    check(&verdict, PartialFallback, Page);
    assert_eq!(verdict.cpu_ops, ["Gemm", "LayerNormalization"]);
    assert!((verdict.cpu_macs_share.unwrap() - 0.26).abs() < 1e-9);
    let numbers = &verdict.numbers;
    assert_eq!((numbers.devices_hit, numbers.devices_seen), (60, 60));
    assert!(
        (numbers.latency_ratio.unwrap() - 2.9).abs() < 0.2,
        "{numbers:?}"
    );
    assert!(verdict.p < 1e-8);
    // A session that fell back is slow and steady: its CV does not rise.
    assert!(verdict.statistics.cv_within.unwrap() < 0.3);
    assert!(verdict.statistics.dip.is_some() && verdict.statistics.dip_p.is_some());
    assert!(verdict.next_step.contains("Gemm") && verdict.next_step.contains("1.0.0"));
}

#[test]
fn nearly_nothing_left_on_the_npu_is_a_total_fallback() {
    let fleet = Fleet {
        hit_placement: placed(21, 0, 25, Some(0.0)),
        ..fallen_by(1.0, 12.0)
    };
    let verdict = judged(&fleet.window(), None, &reference());
    check(&verdict, TotalFallback, Page);
}

#[test]
fn some_devices_are_compared_with_those_that_kept_their_placement() {
    // The comparison with other devices needs no self baselines.
    let fleet = Fleet {
        devices: 200,
        before: None,
        ..Fleet::with_fallback(0.3)
    };
    let verdict = judged(&fleet.window(), None, &reference());
    check(&verdict, SomeDevicesFallback, Page);
    assert_eq!(verdict.numbers.devices_hit, 60);
    let humps = verdict.statistics.modes.unwrap();
    assert!(humps.slow_us > 2.0 * humps.fast_us, "{humps:?}");
}

/// In a window of few runs, most devices have too few to know their speed. That does not show that latency stayed the
/// same.
#[test]
fn devices_with_too_few_runs_to_compare_do_not_hide_those_that_are_slower() {
    for (hit_share, class, compared) in [(1.0, PartialFallback, 10), (0.4, SomeDevicesFallback, 4)]
    {
        let mut window = fallen_by(hit_share, 30.0).window();
        for (at, vote) in window.votes.iter_mut().enumerate() {
            if at % 6 != 0 {
                vote.latency = None;
            }
        }
        let verdict = judged(&window, None, &reference());
        check(&verdict, class, Page);
        let slower = verdict.reasons[1].to_string();
        let expected =
            format!("all {compared} of those that ran often enough to compare are slower");
        assert!(slower.starts_with(&expected), "{slower}");
    }
}

/// Returns the reference with a history in which a sixth of the devices always ran on the CPU.
fn with_a_past() -> Baseline {
    let mut baseline = reference();
    let tally = |hits| Tally { hits, devices: 600 };
    let slower = BEYOND_TENTHS.map(|tenths| (SignalId::ShiftBeyond(tenths), tally(2)));
    baseline.history.0.extend(slower);
    let placement = (SignalId::Placement, tally(100));
    baseline.history.0.extend([placement]);
    baseline
}

/// A few more devices on the CPU than usual are not surprising. But these got slower, so their placement
/// is the cause.
#[test]
fn slower_devices_are_explained_by_placements_that_others_always_had() {
    let fleet = Fleet {
        devices: 100,
        ..Fleet::with_fallback(0.2)
    };
    let always = Fleet {
        base_us: fleet.base_us * fleet.slow_factor,
        devices: 100,
        ..Fleet::default()
    };
    let mut window = fleet.window();
    let slow_all_along = always.window().votes.into_iter();
    for (vote, slow) in window.votes.iter_mut().zip(slow_all_along).take(10) {
        vote.latency = slow.latency;
    }
    let verdict = judged(&window, None, &with_a_past());
    let mut placement = verdict.signals.iter();
    let placement = placement.find(|signal| signal.id == SignalId::Placement);
    assert!(placement.is_some_and(|signal| !signal.fires && signal.hits == 20));
    check(&verdict, SomeDevicesFallback, Page);
    assert_eq!(verdict.numbers.devices_hit, 10);
    assert_eq!(verdict.cpu_ops, ["Gemm", "LayerNormalization"]);
}

#[test]
fn a_placement_that_most_devices_have_explains_no_slower_ones() {
    let mut window = Fleet::with_fallback(1.0 / 6.0).window();
    let worse = window.votes[0].placement.clone();
    let kept = window.votes[59].placement.clone();
    for vote in &mut window.votes[7..10] {
        vote.placement = kept.clone();
    }
    for vote in &mut window.votes[10..45] {
        vote.placement = worse.clone();
    }
    let verdict = judged(&window, None, &with_a_past());
    check(&verdict, SlowWithoutPlacement, Page);
    assert_eq!(verdict.numbers.devices_hit, 10);
}

#[test]
fn a_back_end_that_could_not_be_set_up_is_named() {
    let mut placement = placed(21, 0, 25, Some(0.0));
    placement.reasons = vec!["backend_setup_failed".into()];
    let fleet = Fleet {
        hit_placement: placement,
        ..fallen_by(1.0, 5.0)
    };
    let verdict = judged(&fleet.window(), None, &reference());
    check(&verdict, NpuStartFailure, Page);
}

#[test]
fn slower_devices_with_unreadable_placements_page_without_blaming_one() {
    let mut blind = placed(0, 0, 0, None);
    blind.method.source = "unavailable".into();
    let fleet = Fleet {
        placement: blind.clone(),
        hit_placement: blind,
        ..Fleet::with_fallback(1.0)
    };
    let verdict = judged(&fleet.window(), None, &reference());
    check(&verdict, SlowWithoutPlacement, Page);
    assert!(verdict.cpu_ops.is_empty() && verdict.cpu_macs_share.is_none());
}

/// A reported placement that is healthy must not hide slow devices.
#[test]
fn a_lying_placement_does_not_hide_slow_devices() {
    let fleet = Fleet {
        hit_placement: Fleet::default().placement,
        devices: 400,
        ..Fleet::with_fallback(0.3)
    };
    let verdict = judged(&fleet.window(), None, &reference());
    check(&verdict, SlowWithoutPlacement, Page);
    assert_eq!(verdict.numbers.devices_hit, 120);
}

#[test]
fn heat_that_slows_the_previous_version_too_is_the_devices_matter() {
    let hot = Fleet {
        heat: 2.0,
        ..Fleet::default()
    };
    let previous = Fleet {
        version: "1.0.0",
        before: Some("0.9.0"),
        seed: 2,
        placement: placed(10, 42, 0, Some(1.0)),
        ..hot.clone()
    };
    let steady = Fleet {
        heat: 1.0,
        ..previous.clone()
    };
    let verdict = judged(&hot.window(), Some(&previous.window()), &reference());
    check(&verdict, ThermalOrLoad, Info);
    let verdict = judged(&hot.window(), Some(&steady.window()), &reference());
    check(&verdict, SlowWithoutPlacement, Page);
}

#[test]
fn heat_that_slows_another_model_on_the_same_devices_is_the_devices_matter() {
    let hot = Fleet {
        heat: 2.0,
        ..Fleet::default()
    }
    .window();
    let verdict = judged_with_peers(&hot, None, &peers(&hot.votes), &reference());
    check(&verdict, ThermalOrLoad, Info);
    let steady = peers(&Fleet::default().window().votes);
    let verdict = judged_with_peers(&hot, None, &steady, &reference());
    check(&verdict, SlowWithoutPlacement, Page);
}

/// A firmware that disables the NPU slows every model on the device, by more than any heat.
#[test]
fn a_device_whose_models_all_lost_the_npu_is_not_hot() {
    let fallen = fallen_by(1.0, 20.0);
    let mut unread = fallen.clone();
    unread.hit_placement = unread.placement.clone();
    for (fleet, class) in [(fallen, PartialFallback), (unread, SlowWithoutPlacement)] {
        let window = fleet.window();
        let verdict = judged_with_peers(&window, None, &peers(&window.votes), &reference());
        check(&verdict, class, Page);
    }
}

/// Work moved to the CPU on devices that are hot as well, which is a ticket.
#[test]
fn heat_does_not_hide_a_worse_placement() {
    let warm = fallen_by(1.0, 2.0).window();
    let verdict = judged_with_peers(&warm, None, &peers(&warm.votes), &reference());
    check(&verdict, PartialFallback, Ticket);
}

/// A directive takes most devices off the NPU, and they lose their vote. The devices that are left never used the NPU.
#[test]
fn those_left_by_a_directive_are_not_the_whole_fleet() {
    let mut dead = placed(5, 0, 25, Some(0.0));
    dead.reasons = vec!["backend_setup_failed".into()];
    let left = Fleet {
        devices: 6,
        hit_share: 1.0,
        hit_placement: dead,
        ..Fleet::default()
    };
    let mut window = left.window();
    window.voteless = under_directive(144);
    for window in [&window, &window.of_firmware("f1")] {
        let verdict = judged(window, None, &reference());
        assert!(verdict.severity < Ticket, "{:#?}", verdict.reasons);
    }
    window.voteless = under_directive(0);
    assert_eq!(judged(&window, None, &reference()).severity, Page);
}

fn under_directive(devices: u32) -> Voteless {
    let held = (0..devices).map(|n| device(10_000 + n)).collect();
    Voteless {
        directed: devices.into(),
        only_directed: BTreeMap::from([("f1".into(), held)]),
        ..Voteless::default()
    }
}

/// On the first day of a directive, its devices had fallen back like all others. So they do not count as compared and
/// healthy.
#[test]
fn a_directive_makes_no_fallback_one_of_some_devices() {
    let mut window = Fleet::with_fallback(1.0).window();
    window.voteless = under_directive(60);
    let verdict = judged(&window, None, &reference());
    check(&verdict, PartialFallback, Page);
    let numbers = &verdict.numbers;
    assert_eq!((numbers.devices_hit, numbers.devices_seen), (60, 60));
    // One comparable device is not evidence about the others.
    let few = Fleet {
        devices: 6,
        ..Fleet::default()
    };
    let mut window = few.window();
    let mut unknown = placed(7, 0, 0, None);
    unknown.n_nodes = 0;
    let unknown = std::sync::Arc::new(unknown);
    for vote in &mut window.votes[1..] {
        vote.placement = unknown.clone();
        if let Some(latency) = &mut vote.latency {
            latency.device_baseline = Err(MissingBaseline::Unknown);
        }
    }
    window.voteless = under_directive(50);
    let verdict = judged(&window, None, &reference());
    assert_eq!(verdict.class, NotEnoughData);
}

#[test]
fn a_heavier_model_is_a_ticket() {
    for weight in [1.25, 1.4] {
        let fleet = Fleet {
            weight,
            devices: 200,
            ..Fleet::default()
        };
        let verdict = judged(&fleet.window(), None, &reference());
        check(&verdict, SlowWithoutPlacement, Ticket);
    }
}

#[test]
fn a_worse_placement_that_costs_nothing_is_a_ticket() {
    let verdict = judged(&fallen_by(1.0, 1.0).window(), None, &reference());
    check(&verdict, PartialFallback, Ticket);
    assert_eq!(verdict.cpu_ops, ["Gemm", "LayerNormalization"]);
}

/// Renamed nodes keep the normalised fingerprint.
#[test]
fn a_runtime_that_renames_nodes_changes_nothing() {
    let mut renamed = placed(10, 30, 12, None);
    renamed.runtime = "1.32.0/2.8.0".into();
    let fleet = Fleet {
        placement: renamed,
        ..Fleet::default()
    };
    let verdict = judged(&fleet.window(), None, &reference());
    check(&verdict, Healthy, Severity::None);
}

#[test]
fn a_runtime_that_counts_otherwise_is_data_quality_while_latency_stands() {
    let mut recounted = placed(11, 20, 5, None);
    recounted.runtime = "1.32.0/2.8.0".into();
    let fleet = Fleet {
        placement: recounted,
        ..Fleet::default()
    };
    let verdict = judged(&fleet.window(), None, &reference());
    check(&verdict, DataQuality, Info);
}

#[test]
fn a_first_version_without_any_reference_is_not_called_healthy() {
    let fleet = Fleet {
        before: None,
        ..Fleet::default()
    };
    let verdict = judged(&fleet.window(), None, &Baseline::default());
    check(&verdict, NotEnoughData, Info);
    let reason = verdict.reasons[0].to_string();
    assert!(reason.contains("no earlier version"), "{reason}");
}

#[test]
fn a_first_version_is_compared_with_the_lab_or_with_other_chipsets() {
    let first = Fleet {
        before: None,
        ..Fleet::default()
    };
    let fallen = Fleet {
        placement: placed(9, 0, 25, Some(0.0)),
        ..first.clone()
    }
    .window();
    let partial = Fleet {
        placement: placed(9, 15, 10, Some(0.6)),
        ..first.clone()
    }
    .window();
    let lab = certified(placed(8, 25, 0, Some(1.0)));
    let verdict = judged(&fallen, None, &lab);
    check(&verdict, TotalFallback, Page);
    let verdict = judged(&fallen, None, &others(0.95));
    check(&verdict, TotalFallback, Ticket);
    // Other chipsets have little on the NPU too, so they do not show that this one lost anything. Only the request
    // does.
    for share in [0.6, 0.0] {
        let unknown = judged(&fallen, None, &others(share));
        check(&unknown, TotalFallback, Ticket);
        let reason = unknown.reasons[0].to_string();
        assert!(
            reason.contains("under 5 % of the work on 60 of the 60"),
            "{reason}"
        );
    }
    let expected = Baseline {
        expects_npu: true,
        ..others(0.0)
    };
    let verdict = judged(&fallen, None, &expected);
    check(&verdict, TotalFallback, Page);
    let reason = verdict.reasons[0].to_string();
    assert!(reason.contains("`detector.expects_npu`"), "{reason}");
    // Chipsets place differently by design.
    let verdict = judged(&partial, None, &others(0.95));
    check(&verdict, Healthy, Severity::None);
    let verdict = judged(&partial, None, &lab);
    check(&verdict, PartialFallback, Ticket);
}

/// A fallback begins without a new version, for example with a firmware, long after the version before was last seen.
#[test]
fn what_was_better_here_before_pages_and_what_never_was_is_a_ticket() {
    let total = Fleet {
        hit_placement: placed(21, 0, 25, Some(0.0)),
        ..fallen_by(1.0, 12.0)
    };
    let before = |placement| {
        let mut baseline = others(0.97);
        baseline.placements.push(PlacementReference::Placement {
            origin: Origin::SameVersion,
            placement,
        });
        baseline
    };
    let fell = judged(&total.window(), None, &before(placed(10, 42, 0, Some(1.0))));
    check(&fell, TotalFallback, Page);
    let unknown = Fleet {
        before: None,
        ..total.clone()
    };
    let always = before(placed(21, 0, 25, Some(0.0)));
    let never_better = judged(&unknown.window(), None, &always);
    check(&never_better, TotalFallback, Ticket);
    // The devices are slower than their own past, which alone is a page.
    let slower = judged(&total.window(), None, &always);
    check(&slower, TotalFallback, Page);
}

#[test]
fn four_devices_are_not_enough_and_five_are() {
    // Less than twice as slow: a handful of devices cannot show that.
    let fleet = |devices| {
        Fleet {
            devices,
            slow_factor: 1.8,
            ..Fleet::with_fallback(1.0)
        }
        .window()
    };
    let few = judged(&fleet(4), None, &reference());
    check(&few, NotEnoughData, Info);
    assert_eq!(
        few.reasons[0].to_string(),
        "4 devices in the window: needs about 4 more devices to see a 2x change"
    );
    let verdict = judged(&fleet(5), None, &reference());
    check(&verdict, PartialFallback, Page);
}

#[test]
fn devices_left_without_neighbours_are_compared_with_the_time_before() {
    let fleet = Fleet {
        before: None,
        ..Fleet::with_fallback(1.0)
    }
    .window();
    let mut baseline = reference();
    let verdict = judged(&fleet, None, &baseline);
    check(&verdict, PartialFallback, Ticket);
    let before = crate::judge::baseline::BaselineLatency {
        n: 9_000,
        p50_us: 8_200.0,
        p95_us: 9_500.0,
    };
    baseline.latency.insert("static".into(), before);
    let verdict = judged(&fleet, None, &baseline);
    check(&verdict, PartialFallback, Page);
    // Devices still on the version before are a better reference than the time before the window.
    baseline.latency.clear();
    let previous = Fleet {
        version: "1.0.0",
        before: None,
        placement: placed(10, 42, 0, Some(1.0)),
        ..Fleet::default()
    };
    let verdict = judged(&fleet, Some(&previous.window()), &baseline);
    check(&verdict, PartialFallback, Page);
}

/// Over many healthy fleets nothing pages; DETECTION's bound is one in 10,000.
#[test]
fn healthy_fleets_do_not_page() {
    let mut pages = 0;
    let mut tickets = 0;
    for (at, seed) in (0..600).enumerate() {
        let devices = [5, 12, 60, 150][at % 4];
        let weight = [1.0, 1.0, 1.05, 0.8][at / 4 % 4];
        let runs = [20, 50][at / 16 % 2];
        let fleet = Fleet {
            seed,
            devices,
            weight,
            runs,
            ..Fleet::default()
        };
        let verdict = judged(&fleet.window(), None, &reference());
        pages += u32::from(verdict.severity == Page);
        tickets += u32::from(verdict.severity == Ticket);
    }
    assert_eq!((pages, tickets), (0, 0));
}

/// Healthy fleets have 3 % of devices that always fell back, which do not page.
#[test]
fn devices_that_always_fell_back_do_not_page() {
    let mut pages = 0;
    for seed in 0..200 {
        let fleet = Fleet {
            seed,
            devices: 100,
            // These devices were as slow before.
            ..fallen_by(0.03, 1.0)
        };
        let verdict = judged(&fleet.window(), None, &reference());
        pages += u32::from(verdict.severity == Page);
    }
    assert_eq!(pages, 0);
}

#[test]
fn a_sick_fleet_pages_in_its_first_window_over_many_seeds() {
    for (at, seed) in (0..100).enumerate() {
        let devices = [8, 60, 150][at % 3];
        let fleet = Fleet {
            seed,
            devices,
            ..Fleet::with_fallback(1.0)
        };
        let verdict = judged(&fleet.window(), None, &reference());
        check(&verdict, PartialFallback, Page);
    }
}

#[test]
fn signals_are_reported_with_their_numbers() {
    let verdict = judged(&Fleet::with_fallback(1.0).window(), None, &reference());
    let ids: Vec<SignalId> = verdict.signals.iter().map(|signal| signal.id).collect();
    let expected = [
        SignalId::SlowerAndMoved,
        SignalId::Placement,
        SignalId::Median,
        SignalId::Shift,
        SignalId::Tail,
        SignalId::NearTail,
        SignalId::Moved,
        SignalId::Start,
    ];
    assert_eq!(ids, expected);
    // The whole latency moved, so `Moved` and `NearTail`, which need fast runs that stayed, have no hits. `Start` has
    // none, because every session was made.
    let is_quiet = |id| matches!(id, SignalId::Moved | SignalId::NearTail | SignalId::Start);
    for signal in &verdict.signals {
        let found = (signal.fires, signal.hits);
        let expected = if is_quiet(signal.id) {
            (false, 0)
        } else {
            (true, 60)
        };
        assert_eq!(found, expected, "{}", signal.id);
    }
    let beyond = verdict.tallies.iter().map(|row| row.id.to_string());
    let expected = [
        "slower_than_1.3x slower_than_1.6x slower_than_2.0x slower_than_2.5x slower_than_3.2x slower_than_4.0x",
        "intermittent_runs_from_3_percent intermittent_runs_from_5_percent intermittent_runs_from_10_percent",
        "intermittent_runs_from_20_percent intermittent_runs_from_40_percent",
        "near_intermittent_runs_from_3_percent near_intermittent_runs_from_5_percent",
        "near_intermittent_runs_from_10_percent near_intermittent_runs_from_20_percent",
        "near_intermittent_runs_from_40_percent",
    ]
    .join(" ");
    assert_eq!(beyond.collect::<Vec<_>>().join(" "), expected);
}

/// A window whose ratios lie in two groups, around 1 and around the factor.
fn half_slower(slow_factor: f64) -> CohortWindow {
    let fleet = Fleet {
        devices: 20,
        hit_share: 0.5,
        slow_factor,
        ..Fleet::default()
    };
    fleet.window()
}

#[test]
fn half_of_a_small_cohort_that_moved_together_is_found() {
    let verdict = judged(&half_slower(1.85), None, &reference());
    check(&verdict, SlowWithoutPlacement, Page);
    assert_eq!(verdict.numbers.devices_hit, 10);
    // Firmware may cost up to 1.6 x, so a smaller ratio needs the fleet's own rates.
    let known = with_own_rates();
    let mild = half_slower(1.45);
    check(&judged(&mild, None, &known), SlowWithoutPlacement, Ticket);
    check(&judged(&mild, None, &reference()), Healthy, Severity::None);
}

/// A fleet with rates of its own, in which a ratio below 1.6 is a ticket.
fn with_own_rates() -> Baseline {
    let own = BaseRate {
        rate: 0.01,
        strength: 100.0,
    };
    let ids = BEYOND_TENTHS.map(|tenths| (SignalId::ShiftBeyond(tenths), own));
    Baseline {
        rates: BaseRates(ids.into()),
        ..reference()
    }
}

/// Slower devices once hid slow runs: their ticket came first, and the page was not looked for.
#[test]
fn a_ticket_of_slow_devices_hides_no_page_of_slow_runs() {
    let mild = Fleet {
        hit_share: 0.3,
        slow_factor: 1.45,
        ..Fleet::default()
    };
    let mild = mild.window();
    let known = with_own_rates();
    check(&judged(&mild, None, &known), SlowWithoutPlacement, Ticket);
    // Half of the runs of the last 24 devices take four times as long.
    let mut runs = noisy(0.4);
    check(&judged(&runs, None, &known), IntermittentFallback, Page);
    runs.votes.rotate_left(24);
    for (vote, slow) in mild.votes.iter().zip(&mut runs.votes).take(36) {
        slow.latency = vote.latency.clone();
    }
    for (vote, place) in mild.votes.iter().zip(&mut runs.votes) {
        place.installation = vote.installation;
    }
    let verdict = judged(&runs, None, &known);
    check(&verdict, IntermittentFallback, Page);
    assert_eq!(verdict.numbers.devices_hit, 24);
    let told: Vec<String> = verdict.reasons.iter().map(ToString::to_string).collect();
    assert!(
        told[0].contains("24 of 60 devices are slow in some"),
        "{told:#?}"
    );
    let says = "18 of 60 devices take at least 1.3 times";
    assert!(told.iter().any(|reason| reason.contains(says)), "{told:#?}");
}

/// The reason once said "a heavier model, or a mild fallback".
#[test]
fn a_new_runtime_on_all_devices_is_named() {
    let slower = |weight| {
        let fleet = Fleet {
            weight,
            devices: 200,
            ..Fleet::default()
        };
        fleet.window()
    };
    let with = |before: &str| Baseline {
        runtimes: [before.into()].into(),
        ..reference()
    };
    let now = slower(1.3).votes[0].placement.runtime.clone();
    for (weight, severity) in [(1.3, Ticket), (2.4, Page)] {
        let told = |baseline| {
            let verdict = judged(&slower(weight), None, &baseline);
            check(&verdict, SlowWithoutPlacement, severity);
            let reasons: Vec<String> = verdict.reasons.iter().map(ToString::to_string).collect();
            format!("{}; {}", reasons.join("; "), verdict.next_step)
        };
        let new = told(with("1.24.0/2.4.0"));
        assert!(new.contains(&now) && !new.contains("heavier"), "{new}");
        let same = told(with(&now));
        assert!(!same.contains(&now), "{same}");
    }
}

/// Some sessions run on little cores. The device took as long in one of twenty earlier runs.
#[test]
fn a_speed_that_devices_had_before_is_no_change_until_the_fleet_has_rates() {
    let mut window = half_slower(1.85);
    for vote in &mut window.votes {
        let latency = vote.latency.as_mut().unwrap();
        let earlier = latency.device_baseline.as_mut().unwrap();
        earlier.p95_us = 2.2 * earlier.p50_us;
    }
    let verdict = judged(&window, None, &reference());
    check(&verdict, Healthy, Severity::None);
}

fn of_robots(devices: u32, slow_factor: f64) -> CohortWindow {
    let fleet = Fleet {
        devices,
        slow_factor,
        ..Fleet::with_fallback(1.0)
    };
    fleet.window()
}

#[test]
fn three_devices_that_all_fell_back_and_slowed_to_half_page() {
    let verdict = judged(&of_robots(3, 2.9), None, &reference());
    check(&verdict, PartialFallback, Page);
    assert_eq!(
        (verdict.numbers.devices_hit, verdict.numbers.devices_seen),
        (3, 3)
    );
    // Two devices could be chance, and less than twice as slow could be one bad day.
    check(
        &judged(&of_robots(2, 2.9), None, &reference()),
        NotEnoughData,
        Info,
    );
    check(
        &judged(&of_robots(3, 1.5), None, &reference()),
        NotEnoughData,
        Info,
    );
    // First one device kept its placement, then one device is new.
    let mut kept = of_robots(4, 2.9);
    kept.votes[3].placement = Fleet::default().window().votes[0].placement.clone();
    check(&judged(&kept, None, &reference()), NotEnoughData, Info);
    let mut forged = of_robots(3, 2.9);
    forged.votes[2].is_proven = false;
    check(&judged(&forged, None, &reference()), NotEnoughData, Info);
}

/// The other model runs on other devices of the chipset.
#[test]
fn load_that_another_model_shows_on_other_devices_is_the_devices_matter() {
    let slowed = |slow_factor, hit_share| Fleet {
        hit_share,
        slow_factor,
        ..Fleet::default()
    };
    let window = slowed(2.2, 0.5).window();
    let other = |fleet: Fleet| {
        let mut votes = fleet.window().votes;
        for (at, vote) in votes.iter_mut().enumerate() {
            vote.installation[15] = 1 + u8::try_from(at).unwrap();
        }
        peers(&votes)
    };
    let judged = |fleet| judged_with_peers(&window, None, &other(fleet), &reference());
    let loaded = judged(slowed(2.2, 0.4));
    check(&loaded, ThermalOrLoad, Info);
    let why = loaded.reasons[0].to_string();
    assert!(
        why.contains("another model or version on this chipset"),
        "{why}"
    );
    check(&judged(slowed(2.2, 0.05)), SlowWithoutPlacement, Page);
    check(&judged(slowed(1.0, 0.0)), SlowWithoutPlacement, Page);
}

/// The other model runs so rarely that earlier runs are added to its devices' few runs, and hide load that began now.
#[test]
fn runs_of_before_do_not_hide_that_another_model_slowed_down() {
    let slowed = |hit_share| Fleet {
        hit_share,
        slow_factor: 2.2,
        ..Fleet::default()
    };
    let mut votes = slowed(0.05).window().votes;
    for (at, vote) in votes.iter_mut().enumerate() {
        vote.installation[15] = 1 + u8::try_from(at).unwrap();
        let latency = vote.latency.as_mut().unwrap();
        latency.is_filled_up = true;
        let slower = if at < 30 { 2.2 } else { 1.0 };
        latency.own_p10_us = latency.low.map(|low| slower * low.p10_us);
    }
    let loaded = peers(&votes);
    let window = slowed(0.5).window();
    let verdict = judged_with_peers(&window, None, &loaded, &reference());
    check(&verdict, ThermalOrLoad, Info);
}

/// `Moved`: most runs of a device moved, and a fifth are as fast as before.
fn moved_medians() -> CohortWindow {
    let mut window = Fleet::default().window();
    for vote in &mut window.votes {
        let latency = vote.latency.as_mut().unwrap();
        latency.against_self = latency.against_self.map(|runs| AgainstSelf {
            beyond_1_4x: 0.7 * runs.n,
            beyond_2x: 0.0,
            beyond_median: 0.7 * runs.n,
            as_fast: 0.2 * runs.n,
            ..runs
        });
    }
    window
}

#[test]
fn medians_that_moved_page_without_a_control_once_rates_leave_no_doubt() {
    let window = moved_medians();
    let verdict = judged(&window, None, &reference());
    check(&verdict, IntermittentFallback, Ticket);
    let why = verdict.reasons[0].to_string();
    let says = "70 % of the runs take over 1.6 times their earlier median";
    assert!(why.contains(says), "{why}");
    let own = BaseRate {
        rate: 0.01,
        strength: 100.0,
    };
    let known = Baseline {
        rates: BaseRates([(SignalId::Moved, own)].into()),
        ..reference()
    };
    check(&judged(&window, None, &known), IntermittentFallback, Page);
    let mut unknown_shape = window;
    for vote in &mut unknown_shape.votes {
        vote.shape_key = "".into();
    }
    check(
        &judged(&unknown_shape, None, &known),
        IntermittentFallback,
        Ticket,
    );
}

/// The few devices that kept their placement have faster silicon. The others are as fast as in their own past.
#[test]
fn a_small_group_of_faster_devices_makes_the_others_no_slower() {
    let moved = Fleet {
        devices: 34,
        slow_factor: 1.0,
        ..Fleet::with_fallback(1.0)
    };
    let faster = Fleet {
        devices: 40,
        base_us: moved.base_us / 1.6,
        ..Fleet::default()
    };
    let mut window = moved.window();
    window.votes.extend(faster.window().votes.split_off(34));
    let verdict = judged(&window, None, &reference());
    check(&verdict, PartialFallback, Ticket);
}

#[test]
fn macs_that_a_new_runtime_counts_otherwise_are_data_quality() {
    let mut recounted = placed(21, 20, 5, Some(0.9));
    recounted.runtime = "1.33.0/2.7.0".into();
    let fleet = Fleet {
        slow_factor: 1.0,
        hit_placement: recounted,
        ..Fleet::with_fallback(1.0)
    };
    let verdict = judged(&fleet.window(), None, &reference());
    check(&verdict, DataQuality, Info);
}

/// "Every device" means every device that can be compared.
#[test]
fn a_small_fleet_pages_although_some_placements_cannot_be_read() {
    let fleet = Fleet {
        devices: 5,
        ..Fleet::with_fallback(1.0)
    };
    let mut window = fleet.window();
    for vote in &mut window.votes[..2] {
        let mut unread = (*vote.placement).clone();
        unread.method.source = "unavailable".into();
        vote.placement = std::sync::Arc::new(unread);
    }
    check(&judged(&window, None, &reference()), PartialFallback, Page);
}
