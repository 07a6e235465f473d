//! Fetches and verifies the runtimes that epwatch runs but does not ship.
//!
//! Comes in: an [`Engine`]. Goes out: [`Installed`], a folder of libraries whose hashes are the
//! ones this version was tested with. Fetching goes through npm, pip and apt, once, into a cache
//! (`EPWATCH_CACHE`, else `XDG_CACHE_HOME/epwatch`, else `~/.cache/epwatch`) that processes and
//! versions share. Never loads or runs what it fetched, and never asks for root.

mod command;
mod engine;
mod entry;
mod error;
mod fetch;
mod installed;
mod lock;
mod pins;
mod progress;
mod status;
#[cfg(test)]
mod tests;

use std::{env, path::PathBuf};

pub use engine::{Availability, Engine, UnknownEngine};
pub use error::EngineError;
pub use installed::Installed;
pub use progress::{Progress, console};
pub use status::{State, Status, list, status};

use entry::Spec;
use pins::Plan;

/// Returns the engine, fetching it if it is missing or damaged. Blocks; call it off the async
/// runtime's workers.
///
/// Engines in place cost a few `stat` calls; [`verify`] hashes them.
///
/// # Errors
/// The engine does not exist here ([`EngineError::is_unavailable`]), a package manager is missing
/// or fails, what came is not what was pinned, or the cache cannot be written.
pub fn ensure(
    engine: Engine,
    progress: &mut dyn FnMut(Progress),
) -> Result<Installed, EngineError> {
    let plan = plan(engine)?;
    let cache = cache_dir()?;
    let mut fetch = |staging: &entry::Staging<'_>, progress: &mut dyn FnMut(Progress)| {
        fetch::fetch(&plan, staging, progress)
    };
    let record = entry::ensure(&cache, spec(&plan), &mut fetch, progress)?;
    Ok(Installed::new(
        engine,
        cache.join(&plan.name),
        record.version,
    ))
}

/// Makes each of `engines` available, in order; the first failure ends it.
///
/// # Errors
/// As [`ensure`].
pub fn fetch(
    engines: &[Engine],
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<Installed>, EngineError> {
    engines
        .iter()
        .map(|&engine| ensure(engine, progress))
        .collect()
}

/// Returns the engine if it is in the cache and whole, without fetching.
pub fn installed(engine: Engine) -> Option<Installed> {
    match status(engine).state {
        State::Ready(installed) => Some(installed),
        _ => None,
    }
}

/// Hashes every file of an engine that is in the cache. Takes seconds for libchdb.
///
/// # Errors
/// The first file that is missing or differs from what was fetched or pinned.
pub fn verify(engine: Engine) -> Result<(), EngineError> {
    let plan = plan(engine)?;
    entry::verify(&cache_dir()?, spec(&plan))
}

/// For tests: returns the engine, telling progress on standard error.
///
/// # Panics
/// With the error and its way out if it cannot be had: a test never passes by skipping.
#[track_caller]
pub fn for_tests(engine: Engine) -> Installed {
    match ensure(engine, &mut console()) {
        Ok(installed) => installed,
        Err(error) => panic!("{}", chain(&error)),
    }
}

/// For tests: has the user said that they go without this engine (`EPWATCH_SKIP=alertmanager`,
/// names separated by commas)? Says so on standard error, so that the gap is seen.
pub fn skipped_by_user(engine: Engine) -> bool {
    let skip = env::var("EPWATCH_SKIP").unwrap_or_default();
    let is_skipped = skip.split(',').any(|name| name.trim() == engine.name());
    if is_skipped {
        progress::line(&format!("skipped: EPWATCH_SKIP names {engine}"));
    }
    is_skipped
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Returns the folder that holds the engines; it may not exist yet.
///
/// # Errors
/// No environment variable names one.
pub fn cache_dir() -> Result<PathBuf, EngineError> {
    let folder = |key: &str| {
        env::var_os(key)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let dir = folder("EPWATCH_CACHE")
        .or_else(|| folder("XDG_CACHE_HOME").map(|dir| dir.join("epwatch")))
        .or_else(|| folder("HOME").map(|dir| dir.join(".cache/epwatch")))
        .ok_or(EngineError::NoCacheFolder)?;
    // Children run in other folders, and libraries are loaded by this path.
    std::path::absolute(&dir).map_err(EngineError::io("resolve", dir))
}

fn plan(engine: Engine) -> Result<Plan, EngineError> {
    pins::plan(engine, pins::HOST).map_err(|reason| EngineError::Unavailable { engine, reason })
}

fn spec(plan: &Plan) -> Spec<'_> {
    Spec {
        name: &plan.name,
        pins: &plan.pins,
        download_bytes: plan.download_bytes,
    }
}
