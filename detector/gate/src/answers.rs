//! Results of launches in addition to their run times: how long a session takes to start, its outputs, and runs that
//! failed.

use std::collections::BTreeSet;

use epwatch_stats::{SLOW_RUN, order_stat::median};

use crate::{
    files::{JudgedBy, MeasuredFile},
    measured::limited,
    mistakes::Mistake,
    run::Run,
    verdict::{Check, CheckResult, LoadNumbers},
};

/// Fails if a run ended with an error.
pub(crate) fn failed_runs(candidate: &[MeasuredFile]) -> Option<Check> {
    let failed = candidate.iter().filter(|one| one.run.failed_runs > 0);
    let (launches, runs) = failed.fold((0, 0_u64), |(launches, runs), one| {
        (launches + 1, runs.saturating_add(one.run.failed_runs))
    });
    let why = format!("{runs} runs ended with an error, in {launches} launches");
    (launches > 0).then(|| Check::new("failed_runs", CheckResult::Fail, why))
}

/// Why outputs of launches on the CPU are not checked.
pub(crate) const SAME_EP: &str =
    "the launches ran on the CPU, and outputs are compared with the CPU's own";

fn none(id: &'static str, what: &str) -> Check {
    let why = format!("a limit is set, and a file has no {what}");
    Check::new(id, CheckResult::Undecided, why)
}

/// Judges how long sessions take to start.
pub(crate) fn loads(now: &[&MeasuredFile], by: JudgedBy<'_>) -> Option<Check> {
    let limit = by.policy.load.cold_ms?;
    if let Some(one) = now.iter().find(|one| one.run.is_off_npu()) {
        let path = &one.file.path;
        let why = format!("{path} was not measured on an NPU; its load time says nothing of one");
        return Some(Check::new("load", CheckResult::Undecided, why));
    }
    let loads = now.iter().map(|one| Some(one.run.load_us? / 1_000.0));
    let loads: Option<Vec<f64>> = loads.collect();
    Some(match loads.filter(|loads| !loads.is_empty()) {
        None => none("load", "load time"),
        Some(loads) => limited("load", &loads, limit, " ms", SLOW_RUN * limit),
    })
}

/// How long sessions take to start, in numbers.
pub(crate) fn load_numbers(now: &[&MeasuredFile]) -> Option<LoadNumbers> {
    let over = |of: fn(&Run) -> Option<f64>| {
        let each: Vec<f64> = now.iter().filter_map(|one| of(&one.run)).collect();
        median(&each).map(|us| us / 1_000.0)
    };
    let found = LoadNumbers {
        cold_ms: over(|run| run.load_us),
        warm_ms: over(|run| run.load_warm_us),
    };
    (found != LoadNumbers::default()).then_some(found)
}

/// Judges the outputs of sessions, launch by launch. Launches on a throttled device count here too.
pub(crate) fn outputs(
    candidate: &[MeasuredFile],
    by: JudgedBy<'_>,
    notes: &mut Vec<Mistake>,
) -> Option<Check> {
    let of_runs = || candidate.iter().map(|one| (one, one.run.outputs.as_ref()));
    let hashes = of_runs().filter_map(|(_, outputs)| outputs?.hash.as_ref());
    let hashes: BTreeSet<&String> = hashes.collect();
    notes.extend((hashes.len() > 1).then(|| Mistake::outputs_vary(hashes.len())));
    let wrong = of_runs().find_map(|(one, outputs)| Some((one, outputs?.wrong.as_ref()?)));
    if let Some((one, what)) = wrong {
        let why = format!("{}: {what}{}", one.file.path, first_off(one));
        return Some(Check::new("outputs", CheckResult::Fail, why));
    }
    let not_finite =
        of_runs().filter_map(|(one, outputs)| Some((one, outputs?.not_finite.as_ref()?)));
    let (wrong, noted): (Vec<_>, Vec<_>) = not_finite.partition(|(_, found)| found.is_wrong());
    if let Some((one, found)) = wrong.first() {
        let why = format!(
            "{}: {}; numbers on the NPU may be too large for their type, which ends at 65504 in FP16",
            one.file.path,
            found.shown()
        );
        return Some(Check::new("outputs", CheckResult::Fail, why));
    }
    if let Some((one, found)) = noted.first() {
        notes.push(Mistake::not_finite(&one.file.path, &found.shown()));
    }
    let limit = by.policy.outputs.min_cosine?;
    if by.is_on_cpu {
        return Some(Check::new("outputs", CheckResult::Skip, SAME_EP));
    }
    let cosines = of_runs().map(|(one, outputs)| Some((outputs?.cosine?, one)));
    let least = cosines
        .collect::<Option<Vec<_>>>()
        .and_then(|all| all.into_iter().min_by(|(a, _), (b, _)| a.total_cmp(b)));
    Some(match least {
        None => none("outputs", "cosine of the outputs"),
        Some((least, one)) => {
            let (result, first) = match least >= limit {
                true => (CheckResult::Pass, String::new()),
                false => (CheckResult::Fail, first_off(one)),
            };
            let (n, file) = (candidate.len(), &one.file.path);
            let why = format!(
                "the least cosine of {n} launches is {least:.4}, of {file}; at least {limit}{first}"
            );
            Check::new("outputs", result, why).with(Some(least), Some(limit))
        }
    })
}

/// Names the layer to look at, if the launch has several outputs.
fn first_off(one: &MeasuredFile) -> String {
    let outputs = one.run.outputs.as_ref();
    let first = outputs.and_then(|outputs| outputs.first_off.as_ref());
    first.map_or(String::new(), |first| {
        format!("; the first output that is off is {first}: keep its layer in 16 bits, or off that accelerator")
    })
}
