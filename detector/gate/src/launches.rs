//! Judges what was measured elsewhere: launches of one kind of file, against those of a baseline and against limits.

use std::collections::{BTreeMap, BTreeSet};

use epwatch_stats::order_stat::median;

use crate::{
    Judged, Launch,
    launch::LaunchError,
    macs::{ModelMacs, WrongModel},
    measured::{self, judge_eps},
    mistakes::Mistake,
    placement::InspectedChipset,
    policy::Policy,
    run::{Run, RunTarget},
    unpaired::{judge_jobs, judge_layers},
    verdict::{Check, GatedFile, LatencyNumbers, NotChecked, Outcome, Target},
};

/// Runs that are dropped where the policy has no other number.
const DEFAULT_WARMUP: usize = 3;
/// Runs that show a warm-up, and how much longer they take.
const FIRST_RUNS: usize = 3;
const WARM_UP: f64 = 1.25;

/// A launch with its file.
#[derive(Debug, Clone)]
pub struct MeasuredFile {
    /// Path and hash of the file.
    pub file: GatedFile,
    /// What was read of it.
    pub run: Run,
}

/// What the launches are judged by.
#[derive(Debug, Clone, Copy)]
pub struct JudgedBy<'a> {
    /// The limits to judge by.
    pub policy: &'a Policy,
    /// The measured model, if its file is at hand.
    pub model: Option<&'a GatedFile>,
    /// MACs per node of that model.
    pub macs: Option<&'a ModelMacs>,
    /// The chipset, if the command line names it.
    pub chipset: Option<&'a str>,
    /// Whether an EP of this name puts nodes on the NPU.
    pub is_npu_ep: fn(&str) -> bool,
}

/// Files that cannot be judged together.
#[derive(Debug, thiserror::Error)]
pub enum LaunchesError {
    /// Nothing could fail.
    #[error(
        "nothing to judge by: give --baseline, limits in [latency] of --policy, or MODEL for the placement of profiles"
    )]
    NothingToJudge,
    /// Arms of different size.
    #[error(
        "{candidates} files of --runs and {baselines} of --baseline do not pair up; give as many of each, in the order of measuring"
    )]
    NoPairs {
        /// Of the candidate.
        candidates: usize,
        /// Of the baseline.
        baselines: usize,
    },
    /// A file given twice.
    #[error("{0} and {1} are the same launch; measure each anew")]
    SameLaunch(String, String),
    /// Files that do not compare.
    #[error(
        "{0} is of the kind {1} and {2} of the kind {3}; they are measured differently, so give one kind for all"
    )]
    Kinds(String, &'static str, String, &'static str),
    /// Launches of another device or runtime.
    #[error("{0} and {1} do not compare: {2}; measure both models on one device with one runtime")]
    Targets(String, String, String),
    /// The model of a launch is not the one at hand.
    #[error("{0} was measured with another model (SHA-256 {1}) than {2}")]
    OtherModel(String, String, String),
    /// A profile with nodes of another model.
    #[error("{file}: {error}")]
    WrongModel {
        /// Path as the command line has it.
        file: String,
        /// What does not fit.
        error: WrongModel,
    },
    /// A launch that cannot be judged.
    #[error("{file}: {error}")]
    Launch {
        /// Path as the command line has it.
        file: String,
        /// The part of the file that is wrong.
        error: LaunchError,
    },
    /// A table without a row that both have.
    #[error("no row of --runs is in --baseline too")]
    NoRow,
}

/// What a group of launches came to.
#[derive(Debug)]
pub struct JudgedLaunches {
    /// In the order of the files' rows.
    pub targets: Vec<Target>,
    /// Parts that the files do not have.
    pub not_checked: Vec<NotChecked>,
    /// The candidate's launches, where single runs were read.
    pub launches: Vec<Launch>,
}

/// Judges all launches.
///
/// # Errors
/// The files do not belong together, or there is nothing to judge by.
pub fn judged(
    candidate: Vec<MeasuredFile>,
    baseline: Vec<MeasuredFile>,
    by: JudgedBy<'_>,
) -> Result<JudgedLaunches, LaunchesError> {
    check_files(&candidate, &baseline)?;
    if let Some(model) = by.model {
        let other = |one: &&MeasuredFile| {
            one.run
                .target
                .model_sha256
                .as_ref()
                .is_some_and(|sha256| *sha256 != model.sha256)
        };
        if let Some(one) = candidate.iter().find(other) {
            let sha256 = one.run.target.model_sha256.clone().unwrap_or_default();
            return Err(LaunchesError::OtherModel(
                one.file.path.clone(),
                sha256,
                model.path.clone(),
            ));
        }
    }
    let mut found = JudgedLaunches {
        targets: Vec::new(),
        not_checked: not_checked(&candidate, by),
        launches: Vec::new(),
    };
    let is_table = candidate
        .first()
        .is_some_and(|one| one.run.source == "perf_yaml");
    for (label, mut candidate, baseline) in groups(candidate, baseline, is_table) {
        if is_table && baseline.is_empty() && !by.policy.latency.has_limits() {
            continue;
        }
        let label = by.chipset.map_or(label, str::to_owned);
        let inspected = candidate.iter().find_map(|one| one.run.inspected.clone());
        match inspected {
            Some(inspected) => found.targets.extend(inspected.chipsets.iter().map(|on| {
                let limits = by.policy.placement_on(&on.chipset);
                let checks = on.judge(&limits, inspected.macs_error.as_deref());
                Target {
                    placement: on.numbers(),
                    checks,
                    ..target(on.shown(), "inspect", &candidate, &[], by)
                }
            })),
            None => {
                let (target, launches) = group(label, &mut candidate, &baseline, by)?;
                found.targets.push(target);
                found.launches.extend(launches);
            }
        }
    }
    match found.targets.is_empty() {
        true if is_table => Err(LaunchesError::NoRow),
        true => Err(LaunchesError::NothingToJudge),
        false => Ok(found),
    }
}

/// Files come once, are of one kind, pair up, and are of one device.
fn check_files(candidate: &[MeasuredFile], baseline: &[MeasuredFile]) -> Result<(), LaunchesError> {
    let all = || candidate.iter().chain(baseline);
    let mut seen: BTreeMap<(&str, &RunTarget), &str> = BTreeMap::new();
    for MeasuredFile { file, run } in all() {
        if let Some(first) = seen.insert((&file.sha256, &run.target), &file.path) {
            return Err(LaunchesError::SameLaunch(
                first.to_owned(),
                file.path.clone(),
            ));
        }
    }
    let Some(first) = candidate.first() else {
        return Err(LaunchesError::NothingToJudge);
    };
    if let Some(other) = all().find(|one| one.run.source != first.run.source) {
        let (a, b) = (first.file.path.clone(), other.file.path.clone());
        return Err(LaunchesError::Kinds(
            a,
            first.run.source,
            b,
            other.run.source,
        ));
    }
    if first.run.source == "perf_yaml" {
        return Ok(());
    }
    if is_paired(&first.run) && !baseline.is_empty() && baseline.len() != candidate.len() {
        return Err(LaunchesError::NoPairs {
            candidates: candidate.len(),
            baselines: baseline.len(),
        });
    }
    for other in all().skip(1) {
        if let Some(what) = first.run.target.difference(&other.run.target) {
            let (a, b) = (first.file.path.clone(), other.file.path.clone());
            return Err(LaunchesError::Targets(a, b, what));
        }
    }
    Ok(())
}

/// Whether launches of this kind are measured in turn on one device, so that they pair up.
fn is_paired(run: &Run) -> bool {
    !run.source.starts_with("aihub") && !run.runs_us.is_empty()
}

type Group = (String, Vec<MeasuredFile>, Vec<MeasuredFile>);

/// The launches by row of a table; all together if it is none.
fn groups(candidate: Vec<MeasuredFile>, baseline: Vec<MeasuredFile>, is_table: bool) -> Vec<Group> {
    if !is_table {
        return vec![("measured".to_owned(), candidate, baseline)];
    }
    let label = |one: &MeasuredFile| {
        let device = one.run.target.device.as_deref().unwrap_or_default();
        format!("{device}: {}", one.run.target.row)
    };
    let mut rows: BTreeMap<String, (Vec<MeasuredFile>, Vec<MeasuredFile>)> = BTreeMap::new();
    for one in candidate {
        rows.entry(label(&one)).or_default().0.push(one);
    }
    for one in baseline {
        if let Some((_, before)) = rows.get_mut(&label(&one)) {
            before.push(one);
        }
    }
    let rows = rows
        .into_iter()
        .map(|(label, (now, before))| (label, now, before));
    rows.collect()
}

fn target(
    chipset: String,
    source: &'static str,
    candidate: &[MeasuredFile],
    baseline: &[MeasuredFile],
    by: JudgedBy<'_>,
) -> Target {
    let files = candidate.iter().chain(baseline).map(|one| one.file.clone());
    Target {
        chipset,
        model: by.model.cloned(),
        runs: files.collect(),
        source,
        placement: None,
        latency: None,
        checks: Vec::new(),
        mistakes: Vec::new(),
    }
}

fn group(
    label: String,
    candidate: &mut [MeasuredFile],
    baseline: &[MeasuredFile],
    by: JudgedBy<'_>,
) -> Result<(Target, Vec<Launch>), LaunchesError> {
    let limits = &by.policy.latency;
    let source = candidate.first().map_or("", |one| one.run.source);
    let mut target = target(label, source, candidate, baseline, by);
    let eps: Vec<&BTreeSet<String>> = candidate
        .iter()
        .filter_map(|one| one.run.eps.as_ref())
        .collect();
    target.checks.extend(judge_eps(eps, by.is_npu_ep));

    let placed = placed(candidate, by)?;
    if let Some(placed) = &placed {
        let limits = by.policy.placement_on(&placed.chipset);
        let checks = placed.judge(&limits, placed.error.as_deref());
        target
            .checks
            .extend(checks.into_iter().filter(|check| check.id != "session"));
        target.placement = placed.numbers();
    }

    let mut mistakes: Vec<Mistake> = Vec::new();
    let measured = candidate.iter().chain(baseline);
    mistakes.extend(measured.flat_map(named));
    let (now, before) = without_throttled(candidate, baseline);
    let (now_us, before_us) = (times(&now), times(&before));
    let layers = |of: &[&MeasuredFile]| of.iter().find_map(|one| one.run.layers);
    let ratio = median(&now_us)
        .zip(median(&before_us))
        .map(|(now, before)| now / before);
    if let Some(now) = layers(&now) {
        target
            .checks
            .push(judge_layers(now, layers(&before), ratio));
    }

    let needs_latency = !baseline.is_empty() || limits.has_limits();
    let is_placed = placed.is_some() || layers(&now).is_some();
    if !needs_latency && !is_placed {
        return Err(LaunchesError::NothingToJudge);
    }
    let single_runs = now.iter().all(|one| !one.run.runs_us.is_empty());
    let mut launches = Vec::new();
    if single_runs {
        let warmup = limits.warmup.unwrap_or(DEFAULT_WARMUP);
        let read = |of: &[&MeasuredFile]| -> Result<Vec<Launch>, LaunchesError> {
            of.iter().map(|one| launch(one, warmup)).collect()
        };
        match (read(&now), read(&before)) {
            (Ok(found), Ok(before)) => {
                let warm = now
                    .iter()
                    .any(|one| !one.run.is_warm && has_warm_up(&one.run.runs_us, warmup));
                mistakes.extend(warm.then(Mistake::warm_up_in_runs));
                let pairs = match candidate.first().is_some_and(|one| is_paired(&one.run)) {
                    true => before,
                    false => Vec::new(),
                };
                let mut checks = measured::judge(&pairs, &found, limits);
                if !baseline.is_empty() && pairs.is_empty() {
                    checks[0] = unpaired(&before_us, &now_us);
                }
                if needs_latency {
                    target.checks.extend(checks);
                    mistakes.extend((found.len() == 1).then(Mistake::one_launch));
                }
                target.latency = Some(measured::numbers(&found));
                launches = found;
            }
            // The placement is judged without run times.
            (Err(error), _) | (_, Err(error)) if needs_latency => return Err(error),
            _ => {}
        }
    } else if !now_us.is_empty() && needs_latency {
        target.checks.push(match baseline.is_empty() {
            true => skipped(),
            false => unpaired(&before_us, &now_us),
        });
        let values: Vec<f64> = now_us.iter().map(|us| us / 1_000.0).collect();
        target.checks.extend(measured::median_of(&values, limits));
        target.latency = Some(LatencyNumbers {
            launches: now_us.len(),
            median_ms: median(&values),
            ..LatencyNumbers::default()
        });
    }
    if now.is_empty() {
        let mut check = Check::new("throttled");
        check.result = Outcome::Undecided;
        "every launch was measured on a throttled device; measure again".clone_into(&mut check.why);
        target.checks.push(check);
    }
    mistakes.dedup();
    let mut seen = BTreeSet::new();
    mistakes.retain(|mistake| seen.insert((mistake.id, mistake.why.clone())));
    target.mistakes = mistakes;
    Ok((target, launches))
}

/// The placement of the profile with the least on the NPU, if the model is at hand.
fn placed(
    candidate: &mut [MeasuredFile],
    by: JudgedBy<'_>,
) -> Result<Option<InspectedChipset>, LaunchesError> {
    let chipset = by.chipset.unwrap_or("unknown");
    let mut worst: Option<InspectedChipset> = None;
    for one in candidate
        .iter_mut()
        .filter(|one| one.run.source == "ort_profile")
    {
        let Some(macs) = by.macs else {
            one.run
                .mistakes
                .extend([Mistake::no_flops(), Mistake::partition_as_node()]);
            continue;
        };
        let placed = macs.placement(&mut one.run, chipset).map_err(|error| {
            let file = one.file.path.clone();
            LaunchesError::WrongModel { file, error }
        })?;
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

/// The file's mistakes, with its name in those that leave it out.
fn named(one: &MeasuredFile) -> Vec<Mistake> {
    let each = one.run.mistakes.iter().cloned();
    each.map(|mistake| match mistake.id {
        "throttled" => Mistake {
            why: mistake.why.replace("this launch", &one.file.path),
            ..mistake
        },
        _ => mistake,
    })
    .collect()
}

/// Launches of a throttled device are left out, each with its pair.
fn without_throttled<'a>(
    candidate: &'a [MeasuredFile],
    baseline: &'a [MeasuredFile],
) -> (Vec<&'a MeasuredFile>, Vec<&'a MeasuredFile>) {
    let is_hot = |one: &MeasuredFile| {
        one.run
            .mistakes
            .iter()
            .any(|mistake| mistake.id == "throttled")
    };
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
fn times(launches: &[&MeasuredFile]) -> Vec<f64> {
    let of = |one: &&MeasuredFile| {
        let runs: Vec<f64> = one.run.runs_us.iter().map(|us| *us as f64).collect();
        median(&runs).or(one.run.time_us)
    };
    launches.iter().filter_map(of).collect()
}

fn launch(one: &MeasuredFile, warmup: usize) -> Result<Launch, LaunchesError> {
    let warmup = if one.run.is_warm { 0 } else { warmup };
    Launch::new(&one.run.runs_us, warmup).map_err(|error| {
        let file = one.file.path.clone();
        LaunchesError::Launch { file, error }
    })
}

/// Whether the first runs that are judged take longer than the others.
fn has_warm_up(runs_us: &[u64], warmup: usize) -> bool {
    let runs: Vec<f64> = runs_us.iter().skip(warmup).map(|us| *us as f64).collect();
    let (first, rest) = runs.split_at(FIRST_RUNS.min(runs.len()));
    let ratio = median(first)
        .zip(median(rest))
        .map(|(first, rest)| first / rest);
    // Each of them: one that is slow is a spike.
    let least = first.iter().copied().fold(f64::INFINITY, f64::min);
    let all = median(rest).is_some_and(|rest| least > WARM_UP * rest);
    all && ratio.is_some_and(|ratio| ratio > WARM_UP)
}

fn skipped() -> Check {
    let mut check = Check::new("regression");
    check.result = Outcome::Skip;
    "there is no baseline".clone_into(&mut check.why);
    check
}

/// Jobs of a farm, on some phone of the kind.
fn unpaired(before_us: &[f64], now_us: &[f64]) -> Check {
    let mut check = Check::new("regression");
    let judged = judge_jobs(before_us, now_us);
    check.value = median(now_us)
        .zip(median(before_us))
        .map(|(now, before)| now / before);
    check.limit = Some(crate::unpaired::RED);
    check.why = format!(
        "{:.2} times the baseline over {} jobs a side, each on some phone of the kind",
        check.value.unwrap_or(1.0),
        before_us.len().min(now_us.len())
    );
    check.result = match judged {
        Judged::Pass => Outcome::Pass,
        Judged::Fail => Outcome::Fail,
        Judged::Undecided(n) => {
            check
                .why
                .push_str(&n.map_or(String::new(), |n| format!("; {n} jobs a side would decide")));
            Outcome::Undecided
        }
    };
    check
}

fn not_checked(candidate: &[MeasuredFile], by: JudgedBy<'_>) -> Vec<NotChecked> {
    let all = |is_it: &dyn Fn(&Run) -> bool| candidate.iter().all(|one| is_it(&one.run));
    let mut parts = Vec::new();
    let mut not = |id, why| parts.push(NotChecked { id, why });
    let has_placement = |run: &Run| {
        (by.macs.is_some() && run.source == "ort_profile")
            || run.layers.is_some()
            || run.inspected.is_some()
    };
    if !all(&has_placement) {
        not(
            "placement",
            "the files have none, or MODEL is not given for a profile's",
        );
    }
    if all(&|run| run.runs_us.is_empty() && run.time_us.is_none()) {
        not("latency", "the files have no run times");
    }
    if !all(&|run| run.target.device.is_some()) {
        not(
            "device",
            "the files name none; baseline and candidate must come from one, in turn",
        );
    }
    not("outputs", "the files have none");
    parts
}
