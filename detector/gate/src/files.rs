//! Files of launches, and which of them may be judged together.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    launch::LaunchError,
    macs::{ModelMacs, WrongModel},
    policy::Policy,
    read::recorded,
    run::{Arm, Run, RunTarget},
    verdict::{GatedFile, GatedModel},
};

/// A launch with its file.
#[derive(Debug, Clone)]
pub struct MeasuredFile {
    /// Path and hash of the file.
    pub file: GatedFile,
    /// The part of it that was read.
    pub run: Run,
}

/// Models and limits by which the launches are judged.
#[derive(Debug, Clone, Copy)]
pub struct JudgedBy<'a> {
    /// The limits to judge by.
    pub policy: &'a Policy,
    /// The measured model, if its file is available.
    pub model: Option<&'a GatedModel>,
    /// The model of the baseline's launches, if its file is available.
    pub before: Option<&'a GatedModel>,
    /// MACs per node of the measured model.
    pub macs: Option<&'a ModelMacs>,
    /// The chipset, if the command line names it.
    pub chipset: Option<&'a str>,
    /// The launches were asked to run on the CPU, so that none is expected on an NPU.
    pub is_on_cpu: bool,
}

/// Files that cannot be judged together.
#[derive(Debug, thiserror::Error)]
pub enum LaunchesError {
    /// Nothing could fail.
    #[error(
        "nothing to judge by: give --baseline, limits in [latency] of --policy, or MODEL for the placement of profiles"
    )]
    NothingToJudge,
    /// Candidate and baseline have different numbers of launches.
    #[error(
        "{candidates} files of --runs and {baselines} of --baseline do not pair up; give as many of each device, in the order \
         of measuring"
    )]
    NoPairs {
        /// Number of launches of the candidate.
        candidates: usize,
        /// Number of launches of the baseline.
        baselines: usize,
    },
    /// Too few pairs for a calibration.
    #[error(
        "{0} pairs of launches are left on a cool device, and a calibration needs 12; let it cool, and measure more"
    )]
    FewPairs(usize),
    /// A file given twice.
    #[error("{0} and {1} are the same launch; measure each anew")]
    SameLaunch(String, String),
    /// Files of two kinds, which do not compare.
    #[error(
        "{0} is of the kind {1} and {2} of the kind {3}; they are measured differently, so give one kind for all"
    )]
    Kinds(String, &'static str, String, &'static str),
    /// Launches of another device or runtime.
    #[error("{0} and {1} do not compare: {2}; measure both models on one device with one runtime")]
    Targets(String, String, String),
    /// A launch was measured with another model than the given one.
    #[error("{0} was measured with another model (SHA-256 {1}) than {2}")]
    OtherModel(String, String, String),
    /// A launch was measured with another file of tensors than the given model has.
    #[error(
        "{launch} was measured with another {file} (SHA-256 {was}) than {model} has ({is}); measure the model with its data anew"
    )]
    OtherData {
        /// Path of the launch's file.
        launch: String,
        /// The file of tensors, as the model names it.
        file: String,
        /// Its SHA-256 in the launch.
        was: String,
        /// The same now, or that the file is missing.
        is: String,
        /// Path of the model.
        model: String,
    },
    /// Launches of one side with two models.
    #[error(
        "{0} and {1} were measured with two models ({2} and {3}); give launches of one model to a side"
    )]
    TwoModels(String, String, String, String),
    /// The model of both sides.
    #[error(
        "{0} and {1} were measured with the same model; give launches of the model before to --baseline"
    )]
    SameModel(String, String),
    /// A baseline of another model.
    #[error("{0} is of the model {1} and {2} of {3}; give two versions of one model")]
    OtherModelId(String, String, String, String),
    /// A profile with nodes of another model.
    #[error("{file}: {error}")]
    WrongModel {
        /// Path as the command line has it.
        file: String,
        /// The node that the model does not have.
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
    /// A table alone.
    #[error(
        "a perf.yaml alone says nothing of a change: give the table of the release before to --baseline, or latency.median_ms in \
         --policy"
    )]
    OneTable,
    /// The tables of both sides have no row in common.
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
    /// No file has a launch on this chipset.
    #[error("nothing in --runs is of the chipset {0}")]
    NoChipset(String),
    /// A launch of another chipset than the command line names.
    #[error("{0} was measured on {1}, and --soc names {2}")]
    OtherChipset(String, String, String),
    /// A launch of the other side.
    #[error("{0} says that it is of the {1}: give it to {2}")]
    OtherArm(String, &'static str, &'static str),
    /// A launch without a device's name, next to launches of several devices.
    #[error(
        "{0} names no device, and the other files are of several; give their names, or judge each device by itself"
    )]
    NoDevice(String),
    /// A device on which only the baseline was measured.
    #[error(
        "{0} is of a device that no file of --runs is of ({1}); measure both models on each device"
    )]
    OtherDevice(String, String),
}

/// Minimum number of different run times in a list that identifies its launch. A coarse clock gives fewer.
const DISTINCT_RUNS: usize = 10;

/// Whether run times identify one launch, whatever else the file says.
fn is_distinct(run: &Run) -> bool {
    let distinct: BTreeSet<u64> = run.runs_us.iter().copied().collect();
    distinct.len() >= DISTINCT_RUNS && run.source != recorded::SOURCE
}

/// Checks that no file is given twice. All must be of one kind, on their own side, and of the chipset of the command
/// line.
pub(crate) fn check_files(
    candidate: &[MeasuredFile],
    baseline: &[MeasuredFile],
    chipset: Option<&str>,
) -> Result<(), LaunchesError> {
    let Some(first) = candidate.first() else {
        return Err(LaunchesError::NothingToJudge);
    };
    let mut seen: BTreeMap<(&str, &RunTarget, Option<i64>), &str> = BTreeMap::new();
    let mut seen_runs: BTreeMap<&[u64], &str> = BTreeMap::new();
    for one in candidate.iter().chain(baseline) {
        let MeasuredFile { file, run } = one;
        // A launch is identified by its start, which is the same in each copy of its file.
        let sha256 = run.started_unix_ms.map_or(&*file.sha256, |_| "");
        let key = (sha256, &run.target, run.started_unix_ms);
        let copy = is_distinct(run).then(|| seen_runs.insert(&run.runs_us, &file.path));
        if let Some(first) = seen.insert(key, &file.path).or(copy.flatten()) {
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
        let to = match other {
            Arm::Baseline => "--baseline",
            Arm::Candidate => "--runs",
        };
        let path = found.file.path.clone();
        Some(LaunchesError::OtherArm(path, other.as_str(), to))
    };
    let wrong = wrong(candidate, Arm::Baseline).or_else(|| wrong(baseline, Arm::Candidate));
    wrong.map_or(Ok(()), Err)
}

/// Checks that all launches are of one device with one runtime.
pub(crate) fn check_targets<'a>(
    mut all: impl Iterator<Item = &'a MeasuredFile>,
) -> Result<(), LaunchesError> {
    // The first file that names each part of the target. Later files may leave the part out.
    let mut named: BTreeMap<&str, (&String, &MeasuredFile)> = BTreeMap::new();
    all.try_for_each(|one| {
        for (what, part) in one.run.target.named() {
            let (first, of) = *named.entry(what).or_insert((part, one));
            if first != part {
                let (a, b) = (of.file.path.clone(), one.file.path.clone());
                let what = format!("{what} {first} against {part}");
                return Err(LaunchesError::Targets(a, b, what));
            }
        }
        Ok(())
    })
}

/// Checks that the launches of a side are of one model, and the other side's launches of another version of it.
pub(crate) fn check_models(
    candidate: &[MeasuredFile],
    baseline: &[MeasuredFile],
) -> Result<(), LaunchesError> {
    let path = |of: &MeasuredFile| of.file.path.clone();
    let named = |of: &MeasuredFile| {
        let target = &of.run.target;
        Some(NamedModel {
            sha256: target.model_sha256.clone()?,
            data: target.model_data.clone(),
        })
    };
    let one_model = |arm: &[MeasuredFile]| -> Result<_, LaunchesError> {
        let mut named = arm.iter().filter_map(|one| Some((one, named(one)?)));
        let Some((first, model)) = named.next() else {
            return Ok(None);
        };
        match named.find_map(|(one, other)| Some((one, model.differs(&other)?))) {
            Some((one, [model, other])) => {
                let (a, b) = (path(first), path(one));
                Err(LaunchesError::TwoModels(a, b, model, other))
            }
            None => Ok(Some((path(first), model))),
        }
    };
    let (now, before) = (one_model(candidate)?, one_model(baseline)?);
    if let (Some((a, now)), Some((b, before))) = (now, before)
        && now.differs(&before).is_none()
    {
        return Err(LaunchesError::SameModel(a, b));
    }
    let mut named = candidate.iter().chain(baseline).filter_map(|one| {
        let id = one.run.target.model_id.as_ref()?;
        Some((one, id))
    });
    let first = named.next();
    let other = first.and_then(|(_, id)| named.find(|(_, other)| *other != id));
    match first.zip(other) {
        Some(((a, id), (b, other))) => {
            let (id, other) = (id.clone(), other.clone());
            Err(LaunchesError::OtherModelId(path(a), id, path(b), other))
        }
        None => Ok(()),
    }
}

/// A model as a launch names it. Two versions may share the graph's file, and differ in the data next to it.
struct NamedModel {
    sha256: String,
    /// Empty if the launch does not say, or there is none.
    data: BTreeMap<String, String>,
}

impl NamedModel {
    /// Names both by the first file in which they differ; `None` if none is known to differ.
    fn differs(&self, other: &Self) -> Option<[String; 2]> {
        if self.sha256 != other.sha256 {
            return Some([self.sha256.clone(), other.sha256.clone()]);
        }
        if self.data.is_empty() || other.data.is_empty() {
            return None;
        }
        let mut files = self.data.keys().chain(other.data.keys());
        let file = files.find(|file| self.data.get(*file) != other.data.get(*file))?;
        Some([self, other].map(|model| match model.data.get(file) {
            Some(sha256) => format!("{file} {sha256}"),
            None => format!("no {file}"),
        }))
    }
}

/// Keeps sessions of one model version in each arm. If an arm has several, MODEL selects its own for the candidate and
/// leaves them out of the baseline.
pub(crate) fn of_one_model(
    mut candidate: Vec<MeasuredFile>,
    mut baseline: Vec<MeasuredFile>,
    model: Option<&GatedModel>,
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
