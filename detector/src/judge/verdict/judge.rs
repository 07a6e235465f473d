//! Makes the verdict of a cohort window from its evidence. Pure.
//!
//! The strongest evidence decides the class: a worse placement on devices that are slower, then slower devices
//! alone, then a worse placement alone. A cohort without any reference is "not enough data", never healthy.

use epwatch_model::{
    CohortVerdict, Origin, Reason, Severity, SignalId, SlowLimit, TOTAL_FALLBACK_BELOW,
    VerdictClass, WindowStatistics, many_are_new,
};
use epwatch_proto::accelerator;

use crate::judge::baseline::Baseline;
use crate::judge::cpu_alone::CpuAlone;
use crate::judge::next_step::{Situation, next_step, on_all_chipsets};
use crate::judge::reason;
use crate::judge::signals::{
    Control, MEDIAN_CHANCE, MIN_ELIGIBLE, MIN_HITS, PlacementChange, Shift, SignalEvidence,
    built_in_rate,
};
use crate::judge::sybil_resistance::Weighed;
use crate::judge::tally::{Tally, surprise};
use crate::judge::window::{CohortWindow, DeviceVote, count_devices};

use super::CpuNodes;
use super::finding::{FASTER_THAN_CPU, Finding, MOST_DEVICES, class_of};
use super::numbers::{numbers, on_the_cpu};
use super::{certificate, firmware, input_shape, secondary};

/// The ratio of [`on_every_device`], in tenths.
const TWICE_TENTHS: u16 = 20;

/// Load can slow devices down by less than this ratio. So below it, a page without a control waits for a second window.
const MAY_BE_LOAD: f64 = 2.0;

/// `Moved` alone is sure at this chance or less.
const SURE_P: f64 = 1e-8;

/// Number of devices with readable placements that are needed to detect a slow-down by 2 on all of them in one window.
/// Each has 50 runs (the project's detection measurements, docs/detection.md).
pub const SEES_DOUBLE_WITH_PLACEMENT: u64 = 8;
/// Same as [`SEES_DOUBLE_WITH_PLACEMENT`], without placements.
pub const SEES_DOUBLE: u64 = 30;

/// Judges a cohort window.
#[must_use]
pub fn judge(
    window: &CohortWindow,
    baseline: &Baseline,
    evidence: &SignalEvidence,
    statistics: WindowStatistics,
    nodes: &CpuNodes,
) -> CohortVerdict {
    let mut found = find(window, baseline, evidence);
    let also = std::mem::take(&mut found.also);
    secondary::mention(&mut found, evidence);
    certificate::mention(&mut found, evidence);
    found.lower_if_few_hit(window.n_only_directed());
    found.name_flood(window.voteless.unproven);
    found.name_directed(window.voteless.directed);
    let says = |is_it: fn(&Reason) -> bool| found.reasons.iter().any(is_it);
    let by_placement = says(|reason| matches!(reason, Reason::Placement { .. }));
    let by_certificate =
        !by_placement && says(|reason| matches!(reason, Reason::Certificate { .. }));
    let drift = evidence.certificate.as_ref().filter(|_| by_certificate);
    let (change, joined) = match drift {
        Some(drift) => (Some(&drift.change), drift.slower.as_ref()),
        None => (
            evidence.placement.as_ref().filter(|_| by_placement),
            evidence.slower_and_moved.as_ref(),
        ),
    };
    // If the version before has the same fault, it is not worth keeping.
    let worth_keeping = baseline.previous_version.as_deref();
    let worth_keeping = worth_keeping.filter(|_| drift.is_none());
    if found.severity >= Severity::Ticket {
        let by_firmware = firmware::of_those_hit(window, evidence, &found);
        found.reasons.extend(by_firmware);
    }
    let on_runtime = change
        .filter(|change| found.severity >= Severity::Ticket && !change.new_runtimes.is_empty());
    found.reasons.extend(on_runtime.map(reason::on_runtime));
    if found.severity >= Severity::Ticket {
        input_shape::name(&mut found, window, evidence);
    }
    found.reasons.extend(passed_over(baseline, &found));
    let is_everywhere = |reason: &Reason| matches!(reason, Reason::Everywhere { .. });
    let everywhere = found.reasons.iter().any(is_everywhere);
    let (cpu_ops, cpu_macs_share) = change.map_or((Vec::new(), None), |c| on_the_cpu(c, nodes));
    CohortVerdict {
        key: window.key.clone(),
        window_end: window.end,
        window: window.length,
        class: found.class,
        severity: found.severity,
        numbers: numbers(window, evidence, &found, change, joined),
        next_step: if everywhere {
            on_all_chipsets(&found.reasons)
        } else {
            let step = next_step(Situation {
                key: &window.key,
                class: found.class,
                reasons: &found.reasons,
                cpu_ops: &cpu_ops,
                change,
                previous_version: worth_keeping,
                commonest_code: evidence
                    .start_failures
                    .as_ref()
                    .and_then(|starts| starts.codes.first()),
                cpu_alone: change.and_then(|change| CpuAlone::measured(window, change)),
            });
            window.key.in_words(&step)
        },
        reasons: with_others(found.reasons, also),
        statistics,
        cpu_ops,
        cpu_macs_share,
        signals: evidence.signals(),
        tallies: evidence.tallies(),
        devices_directed: window.voteless.directed,
        follows: baseline
            .passed_over
            .first()
            .or(baseline.previous_version.as_ref())
            .cloned(),
        takes_over: Vec::new(),
        references: if found.severity >= Severity::Ticket {
            baseline.placements.clone()
        } else {
            Vec::new()
        },
        cv_rules: Vec::new(),
        p: found.p,
    }
}

/// Returns the reasons of the finding, and then reasons of other findings that it does not name itself.
fn with_others(mut reasons: Vec<Reason>, also: Vec<Reason>) -> Vec<Reason> {
    for reason in also {
        let is_same =
            |known: &Reason| std::mem::discriminant(known) == std::mem::discriminant(&reason);
        if !reasons.iter().any(is_same) {
            reasons.push(reason);
        }
    }
    reasons
}

/// Returns the reason that a version with an open incident is not the reference, if the verdict depends on it.
fn passed_over(baseline: &Baseline, found: &Finding) -> Option<Reason> {
    let is_at_fault = found.severity >= Severity::Ticket
        && (found.class.is_slower()
            || matches!(
                found.class,
                VerdictClass::NpuStartFailure | VerdictClass::IntermittentFallback
            ));
    let depends = is_at_fault || found.class == VerdictClass::NotEnoughData;
    (depends && !baseline.passed_over.is_empty()).then(|| Reason::PassedOver {
        versions: baseline.passed_over.clone(),
        compared_with: baseline.previous_version.clone(),
        is_at_fault,
    })
}

/// Lowers a page that does not hold on the installations known before the window. If many installations are
/// new, or more than usual (`flood`), it becomes data quality; else a ticket.
pub(crate) fn doubt(verdict: &mut CohortVerdict, proven: u64, flood: bool) {
    let devices = verdict.numbers.devices_seen;
    let reason = Reason::NewcomersOnly {
        proven,
        devices,
        flood,
    };
    if !flood && !many_are_new(proven, devices) {
        verdict.severity = Severity::Ticket;
        verdict.reasons.push(reason);
        return;
    }
    verdict.class = VerdictClass::DataQuality;
    verdict.severity = Severity::Info;
    verdict.p = 1.0;
    verdict.reasons.insert(0, reason);
    verdict.next_step =
        "Look at where the new installations come from; nothing is known to be wrong \
                         with the model."
            .to_owned();
}

/// Lowers a page on devices of public keys that does not hold without the networks that bring most of them. Adds the
/// reason that shows how much a page of such devices can be trusted.
pub(crate) fn doubt_networks(
    verdict: &mut CohortVerdict,
    weighed: &Weighed,
    holds: bool,
    app_is_new: bool,
) {
    let devices = verdict.numbers.devices_seen;
    if !holds {
        verdict.severity = Severity::Ticket;
        let first = "Look at where the devices come from; if they are real:";
        verdict.next_step = format!("{first}\n{}", verdict.next_step);
        let left_out = weighed.left_out.len() as u64;
        verdict
            .reasons
            .insert(0, Reason::FewNetworks { left_out, devices });
        return;
    }
    if app_is_new && weighed.public > weighed.unweighed {
        verdict.reasons.push(Reason::NewApp);
    }
    if 2 * weighed.unweighed > weighed.public {
        let unweighed = weighed.unweighed;
        verdict
            .reasons
            .push(Reason::NotWeighed { unweighed, devices });
    }
}

fn find(window: &CohortWindow, baseline: &Baseline, evidence: &SignalEvidence) -> Finding {
    if let Some(ep) = accelerator::unknown_ep(&window.key.chipset) {
        let reasons = vec![Reason::UnknownEp { ep: ep.to_owned() }];
        return Finding::nothing(VerdictClass::DataQuality, Severity::Info, reasons);
    }
    // Wrong outputs come before slow ones. Neither wrong outputs nor failed starts need votes.
    let is_page = |found: &Finding| found.severity == Severity::Page;
    if let Some(wrong) = secondary::wrong_outputs(evidence).filter(is_page) {
        return wrong;
    }
    let any_starts = secondary::start_failure(evidence);
    let starts = any_starts.clone().filter(is_page);
    let fallen = fallback(evidence)
        .or_else(|| on_every_device(window, evidence))
        .or_else(|| certificate::drifted_and_slower(evidence));
    let fallen = fallen.map(|fallen| {
        let fallen = fallen.started_by(starts.as_ref());
        // If a placement is only worth a ticket, it must not lower the page for the slow-down that it explains.
        let at_times = intermittent(evidence, baseline);
        let others = [starts.clone(), slower(window, baseline, evidence), at_times];
        fallen.raised_to(&others)
    });
    if let Some(found) = fallen.or(starts) {
        return found;
    }
    let devices = window.n_devices();
    if devices < MIN_ELIGIBLE {
        // Devices that failed to start have no session and no vote, but enough of them are a finding.
        if let Some(starts) = any_starts {
            return starts;
        }
        let readable = |vote: &DeviceVote| vote.placement.npu_share().is_some();
        let reason = Reason::TooFewDevices {
            devices,
            needed: if window.votes.iter().any(readable) {
                SEES_DOUBLE_WITH_PLACEMENT
            } else {
                SEES_DOUBLE
            },
        };
        return Finding::nothing(VerdictClass::NotEnoughData, Severity::Info, vec![reason]);
    }
    if baseline.expects_npu
        && let Some(found) = all_on_the_cpu(window, baseline)
    {
        return found;
    }
    let slow = slower(window, baseline, evidence);
    // Load explains slow runs. A slow-down of all runs explains them too, unless devices are as fast as before in their
    // other runs.
    let is_explained = slow
        .as_ref()
        .is_some_and(|slow| slow.severity < Severity::Ticket || !evidence.has_fast_runs_too());
    let at_times = intermittent(evidence, baseline).filter(|_| !is_explained);
    let placed = placement_alone(evidence).or_else(|| certificate::drifted(evidence));
    let placed = placed.map(|alone| alone.started_by(any_starts.as_ref()));
    // The cause of slower devices also explains a heavier model and runs that vary more. Heat, however, moves no work
    // to the CPU, prevents no start and changes no outputs, so these findings are still considered.
    let [heavier, cv_spike] = match slow.is_some() || at_times.is_some() {
        true => [None, None],
        false => [
            heavier(window, baseline, evidence),
            secondary::cv_spike(evidence),
        ],
    };
    let of_make = slower_make(evidence);
    let compiled = secondary::compiled_for_another(evidence);
    let wrong = secondary::wrong_outputs(evidence);
    let different = secondary::different_outputs(evidence);
    let found = [
        slow, at_times, placed, any_starts, compiled, wrong, heavier, cv_spike, different, of_make,
    ];
    let found = found.into_iter().flatten().collect();
    Finding::worst(found).unwrap_or_else(|| nothing_found(window, baseline, evidence))
}

/// Devices whose placement is worse and that are slower.
fn fallback(evidence: &SignalEvidence) -> Option<Finding> {
    let change = evidence.placement.as_ref()?;
    let joined = evidence.slower_and_moved.as_ref();
    let joined = joined.filter(|joined| joined.signal.fires)?;
    let concurrent = joined.reference.is_concurrent();
    let control = evidence.control_of_moved;
    if !concurrent && control.vetoes_fallback() && joined.p50_ratio < FASTER_THAN_CPU {
        return None;
    }
    // Chipsets place differently by design, so this finding is not a page without devices to compare in the same
    // window.
    let severity = match change.origin {
        Origin::OtherChipsets if !concurrent => Severity::Ticket,
        _ => Severity::Page,
    };
    let mut reasons = vec![reason::placement(change), reason::slower(change, joined)];
    reasons.extend(reason::alternating(change));
    reasons.extend(reason::control(control).filter(|_| control.vetoes_fallback()));
    reasons.extend(reason::backend(change));
    Some(Finding {
        p: joined.signal.p,
        ..Finding::by_placement(change, severity, reasons)
    })
}

/// A small fleet, for example of robots. The placement got worse on every device where it can be compared, and these
/// are most of them. Each device is at least twice as slow as in its own past. The counts are too small for
/// `SlowerAndMoved`, but a second window that shows the same leaves no doubt. Devices that were not known before could
/// be made up.
fn on_every_device(window: &CohortWindow, evidence: &SignalEvidence) -> Option<Finding> {
    let (change, shift) = (evidence.placement.as_ref()?, evidence.shift.as_ref()?);
    let slower = shift.beyond(TWICE_TENTHS)?;
    let is_all_worse = change.is_on_every_device(window.n_devices());
    let is_all_slower = slower.hits >= MIN_HITS && slower.hits == slower.devices;
    let is_here = change.origin != Origin::OtherChipsets;
    let ratio = shift.p50_ratio.unwrap_or(1.0);
    let is_load = evidence.control.vetoes_fallback() && ratio < FASTER_THAN_CPU;
    let is_known = window.votes.iter().all(|vote| vote.is_proven);
    if !(is_all_worse && is_all_slower && is_here && is_known) || is_load {
        return None;
    }
    let mut reasons = vec![
        reason::placement(change),
        Reason::Shift {
            hits: slower.hits,
            devices: slower.devices,
            beyond: f64::from(TWICE_TENTHS) / 10.0,
            p: shift.signal.p,
        },
    ];
    reasons.extend(reason::backend(change));
    Some(Finding::by_placement(change, Severity::Page, reasons))
}

/// `Median` or `Shift` without `SlowerAndMoved`. If `Shift` found the devices whose placement got worse, that is the
/// cause.
fn slower(
    window: &CohortWindow,
    baseline: &Baseline,
    evidence: &SignalEvidence,
) -> Option<Finding> {
    let (shift, median) = (evidence.firing_shift(), evidence.firing_median());
    let by_median = median.map(|median| &median.signal);
    let strongest = shift.map(|shift| &shift.signal).or(by_median)?;
    let mut reasons = Vec::from_iter(shift.map(reason::shift));
    reasons.extend(median.map(|median| Reason::MedianSlower {
        ratio: median.ratio,
        at_least: median.signal.value,
        devices: median.signal.devices,
    }));
    let by_control = reason::control(evidence.control);
    let ratio = shift.and_then(|shift| shift.p50_ratio);
    let ratio = ratio.or(median.map(|median| median.ratio)).unwrap_or(1.0);
    // Heat that devices cannot report appears on the makes that report none, and so on their firmwares.
    let cause = firmware::of_slower_devices(window, evidence).filter(|_| !evidence.may_be_heat);
    let (class, severity) =
        if evidence.control.vetoes() && ratio < FASTER_THAN_CPU && cause.is_none() {
            reasons.splice(0..0, by_control);
            (VerdictClass::ThermalOrLoad, Severity::Info)
        } else {
            // Load, larger inputs and changes of the app are on all firmwares and runtimes.
            let is_of_cohort = cause.is_none();
            let same_version = same_version(window, evidence);
            // A device that was faster with this version before may have had this runtime then.
            let runtimes = match is_of_cohort && same_version.is_none() {
                true => baseline.runtimes_new_to(window),
                false => Vec::new(),
            };
            reasons.extend(same_version);
            reasons.extend(cause);
            reasons.extend(by_control);
            let everywhere = evidence.cross_chipset.filter(|others| others.explains);
            let everywhere = everywhere.filter(|_| is_of_cohort);
            match everywhere {
                Some(others) => reasons.insert(0, reason::everywhere(others, runtimes)),
                None if runtimes.is_empty() => {}
                None => reasons.push(Reason::OnRuntime { runtimes }),
            }
            let is_mild = median.is_none() && shift.is_some_and(Shift::is_mild);
            let is_unsure = evidence.control.is_unsure() && ratio < FASTER_THAN_CPU && is_of_cohort;
            let severity = match everywhere.is_some() || is_mild || is_unsure {
                true => Severity::Ticket,
                false => Severity::Page,
            };
            let change = evidence.placement.as_ref();
            let change =
                change.filter(|_| evidence.placement_explains_shift && everywhere.is_none());
            if let Some(change) = change {
                reasons.insert(0, reason::placement(change));
            }
            let is_alone = evidence.control == Control::Absent && evidence.cross_chipset.is_none();
            if is_alone && is_of_cohort && change.is_none() && ratio < MAY_BE_LOAD {
                reasons.push(Reason::NoControl);
            }
            let class = change.map_or(VerdictClass::SlowWithoutPlacement, class_of);
            (class, severity)
        };
    Some(Finding::of(strongest, class, severity, reasons))
}

/// The reason that devices are compared with earlier windows of the version, if most compared devices are.
fn same_version(window: &CohortWindow, evidence: &SignalEvidence) -> Option<Reason> {
    let shift = evidence.shift.as_ref()?;
    let devices = window.n_with_faster_windows();
    (2 * devices > shift.signal.devices).then_some(Reason::SameVersion { devices })
}

/// Devices that are slow in some of their runs.
fn intermittent(evidence: &SignalEvidence, baseline: &Baseline) -> Option<Finding> {
    let found = evidence.firing_intermittent()?;
    let control = evidence.intermittent_control;
    // The mix of inputs moves medians too, and so do sessions on other cores. So `Moved` and `NearTail` are weak evidence
    // before a fleet has rates of its own. Without a control they are weak, too, unless their chance leaves no doubt.
    let is_known = baseline.rates.has(found.past_id());
    let is_sure = control != Control::Absent || found.signal.p <= SURE_P;
    let is_strong = found.signal.id == SignalId::Tail || (is_known && is_sure);
    let others = evidence.intermittent_cross_chipset;
    // Larger inputs come with the app, to all chipsets.
    let spared = others.filter(|others| others.spared && !found.shape_is_known);
    let shape_is_known = found.shape_is_known || spared.is_some();
    // Other work of the devices comes and goes within a version, so a comparison with the version's own windows makes
    // only a ticket.
    let is_page = shape_is_known && is_strong && !evidence.by_own_windows;
    let mut reasons = vec![Reason::Intermittent {
        hits: found.signal.hits,
        devices: found.signal.devices,
        slow_share: found.slow_share,
        limit: SlowLimit::of(found.signal.id),
        shape_is_known,
        p: found.signal.p,
    }];
    reasons.extend(spared.map(reason::spared));
    let by_control = reason::control(control);
    let (class, severity) = if control.vetoes() {
        reasons.splice(0..0, by_control);
        (VerdictClass::ThermalOrLoad, Severity::Info)
    } else {
        reasons.extend(by_control);
        let everywhere = others.filter(|others| others.explains);
        let told = everywhere.map(|others| reason::everywhere(others, Vec::new()));
        reasons.splice(0..0, told);
        let severity = if is_page && everywhere.is_none() && !control.is_unsure() {
            Severity::Page
        } else {
            Severity::Ticket
        };
        (VerdictClass::IntermittentFallback, severity)
    };
    Some(Finding::of(&found.signal, class, severity, reasons))
}

/// A change of placement without latency.
fn placement_alone(evidence: &SignalEvidence) -> Option<Finding> {
    let change = evidence.placement.as_ref();
    let change = change.filter(|change| change.signal.fires)?;
    let mut reasons = vec![reason::placement(change)];
    reasons.extend(reason::alternating(change));
    let joined = evidence.slower_and_moved.as_ref();
    let not_slower = joined.filter(|joined| !joined.signal.fires);
    reasons.extend(not_slower.map(reason::not_slower));
    reasons.extend(reason::backend(change));
    // If most compared devices are slower, the change is more than a different count.
    let is_not_slower =
        not_slower.is_some_and(|joined| 2 * joined.signal.hits <= joined.signal.devices);
    let recounted = !change.new_runtimes.is_empty() && is_not_slower;
    let class = class_of(change);
    let certified_total =
        change.origin == Origin::Certified && class == VerdictClass::TotalFallback;
    let (class, severity) = if recounted {
        let runtimes = change.new_runtimes.clone();
        reasons.insert(0, Reason::NewRuntime { runtimes });
        (VerdictClass::DataQuality, Severity::Info)
    } else if certified_total {
        (class, Severity::Page)
    } else {
        (class, Severity::Ticket)
    };
    Some(Finding {
        class,
        ..Finding::by_placement(change, severity, reasons)
    })
}

/// Devices of a make that are slower than the chipset's others, however fast they were before.
fn slower_make(evidence: &SignalEvidence) -> Option<Finding> {
    let found = evidence.slower_group.as_ref()?;
    let class = VerdictClass::SlowWithoutPlacement;
    Some(Finding {
        hits: found.own.hits,
        eligible: found.own.devices + found.others,
        p: found.p,
        ..Finding::nothing(class, Severity::Ticket, vec![reason::slower_make(found)])
    })
}

/// The whole cohort moved by less than 1.6 x.
fn heavier(
    window: &CohortWindow,
    baseline: &Baseline,
    evidence: &SignalEvidence,
) -> Option<Finding> {
    let median = evidence.median.as_ref();
    let median = median.filter(|median| median.is_heavier)?;
    let reason = Reason::CohortMoved {
        ratio: median.ratio,
        devices: median.signal.devices,
        new_runtimes: baseline.runtimes_new_to(window),
    };
    let previous = median
        .control_ratio
        .map(|ratio| Reason::PreviousMoved { ratio });
    let peers = median.peer_ratio.map(|ratio| Reason::PeersMoved { ratio });
    let (class, severity, reasons) = match previous.or(peers) {
        Some(control) => {
            let reasons = vec![control, reason];
            (VerdictClass::ThermalOrLoad, Severity::Info, reasons)
        }
        None => {
            let class = VerdictClass::SlowWithoutPlacement;
            (class, Severity::Ticket, vec![reason])
        }
    };
    Some(Finding {
        p: MEDIAN_CHANCE,
        ..Finding::of(&median.signal, class, severity, reasons)
    })
}

/// Chance above which the count of slower devices is not a sign of a change.
const UNCHANGED_P: f64 = 0.05;

/// Chance below which devices that are slow in some of their runs are a sign of a change. Three signals are tested in
/// each window.
const CHANGED_RUNS_P: f64 = 1e-3;

/// Median ratio below which there is no sign of a change: firmware or another app may cost as much.
const UNCHANGED_RATIO: f64 = 1.25;

fn nothing_found(window: &CohortWindow, baseline: &Baseline, evidence: &SignalEvidence) -> Finding {
    // A version's own past shows what changed, not whether it was right. Other chipsets do not confirm a chipset with
    // almost no work on the NPU, because they may have little there too.
    let vouches = |change: &&PlacementChange| match change.origin {
        Origin::PreviousVersion | Origin::Certified => true,
        Origin::OtherChipsets => hardly_on_npu(window, baseline).is_none(),
        Origin::SameVersion => false,
    };
    let by_placement = evidence.placement.as_ref().filter(vouches);
    let by_placement = by_placement.map_or(0, PlacementChange::n_compared);
    let with_past = evidence
        .shift
        .as_ref()
        .map_or(0, |shift| shift.signal.devices);
    let as_before = window.n_with_earlier_windows();
    let by_past = with_past.saturating_sub(as_before);
    if by_placement >= MIN_ELIGIBLE || by_past >= MIN_ELIGIBLE {
        return Finding::nothing(VerdictClass::Healthy, Severity::None, Vec::new());
    }
    if let Some(found) = all_on_the_cpu(window, baseline) {
        return found;
    }
    let mut reasons = vec![Reason::NoReference {
        previous_version: baseline.previous_version.clone(),
        comparable_placements: by_placement,
        comparable_pasts: by_past,
        needed: MIN_ELIGIBLE,
    }];
    let unchanged =
        |shift: &Shift| shift.signal.p > UNCHANGED_P && shift.cohort_ratio < UNCHANGED_RATIO;
    let in_some_runs = evidence.in_some_runs();
    let some_runs_changed = in_some_runs
        .iter()
        .any(|found| found.signal.p <= CHANGED_RUNS_P);
    let is_unchanged = evidence.shift.as_ref().is_some_and(unchanged) && !some_runs_changed;
    if as_before >= MIN_ELIGIBLE && is_unchanged {
        let with_runs = in_some_runs.iter().map(|found| found.signal.devices);
        reasons.push(Reason::AsBefore {
            devices: as_before,
            with_slow_runs: with_runs.max().unwrap_or(0),
            before: baseline.came_back_from.clone(),
        });
    }
    reasons.extend(hardly_on_npu(window, baseline));
    Finding::nothing(VerdictClass::NotEnoughData, Severity::Info, reasons)
}

/// Total fallback without any reference: the app requested the NPU, and on most devices almost no work is there. That
/// may be intended, so it is a page only if the config expects the model there.
fn all_on_the_cpu(window: &CohortWindow, baseline: &Baseline) -> Option<Finding> {
    let found = off_npu(window);
    if found.devices < MIN_ELIGIBLE || found.share() < MOST_DEVICES {
        return None;
    }
    let severity = match baseline.expects_npu {
        true => Severity::Page,
        false => Severity::Ticket,
    };
    let reasons = Vec::from_iter(hardly_on_npu(window, baseline));
    Some(Finding {
        hits: found.hits,
        eligible: found.devices,
        // A first version's own history already contains this fault, so it is left out.
        p: surprise(
            found,
            baseline
                .rates
                .of(SignalId::Placement, built_in_rate(SignalId::Placement)),
            Tally::default(),
        ),
        ..Finding::nothing(VerdictClass::TotalFallback, severity, reasons)
    })
}

/// Counts the devices with almost no work on the NPU among devices whose placement could be read.
fn off_npu(window: &CohortWindow) -> Tally {
    let devices_with = |matches: &dyn Fn(f64) -> bool| {
        let share = |vote: &DeviceVote| vote.placement.npu_share().map(|(share, _)| share);
        let votes = window.votes.iter();
        count_devices(votes.filter(|vote| share(vote).is_some_and(matches)))
    };
    Tally {
        hits: devices_with(&|share| share < TOTAL_FALLBACK_BELOW),
        devices: devices_with(&|_| true),
    }
}

/// Returns the reason that most devices run almost nothing on the NPU although they requested it.
fn hardly_on_npu(window: &CohortWindow, baseline: &Baseline) -> Option<Reason> {
    let Tally { hits, devices } = off_npu(window);
    (2 * hits > devices).then_some(Reason::HardlyOnNpu {
        off_npu: hits,
        devices,
        is_expected: baseline.expects_npu,
    })
}
