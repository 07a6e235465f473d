//! `epwatch gate --runs`: launches that were measured elsewhere, a file each.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use epwatch_gate::{
    Launch,
    latencies::latencies,
    measured,
    ort_profile::{OrtProfile, ort_profile},
    policy::LatencyLimits,
    verdict::{GatedFile, NotChecked, Target},
};

use crate::output::WrongUse;

/// Parts of a model's behaviour that plain latencies do not have.
pub(super) const NOT_CHECKED: [NotChecked; 3] = [
    NotChecked {
        id: "placement",
        why: "not read of latencies and profiles",
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
    let mut eps: Vec<BTreeSet<String>> = Vec::new();
    let mut read = |paths: &[PathBuf]| -> Result<Vec<Launch>, WrongUse> {
        let each = paths.iter().map(|path| {
            let (file, launch, of_launch) = launch(path, warmup)?;
            files.push(file);
            eps.push(of_launch);
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
    let mut checks: Vec<_> = measured::judge_eps(eps.iter().take(runs.len()))
        .into_iter()
        .collect();
    checks.extend(measured::judge(&baseline, &candidate, limits));
    Ok(Target {
        chipset: "measured".to_owned(),
        model: None,
        runs: files,
        source: "latencies",
        placement: None,
        latency: Some(measured::numbers(&candidate)),
        checks,
    })
}

/// Reads a file. The names are EPs that ran a node, if it is a profile.
fn launch(path: &Path, warmup: usize) -> Result<(GatedFile, Launch, BTreeSet<String>), WrongUse> {
    let shown = path.display().to_string();
    let wrong = |error: &dyn std::fmt::Display| WrongUse(format!("{shown}: {error}"));
    let file = File::open(path).map_err(|error| wrong(&error))?;
    let mut file = BufReader::with_capacity(1 << 16, file);
    let head = file.fill_buf().map_err(|error| wrong(&error))?;
    let mut words = head.iter().filter(|byte| !byte.is_ascii_whitespace());
    let is_profile = (words.next(), words.next()) == (Some(&b'['), Some(&b'{'));
    let profile = if is_profile {
        ort_profile(file).map_err(|error| wrong(&error))?
    } else {
        let mut text = String::new();
        let read = file.take(MOST_BYTES + 1).read_to_string(&mut text);
        read.map_err(|error| wrong(&error))?;
        if text.len() as u64 > MOST_BYTES {
            let text =
                "expected ONNX Runtime's profile, or the run times of one launch in at most 16 MiB";
            return Err(wrong(&text));
        }
        OrtProfile {
            runs_us: latencies(&text).map_err(|error| wrong(&error))?,
            eps: BTreeSet::new(),
        }
    };
    let launch = Launch::new(&profile.runs_us, warmup).map_err(|error| wrong(&error))?;
    let sha256 = epwatch_manifest::sha256_of_file(path).map_err(|error| wrong(&error))?;
    let file = GatedFile {
        path: shown,
        sha256,
    };
    Ok((file, launch, profile.eps))
}
