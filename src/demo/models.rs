//! The demo's models, carried inside the command: small, with random weights, made by
//! `tests/fixtures/scripts/make_models.py`.

use std::path::{Path, PathBuf};

use epwatch_fleet::{Placements, RecordedModel};

/// The app and the model that all of the demo's devices report.
pub(super) const APP: &str = "demo.camera";
pub(super) const MODEL: &str = "scene-classifier";

/// One version of the model.
#[derive(Debug, Clone, Copy)]
pub(super) struct ModelFile {
    pub(super) version: &'static str,
    name: &'static str,
    onnx: &'static [u8],
    macs: &'static str,
    recorded: RecordedModel,
}

macro_rules! model {
    ($version:literal, $name:literal, $recorded:expr) => {
        ModelFile {
            version: $version,
            name: $name,
            onnx: include_bytes!(concat!("../../tests/fixtures/models/", $name, ".onnx")),
            macs: include_str!(concat!("../../tests/fixtures/models/", $name, ".macs.json")),
            recorded: $recorded,
        }
    };
}

/// The version that all devices begin with.
pub(super) const FIRST_VERSION: &str = "1";

/// Kind of version 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Story {
    /// Version 2 has a float head, which chipsets without FP16 drop to the CPU.
    FloatHead,
    /// Version 2 is int8 throughout, like version 1.
    Healthy,
}

impl Story {
    /// Both versions, the first one first.
    pub(super) fn models(self) -> [ModelFile; 2] {
        let first = model!("1", "mixed_v1.int8", RecordedModel::INT8);
        let second = match self {
            Self::FloatHead => model!("2", "mixed_v2.head32", RecordedModel::FLOAT_HEAD),
            Self::Healthy => model!("2", "mixed_v1.int8", RecordedModel::INT8),
        };
        [first, second]
    }

    /// Returns the recorded placements of both versions.
    pub(super) fn recorded_placements(self) -> Placements {
        Placements::recorded(&self.models().map(|model| (model.version, model.recorded)))
    }
}

impl ModelFile {
    /// Writes model and side-car into a folder; returns the model's path.
    pub(super) fn write(&self, dir: &Path) -> std::io::Result<PathBuf> {
        let path = dir.join(format!("v{}.{}.onnx", self.version, self.name));
        std::fs::write(path.with_extension("macs.json"), self.macs)?;
        std::fs::write(&path, self.onnx)?;
        Ok(path)
    }
}
