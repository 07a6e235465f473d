//! Inputs of a model: ready-made ones for any model, or a folder of ONNX's test data.

use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context, bail};
use epwatch_sdk::self_test::{GoldenInput, ReadyInput};
use ort::session::Session;
use serde::{Deserialize, Serialize};

use crate::path_bytes;

/// Where inputs come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum InputKind {
    /// Noise that is the same in each launch.
    Noise,
    Zeros,
    Ones,
    Ramp,
    Folder(#[serde(with = "path_bytes")] PathBuf),
}

impl FromStr for InputKind {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "noise" => Self::Noise,
            "zeros" => Self::Zeros,
            "ones" => Self::Ones,
            "ramp" => Self::Ramp,
            folder => Self::Folder(folder.into()),
        })
    }
}

impl InputKind {
    /// Returns the same kind of input, for a process with another working folder.
    pub(crate) fn absolute(&self) -> anyhow::Result<Self> {
        let Self::Folder(folder) = self else {
            return Ok(self.clone());
        };
        let shown = folder.display();
        let expected = || {
            format!(
                "--inputs {shown}: expected noise, zeros, ones, ramp or a folder with input_0.pb"
            )
        };
        let found = folder.canonicalize().with_context(expected)?;
        for entry in found.read_dir().with_context(expected)? {
            let path = entry.with_context(expected)?.path();
            // A FIFO would wait for ever.
            if !path.is_file() && path.extension().is_some_and(|end| end == "pb") {
                bail!("--inputs {shown}: {} is not a regular file", path.display());
            }
        }
        Ok(Self::Folder(found))
    }

    /// Makes the inputs that this session takes.
    pub(crate) fn of(&self, session: &Session) -> anyhow::Result<GoldenInput> {
        let ready = match self {
            Self::Folder(folder) => return of_folder(folder, session),
            Self::Noise => ReadyInput::Noise(1),
            Self::Zeros => ReadyInput::Zeros,
            Self::Ones => ReadyInput::Ones,
            Self::Ramp => ReadyInput::Ramp,
        };
        GoldenInput::ready(ready, session)
            .context("failed to make inputs for this model; give --inputs a folder")
    }
}

fn of_folder(folder: &Path, session: &Session) -> anyhow::Result<GoldenInput> {
    let golden = GoldenInput::load(folder)?;
    for input in session.inputs() {
        let name = input.name();
        if !golden.inputs().any(|(known, _)| known == name) {
            let folder = folder.display();
            bail!("{folder} has no tensor for the model's input {name}");
        }
    }
    Ok(golden)
}
