//! Judges the launches of one device, of a chipset's recorded sessions, or of one row of a table.

use std::collections::BTreeSet;

use epwatch_stats::order_stat::median;

use crate::{
    Launch,
    answers::{failed_runs, load_numbers, loads, outputs},
    arms::{in_order, mistakes, times, without_throttled},
    change::judge_numbers,
    comparison::Comparison,
    files::{JudgedBy, LaunchesError, MeasuredFile, check_targets},
    groups::{Group, is_paired},
    layers::Layers,
    limits::{FailsBy, cost, floor},
    macs::of_layers,
    measured::{self, judge_eps},
    mistakes::Mistake,
    placements::placements,
    read::recorded,
    run::{RunTarget, Unit},
    unpaired::{self, judge_layers},
    verdict::{Against, Check, CheckResult, GatedFile, LatencyNumbers, Target},
};

/// First runs of a launch that are dropped, unless the policy has another number.
const DEFAULT_WARMUP: usize = 3;
/// Number of first runs that show a warm-up, and the ratio by which they are longer.
const FIRST_RUNS: usize = 3;
const WARM_UP: f64 = 1.25;
/// Most different requests that a target lists.
const MOST_REQUESTS: usize = 8;
/// Share of healthy models that a limit may fail without a note.
const FREE_OF_COST: f64 = 0.01;

/// Result of a group of launches.
#[derive(Debug)]
pub(crate) struct JudgedGroup {
    pub(crate) target: Target,
    /// The candidate's launches, if the files have single runs.
    pub(crate) launches: Vec<Launch>,
    /// The comparison with the baseline's launches, if they pair up.
    pub(crate) comparison: Option<Comparison>,
}

/// Makes the target of the launches, without checks.
pub(crate) fn target(
    chipset: String,
    candidate: &[MeasuredFile],
    baseline: &[MeasuredFile],
    by: JudgedBy<'_>,
) -> Target {
    let mut files: Vec<GatedFile> = Vec::new();
    for one in candidate.iter().chain(baseline) {
        // Recorded reports have many launches in a file.
        if files.last() != Some(&one.file) {
            files.push(one.file.clone());
        }
    }
    // The value that all launches share, or none.
    let same = |of: fn(&RunTarget) -> Option<&String>| {
        let first = of(&candidate.first()?.run.target)?;
        let all = candidate
            .iter()
            .all(|one| of(&one.run.target) == Some(first));
        all.then(|| first.clone())
    };
    Target {
        chipset,
        model: by.model.cloned(),
        runs: files,
        source: candidate
            .iter()
            .chain(baseline)
            .next()
            .map_or("", |one| one.run.source),
        device: same(|target| target.device.as_ref()),
        firmware: same(|target| target.firmware.as_ref()),
        runtime: same(|target| target.runtime.as_ref()),
        asked_for: asked_for(candidate),
        ..Target::default()
    }
}

/// Returns each request of the launches once.
fn asked_for(candidate: &[MeasuredFile]) -> Vec<String> {
    let each = candidate.iter();
    let each: BTreeSet<&String> = each
        .filter_map(|one| one.run.target.asked_for.as_ref())
        .collect();
    each.into_iter().take(MOST_REQUESTS).cloned().collect()
}

/// Judges a group.
///
/// # Errors
/// A launch cannot be judged, or there is nothing to judge by.
pub(crate) fn judge(group: Group, by: JudgedBy<'_>) -> Result<JudgedGroup, LaunchesError> {
    let Group {
        label,
        mut candidate,
        mut baseline,
    } = group;
    let mut notes = Vec::from_iter(in_order(&mut candidate, &mut baseline));
    let mut target = target(label, &candidate, &baseline, by);
    let eps = candidate.iter().filter_map(|one| one.run.eps.as_ref());
    let mut used = judge_eps(eps).filter(|_| !by.is_on_cpu);
    let asks_for_cpu = |one: &MeasuredFile| {
        let ep = one.run.runtime.ep.as_deref();
        ep.is_some_and(|ep| Unit::of_ep(ep) == Unit::Cpu)
    };
    if let Some(check) = used
        .as_mut()
        .filter(|used| used.result == CheckResult::Fail)
        && candidate.iter().all(asks_for_cpu)
    {
        check.why.push_str(
            ": they asked for the CPU, and --runs judges launches on an NPU; launch with --qnn-provider and --qnn-backend, or \
             let the gate itself launch on the CPU (--local, --ssh)",
        );
    }
    target.checks.extend(used);
    let placed = placement(&mut target, &mut candidate, &mut baseline, by, &mut notes)?;

    let limits = &by.policy.latency;
    let (mut now, mut before) = without_throttled(&candidate, &baseline);
    let is_last = now.len() == 1 && candidate.len() > 1;
    target
        .checks
        .extend(layers(&candidate, &baseline, [&now, &before]));
    let needs_latency = !baseline.is_empty() || limits.has_limits();
    let is_placed = placed || candidate.iter().any(|one| one.run.layers.is_some());
    if !is_placed && baseline.is_empty() && !by.policy.limits_launches() {
        return Err(LaunchesError::NothingToJudge);
    }
    let mut found = JudgedGroup {
        target,
        launches: Vec::new(),
        comparison: None,
    };
    let is_recorded = found.target.source == recorded::SOURCE;
    let all = [candidate.len(), baseline.len()];
    if is_recorded && !keep_sessions([&mut now, &mut before], all, needs_latency, &mut notes)? {
        found.target.checks.push(without_runs());
    } else if !now.is_empty() && now.iter().all(|one| !one.run.runs_us.is_empty()) {
        found.judge_runs(&now, &before, needs_latency, by, &mut notes)?;
    } else if needs_latency {
        found.judge_single(&now, &before, by);
    }
    let checks = &mut found.target.checks;
    checks.extend(loads(&now, by));
    if is_last {
        undecide(checks, candidate.len());
    }
    checks.extend(outputs(&candidate, by, &mut notes));
    checks.extend(failed_runs(&candidate));
    let is_measured = !baseline.is_empty() || by.policy.limits_launches();
    if now.is_empty() && is_measured && !is_recorded {
        let why = "every launch was measured on a throttled device, or at a clock that changed; measure again";
        checks.push(Check::new("throttled", CheckResult::Undecided, why));
    }
    checks.extend(without_npu(&now, &before).filter(|_| needs_latency));
    skip_times_of_the_cpu(checks);
    let chipset = chipset_of(&candidate, by);
    add_asked(&mut found.target, by, &chipset);
    found.target.mistakes = mistakes(notes, candidate.iter().chain(&baseline));
    found.target.load = load_numbers(&now);
    let mut profiles = candidate.iter().filter_map(|one| one.run.profile.as_ref());
    found.target.profile = profiles.next().cloned();
    Ok(found)
}

/// Adds each limit of the policy that no part of these files was judged by.
pub(crate) fn add_asked(target: &mut Target, by: JudgedBy<'_>, chipset: &str) {
    target.add_unanswered(by.policy.asked_of_launches());
    // With --soc, the emulator's session is judged by the limits of the placement.
    let is_made = |check: &Check| check.id != "session" || check.result == CheckResult::Pass;
    if by.chipset.is_none() && !by.is_on_cpu && target.checks.iter().all(is_made) {
        target.add_unanswered(by.policy.asked_of_placement(chipset));
    }
}

/// The chipset of the command line, or of the files; `unknown` without either.
fn chipset_of(candidate: &[MeasuredFile], by: JudgedBy<'_>) -> String {
    let mut named = candidate
        .iter()
        .filter_map(|one| one.run.target.chipset.as_deref());
    by.chipset
        .or_else(|| named.next())
        .unwrap_or("unknown")
        .to_owned()
}

/// Judges the candidate's placement. Returns whether the files have one.
fn placement(
    target: &mut Target,
    candidate: &mut [MeasuredFile],
    baseline: &mut [MeasuredFile],
    by: JudgedBy<'_>,
    notes: &mut Vec<Mistake>,
) -> Result<bool, LaunchesError> {
    let chipset = chipset_of(candidate, by);
    for one in candidate.iter_mut() {
        if by.macs.is_none() && one.run.source == "ort_profile" {
            let named = [Mistake::no_flops(), Mistake::partition_as_node()];
            one.run.mistakes.extend(named);
        }
    }
    let found = placements(candidate, by.macs, &chipset)?;
    let Some(placed) = found.worst(by.policy, by.macs, notes) else {
        target.checks.extend(ops_of_layers(candidate, by, &chipset));
        return Ok(false);
    };
    let checks = &mut target.checks;
    let limits = by.policy.placement_on(&placed.chipset);
    // If run times are compared on the CPU, no node is expected on an NPU.
    let judged = placed.judge(&limits, placed.error.as_deref());
    checks.extend(judged.into_iter().filter(|check| match check.id {
        // A session that ran was made.
        "session" => check.result != CheckResult::Pass,
        _ => !by.is_on_cpu,
    }));
    if by.is_on_cpu {
        return Ok(placed.error.is_some());
    }
    if found.without > 0 {
        let (n, all) = (found.without, candidate.len());
        let why = format!("{n} of {all} launches have no placement, and the others have one");
        checks.push(Check::new("placement", CheckResult::Undecided, why));
    }
    let own = by.policy.chipset.keys().next();
    if let Some(own) = own.filter(|_| chipset == "unknown" && by.chipset.is_none()) {
        let why =
            format!("the policy has limits of {own}, and the files name no chipset; give --soc");
        checks.push(Check::new("chipset", CheckResult::Undecided, why));
    }
    target.placement = placed.numbers();
    // MODEL is the file of the candidate, so its MACs do not apply to the baseline.
    let before = placements(baseline, None, &chipset)?.best();
    let both = target.placement.as_ref().zip(before.as_ref());
    target
        .checks
        .extend(both.map(|(now, before)| judge_numbers(now, before)));
    Ok(true)
}

/// Judges the ops of layers off the NPU, in the launch with most of them. Without MACs, no share can be judged.
fn ops_of_layers(candidate: &[MeasuredFile], by: JudgedBy<'_>, chipset: &str) -> Option<Check> {
    let each = candidate.iter();
    let each = each.filter_map(|one| of_layers(&one.run, chipset));
    let worst = each.max_by_key(|placed| placed.cpu_nodes.len())?;
    Some(worst.ops_check(&by.policy.placement_on(chipset)))
}

/// Judges the launch with most layers off the NPU by the baseline's launch with the fewest. The ratio of times uses
/// only launches that were measured on a cool device.
fn layers(
    candidate: &[MeasuredFile],
    baseline: &[MeasuredFile],
    [now, before]: [&[&MeasuredFile]; 2],
) -> Option<Check> {
    let of = |arm: &[MeasuredFile]| -> Vec<Layers> {
        arm.iter().filter_map(|one| one.run.layers).collect()
    };
    let (all, all_before) = (of(candidate), of(baseline));
    let worst = all.iter().copied().max_by_key(Layers::off_npu)?;
    let best = all_before.into_iter().min_by_key(Layers::off_npu);
    let medians = median(&times(now)).zip(median(&times(before)));
    let ratio = medians.map(|(now, before)| now / before);
    let mut check = judge_layers(worst, best, ratio);
    let without = candidate.len() - all.len();
    if without > 0 && check.result != CheckResult::Fail {
        check.result = CheckResult::Undecided;
        let why = format!("; {without} of {} launches have no layers", candidate.len());
        check.why.push_str(&why);
    }
    Some(check)
}

/// The check for a side without run times.
pub(crate) fn without_runs() -> Check {
    Check::new(
        "latency",
        CheckResult::Undecided,
        "no session of one side has 20 warm runs on a cool device of this chipset; record longer sessions",
    )
}

/// Run times that were not measured on an NPU cannot pass a limit.
fn without_npu(now: &[&MeasuredFile], before: &[&MeasuredFile]) -> Option<Check> {
    let found = now.iter().chain(before).find(|one| one.run.is_off_npu())?;
    let path = &found.file.path;
    let why = format!("{path} was not measured on an NPU; its run times say nothing about an NPU");
    Some(Check::new("latency", CheckResult::Undecided, why))
}

/// Skips the checks of run times if the model left the NPU: its times can neither pass nor fail a limit of the NPU.
fn skip_times_of_the_cpu(checks: &mut [Check]) {
    let is_off = |check: &Check| check.id == "npu_used" && check.result == CheckResult::Fail;
    if !checks.iter().any(is_off) {
        return;
    }
    const OF_TIMES: [&str; 7] = [
        "regression",
        "slow_phases",
        "median",
        "p95",
        "late",
        "cv",
        "load",
    ];
    for check in checks
        .iter_mut()
        .filter(|check| OF_TIMES.contains(&check.id))
    {
        check.result = CheckResult::Skip;
        check.why =
            "a launch has no node on the NPU, so that its times say nothing of it".to_owned();
    }
}

/// Leaves out sessions with too few clean runs, given the number of launches of each side. Returns whether both sides
/// have some left.
fn keep_sessions(
    [now, before]: [&mut Vec<&MeasuredFile>; 2],
    [n, n_baseline]: [usize; 2],
    needs_latency: bool,
    notes: &mut Vec<Mistake>,
) -> Result<bool, LaunchesError> {
    for arm in [&mut *now, &mut *before] {
        arm.retain(|one| !one.run.runs_us.is_empty());
    }
    if !needs_latency {
        return Ok(true);
    }
    check_targets(now.iter().chain(before.iter()).copied())?;
    let left_out = n + n_baseline - now.len() - before.len();
    notes.extend((left_out > 0).then(|| Mistake::few_runs(left_out)));
    let is_unequal = n_baseline > 0 && now.len() != before.len();
    notes.extend(is_unequal.then(|| Mistake::unequal_arms(now.len(), before.len())));
    Ok(!now.is_empty() && (n_baseline == 0 || !before.is_empty()))
}

fn launch(one: &MeasuredFile, warmup: usize) -> Result<Launch, LaunchesError> {
    let warmup = one.run.warmup.unwrap_or(warmup);
    Launch::new(&one.run.runs_us, warmup).map_err(|error| {
        let file = one.file.path.clone();
        LaunchesError::Launch { file, error }
    })
}

impl JudgedGroup {
    /// Judges single runs of each launch.
    fn judge_runs(
        &mut self,
        now: &[&MeasuredFile],
        before: &[&MeasuredFile],
        needs_latency: bool,
        by: JudgedBy<'_>,
        notes: &mut Vec<Mistake>,
    ) -> Result<(), LaunchesError> {
        let limits = &by.policy.latency;
        let warmup = limits.warmup.unwrap_or(DEFAULT_WARMUP);
        let read = |of: &[&MeasuredFile]| -> Result<Vec<Launch>, LaunchesError> {
            of.iter().map(|one| launch(one, warmup)).collect()
        };
        let (found, baseline) = match (read(now), read(before)) {
            (Ok(found), Ok(baseline)) => (found, baseline),
            (Err(error), _) | (_, Err(error)) if needs_latency => return Err(error),
            // The placement alone is judged, without run times.
            _ => return Ok(()),
        };
        let is_cold =
            |one: &&MeasuredFile| one.run.warmup.is_none() && has_warm_up(&one.run.runs_us, warmup);
        notes.extend(now.iter().any(is_cold).then(Mistake::warm_up_in_runs));
        if needs_latency {
            notes.extend((found.len() == 1).then(Mistake::one_launch));
            notes.extend(below_floor(&baseline, found.len(), limits.cv_max));
            match now.iter().all(|one| is_paired(&one.run)) {
                true => self.comparison = measured::compared(&baseline, &found, limits),
                false => self.judge_jobs(now, before),
            }
            let check = self.comparison.as_ref().map(|found| {
                self.target.against = Some(Against::from(found));
                measured::regression(found, limits)
            });
            self.target.checks.extend(check);
            if before.is_empty() {
                self.target.checks.push(skipped());
                self.target.checks.extend(measured::slow_phases(&found));
            }
            let checks = measured::judge_limits(&found, limits);
            self.target.checks.extend(checks);
        }
        self.target.latency = Some(measured::numbers(&found, limits));
        self.launches = found;
        Ok(())
    }

    /// Judges launches that have one number each.
    fn judge_single(&mut self, now: &[&MeasuredFile], before: &[&MeasuredFile], by: JudgedBy<'_>) {
        let times_us = times(now);
        let (n, all) = (
            times_us.len() + times(before).len(),
            now.len() + before.len(),
        );
        if n < all {
            let why = format!("{} of {all} launches have no run times", all - n);
            let check = Check::new("latency", CheckResult::Undecided, why);
            self.target.checks.push(check);
        }
        if n < all || times_us.is_empty() {
            return;
        }
        match before.is_empty() {
            true => self.target.checks.push(skipped()),
            false => self.judge_jobs(now, before),
        }
        let values: Vec<f64> = times_us.iter().map(|us| us / 1_000.0).collect();
        let checks = measured::judge_single(&values, &by.policy.latency);
        self.target.checks.extend(checks);
        self.target.latency = Some(LatencyNumbers {
            launches: values.len(),
            median_ms: median(&values),
            ..LatencyNumbers::default()
        });
    }

    /// Compares jobs of a device farm, each on some phone of one kind.
    fn judge_jobs(&mut self, now: &[&MeasuredFile], before: &[&MeasuredFile]) {
        if before.is_empty() {
            return;
        }
        let (check, against) = unpaired::regression(&times(before), &times(now));
        self.target.checks.push(check);
        self.target.against = against;
    }
}

fn skipped() -> Check {
    Check::new("regression", CheckResult::Skip, "there is no baseline")
}

/// Names a limit of the CV that the baseline's own launches would break.
fn below_floor(baseline: &[Launch], n: usize, cv_max: Option<f64>) -> Option<Mistake> {
    let cvs: Vec<f64> = baseline.iter().map(Launch::cv).collect();
    let share = cost(&cvs, cv_max?, n, FailsBy::Median)?;
    (share > FREE_OF_COST).then(|| Mistake::below_floor(share, floor(&cvs, n, FailsBy::Median)))
}

/// Whether the first runs that are judged take longer than the others.
fn has_warm_up(runs_us: &[u64], warmup: usize) -> bool {
    let runs: Vec<f64> = runs_us.iter().skip(warmup).map(|us| *us as f64).collect();
    let (first, rest) = runs.split_at(FIRST_RUNS.min(runs.len()));
    // All first runs must be slow: a single slow run is a spike.
    let least = first.iter().copied().fold(f64::INFINITY, f64::min);
    median(rest).is_some_and(|rest| least > WARM_UP * rest)
}

/// Makes passed limits undecided. One launch decides by its number alone, but not if it is the only one left after
/// throttled launches.
fn undecide(checks: &mut [Check], given: usize) {
    for check in checks {
        let is_limit = matches!(check.id, "median" | "p95" | "late" | "cv" | "load");
        if is_limit && check.result == CheckResult::Pass {
            check.result = CheckResult::Undecided;
            let why = format!(
                "; the others of {given} were throttled, or at another clock, so measure them again"
            );
            check.why.push_str(&why);
        }
    }
}
