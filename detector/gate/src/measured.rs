//! Judges measured launches by the policy's limits, and against a baseline's launches.

use std::collections::BTreeSet;

use epwatch_proto::Accelerator;
use epwatch_stats::{SLOW_RUN, order_stat::median};

use crate::{
    Judged, Launch, bounds,
    comparison::{Comparison, DEFAULT_MIN_EFFECT, Pair},
    intermittent::{LEAST_WHOLE, SlowPhases, TwoLatencies},
    limits::{judge_cv, judge_limit},
    policy::LatencyLimits,
    verdict::{Against, Check, CheckResult, LatencyNumbers},
};

/// A launch is late as a whole if a larger share of its runs is late.
const LATE_AS_A_WHOLE: f64 = 0.5;
/// Multiple of the limit from which on a wrong unit is likelier than a slow model.
const MOST_TIMES: f64 = 200.0;

/// Summarises the launches: each number is the median over launches.
pub fn numbers(launches: &[Launch], limits: &LatencyLimits) -> LatencyNumbers {
    let over = |of: &dyn Fn(&Launch) -> f64| median(&each(launches, of));
    let deadline = limits.deadline_ms;
    LatencyNumbers {
        launches: launches.len(),
        runs: launches.iter().map(|l| l.ascending_us().len()).sum(),
        median_ms: over(&median_ms),
        p95_ms: over(&p95_ms),
        cv: over(&Launch::cv),
        cv_robust: over(&Launch::robust_cv),
        slow_share: over(&Launch::slow_share),
        late: deadline.and_then(|ms| over(&|launch| late(launch, ms))),
    }
}

/// Quantiles 0.1, 0.5 and 0.95 in microseconds, each the median over launches; `None` without launches.
pub fn quantiles_us(launches: &[Launch]) -> Option<[u64; 3]> {
    let over = |q: f64| {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "microseconds of at most an hour"
        )]
        #[expect(clippy::cast_sign_loss, reason = "microseconds of at most an hour")]
        median(&each(launches, &|launch| launch.quantile_us(q))).map(|us| us.round() as u64)
    };
    Some([over(0.1)?, over(0.5)?, over(0.95)?])
}

fn each(launches: &[Launch], of: &dyn Fn(&Launch) -> f64) -> Vec<f64> {
    launches.iter().map(of).collect()
}

fn median_ms(launch: &Launch) -> f64 {
    launch.median_us() / 1_000.0
}

fn p95_ms(launch: &Launch) -> f64 {
    launch.quantile_us(0.95) / 1_000.0
}

fn late(launch: &Launch, deadline_ms: f64) -> f64 {
    launch.share_beyond(1_000.0 * deadline_ms)
}

/// Fails if no node of a launch ran on an NPU's EP. The sets have the EPs of each launch; `None` if the files name none.
pub fn judge_eps<'a>(of_launches: impl IntoIterator<Item = &'a BTreeSet<String>>) -> Option<Check> {
    let (mut launches, mut without_eps, mut off_npu) = (0, 0, 0);
    let (mut strange, mut ran) = (None, None);
    for eps in of_launches {
        launches += 1;
        without_eps += usize::from(eps.is_empty());
        let of_eps = eps.iter().map(|ep| Accelerator::of_ep(ep));
        let on = of_eps.clone().find(|accelerator| accelerator.is_off_cpu());
        ran = ran.or(on);
        let is_off = !eps.is_empty() && on.is_none();
        let is_unknown = |ep: &&String| Accelerator::of_ep(ep) == Accelerator::Unknown;
        let unknown = eps.iter().find(is_unknown);
        match unknown.filter(|_| is_off) {
            Some(ep) => strange = Some(ep),
            None => off_npu += usize::from(is_off),
        }
    }
    let (result, why) = match (off_npu, without_eps) {
        (0, _) if strange.is_some() => (
            CheckResult::Undecided,
            format!(
                "the EP {} is not known; register QNN's plugin under a name that begins with QNN",
                strange.map_or("", String::as_str)
            ),
        ),
        (0, 0) => (CheckResult::Pass, {
            let text = format!("the NPU ran nodes (launches: {launches})");
            ran.unwrap_or(Accelerator::Npu).in_words(&text).into_owned()
        }),
        (0, n) => (
            CheckResult::Undecided,
            format!("{n} of {launches} profiles name no EP; profile with node events"),
        ),
        (n, _) => (
            CheckResult::Fail,
            format!("{n} of {launches} launches have no node on the NPU"),
        ),
    };
    (launches > 0).then(|| Check::new("npu_used", result, why))
}

/// Judges the launches by each limit that the policy sets.
pub fn judge_limits(launches: &[Launch], limits: &LatencyLimits) -> Vec<Check> {
    let over = |id, limit: Option<f64>, of: &dyn Fn(&Launch) -> f64| {
        let values = each(launches, of);
        limit.map(|limit| limited(id, &values, limit, " ms", SLOW_RUN * limit))
    };
    let most_late = limits.deadline_ms.map(|_| limits.max_late());
    let cv = limits.cv_max.map(|limit| {
        let robust = median(&each(launches, &Launch::robust_cv)).unwrap_or(0.0);
        let unit = format!(" ({robust:.3} by the median deviation)");
        let judged = judge_cv(launches, limit);
        shown("cv", &each(launches, &Launch::cv), limit, &unit, judged)
    });
    let late = limits.deadline_ms.zip(most_late).map(|(deadline, most)| {
        let values = each(launches, &|launch| late(launch, deadline));
        let unit = format!(" of the runs above {deadline} ms");
        limited("late", &values, most, &unit, LATE_AS_A_WHOLE)
    });
    let checks = [
        over("median", limits.median_ms, &median_ms),
        over("p95", limits.p95_ms, &p95_ms),
        late,
        cv,
    ];
    checks.into_iter().flatten().collect()
}

/// Judges launches that have one number and no single runs, by the limit of the median. The other limits cannot be
/// judged.
pub(crate) fn judge_single(values_ms: &[f64], limits: &LatencyLimits) -> Vec<Check> {
    let mut checks = Vec::new();
    if let Some(limit) = limits.median_ms {
        let far = SLOW_RUN * limit;
        checks.push(limited("median", values_ms, limit, " ms", far));
    }
    for (id, limit) in [
        ("p95", limits.p95_ms),
        ("late", limits.deadline_ms),
        ("cv", limits.cv_max),
    ] {
        if limit.is_some() {
            let why = "the files have no single runs";
            checks.push(Check::new(id, CheckResult::Undecided, why));
        }
    }
    checks
}

/// Judges one number per launch by a limit for the median over launches. Launches beyond `far` are slow as a whole. Two
/// of them among six or more fail, and one is a warning, because the median shows neither.
pub(crate) fn limited(id: &'static str, values: &[f64], limit: f64, unit: &str, far: f64) -> Check {
    let n_far = values.iter().filter(|value| **value > far).count();
    let judged = match judge_limit(values, limit) {
        _ if n_far >= LEAST_WHOLE && values.len() >= bounds::LEAST => Judged::Fail,
        judged => judged,
    };
    let mut check = shown(id, values, limit, unit, judged);
    if n_far > 0 && values.len() > 1 {
        check.why.push_str(&format!("; beyond {far:.3} in {n_far}"));
        if check.result == CheckResult::Pass {
            check.result = CheckResult::Warn;
        }
    }
    check
}

fn shown(id: &'static str, values: &[f64], limit: f64, unit: &str, judged: Judged) -> Check {
    let value = median(values);
    let launches = match values.len() {
        1 => "1 launch, whose number decides alone".to_owned(),
        n => format!("{n} launches"),
    };
    let number = value.unwrap_or(0.0);
    let hint = judged.hint("launches");
    let times = number / limit;
    let other_unit = match unit == " ms" && times >= MOST_TIMES {
        true => format!("; that is {times:.0} times the limit: are the run times nanoseconds?"),
        false => String::new(),
    };
    let why = format!("{number:.3}{unit} over {launches}; at most {limit}{hint}{other_unit}");
    Check::new(id, judged.outcome(), why).with(value, Some(limit))
}

/// Compares the launches with the baseline's launches, pair by pair; `None` without a baseline.
pub(crate) fn compared(
    baseline: &[Launch],
    candidate: &[Launch],
    limits: &LatencyLimits,
) -> Option<Comparison> {
    let pairs = baseline.iter().zip(candidate);
    let pairs = pairs.map(|(baseline, candidate)| Pair {
        baseline: baseline.clone(),
        candidate: candidate.clone(),
    });
    let pairs: Vec<Pair> = pairs.collect();
    (!baseline.is_empty()).then(|| Comparison::of(&pairs, min_effect(limits)))
}

pub(crate) fn min_effect(limits: &LatencyLimits) -> f64 {
    limits.min_effect.unwrap_or(DEFAULT_MIN_EFFECT)
}

/// Judges slow phases of launches without a baseline, which would show whether the device has them too. Fewer than six
/// launches only give a warning, or `None` if they have no slow phases.
pub(crate) fn slow_phases(launches: &[Launch]) -> Option<Check> {
    let found = SlowPhases::of(&[], &launches.iter().collect::<Vec<_>>());
    let (n, slow, whole) = (launches.len(), found.launches, found.whole);
    let modes = found.modes.map_or(String::new(), TwoLatencies::in_words);
    let (result, why) = match found.judged {
        Judged::Undecided(_) if slow == 0 => return None,
        Judged::Undecided(_) => (
            CheckResult::Warn,
            format!("slow phases in {slow} of {n} launches{modes}; six or more would judge them"),
        ),
        Judged::Fail if whole < LEAST_WHOLE => (
            CheckResult::Undecided,
            format!(
                "slow phases in {slow} of {n} launches{modes}; a baseline would say if the phone has them"
            ),
        ),
        Judged::Pass if whole == 0 => (
            CheckResult::Pass,
            format!("slow phases in {slow} of {n} launches{modes}"),
        ),
        judged => {
            let result = match judged {
                Judged::Pass => CheckResult::Warn,
                _ => CheckResult::Fail,
            };
            (
                result,
                format!("{whole} of {n} launches take over 1.7 times as long as their median"),
            )
        }
    };
    Some(Check::new("slow_phases", result, why))
}

/// Writes a comparison as a check of a report.
pub(crate) fn regression(found: &Comparison, limits: &LatencyLimits) -> Check {
    let mut why = format!(
        "{:.2} times the baseline over {}",
        found.ratio,
        match found.ratios.len() {
            1 => "1 pair".to_owned(),
            n => format!("{n} pairs"),
        }
    );
    if let (Some(low), Some(high)) = (found.low, found.high) {
        why.push_str(&format!(" ({low:.2} to {high:.2})"));
    }
    let slow = &found.intermittent;
    let n = found.ratios.len();
    if slow.launches > 0 {
        why.push_str(&format!(
            "; slow phases in {} of {n} launches, and in {} of the baseline's",
            slow.launches, slow.launches_of_baseline
        ));
    }
    if slow.whole > 0 {
        why.push_str(&format!("; {} of {n} launches slow as a whole", slow.whole));
    }
    why.push_str(&slow.modes.map_or(String::new(), TwoLatencies::in_words));
    why.push_str(&found.judged.hint("pairs"));
    let result = match found.judged.outcome() {
        CheckResult::Pass if slow.whole > 0 => CheckResult::Warn,
        result => result,
    };
    let check = Check::new("regression", result, why);
    check.with(Some(found.ratio), Some(min_effect(limits)))
}

impl From<&Comparison> for Against {
    fn from(found: &Comparison) -> Self {
        Self {
            origin: "launches",
            pairs: found.ratios.len(),
            ratio: found.ratio,
            low: found.low,
            high: found.high,
            chance: Some(found.chance),
        }
    }
}
