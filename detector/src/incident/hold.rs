//! Faults that a person ended by an order while they last. Their verdicts are quiet until the fault grows, or returns
//! after a clean window. Recovered faults are quiet, too, while windows still hold runs from before the repair.
//!
//! A held incident is over for everybody. Each window's verdicts pass through here before [`advance`](super::advance).
//! Verdicts of a held fault lose their severity, so they open no incident. A new cause is not held, and always opens an
//! incident.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use epwatch_model::{
    Cause, CohortKey, CohortVerdict, HeldEffect, Hold, Incident, OrderKind, Severity, VerdictClass,
    signed,
};

/// Growth of devices hit, slow-down or share on the CPU from which a fault that was resolved notifies again.
const GROWN: f64 = 1.5;

/// Number of times that `seen_until` is updated in the time after which a held version is forgotten.
const SEEN_MOVES: i32 = 14;

/// Slow-down against the accepted latency from which a version notifies again. Medians of some tens of devices differ
/// by a few percent from window to window.
const SLOWER_THAN_ACCEPTED: f64 = 1.25;

/// Share of the work on the CPU beyond the accepted one from which a version notifies again.
const MOVED_SINCE_ACCEPTED: f64 = 0.1;

/// Returns the effect of a verdict.
fn effect_of(verdict: &CohortVerdict) -> HeldEffect {
    let numbers = &verdict.numbers;
    HeldEffect {
        latency_ratio: numbers.latency_ratio,
        cpu_share: numbers.npu_share.map(|npu| 1.0 - npu),
    }
}

fn worst(effect: HeldEffect, other: HeldEffect) -> HeldEffect {
    let worst = |a: Option<f64>, b: Option<f64>| match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    };
    HeldEffect {
        latency_ratio: worst(effect.latency_ratio, other.latency_ratio),
        cpu_share: worst(effect.cpu_share, other.cpu_share),
    }
}

/// Whether a later effect is larger by half. A value that was unknown then is not compared.
fn has_grown_to(effect: HeldEffect, now: HeldEffect) -> bool {
    let grew = |then: Option<f64>, now: Option<f64>| {
        then.zip(now)
            .is_some_and(|(then, now)| then > 0.0 && now >= GROWN * then)
    };
    grew(effect.latency_ratio, now.latency_ratio) || grew(effect.cpu_share, now.cpu_share)
}

/// Whether a later effect is worse than this accepted one.
fn is_exceeded_by(effect: HeldEffect, now: HeldEffect) -> bool {
    let slower = effect.latency_ratio.zip(now.latency_ratio);
    let moved = effect.cpu_share.zip(now.cpu_share);
    slower.is_some_and(|(then, now)| now >= SLOWER_THAN_ACCEPTED * then)
        || moved.is_some_and(|(then, now)| now >= then + MOVED_SINCE_ACCEPTED)
}

/// Returns the size of an incident as it is now.
pub(super) fn hold_of(incident: &Incident) -> Hold {
    let mut chipsets: BTreeMap<String, HeldEffect> = BTreeMap::new();
    for cohort in &incident.cohorts {
        let chipset = cohort.verdict.key.chipset.clone();
        let effect = chipsets.entry(chipset).or_default();
        *effect = worst(*effect, effect_of(&cohort.verdict));
    }
    let ends = incident.cohorts.iter().map(|cohort| cohort.counted_until);
    Hold {
        devices_hit: incident.devices().0,
        chipsets,
        cleared: BTreeSet::new(),
        seen_until: ends.max().unwrap_or(incident.started_at),
        until: None,
    }
}

/// Removes the severity from verdicts of held faults, and ends the holds that are over. Returns the verdicts, and the
/// incidents whose hold changed.
pub(crate) fn quieted<'a, 'b>(
    held: impl Iterator<Item = &'b mut Incident>,
    verdicts: &'a [CohortVerdict],
    forget_after: Duration,
) -> (Cow<'a, [CohortVerdict]>, Vec<Incident>) {
    let mut verdicts = Cow::Borrowed(verdicts);
    let mut changed = Vec::new();
    for incident in held {
        let before = incident.orders.hold.clone();
        let quiet = hold_back(incident, &verdicts, forget_after);
        for at in quiet {
            verdicts.to_mut()[at].severity = Severity::Info;
        }
        let load = verdicts.iter().enumerate();
        let load = load.filter(|(_, verdict)| holds_load(incident, verdict));
        let load: Vec<usize> = load.map(|(at, _)| at).collect();
        for at in load {
            verdicts.to_mut()[at].severity = Severity::None;
        }
        if incident.orders.hold != before {
            changed.push(incident.clone());
        }
    }
    (verdicts, changed)
}

/// Whether a verdict shows load on a chipset whose slow-down is held.
fn holds_load(incident: &Incident, verdict: &CohortVerdict) -> bool {
    let (own, key) = (&incident.key, &verdict.key);
    let hold = incident.orders.hold.as_ref();
    own.cause == Cause::Slower
        && (&own.model, &own.model_version) == (&key.model, &key.model_version)
        && hold.is_some_and(|hold| hold.chipsets.contains_key(&key.chipset))
        && verdict.is_load()
}

/// Whether a verdict shows the incident's fault, or is explained by it, on one of its chipsets.
pub(super) fn quiets(incident: &Incident, verdict: &CohortVerdict) -> bool {
    let key = &verdict.key;
    let hold = incident.orders.hold.as_ref();
    let cause = incident.key.cause;
    key.model == incident.key.model
        && key.model_version == incident.key.model_version
        && hold.is_some_and(|hold| hold.chipsets.contains_key(&key.chipset))
        && verdict.severity >= Severity::Ticket
        && (Cause::of(verdict.class) == Some(cause) || cause.explains(verdict.class))
}

/// Returns the positions of the verdicts that stay quiet.
fn hold_back(
    incident: &mut Incident,
    verdicts: &[CohortVerdict],
    forget_after: Duration,
) -> Vec<usize> {
    let is_accepted = incident.orders.end.as_ref().map(|end| end.kind) == Some(OrderKind::Accept);
    let Some(mut hold) = incident.orders.hold.take() else {
        return Vec::new();
    };
    let end = verdicts.iter().map(|verdict| verdict.window_end).max();
    if let Some(until) = hold.until {
        // A window that ends before the recovery means that the clock was set back. The fault notifies again then,
        // because twice is better than never.
        let is_over = end.is_some_and(|end| end >= until || end < hold.seen_until);
        incident.orders.hold = Some(hold).filter(|_| !is_over);
        let quiet = verdicts.iter().enumerate();
        let quiet = quiet.filter(|(_, verdict)| quiets(incident, verdict));
        return quiet.map(|(at, _)| at).collect();
    }
    let (model, version) = (&incident.key.model, &incident.key.model_version);
    let is_of_version = |key: &CohortKey| key.model == *model && key.model_version == *version;
    let of_version: Vec<(usize, &CohortVerdict)> = verdicts
        .iter()
        .enumerate()
        .filter(|(_, verdict)| is_of_version(&verdict.key))
        .collect();
    let is_fault = |verdict: &CohortVerdict| {
        verdict.severity >= Severity::Ticket && Cause::of(verdict.class) == Some(incident.key.cause)
    };
    let faults: Vec<(usize, &CohortVerdict)> = of_version
        .iter()
        .copied()
        .filter(|(_, verdict)| is_fault(verdict))
        .collect();
    if let Some(end) = end {
        let unseen = end.duration_since(hold.seen_until);
        let is_seen = !of_version.is_empty();
        // Each change is stored, so `seen_until` is updated rarely.
        if is_seen && unseen >= signed(forget_after) / SEEN_MOVES {
            hold.seen_until = end;
        } else if !is_seen && unseen >= signed(forget_after) {
            return Vec::new();
        }
    }
    let effect_of = |verdict: &CohortVerdict| {
        let then = hold.chipsets.get(&verdict.key.chipset).copied();
        then.map(|then| (then, effect_of(verdict)))
    };
    if is_accepted {
        let exceeded: BTreeSet<String> = faults
            .iter()
            .filter(|(_, verdict)| {
                effect_of(verdict).is_some_and(|(then, now)| is_exceeded_by(then, now))
            })
            .map(|(_, verdict)| verdict.key.chipset.clone())
            .collect();
        hold.chipsets
            .retain(|chipset, _| !exceeded.contains(chipset));
        let is_held = |verdict: &CohortVerdict| hold.chipsets.contains_key(&verdict.key.chipset);
        let quiet = faults.iter().filter(|(_, verdict)| is_held(verdict));
        let quiet = quiet.map(|(at, _)| *at).collect();
        incident.orders.hold = Some(hold).filter(|hold| !hold.chipsets.is_empty());
        return quiet;
    }
    let has_grown = faults
        .iter()
        .any(|(_, verdict)| effect_of(verdict).is_some_and(|(then, now)| has_grown_to(then, now)));
    let hit = devices_hit(faults.iter().map(|(_, verdict)| *verdict));
    if has_grown || hit as f64 >= GROWN * hold.devices_hit.max(1) as f64 {
        return Vec::new();
    }
    let at_fault: BTreeSet<&str> = faults
        .iter()
        .map(|(_, verdict)| &*verdict.key.chipset)
        .collect();
    for (_, verdict) in &of_version {
        let is_clean = verdict.key.firmware.is_none() && verdict.class == VerdictClass::Healthy;
        if is_clean && !at_fault.contains(&*verdict.key.chipset) {
            hold.chipsets.remove(&verdict.key.chipset);
            hold.cleared.insert(verdict.key.chipset.clone());
        }
    }
    if hold.chipsets.is_empty() {
        return Vec::new();
    }
    let is_quiet = |verdict: &CohortVerdict| !hold.cleared.contains(&verdict.key.chipset);
    let quiet = faults.iter().filter(|(_, verdict)| is_quiet(verdict));
    let quiet = quiet.map(|(at, _)| *at).collect();
    incident.orders.hold = Some(hold);
    quiet
}

/// Returns the devices hit over chipsets. Firmwares count where their chipset as a whole does not show the fault.
fn devices_hit<'a>(verdicts: impl Iterator<Item = &'a CohortVerdict>) -> u64 {
    let verdicts: Vec<&CohortVerdict> = verdicts.collect();
    let whole = verdicts
        .iter()
        .filter(|verdict| verdict.key.firmware.is_none());
    let whole: BTreeSet<&str> = whole.map(|verdict| &*verdict.key.chipset).collect();
    let counted = verdicts
        .iter()
        .filter(|verdict| verdict.key.firmware.is_none() || !whole.contains(&*verdict.key.chipset));
    counted.map(|verdict| verdict.numbers.devices_hit).sum()
}
