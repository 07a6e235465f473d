//! The engines by name.

use std::{fmt, str::FromStr};

use crate::pins;

/// A runtime that epwatch runs but does not ship.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Engine {
    /// ClickHouse in a library, the embedded store.
    #[serde(rename = "libchdb")]
    Chdb,
    /// ONNX Runtime.
    #[serde(rename = "onnxruntime")]
    OnnxRuntime,
    /// ONNX Runtime 1.22.1, from before the assignment API: hosts have old ones, so tests do.
    #[serde(rename = "onnxruntime-1.22")]
    OnnxRuntime1_22,
    /// ONNX Runtime 1.24.4, the first minor version with the assignment API; for tests.
    #[serde(rename = "onnxruntime-1.24")]
    OnnxRuntime1_24,
    /// Qualcomm's execution provider and its HTP emulator. Under Qualcomm's licence.
    #[serde(rename = "onnxruntime-qnn")]
    OnnxRuntimeQnn,
    /// Prometheus Alertmanager, a receiver for tests.
    Alertmanager,
    /// Apache ZooKeeper, a Keeper for tests of replicated tables. Runs on the machine's Java.
    #[serde(rename = "zookeeper")]
    ZooKeeper,
}

impl Engine {
    /// All of them, in the order they are listed.
    pub const ALL: [Self; 7] = [
        Self::Chdb,
        Self::OnnxRuntime,
        Self::OnnxRuntime1_22,
        Self::OnnxRuntime1_24,
        Self::OnnxRuntimeQnn,
        Self::Alertmanager,
        Self::ZooKeeper,
    ];

    /// Those that `epwatch demo` and `epwatch serve` use; the rest is for tests.
    pub const PRODUCT: [Self; 3] = [Self::Chdb, Self::OnnxRuntime, Self::OnnxRuntimeQnn];

    /// Returns the name that `epwatch engines` uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chdb => "libchdb",
            Self::OnnxRuntime => "onnxruntime",
            Self::OnnxRuntime1_22 => "onnxruntime-1.22",
            Self::OnnxRuntime1_24 => "onnxruntime-1.24",
            Self::OnnxRuntimeQnn => "onnxruntime-qnn",
            Self::Alertmanager => "alertmanager",
            Self::ZooKeeper => "zookeeper",
        }
    }

    /// Tells whether the engine exists for this platform at all.
    pub fn availability(self) -> Availability {
        match pins::plan(self, pins::HOST) {
            Ok(_) => Availability::Available,
            Err(reason) => Availability::Unavailable { reason },
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether an engine is published for this platform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Availability {
    /// It can be fetched.
    Available,
    /// It does not exist; epwatch goes on without it.
    Unavailable {
        /// Who publishes it for what, and what this machine is.
        reason: String,
    },
}

/// The text names no engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "failed to find engine {0:?}: expected libchdb, onnxruntime, onnxruntime-1.22, onnxruntime-1.24, onnxruntime-qnn, alertmanager or zookeeper"
)]
pub struct UnknownEngine(String);

impl FromStr for Engine {
    type Err = UnknownEngine;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|engine| engine.name() == text)
            .ok_or_else(|| UnknownEngine(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back_and_are_the_serialised_ones() {
        for engine in Engine::ALL {
            assert_eq!(engine.name().parse(), Ok(engine));
            assert_eq!(serde_json::to_value(engine).unwrap(), engine.name());
        }
        assert!("chdb2".parse::<Engine>().is_err());
    }
}
