//! `epwatch gate --runs`: launches that were measured elsewhere, a file each.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use epwatch_gate::{
    Launch,
    latencies::latencies,
    measured,
    policy::LatencyLimits,
    verdict::{GatedFile, NotChecked, Target},
};
use epwatch_proto::ModelHash;

use crate::output::WrongUse;

/// Parts of a model's behaviour that plain latencies do not have.
pub(super) const NOT_CHECKED: [NotChecked; 3] = [
    NotChecked {
        id: "placement",
        why: "latencies have none",
    },
    NotChecked {
        id: "device",
        why: "the files name none; baseline and candidate must come from one, in turn",
    },
    NotChecked {
        id: "outputs",
        why: "latencies have none",
    },
];

/// Runs that are dropped where the policy has no other number.
const DEFAULT_WARMUP: usize = 3;
/// Largest file of a launch.
const MOST_BYTES: u64 = 16 << 20;

/// Reads the launches and judges them.
pub(super) fn target(
    runs: &[PathBuf],
    baseline: &[PathBuf],
    limits: &LatencyLimits,
) -> Result<Target, WrongUse> {
    if baseline.is_empty() && !limits.has_limits() {
        let text = "nothing to judge by: give --baseline, or limits in [latency] of --policy";
        return Err(WrongUse(text.to_owned()));
    }
    if !baseline.is_empty() && baseline.len() != runs.len() {
        return Err(WrongUse(format!(
            "{} files of --runs and {} of --baseline do not pair up; give as many of each, in the order of measuring",
            runs.len(),
            baseline.len()
        )));
    }
    let mut files = Vec::new();
    let warmup = limits.warmup.unwrap_or(DEFAULT_WARMUP);
    let mut read = |paths: &[PathBuf]| -> Result<Vec<Launch>, WrongUse> {
        let each = paths.iter().map(|path| {
            let (file, launch) = launch(path, warmup)?;
            files.push(file);
            Ok(launch)
        });
        each.collect()
    };
    let (candidate, baseline) = (read(runs)?, read(baseline)?);
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    for file in &files {
        if let Some(first) = seen.insert(&file.sha256, &file.path) {
            let text = format!(
                "{first} and {} are the same launch; measure each anew",
                file.path
            );
            return Err(WrongUse(text));
        }
    }
    Ok(Target {
        chipset: "measured".to_owned(),
        model: None,
        runs: files,
        source: "latencies",
        placement: None,
        latency: Some(measured::numbers(&candidate)),
        checks: measured::judge(&baseline, &candidate, limits),
    })
}

fn launch(path: &Path, warmup: usize) -> Result<(GatedFile, Launch), WrongUse> {
    let shown = path.display().to_string();
    let wrong = |error: &dyn std::fmt::Display| WrongUse(format!("{shown}: {error}"));
    let mut text = String::new();
    let file = File::open(path).map_err(|error| wrong(&error))?;
    let read = file.take(MOST_BYTES + 1).read_to_string(&mut text);
    read.map_err(|error| wrong(&error))?;
    if text.len() as u64 > MOST_BYTES {
        return Err(wrong(
            &"expected the run times of one launch, in at most 16 MiB",
        ));
    }
    let runs = latencies(&text).map_err(|error| wrong(&error))?;
    let launch = Launch::new(&runs, warmup).map_err(|error| wrong(&error))?;
    let file = GatedFile {
        path: shown.clone(),
        sha256: ModelHash::of(text.as_bytes()).to_string(),
    };
    Ok((file, launch))
}
