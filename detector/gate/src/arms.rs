//! The two sides of a comparison: their order, and the launches that are left out of it.

use std::collections::BTreeSet;

use epwatch_stats::order_stat::median;

use crate::{
    files::MeasuredFile,
    mistakes::{Mistake, THIS_LAUNCH},
    throttle::PROBE_MOVED,
};

/// Sorts launches by the time of measuring, and marks launches whose CPU probe differs from most. Returns the mistake
/// in the order, if there is one.
pub(crate) fn in_order(
    candidate: &mut [MeasuredFile],
    baseline: &mut [MeasuredFile],
) -> Option<Mistake> {
    let mut ranges = Vec::new();
    let mut all = candidate.iter().chain(&*baseline);
    // Sorting needs the start of every launch: a mixture of two orders would pair the wrong launches.
    let has_starts = all.all(|one| one.run.started_unix_ms.is_some());
    for arm in [&mut *candidate, &mut *baseline] {
        let starts: Vec<i64> = arm
            .iter()
            .filter_map(|one| one.run.started_unix_ms)
            .collect();
        if has_starts {
            arm.sort_by_key(|one| one.run.started_unix_ms);
            ranges.extend(
                starts
                    .iter()
                    .min()
                    .zip(starts.iter().max())
                    .map(|(a, b)| (*a, *b)),
            );
        }
    }
    let probes = candidate.iter().chain(&*baseline);
    let probes: Vec<f64> = probes.filter_map(|one| one.run.probe_us).collect();
    let middle = median(&probes).unwrap_or(f64::INFINITY);
    for one in candidate.iter_mut().chain(&mut *baseline) {
        let ratio = one.run.probe_us.map(|us| us / middle);
        if let Some(ratio) = ratio.filter(|ratio| (ratio - 1.0).abs() > PROBE_MOVED) {
            let note = Mistake::clock_moved(THIS_LAUNCH, ratio, "as of most launches");
            one.run.mistakes.push(note);
        }
    }
    let [now, before] = ranges[..] else {
        return None;
    };
    let is_apart = now.1 < before.0 || before.1 < now.0;
    let is_several = candidate.len() > 1 && baseline.len() > 1;
    (is_apart && is_several).then(Mistake::not_in_turn)
}

/// The mistakes of all files, each once. A mistake of a single launch names its file.
pub(crate) fn mistakes<'a>(
    mut notes: Vec<Mistake>,
    all: impl Iterator<Item = &'a MeasuredFile>,
) -> Vec<Mistake> {
    for one in all {
        for mistake in &one.run.mistakes {
            let mut mistake = mistake.clone();
            mistake.why = mistake.why.replace(THIS_LAUNCH, &one.file.path);
            notes.push(mistake);
        }
    }
    let mut seen = BTreeSet::new();
    notes.retain(|mistake| seen.insert((mistake.id, mistake.why.clone())));
    notes
}

/// Launches of a throttled device, or at another clock, are left out, each with its pair.
pub(crate) fn without_throttled<'a>(
    candidate: &'a [MeasuredFile],
    baseline: &'a [MeasuredFile],
) -> (Vec<&'a MeasuredFile>, Vec<&'a MeasuredFile>) {
    let is_hot = |one: &MeasuredFile| one.run.mistakes.iter().any(Mistake::leaves_out);
    let pairs_up = candidate.len() == baseline.len();
    let kept = |arm: &'a [MeasuredFile], other: &'a [MeasuredFile]| -> Vec<&'a MeasuredFile> {
        let each = arm.iter().enumerate().filter(|(at, one)| {
            let pair_is_hot = pairs_up && other.get(*at).is_some_and(is_hot);
            !is_hot(one) && !pair_is_hot
        });
        each.map(|(_, one)| one).collect()
    };
    (kept(candidate, baseline), kept(baseline, candidate))
}

/// One number a launch: the median of its runs, or the only one it has.
pub(crate) fn times(launches: &[&MeasuredFile]) -> Vec<f64> {
    let of = |one: &&MeasuredFile| {
        let runs: Vec<f64> = one.run.runs_us.iter().map(|us| *us as f64).collect();
        median(&runs).or(one.run.time_us)
    };
    launches.iter().filter_map(of).collect()
}
