//! Judges measured launches by the policy's limits on latency, and against those of a baseline.

use std::collections::BTreeSet;

use epwatch_stats::order_stat::median;

use crate::{
    Judged, Launch,
    comparison::{Comparison, DEFAULT_MIN_EFFECT, Pair},
    limits::{judge_cv, judge_limit},
    policy::LatencyLimits,
    verdict::{Against, Check, LatencyNumbers, Outcome},
};

/// Late runs that a deadline allows where the policy has no other share.
const DEFAULT_MAX_LATE: f64 = 0.01;

/// The launches in numbers, each the median over launches.
pub fn numbers(launches: &[Launch]) -> LatencyNumbers {
    let over = |of: &dyn Fn(&Launch) -> f64| median(&launches.iter().map(of).collect::<Vec<_>>());
    LatencyNumbers {
        launches: launches.len(),
        runs: launches.iter().map(|l| l.ascending_us().len()).sum(),
        median_ms: over(&|launch| launch.median_us() / 1_000.0),
        p95_ms: over(&|launch| launch.quantile_us(0.95) / 1_000.0),
        cv: over(&Launch::cv),
        cv_robust: over(&Launch::robust_cv),
        slow_share: over(&Launch::slow_share),
    }
}

/// Quantiles 0.1, 0.5 and 0.95 in microseconds, each the median over launches; `None` without launches.
pub fn quantiles_us(launches: &[Launch]) -> Option<[u64; 3]> {
    let over = |q: f64| {
        let of_each: Vec<f64> = launches
            .iter()
            .map(|launch| launch.quantile_us(q))
            .collect();
        #[expect(
            clippy::cast_possible_truncation,
            reason = "microseconds of at most an hour"
        )]
        #[expect(clippy::cast_sign_loss, reason = "microseconds of at most an hour")]
        median(&of_each).map(|us| us.round() as u64)
    };
    Some([over(0.1)?, over(0.5)?, over(0.95)?])
}

/// Fails if no node of a profile ran on an NPU's EP. The sets have the EPs of each profile; `None` without profiles.
pub fn judge_eps<'a>(
    of_profiles: impl IntoIterator<Item = &'a BTreeSet<String>>,
    is_npu_ep: fn(&str) -> bool,
) -> Option<Check> {
    let mut check = Check::new("npu_used");
    let (mut profiles, mut without_eps, mut off_npu) = (0, 0, 0);
    for eps in of_profiles {
        profiles += 1;
        without_eps += usize::from(eps.is_empty());
        off_npu += usize::from(!eps.is_empty() && !eps.iter().any(|ep| is_npu_ep(ep)));
    }
    (check.result, check.why) = match (off_npu, without_eps) {
        (0, 0) => (
            Outcome::Pass,
            format!("the NPU ran nodes (profiles: {profiles}); its share is not judged"),
        ),
        (0, n) => (
            Outcome::Undecided,
            format!("{n} of {profiles} profiles name no EP; profile with node events"),
        ),
        (n, _) => (
            Outcome::Fail,
            format!("{n} of {profiles} profiles have no node on the NPU"),
        ),
    };
    (profiles > 0).then_some(check)
}

/// Judges the candidate's launches: by each limit that the policy has, and pair by pair against the baseline's.
pub fn judge(
    baseline: &[Launch],
    candidate: &[Launch],
    limits: &LatencyLimits,
) -> (Vec<Check>, Option<Against>) {
    let (regression, against) = regression(baseline, candidate, limits);
    let mut checks = vec![regression];
    let mut over = |id, limit: Option<f64>, unit: &str, of: &dyn Fn(&Launch) -> f64| {
        if let Some(limit) = limit {
            let values: Vec<f64> = candidate.iter().map(of).collect();
            checks.push(limited(
                id,
                &values,
                limit,
                unit,
                judge_limit(&values, limit),
            ));
        }
    };
    over("median", limits.median_ms, " ms", &|l| {
        l.median_us() / 1_000.0
    });
    over("p95", limits.p95_ms, " ms", &|l| {
        l.quantile_us(0.95) / 1_000.0
    });
    if let Some(deadline) = limits.deadline_ms {
        let most = limits.max_late.unwrap_or(DEFAULT_MAX_LATE);
        let late = |launch: &Launch| launch.share_beyond(1_000.0 * deadline);
        over("late", Some(most), " of the runs", &late);
    }
    if let Some(limit) = limits.cv_max {
        let values: Vec<f64> = candidate.iter().map(Launch::cv).collect();
        checks.push(limited(
            "cv",
            &values,
            limit,
            "",
            judge_cv(candidate, limit),
        ));
    }
    (checks, against)
}

/// Judges numbers of launches without single runs by the limit of the median.
pub(crate) fn median_of(medians_ms: &[f64], limits: &LatencyLimits) -> Option<Check> {
    let limit = limits.median_ms?;
    let judged = judge_limit(medians_ms, limit);
    Some(limited("median", medians_ms, limit, " ms", judged))
}

fn limited(id: &'static str, values: &[f64], limit: f64, unit: &str, judged: Judged) -> Check {
    let mut check = Check::new(id);
    check.value = median(values);
    check.limit = Some(limit);
    let value = check.value.unwrap_or(0.0);
    let launches = match values.len() {
        1 => "1 launch, whose number decides alone".to_owned(),
        n => format!("{n} launches"),
    };
    check.why = format!("{value:.3}{unit} over {launches}; at most {limit}");
    decide(&mut check, judged, "launches");
    check
}

fn regression(
    baseline: &[Launch],
    candidate: &[Launch],
    limits: &LatencyLimits,
) -> (Check, Option<Against>) {
    let mut check = Check::new("regression");
    if baseline.is_empty() {
        check.result = Outcome::Skip;
        check.why = "there is no baseline".to_owned();
        return (check, None);
    }
    let pairs = baseline
        .iter()
        .zip(candidate)
        .map(|(baseline, candidate)| Pair {
            baseline: baseline.clone(),
            candidate: candidate.clone(),
        });
    let min_effect = limits.min_effect.unwrap_or(DEFAULT_MIN_EFFECT);
    let found = Comparison::of(&pairs.collect::<Vec<_>>(), min_effect);
    check.value = Some(found.ratio);
    check.limit = Some(min_effect);
    check.why = format!(
        "{:.2} times the baseline over {} pairs",
        found.ratio,
        found.ratios.len()
    );
    if let (Some(low), Some(high)) = (found.low, found.high) {
        check.why.push_str(&format!(" ({low:.2} to {high:.2})"));
    }
    let slow = &found.intermittent;
    if slow.launches > 0 || slow.whole > 0 {
        check.why.push_str(&format!(
            "; slow phases in {} launches, {} of the baseline; {} slow as a whole",
            slow.launches, slow.launches_of_baseline, slow.whole
        ));
    }
    if let Some(modes) = slow.modes {
        check.why.push_str(&format!(
            "; two latencies, {:.2} ms and {:.2} ms",
            modes.fast_us / 1_000.0,
            modes.slow_us / 1_000.0
        ));
    }
    decide(&mut check, found.judged, "pairs");
    let against = Against {
        pairs: found.ratios.len(),
        ratio: found.ratio,
        low: found.low,
        high: found.high,
    };
    (check, Some(against))
}

fn decide(check: &mut Check, judged: Judged, of: &str) {
    check.result = match judged {
        Judged::Pass => Outcome::Pass,
        Judged::Fail => Outcome::Fail,
        Judged::Undecided(_) => Outcome::Undecided,
    };
    match judged {
        Judged::Undecided(Some(n)) => check.why.push_str(&format!(
            "; {n} {of} in total would decide, with these among them"
        )),
        Judged::Undecided(None) => check
            .why
            .push_str(&format!("; more {of} like these would not decide")),
        Judged::Pass | Judged::Fail => {}
    }
}
