//! The list that `epwatch engines` shows: each engine and its state in the cache.

use std::{fmt, path::Path};

use serde::{Serialize, Serializer};

use crate::{
    Engine, Installed, cache_dir,
    entry::{self, Look},
    pins,
};

/// One line of `epwatch engines`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The engine of this line.
    pub engine: Engine,
    /// The version that this epwatch uses; `None` where the engine does not exist.
    pub version: Option<&'static str>,
    /// Its state in the cache.
    pub state: State,
}

/// An engine's state in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// In the cache, with the right sizes.
    Ready(Installed),
    /// Not fetched yet.
    Missing,
    /// In the cache, but incomplete or of another build; the next `ensure` fetches it again.
    Damaged(String),
    /// Does not exist for this platform, or there is no cache folder.
    Unavailable(String),
}

/// Returns the state of every engine without fetching or hashing.
pub fn list() -> Vec<Status> {
    Engine::ALL.into_iter().map(status).collect()
}

fn status(engine: Engine) -> Status {
    let plan = pins::plan_here(engine);
    let version = plan.as_ref().ok().map(|plan| plan.version);
    let state = match (plan, cache_dir()) {
        (Err(error), _) | (Ok(_), Err(error)) => State::Unavailable(error.to_string()),
        (Ok(plan), Ok(cache)) => match entry::look(&cache, &plan) {
            Look::Missing => State::Missing,
            Look::Damaged(reason) => State::Damaged(reason),
            Look::Good(_) => State::Ready(Installed::new(engine, &cache, &plan)),
        },
    };
    Status {
        engine,
        version,
        state,
    }
}

impl Status {
    fn parts(&self) -> Parts<'_> {
        let (state, dir, reason) = match &self.state {
            State::Ready(installed) => ("ready", Some(installed.dir()), None),
            State::Missing => ("missing", None, None),
            State::Damaged(reason) => ("damaged", None, Some(reason.as_str())),
            State::Unavailable(reason) => ("unavailable", None, Some(reason.as_str())),
        };
        Parts {
            engine: self.engine,
            version: self.version,
            state,
            dir,
            reason,
        }
    }
}

/// The fields of a line for people and of an object for programs.
#[derive(Serialize)]
struct Parts<'a> {
    engine: Engine,
    version: Option<&'a str>,
    state: &'static str,
    dir: Option<&'a Path>,
    reason: Option<&'a str>,
}

impl Serialize for Status {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.parts().serialize(serializer)
    }
}

/// Returns one line without its end: `libchdb  26.7.3-stable.1  ready  /home/me/.cache/...`.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts {
            engine,
            version,
            state,
            dir,
            reason,
        } = self.parts();
        let (name, version) = (engine.name(), version.unwrap_or("-"));
        write!(f, "{name:<16} {version:<16} {state:<12}")?;
        match (dir, reason) {
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
            state: State::Damaged("libchdb.so has 3 bytes, not 4".to_owned()),
        };
        assert_eq!(
            serde_json::to_value(&status).unwrap(),
            serde_json::json!({
                "engine": "libchdb",
                "version": "1",
                "state": "damaged",
                "dir": null,
                "reason": "libchdb.so has 3 bytes, not 4",
            })
        );
        let line = status.to_string();
        assert!(
            line.starts_with("libchdb ") && line.ends_with("3 bytes, not 4"),
            "{line}"
        );
    }

    #[test]
    fn every_engine_is_listed_once() {
        let engines: Vec<Engine> = list().into_iter().map(|status| status.engine).collect();
        assert_eq!(engines, Engine::ALL);
    }
}
