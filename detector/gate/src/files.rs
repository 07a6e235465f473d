//! Files of launches, and which of them may be judged together.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    launch::LaunchError,
    macs::WrongModel,
    read::recorded,
    run::{Run, RunTarget},
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
    /// Recorded reports of other chipsets.
    #[error("no session of --runs is of the chipset {0}")]
    NoChipset(String),
}

/// Files come once, are of one kind, pair up, and are of one device.
pub(crate) fn check_files(
    candidate: &[MeasuredFile],
    baseline: &[MeasuredFile],
) -> Result<(), LaunchesError> {
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
    // Compared row by row, or session by session.
    if ["perf_yaml", recorded::SOURCE].contains(&first.run.source) {
        return Ok(());
    }
    if is_paired(&first.run) && !baseline.is_empty() && baseline.len() != candidate.len() {
        return Err(LaunchesError::NoPairs {
            candidates: candidate.len(),
            baselines: baseline.len(),
        });
    }
    check_targets(all())
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

/// Label, candidate, baseline.
pub(crate) type Group = (String, Vec<MeasuredFile>, Vec<MeasuredFile>);

/// The launches by row of a table, recorded sessions by chipset; others all together.
pub(crate) fn groups(
    candidate: Vec<MeasuredFile>,
    baseline: Vec<MeasuredFile>,
    source: &str,
) -> Vec<Group> {
    let label = |one: &MeasuredFile| {
        let target = &one.run.target;
        match source {
            "perf_yaml" => format!(
                "{}: {}",
                target.device.as_deref().unwrap_or_default(),
                target.row
            ),
            recorded::SOURCE => target.chipset.clone().unwrap_or_default(),
            _ => "measured".to_owned(),
        }
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
