//! The list that `epwatch engines` shows: each engine and its state in the cache.

use std::{fmt, path::PathBuf};

use serde::Serialize;

use crate::{
    Engine, EngineError, cache_dir,
    entry::{self, EntryState},
    pins::{self, Plan},
};

/// One line of `epwatch engines`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// The engine of this line.
    pub engine: Engine,
    /// The version that this epwatch uses; `None` if the engine does not exist for this platform.
    pub version: Option<&'static str>,
    /// Its state in the cache.
    pub state: CacheState,
    /// Whether the user accepted it without a pinned hash.
    pub is_unpinned: bool,
    /// The entry's folder, if it is ready.
    pub dir: Option<PathBuf>,
    /// The reason why it is damaged or unavailable.
    pub reason: Option<String>,
    /// The environment variable that turns off the runtime's own telemetry, if it has any.
    pub telemetry_switch: Option<&'static str>,
}

/// An engine's state in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum CacheState {
    /// The engine is in the cache, with the right sizes.
    Ready,
    /// Not fetched yet.
    Missing,
    /// The engine is in the cache, but incomplete or from another build; the next `ensure` fetches it again.
    Damaged,
    /// Does not exist for this platform, or there is no cache folder.
    Unavailable,
}

/// ONNX Runtime 1.29 and later sends telemetry of its own; docs/privacy.md lists the data that was seen.
fn telemetry_switch(engine: Engine, version: Option<&str>) -> Option<&'static str> {
    let minor = version?.strip_prefix("1.")?.split('.').next()?;
    let sends = engine == Engine::OnnxRuntime && minor.parse::<u32>().ok()? >= 29;
    sends.then_some("ORT_DISABLE_TELEMETRY")
}

/// Returns the state of every engine without fetching or hashing, and of older releases that are in the cache.
pub fn list() -> Vec<Status> {
    let newest = Engine::ALL
        .into_iter()
        .map(|engine| status(engine, pins::plan_here(engine)));
    let older = pins::older_here().into_iter();
    let older = older.map(|(engine, plan)| status(engine, Ok(plan)));
    let here =
        older.filter(|status| matches!(status.state, CacheState::Ready | CacheState::Damaged));
    newest.chain(here).collect()
}

fn status(engine: Engine, plan: Result<Plan, EngineError>) -> Status {
    let version = plan.as_ref().ok().map(|plan| plan.version);
    let mut is_unpinned = false;
    let (state, dir, reason) = match (plan, cache_dir()) {
        (Err(error), _) | (Ok(_), Err(error)) => {
            (CacheState::Unavailable, None, Some(error.to_string()))
        }
        (Ok(plan), Ok(cache)) => match entry::entry_state(&cache, &plan) {
            EntryState::Missing => (CacheState::Missing, None, None),
            EntryState::Damaged(reason) => (CacheState::Damaged, None, Some(reason)),
            EntryState::Good(record) => {
                is_unpinned = record.unpinned;
                (CacheState::Ready, Some(cache.join(&plan.name)), None)
            }
        },
    };
    Status {
        engine,
        version,
        state,
        is_unpinned,
        dir,
        reason,
        telemetry_switch: telemetry_switch(engine, version),
    }
}

/// Returns one line without its end: `libchdb  26.7.3-stable.1  ready  /home/me/.cache/...`.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, version) = (self.engine.name(), self.version.unwrap_or("-"));
        let state = format!("{:?}", self.state).to_lowercase();
        write!(f, "{name:<16} {version:<16} {state:<12}")?;
        match (&self.dir, &self.reason) {
            (Some(dir), _) if self.is_unpinned => {
                write!(f, "{} (taken without a pinned hash)", dir.display())
            }
            (Some(dir), _) => write!(f, "{}", dir.display()),
            (None, Some(reason)) => f.write_str(reason),
            (None, None) => f.write_str("`epwatch engines fetch` gets it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_and_person_read_the_same_state() {
        let status = Status {
            engine: Engine::Chdb,
            version: Some("1"),
            state: CacheState::Damaged,
            is_unpinned: false,
            dir: None,
            reason: Some("libchdb.so has 3 bytes, not 4".to_owned()),
            telemetry_switch: None,
        };
        assert_eq!(
            serde_json::to_value(&status).unwrap(),
            serde_json::json!({
                "engine": "libchdb",
                "version": "1",
                "state": "damaged",
                "is_unpinned": false,
                "dir": null,
                "reason": "libchdb.so has 3 bytes, not 4",
                "telemetry_switch": null,
            })
        );
        let line = status.to_string();
        assert!(
            line.starts_with("libchdb ") && line.ends_with("3 bytes, not 4"),
            "{line}"
        );
    }

    #[test]
    fn only_a_newer_onnx_runtime_has_telemetry() {
        for (engine, version, expected) in [
            (Engine::OnnxRuntime, "1.27.0", false),
            (Engine::OnnxRuntime, "1.29.0", true),
            (Engine::OnnxRuntime, "1.31.1", true),
            (Engine::OnnxRuntimeQnn, "2.7.0", false),
        ] {
            let found = telemetry_switch(engine, Some(version));
            assert_eq!(found.is_some(), expected, "{version}");
        }
    }

    /// Older releases of an engine follow, if this machine has them.
    #[test]
    fn every_engine_is_listed_first_and_once() {
        let listed: Vec<_> = list().into_iter().map(|s| (s.engine, s.version)).collect();
        let newest = Engine::ALL.map(|engine| (engine, engine.version()));
        assert_eq!(listed[..newest.len()], newest);
        assert!(
            listed[newest.len()..]
                .iter()
                .all(|older| !newest.contains(older))
        );
    }
}
