//! Inputs of a model: ready-made ones for any model, or a folder of ONNX's test data.

use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context, bail};
use epwatch_sdk::self_test::{GoldenInput, ReadyInput};
use ort::{session::Session, value::ValueType};
use serde::{Deserialize, Serialize};

use crate::{path_bytes, wrong_use::WrongUse};

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
        GoldenInput::load(&found).with_context(expected)?;
        Ok(Self::Folder(found))
    }

    /// Names the expected outputs of a folder of ONNX's test data, which no launch uses.
    pub(crate) fn ignored(&self) -> Option<String> {
        let Self::Folder(folder) = self else {
            return None;
        };
        let name = "output_0.pb";
        folder.join(name).exists().then(|| {
            format!(
                "{} has {name} and is used for its inputs only: outputs are compared with the CPU's",
                folder.display()
            )
        })
    }

    /// Makes the inputs that this session takes.
    ///
    /// # Errors
    /// [`WrongUse`] if the folder does not fit the model; any other error if no launch can have the model's inputs.
    pub(crate) fn of(&self, session: &Session) -> anyhow::Result<GoldenInput> {
        for input in session.inputs() {
            check_input(input.name(), input.dtype())?;
        }
        let ready = match self {
            Self::Folder(folder) => {
                let shown = folder.display();
                let golden = of_folder(folder, session);
                return Ok(
                    golden.map_err(|error| WrongUse(format!("inputs of {shown}: {error:#}")))?
                );
            }
            Self::Noise => ReadyInput::Noise(1),
            Self::Zeros => ReadyInput::Zeros,
            Self::Ones => ReadyInput::Ones,
            Self::Ramp => ReadyInput::Ramp,
        };
        GoldenInput::ready(ready, session)
            .context("failed to make inputs for this model; give --inputs a folder")
    }
}

/// Refuses inputs that no launch can be given, in the words of the gate without launches.
fn check_input(name: &str, dtype: &ValueType) -> anyhow::Result<()> {
    let kind = match dtype {
        ValueType::Tensor { shape, .. } if shape.contains(&0) => {
            let dims: Vec<String> = shape.iter().map(ToString::to_string).collect();
            bail!(
                "input {name} has the shape [{}], so that it has no elements, and a launch cannot be made: export the model \
                 without the empty cache, or with a length of 1 or more",
                dims.join(",")
            );
        }
        ValueType::Tensor { .. } => return Ok(()),
        ValueType::Sequence(_) => "a sequence",
        ValueType::Map { .. } => "a map",
        ValueType::Optional(_) => "optional",
    };
    bail!(
        "input {name} is {kind}, and a launch takes tensors only: export the model with tensors as its inputs; \
         `epwatch gate MODEL --soc CHIPSET` judges its placement without a launch"
    )
}

fn of_folder(folder: &Path, session: &Session) -> anyhow::Result<GoldenInput> {
    let golden = GoldenInput::load(folder)?;
    for input in session.inputs() {
        let name = input.name();
        if !golden.inputs().any(|(known, _)| known == name) {
            bail!("no tensor for the model's input {name}; expected one with this name");
        }
    }
    Ok(golden)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_outputs_of_a_folder_are_named_as_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let inputs = InputKind::Folder(folder.path().to_owned());
        assert_eq!((inputs.ignored(), InputKind::Noise.ignored()), (None, None));
        std::fs::write(folder.path().join("output_0.pb"), "").unwrap();
        let told = inputs.ignored().unwrap();
        assert!(
            told.contains("output_0.pb and is used for its inputs only"),
            "{told}"
        );
    }
}
