//! Judges the launches of one device, of a chipset's recorded sessions, or of one row of a table.

use std::collections::BTreeSet;

use epwatch_stats::order_stat::median;

use crate::{
    Launch,
    arms::{in_order, mistakes, times, without_throttled},
    comparison::Comparison,
    files::{Group, JudgedBy, LaunchesError, MeasuredFile, check_targets, is_paired},
    limits::{cost, floor, judge_limit},
    macs::ModelMacs,
    measured::{self, judge_eps, limited},
    mistakes::Mistake,
    placement::{InspectedChipset, judge_change},
    read::recorded,
    run::{Run, RunTarget},
    sessions,
    unpaired::{self, judge_layers},
    verdict::{Against, Check, GatedFile, LatencyNumbers, Outcome, Target},
};

/// Runs that are dropped where the policy has no other number.
const DEFAULT_WARMUP: usize = 3;
/// Runs that show a warm-up, and how much longer they take.
const FIRST_RUNS: usize = 3;
const WARM_UP: f64 = 1.25;
/// Share of healthy models that a limit may fail without a note.
const FREE_OF_COST: f64 = 0.01;

/// What a group of launches came to.
#[derive(Debug)]
pub(crate) struct JudgedGroup {
    pub(crate) target: Target,
    /// The candidate's launches, where single runs were read.
    pub(crate) launches: Vec<Launch>,
    /// With the baseline's, where they pair up.
    pub(crate) comparison: Option<Comparison>,
}

/// A target without checks.
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
    // What all launches share.
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
        source: candidate.first().map_or("", |one| one.run.source),
        device: same(|target| target.device.as_ref()),
        firmware: same(|target| target.firmware.as_ref()),
        runtime: same(|target| target.runtime.as_ref()),
        against: None,
        placement: None,
        latency: None,
        checks: Vec::new(),
        mistakes: Vec::new(),
    }
}

/// Judges a group.
///
/// # Errors
/// A launch that cannot be judged, or there is nothing to judge by.
pub(crate) fn judge(group: Group, by: JudgedBy<'_>) -> Result<JudgedGroup, LaunchesError> {
    let Group {
        label,
        mut candidate,
        mut baseline,
    } = group;
    let mut notes = Vec::from_iter(in_order(&mut candidate, &mut baseline));
    let mut target = target(label, &candidate, &baseline, by);
    let eps = candidate.iter().filter_map(|one| one.run.eps.as_ref());
    target.checks.extend(judge_eps(eps, by.is_npu_ep));
    let placed = placement(&mut target, &mut candidate, &baseline, by, &mut notes)?;

    let limits = &by.policy.latency;
    let (mut now, mut before) = without_throttled(&candidate, &baseline);
    target.checks.extend(layers(&now, &before));
    let needs_latency = !baseline.is_empty() || limits.has_limits();
    let is_placed = placed || now.iter().any(|one| one.run.layers.is_some());
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
        found.target.checks.push(sessions::without_runs());
    } else if !now.is_empty() && now.iter().all(|one| !one.run.runs_us.is_empty()) {
        found.judge_runs(&now, &before, needs_latency, by, &mut notes)?;
    } else if needs_latency {
        found.judge_single(&now, &before, by);
    }
    let runs: Vec<&Run> = now.iter().map(|one| &one.run).collect();
    found
        .target
        .checks
        .extend(loads_and_outputs(&runs, by, &mut notes));
    let is_measured = !baseline.is_empty() || by.policy.limits_launches();
    if now.is_empty() && is_measured && !is_recorded {
        let why = "every launch was measured on a throttled device; measure again";
        let check = Check::new("throttled", Outcome::Undecided, why);
        found.target.checks.push(check);
    }
    found.target.mistakes = mistakes(notes, candidate.iter().chain(&baseline));
    Ok(found)
}

/// Judges where the candidate's nodes are; returns whether the files say so.
fn placement(
    target: &mut Target,
    candidate: &mut [MeasuredFile],
    baseline: &[MeasuredFile],
    by: JudgedBy<'_>,
    notes: &mut Vec<Mistake>,
) -> Result<bool, LaunchesError> {
    let placed = match sessions::worst_placement(candidate, by.policy, by.macs, notes) {
        Some(placed) => Some(placed),
        None => of_nodes(candidate, by)?,
    };
    let Some(placed) = placed else {
        return Ok(false);
    };
    let limits = by.policy.placement_on(&placed.chipset);
    let checks = placed.judge(&limits, placed.error.as_deref());
    let checks = checks.into_iter().filter(|check| check.id != "session");
    target.checks.extend(checks);
    target.placement = placed.numbers();
    // MODEL is not the baseline's.
    let before = sessions::worst_placement(baseline, by.policy, None, &mut Vec::new());
    let before = before.and_then(|placed| placed.numbers());
    let both = target.placement.as_ref().zip(before.as_ref());
    target
        .checks
        .extend(both.map(|(now, before)| judge_change(now, before)));
    Ok(true)
}

/// The placement with the least on the NPU, of profiles or layers and the model's MACs.
fn of_nodes(
    candidate: &mut [MeasuredFile],
    by: JudgedBy<'_>,
) -> Result<Option<InspectedChipset>, LaunchesError> {
    let chipset = by.chipset.unwrap_or("unknown");
    let mut worst: Option<InspectedChipset> = None;
    for one in candidate {
        let is_profile = one.run.source == "ort_profile";
        let listed = ModelMacs::listed(&one.run.nodes).filter(|_| one.run.source == "run");
        let Some(macs) = by.macs.or(listed.as_ref()) else {
            let named = [Mistake::no_flops(), Mistake::partition_as_node()];
            one.run
                .mistakes
                .extend(named.into_iter().filter(|_| is_profile));
            continue;
        };
        let placed = match one.run.source {
            "ort_profile" => macs.placement(&mut one.run, chipset).map_err(|error| {
                let file = one.file.path.clone();
                LaunchesError::WrongModel { file, error }
            })?,
            "aihub_profile" | "aihub_result" | "run" if !one.run.nodes.is_empty() => {
                let Some(placed) = macs.joined(&mut one.run, chipset) else {
                    continue;
                };
                placed
            }
            _ => continue,
        };
        let share = |of: &InspectedChipset| of.numbers().and_then(|numbers| numbers.npu_macs);
        if worst
            .as_ref()
            .is_none_or(|worst| share(&placed) < share(worst))
        {
            worst = Some(placed);
        }
    }
    Ok(worst)
}

fn layers(now: &[&MeasuredFile], before: &[&MeasuredFile]) -> Option<Check> {
    let of = |arm: &[&MeasuredFile]| arm.iter().find_map(|one| one.run.layers);
    let medians = median(&times(now)).zip(median(&times(before)));
    let ratio = medians.map(|(now, before)| now / before);
    Some(judge_layers(of(now)?, of(before), ratio))
}

/// Leaves sessions out that have too few clean runs, of so many of each side; returns whether both sides have some left.
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
            // The placement is judged without run times.
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
        if times_us.is_empty() {
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

    /// Jobs of a farm, on some phone of the kind.
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
    Check::new("regression", Outcome::Skip, "there is no baseline")
}

/// A limit that the baseline's own launches break is none of the candidate's.
fn below_floor(baseline: &[Launch], n: usize, cv_max: Option<f64>) -> Option<Mistake> {
    let cvs: Vec<f64> = baseline.iter().map(Launch::cv).collect();
    let share = cost(&cvs, cv_max?, n)?;
    (share > FREE_OF_COST).then(|| Mistake::below_floor(share, floor(&cvs, n)))
}

/// Whether the first runs that are judged take longer than the others.
fn has_warm_up(runs_us: &[u64], warmup: usize) -> bool {
    let runs: Vec<f64> = runs_us.iter().skip(warmup).map(|us| *us as f64).collect();
    let (first, rest) = runs.split_at(FIRST_RUNS.min(runs.len()));
    // Each of them: one that is slow is a spike.
    let least = first.iter().copied().fold(f64::INFINITY, f64::min);
    median(rest).is_some_and(|rest| least > WARM_UP * rest)
}

/// Judges how long sessions take to start, and what they answer.
fn loads_and_outputs(runs: &[&Run], by: JudgedBy<'_>, notes: &mut Vec<Mistake>) -> Vec<Check> {
    let mut checks = Vec::new();
    let none = |id, what: &str| {
        let why = format!("a limit is set, and a file has no {what}");
        Check::new(id, Outcome::Undecided, why)
    };
    if let Some(limit) = by.policy.load.cold_ms {
        let loads = runs.iter().map(|run| Some(run.load_us? / 1_000.0));
        let loads: Option<Vec<f64>> = loads.collect();
        checks.push(match loads.filter(|loads| !loads.is_empty()) {
            None => none("load", "load time"),
            Some(loads) => limited("load", &loads, limit, " ms", judge_limit(&loads, limit)),
        });
    }
    if let Some(limit) = by.policy.outputs.min_cosine {
        let cosines = runs.iter().map(|run| run.outputs.as_ref()?.cosine);
        let cosines: Option<Vec<f64>> = cosines.collect();
        let least = cosines.and_then(|all| all.into_iter().min_by(f64::total_cmp));
        checks.push(match least {
            None => none("outputs", "cosine of the outputs"),
            Some(least) => {
                let result = match least >= limit {
                    true => Outcome::Pass,
                    false => Outcome::Fail,
                };
                let why = format!("the least cosine of a launch is {least:.4}; at least {limit}");
                Check::new("outputs", result, why).with(Some(least), Some(limit))
            }
        });
    }
    let hashes = runs
        .iter()
        .filter_map(|run| run.outputs.as_ref()?.hash.as_ref());
    let hashes: BTreeSet<&String> = hashes.collect();
    notes.extend((hashes.len() > 1).then(|| Mistake::outputs_vary(hashes.len())));
    checks
}
