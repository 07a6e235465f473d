//! The engines by name.

use std::{fmt, str::FromStr};

/// A runtime that epwatch runs but does not ship.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[non_exhaustive]
pub enum Engine {
    /// ClickHouse in a library, the embedded store.
    #[serde(rename = "libchdb")]
    Chdb,
    /// ONNX Runtime, whose only own execution provider is the CPU.
    #[serde(rename = "onnxruntime")]
    OnnxRuntime,
    /// Qualcomm's execution provider and its HTP emulator. Under Qualcomm's licence.
    #[serde(rename = "onnxruntime-qnn")]
    OnnxRuntimeQnn,
}

impl Engine {
    /// All of them, in the order they are listed.
    pub const ALL: [Self; 3] = [Self::Chdb, Self::OnnxRuntime, Self::OnnxRuntimeQnn];

    /// Returns the name that `epwatch engines` uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chdb => "libchdb",
            Self::OnnxRuntime => "onnxruntime",
            Self::OnnxRuntimeQnn => "onnxruntime-qnn",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Engine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|engine| engine.name() == text)
            .ok_or_else(|| format!("expected one of {}", Self::ALL.map(Self::name).join(", ")))
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
