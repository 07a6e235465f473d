//! Files of launches, and which of them may be judged together.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    launch::LaunchError,
    macs::{ModelMacs, WrongModel},
    policy::Policy,
    read::recorded,
    run::{Arm, Run, RunTarget},
    verdict::GatedFile,
};

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
        "{candidates} files of --runs and {baselines} of --baseline do not pair up; give as many of each device, in the order \
         of measuring"
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
    /// Recorded reports of several models.
    #[error(
        "{arm} has sessions of {models}: give MODEL, whose SHA-256 selects its own for --runs and leaves them out of \
         --baseline; besides, one model version must remain"
    )]
    Models {
        /// Argument of the command line.
        arm: &'static str,
        /// Ids and versions.
        models: String,
    },
    /// Nothing of this chipset.
    #[error("nothing in --runs is of the chipset {0}")]
    NoChipset(String),
    /// A launch of another chipset than the command line names.
    #[error("{0} was measured on {1}, and --soc names {2}")]
    OtherChipset(String, String, String),
    /// A launch of the other side.
    #[error("{0} says that it is of the {1}: give it to {2}")]
    OtherArm(String, &'static str, &'static str),
    /// One of several devices that is not named.
    #[error(
        "{0} names no device, and the other files are of several; give their names, or judge each device by itself"
    )]
    NoDevice(String),
    /// A device that only the baseline has.
    #[error(
        "{0} is of a device that no file of --runs is of ({1}); measure both models on each device"
    )]
    OtherDevice(String, String),
}

/// Files come once, are of their side, of one kind, and of the chipset of the command line.
pub(crate) fn check_files(
    candidate: &[MeasuredFile],
    baseline: &[MeasuredFile],
    chipset: Option<&str>,
) -> Result<(), LaunchesError> {
    let Some(first) = candidate.first() else {
        return Err(LaunchesError::NothingToJudge);
    };
    let mut seen: BTreeMap<(&str, &RunTarget, Option<i64>), &str> = BTreeMap::new();
    for one in candidate.iter().chain(baseline) {
        let MeasuredFile { file, run } = one;
        // A launch by its start, which is the same in each copy and recording of it.
        let sha256 = run.started_unix_ms.map_or(&*file.sha256, |_| "");
        let key = (sha256, &run.target, run.started_unix_ms);
        if let Some(first) = seen.insert(key, &file.path) {
            return Err(LaunchesError::SameLaunch(
                first.to_owned(),
                file.path.clone(),
            ));
        }
        if run.source != first.run.source {
            let (a, b) = (first.file.path.clone(), file.path.clone());
            return Err(LaunchesError::Kinds(a, first.run.source, b, run.source));
        }
        let is_other =
            |on: &&String| run.source != recorded::SOURCE && chipset != Some(on.as_str());
        let other = run.target.chipset.as_ref().filter(is_other);
        if let (Some(on), Some(chipset)) = (other, chipset) {
            let path = file.path.clone();
            return Err(LaunchesError::OtherChipset(
                path,
                on.clone(),
                chipset.to_owned(),
            ));
        }
    }
    let wrong = |arm: &[MeasuredFile], other| {
        let found = arm.iter().find(|one| one.run.arm == Some(other))?;
        let (what, to) = match other {
            Arm::Baseline => ("baseline", "--baseline"),
            Arm::Candidate => ("candidate", "--runs"),
        };
        Some(LaunchesError::OtherArm(found.file.path.clone(), what, to))
    };
    let wrong = wrong(candidate, Arm::Baseline).or_else(|| wrong(baseline, Arm::Candidate));
    wrong.map_or(Ok(()), Err)
}

/// All launches are of one device with one runtime.
pub(crate) fn check_targets<'a>(
    mut all: impl Iterator<Item = &'a MeasuredFile>,
) -> Result<(), LaunchesError> {
    let Some(first) = all.next() else {
        return Ok(());
    };
    for other in all {
        if let Some(what) = first.run.target.difference(&other.run.target) {
            let (a, b) = (first.file.path.clone(), other.file.path.clone());
            return Err(LaunchesError::Targets(a, b, what));
        }
    }
    Ok(())
}

/// Sessions of one model version in each arm: MODEL's for the candidate and another's for the baseline, or the only one.
pub(crate) fn of_one_model(
    mut candidate: Vec<MeasuredFile>,
    mut baseline: Vec<MeasuredFile>,
    model: Option<&GatedFile>,
) -> Result<(Vec<MeasuredFile>, Vec<MeasuredFile>), LaunchesError> {
    let models = |of: &[MeasuredFile]| -> BTreeSet<String> {
        let named = of.iter().filter(|one| one.run.source == recorded::SOURCE);
        named
            .filter_map(|one| one.run.target.model.clone())
            .collect()
    };
    let arms = [
        (&mut candidate, "--runs", true),
        (&mut baseline, "--baseline", false),
    ];
    for (files, arm, is_candidate) in arms {
        let found = models(files);
        if found.len() <= 1 {
            continue;
        }
        if let Some(model) = model {
            files.retain(|one| {
                let sha256 = one.run.target.model_sha256.as_ref();
                (sha256 == Some(&model.sha256)) == is_candidate
            });
        }
        if models(files).len() != 1 {
            let models = found.into_iter().collect::<Vec<_>>().join(", ");
            return Err(LaunchesError::Models { arm, models });
        }
    }
    Ok((candidate, baseline))
}

/// Whether launches of this kind are measured in turn on one device, so that they pair up.
pub(crate) fn is_paired(run: &Run) -> bool {
    !run.source.starts_with("aihub") && !run.runs_us.is_empty()
}

/// Launches that are judged together.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// Name of the target.
    pub(crate) label: String,
    pub(crate) candidate: Vec<MeasuredFile>,
    pub(crate) baseline: Vec<MeasuredFile>,
}

/// The launches by row of a table, recorded sessions by chipset, and then by device if there are several.
pub(crate) fn groups(
    candidate: Vec<MeasuredFile>,
    baseline: Vec<MeasuredFile>,
    chipset: Option<&str>,
    needs_latency: bool,
) -> Result<Vec<Group>, LaunchesError> {
    let source = candidate.first().map_or("", |one| one.run.source);
    let (is_table, is_recorded) = (source == "perf_yaml", source == recorded::SOURCE);
    let label = |one: &MeasuredFile| {
        let target = &one.run.target;
        match (is_table, is_recorded) {
            (true, _) => {
                let device = target.device.as_deref().unwrap_or_default();
                format!("{device}: {}", target.row)
            }
            (_, true) => target.chipset.clone().unwrap_or_default(),
            _ => String::new(),
        }
    };
    let mut groups = Vec::new();
    for group in grouped(candidate, baseline, label).0 {
        // A placement is one of its chipset, whichever device reported it.
        if is_table || (is_recorded && !needs_latency) {
            groups.push(group);
            continue;
        }
        groups.extend(by_device(group, chipset, is_recorded)?);
    }
    for group in &groups {
        let (n, n_baseline) = (group.candidate.len(), group.baseline.len());
        let is_paired = !is_recorded && group.candidate.iter().all(|one| is_paired(&one.run));
        if is_paired && n_baseline > 0 && n_baseline != n {
            return Err(LaunchesError::NoPairs {
                candidates: n,
                baselines: n_baseline,
            });
        }
        if !is_table && !is_recorded {
            check_targets(group.candidate.iter().chain(&group.baseline))?;
        }
    }
    Ok(groups)
}

/// The groups with a candidate, and the baseline's launches without one.
fn grouped(
    candidate: Vec<MeasuredFile>,
    baseline: Vec<MeasuredFile>,
    label: impl Fn(&MeasuredFile) -> String,
) -> (Vec<Group>, Vec<MeasuredFile>) {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for one in candidate {
        let label = label(&one);
        let group = groups.entry(label.clone()).or_default();
        group.label = label;
        group.candidate.push(one);
    }
    let mut left = Vec::new();
    for one in baseline {
        match groups.get_mut(&label(&one)) {
            Some(group) => group.baseline.push(one),
            None => left.push(one),
        }
    }
    (groups.into_values().collect(), left)
}

/// A group for each device, if the candidate's launches are of several.
fn by_device(
    mut group: Group,
    chipset: Option<&str>,
    is_recorded: bool,
) -> Result<Vec<Group>, LaunchesError> {
    let name = |one: &MeasuredFile| {
        let RunTarget {
            chipset,
            device,
            phone,
            ..
        } = &one.run.target;
        let parts = [chipset, device, phone].into_iter().flatten();
        parts.map(String::as_str).collect::<Vec<_>>().join(" ")
    };
    let names: BTreeSet<String> = group.candidate.iter().map(name).collect();
    if names.iter().filter(|name| !name.is_empty()).count() < 2 {
        let first = group.candidate.first();
        let named = first.and_then(|one| one.run.target.chipset.as_deref());
        chipset
            .or(named)
            .unwrap_or("measured")
            .clone_into(&mut group.label);
        return Ok(vec![group]);
    }
    let has_baseline = !group.baseline.is_empty();
    let unnamed = group
        .candidate
        .iter()
        .chain(&group.baseline)
        .find(|one| name(one).is_empty());
    if let Some(unnamed) = unnamed {
        return Err(LaunchesError::NoDevice(unnamed.file.path.clone()));
    }
    let (groups, left) = grouped(group.candidate, group.baseline, name);
    // A collector has reports of any phone.
    if let Some(other) = left.first().filter(|_| !is_recorded) {
        return Err(LaunchesError::OtherDevice(
            other.file.path.clone(),
            name(other),
        ));
    }
    let alone = groups.iter().find(|group| group.baseline.is_empty());
    match alone.filter(|_| has_baseline && !is_recorded) {
        Some(alone) => Err(LaunchesError::NoPairs {
            candidates: alone.candidate.len(),
            baselines: 0,
        }),
        None => Ok(groups),
    }
}
