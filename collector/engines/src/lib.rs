//! Fetches and verifies the runtimes that epwatch runs but does not ship.
//!
//! It takes an [`Engine`] and returns [`Installed`], a folder of libraries with the hashes that this version was tested
//! with. npm and pip fetch each engine once into a cache (`EPWATCH_CACHE`, else `XDG_CACHE_HOME/epwatch`, else
//! `~/.cache/epwatch`) that processes and versions share. Nothing here loads or runs an engine, or needs root.

mod cache;
mod command;
mod engine;
mod entry;
mod error;
mod fetch;
mod installed;
mod lock;
mod pins;
mod programs;
mod progress;
#[cfg(test)]
mod real_engines;
mod resume;
mod status;
#[cfg(test)]
mod tests;
mod transfer;

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

pub use cache::cache_dir;
pub use engine::Engine;
pub use error::EngineError;
pub use installed::Installed;
pub use pins::QnnVersion;
use progress::FetchProgress;
pub use status::{CacheState, Status, list};

/// Returns the engine, after fetching it if it is missing or damaged. Progress goes to standard error, a line a step.
///
/// Blocks, so an async caller needs a thread for it. An engine in the cache costs a few `stat` calls; [`verify`] hashes
/// it.
///
/// # Errors
/// The engine does not exist here ([`EngineError::is_unavailable`]), or a package manager is missing or fails. A
/// fetched file is not the pinned one, or the cache cannot be written.
pub fn ensure(engine: Engine) -> Result<Installed, EngineError> {
    let plan = pins::plan_here(engine)?;
    let progress = FetchProgress::of(&[&plan]);
    ensure_plan(engine, plan, &progress)
}

/// Works like [`ensure`] for each of these engines, with one progress for all. With `is_unpinned_allowed`, engines
/// without a pinned hash for this platform are accepted too. Later calls of [`ensure`] use such an engine, and [`list`]
/// marks it.
///
/// If one engine is not available, the others are still fetched.
pub fn ensure_all(
    engines: &[Engine],
    is_unpinned_allowed: bool,
) -> Vec<Result<Installed, EngineError>> {
    let missing = missing(engines, is_unpinned_allowed);
    let progress = FetchProgress::of(&missing.iter().collect::<Vec<_>>());
    let ensure = |engine: &Engine| {
        let mut plan = pins::plan_here(*engine)?;
        plan.is_unpinned_allowed = is_unpinned_allowed;
        ensure_plan(*engine, plan, &progress)
    };
    engines.iter().map(ensure).collect()
}

/// Checks that the machine has the programs that fetch the engines. Engines in the cache need none.
///
/// # Errors
/// Names every missing program, and the packages that have them.
pub fn check_programs(engines: &[Engine], is_unpinned_allowed: bool) -> Result<(), EngineError> {
    let missing = missing(engines, is_unpinned_allowed);
    programs::check(&missing.iter().collect::<Vec<_>>())
}

/// Returns ONNX Runtime and a release of its QNN plugin that work together, after fetching what is missing, with one
/// progress over both.
///
/// # Errors
/// Fails as [`ensure`] does.
pub fn ensure_qnn(version: QnnVersion) -> Result<(Installed, Installed), EngineError> {
    // Fails with the reason on a platform without the plugin.
    pins::plan_here(Engine::OnnxRuntimeQnn)?;
    let ort = match version.ort_plan() {
        Some(plan) => plan,
        None => pins::plan_here(Engine::OnnxRuntime)?,
    };
    let plans = [
        (Engine::OnnxRuntime, ort),
        (Engine::OnnxRuntimeQnn, version.plan()),
    ];
    let each = plans.iter().map(|(_, plan)| plan);
    let missing: Vec<&pins::Plan> = each.filter(|plan| is_missing(plan)).collect();
    programs::check(&missing)?;
    let progress = FetchProgress::of(&missing);
    let [ort, qnn] = plans.map(|(engine, plan)| ensure_plan(engine, plan, &progress));
    Ok((ort?, qnn?))
}

/// Returns ONNX Runtime with Intel's EP and OpenVINO next to it, after fetching it if it is missing.
///
/// # Errors
/// Fails as [`ensure`] does.
pub fn ensure_openvino() -> Result<Installed, EngineError> {
    let plan = pins::openvino_here()?;
    let missing: Vec<&pins::Plan> = [&plan]
        .into_iter()
        .filter(|plan| is_missing(plan))
        .collect();
    programs::check(&missing)?;
    let progress = FetchProgress::of(&missing);
    ensure_plan(Engine::OnnxRuntime, plan, &progress)
}

/// The plans of engines that a use would fetch.
fn missing(engines: &[Engine], is_unpinned_allowed: bool) -> Vec<pins::Plan> {
    let plans = engines
        .iter()
        .filter_map(|engine| pins::plan_here(*engine).ok());
    let is_refused = |plan: &pins::Plan| plan.is_unpinned() && !is_unpinned_allowed;
    plans
        .filter(|plan| !is_refused(plan) && is_missing(plan))
        .collect()
}

fn is_missing(plan: &pins::Plan) -> bool {
    let look = cache_dir().map(|cache| entry::entry_state(&cache, plan));
    look.is_ok_and(|look| !matches!(look, entry::EntryState::Good(_)))
}

fn ensure_plan(
    engine: Engine,
    plan: pins::Plan,
    progress: &FetchProgress,
) -> Result<Installed, EngineError> {
    let cache = cache_dir()?;
    let mut fetch = |staging: &entry::Staging<'_>, _: &mut cache::Say<'_>| {
        fetch::fetch(&plan, staging, progress)
    };
    entry::ensure(&cache, &plan, &mut fetch, &mut |line| progress.say(line))?;
    Ok(Installed::new(engine, &cache, &plan))
}

/// Writes engines that are in the cache, with their older releases there, into one archive for a machine without internet.
/// Blocks for up to a minute.
///
/// # Errors
/// An engine is not in the cache or does not exist here, or the archive cannot be written.
pub fn export(engines: &[Engine], file: &Path) -> Result<(), EngineError> {
    let cache = cache_dir()?;
    let plans = engines.iter().map(|engine| pins::plan_here(*engine));
    let mut plans = plans.collect::<Result<Vec<_>, _>>()?;
    let older = pins::older_here().into_iter();
    plans.extend(older.filter_map(|(engine, plan)| {
        let is_there = matches!(
            entry::entry_state(&cache, &plan),
            entry::EntryState::Good(_)
        );
        (is_there && engines.contains(&engine)).then_some(plan)
    }));
    transfer::export(&cache, &plans, &absolute(file)?)
}

/// Takes the engines of an archive that [`export`] wrote into the cache, and verifies each like a fetched one. Returns
/// the names of their entries. Blocks for up to a minute.
///
/// # Errors
/// The archive is damaged, holds no engine of this version, or a file is not the pinned one. One without a pin needs
/// `is_unpinned_allowed`.
pub fn import(file: &Path, is_unpinned_allowed: bool) -> Result<Vec<String>, EngineError> {
    let plans = Engine::ALL.into_iter().flat_map(pins::plan_here);
    let older = pins::older_here().into_iter().map(|(_, plan)| plan);
    let plans: Vec<_> = plans
        .chain(older)
        .map(|plan| pins::Plan {
            is_unpinned_allowed,
            ..plan
        })
        .collect();
    transfer::import(&cache_dir()?, &plans, &absolute(file)?, &mut |line| {
        cache::print(line)
    })
}

fn absolute(file: &Path) -> Result<PathBuf, EngineError> {
    std::path::absolute(file).map_err(EngineError::io("resolve", file))
}

/// Ends all fetches of this process, now and later. They remove what they made so far.
pub fn interrupt() {
    command::INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Hashes every file of an engine that is in the cache. Takes seconds for libchdb.
///
/// # Errors
/// The first file that is missing or differs from what was fetched or pinned.
pub fn verify(engine: Engine) -> Result<(), EngineError> {
    entry::verify(&cache_dir()?, &pins::plan_here(engine)?)
}

/// Returns the engine for a test.
///
/// # Panics
/// Panics if the engine is not available, with the way out. A test must never pass by skipping.
#[track_caller]
pub fn for_tests(engine: Engine) -> Installed {
    ensure(engine).unwrap_or_else(|error| {
        let cause = error.source().map(|cause| format!(": {cause}"));
        panic!("{error}{}", cause.unwrap_or_default())
    })
}
