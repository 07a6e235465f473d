//! Launches that are not timed, next to the look: a profile of a few runs, and a session that is made from a cache.
//!
//! A profiler slows runs down, and a cache hides the time that a first start takes. So each of these has a process of its own.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, bail};
use epwatch_gate::{
    profile::RunProfile,
    read::{ReadOptions, read},
};
use epwatch_sdk::placement::record_assignment;
use ort::session::builder::SessionBuilder;

use crate::{
    document::RunDocument,
    job::{Ep, Job, KeyValue},
    measured::{begun, load_us, times},
    session::{Builder, LoadedRuntime, with_ep_options},
};

/// Number of runs of a profile: as few as `epwatch gate --runs` judges, 3 of warm-up and 20.
const PROFILED_RUNS: u32 = 23;
/// Number of sessions that are made from the compiled graph. Their median counts.
pub(crate) const WARM_STARTS: usize = 3;
/// Names of a launch's files until it has ended.
const ORT_PROFILE: &str = "launching-ort";
const QNN_PROFILE: &str = "launching-qnn.csv";
/// Beginnings of these names, and of a launch's document. The folder belongs to the user, and may have other files.
pub(crate) const UNFINISHED: [&str; 5] = [
    "launching.json",
    "launching.error",
    "launching-ort_",
    "launching-qnn",
    "launching-cache",
];

/// Lets ONNX Runtime and QNN write what each node took, and keeps their files next to the launches.
pub(crate) fn profile(job: &Job, runtime: &LoadedRuntime) -> anyhow::Result<RunDocument> {
    let mut document = begun(job);
    let folder = job.out.parent().context("a launch is in a folder")?;
    let of_qnn = folder.join(QNN_PROFILE);
    let Builder { builder, .. } = runtime.builder(job)?;
    let mut builder = builder
        .with_profiling(folder.join(ORT_PROFILE))
        .map_err(|error| -> ort::Error { error.into() })?;
    if matches!(job.ep, Ep::Qnn { .. }) {
        let option = |key: &str, value: String| KeyValue {
            key: key.to_owned(),
            value,
        };
        let options = [
            option("profiling_level", "detailed".to_owned()),
            option("profiling_file_path", of_qnn.display().to_string()),
        ];
        builder = with_ep_options(builder, &options)?;
    }
    let mut session = builder.commit_from_file(&job.model)?;
    let golden = job.inputs.of(&session)?;
    document.runs_us = times(&mut session, &golden, PROFILED_RUNS)?;
    let of_ort = PathBuf::from(session.end_profiling()?);
    drop(session);
    let found = read(&mut File::open(&of_ort)?, ReadOptions::default())?;
    let nodes = found.into_iter().find_map(|run| run.profile);
    let arm = job.arm.as_str();
    let mut profile = RunProfile {
        files: Vec::new(),
        nodes: nodes.map(|profile| profile.nodes).unwrap_or_default(),
    };
    for (file, name) in [
        (of_ort, format!("{arm}-ort-profile.json")),
        (of_qnn, format!("{arm}-qnn-profile.csv")),
    ] {
        if file.is_file() {
            fs::rename(file, folder.join(&name))?;
            profile.files.push(name);
        }
    }
    document.profile = Some(profile);
    Ok(document)
}

/// The file that a session is made from once its graph was compiled.
pub(crate) fn cache_of(folder: &Path) -> PathBuf {
    folder.join("launching-cache.onnx")
}

/// Makes a session that writes the compiled graph, as an app does at its first start.
pub(crate) fn compile(job: &Job, runtime: &LoadedRuntime) -> anyhow::Result<RunDocument> {
    let document = begun(job);
    let cache = cache_of(job.out.parent().context("a launch is in a folder")?);
    let Builder { builder, .. } = runtime.builder(job)?;
    let mut builder = entry(builder, "ep.context_enable", "1")?;
    builder = entry(builder, "ep.context_file_path", &cache.to_string_lossy())?;
    builder = entry(builder, "ep.context_embed_mode", "1")?;
    drop(builder.commit_from_file(&job.model)?);
    if !cache.is_file() {
        bail!("the EP wrote no compiled graph");
    }
    Ok(document)
}

/// Makes a session from the compiled graph, as an app does at each later start.
pub(crate) fn warm(job: &Job, runtime: &LoadedRuntime) -> anyhow::Result<RunDocument> {
    let mut document = begun(job);
    let cache = cache_of(job.out.parent().context("a launch is in a folder")?);
    let Builder { builder, .. } = runtime.builder(job)?;
    let mut builder = record_assignment(builder);
    let began = Instant::now();
    let session = builder.commit_from_file(&cache);
    let took = began.elapsed();
    drop(session?);
    document.load_warm_us = load_us(took);
    Ok(document)
}

fn entry(builder: SessionBuilder, key: &str, value: &str) -> anyhow::Result<SessionBuilder> {
    let set = builder.with_config_entry(key, value);
    Ok(set.map_err(|error| -> ort::Error { error.into() })?)
}
