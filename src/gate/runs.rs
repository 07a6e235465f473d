//! `epwatch gate --runs`: launches that were measured elsewhere, a file each.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{BufReader, Read},
    path::{Path, PathBuf},
};

use epwatch_gate::{
    Launch,
    latencies::latencies,
    measured,
    ort_profile::ort_profile,
    policy::LatencyLimits,
    verdict::{GatedFile, NotChecked, Target},
};

use epwatch_manifest::Sha256Reader;
use epwatch_proto::placement::is_npu_ep;

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
/// Largest file of plain latencies.
const MOST_BYTES: u64 = 16 << 20;
/// Bytes at the beginning in which a profile shows that it is one.
const MOST_SPACE: u64 = 4_096;

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
    let warmup = limits.warmup.unwrap_or(DEFAULT_WARMUP);
    let read = |paths: &[PathBuf]| -> Result<Vec<Measured>, WrongUse> {
        paths.iter().map(|path| launch(path, warmup)).collect()
    };
    let (candidate, baseline) = (read(runs)?, read(baseline)?);
    let source = source(candidate.iter().chain(&baseline))?;
    let eps = candidate
        .iter()
        .filter_map(|measured| measured.eps.as_ref());
    let mut checks: Vec<_> = measured::judge_eps(eps, is_npu_ep).into_iter().collect();
    let launches =
        |of: &[Measured]| -> Vec<Launch> { of.iter().map(|one| one.launch.clone()).collect() };
    let (of_candidate, of_baseline) = (launches(&candidate), launches(&baseline));
    checks.extend(measured::judge(&of_baseline, &of_candidate, limits));
    Ok(Target {
        chipset: "measured".to_owned(),
        model: None,
        runs: candidate
            .into_iter()
            .chain(baseline)
            .map(|one| one.file)
            .collect(),
        source,
        placement: None,
        latency: Some(measured::numbers(&of_candidate)),
        checks,
    })
}

/// A launch that was measured elsewhere.
struct Measured {
    file: GatedFile,
    launch: Launch,
    /// EPs that ran a node; `None` of plain latencies.
    eps: Option<BTreeSet<String>>,
}

/// Returns what kind of files all of these are. None may come twice.
fn source<'a>(all: impl Iterator<Item = &'a Measured>) -> Result<&'static str, WrongUse> {
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    let mut kinds: [Option<&str>; 2] = [None; 2];
    for Measured { file, eps, .. } in all {
        if let Some(first) = seen.insert(&file.sha256, &file.path) {
            let text = format!(
                "{first} and {} are the same launch; measure each anew",
                file.path
            );
            return Err(WrongUse(text));
        }
        kinds[usize::from(eps.is_some())] = Some(&file.path);
    }
    match kinds {
        [Some(plain), Some(profile)] => Err(WrongUse(format!(
            "{profile} is a profile and {plain} holds plain latencies; profiling costs time, so give one kind for all"
        ))),
        [None, Some(_)] => Ok("ort_profile"),
        [_, None] => Ok("latencies"),
    }
}

/// Reads a file, from its beginning to its end once, so that it may be a pipe.
fn launch(path: &Path, warmup: usize) -> Result<Measured, WrongUse> {
    let shown = path.display().to_string();
    let wrong = |error: &dyn std::fmt::Display| WrongUse(format!("{shown}: {error}"));
    let file = File::open(path).map_err(|error| wrong(&error))?;
    let mut file = Sha256Reader::new(file);
    let mut head = Vec::new();
    let read = file.by_ref().take(MOST_SPACE).read_to_end(&mut head);
    read.map_err(|error| wrong(&error))?;
    let mut words = head.iter().filter(|byte| !byte.is_ascii_whitespace());
    let is_profile = (words.next(), words.next()) == (Some(&b'['), Some(&b'{'));
    let mut input = BufReader::with_capacity(1 << 16, head.as_slice().chain(&mut file));
    let (runs_us, eps) = if is_profile {
        let profile = ort_profile(input).map_err(|error| wrong(&error))?;
        (profile.runs_us, Some(profile.eps))
    } else {
        let mut text = String::new();
        let read = input
            .by_ref()
            .take(MOST_BYTES + 1)
            .read_to_string(&mut text);
        read.map_err(|error| wrong(&error))?;
        if text.len() as u64 > MOST_BYTES {
            let text =
                "expected ONNX Runtime's profile, or the run times of one launch in at most 16 MiB";
            return Err(wrong(&text));
        }
        (latencies(&text).map_err(|error| wrong(&error))?, None)
    };
    let launch = Launch::new(&runs_us, warmup).map_err(|error| wrong(&error))?;
    let file = GatedFile {
        path: shown,
        sha256: file.digest(),
    };
    Ok(Measured { file, launch, eps })
}
