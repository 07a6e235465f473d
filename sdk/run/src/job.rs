//! One launch, as the parent describes it to the process that makes it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    str::FromStr,
};

use epwatch_gate::{run::Arm, run_document::MeasuredOn};
use epwatch_proto::SideCar;
use serde::{Deserialize, Serialize};

use crate::{inputs::InputKind, path_bytes, wrong_use::WrongUse};

/// One launch. Paths are absolute.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Job {
    pub(crate) task: Task,
    #[serde(with = "path_bytes")]
    pub(crate) model: PathBuf,
    /// SHA-256 of the model's file, in hex: a kept launch must have the same.
    pub(crate) sha256: String,
    /// SHA-256 of the files next to it that hold its tensors: a kept launch must have the same.
    pub(crate) data: BTreeMap<String, String>,
    /// The name of both models, which are two versions of one model.
    pub(crate) name: String,
    #[serde(with = "path_bytes")]
    pub(crate) ort: PathBuf,
    pub(crate) ep: Ep,
    /// Options of the command by name: a kept launch must have the same.
    pub(crate) settings: BTreeMap<String, String>,
    pub(crate) dims: Vec<KeyValue>,
    /// The app's libraries of custom ops.
    #[serde(with = "path_bytes::each")]
    pub(crate) custom_ops: Vec<PathBuf>,
    /// MACs of the model's nodes.
    pub(crate) manifest: Option<SideCar>,
    pub(crate) inputs: InputKind,
    pub(crate) warmup: u32,
    pub(crate) runs: u32,
    pub(crate) steady_seconds: u64,
    pub(crate) arm: Arm,
    pub(crate) target: MeasuredOn,
    /// Gets the document.
    #[serde(with = "path_bytes")]
    pub(crate) out: PathBuf,
}

impl Job {
    pub(crate) fn chipset(&self) -> &str {
        self.target.chipset.as_deref().unwrap_or("unknown")
    }

    /// Returns the options that two launches must share, in addition to the runtime's version.
    pub(crate) fn options(&self) -> BTreeMap<String, String> {
        let of_ep = match &self.ep {
            Ep::Qnn { options, .. } => options.as_slice(),
            Ep::Cpu => &[],
        };
        let of_ep = of_ep
            .iter()
            .map(|option| (option.key.clone(), option.value.clone()));
        let dims = self.dims.iter();
        let dims = dims.map(|dim| (format!("dim {}", dim.key), dim.value.clone()));
        of_ep.chain(dims).collect()
    }
}

/// The purpose of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Task {
    /// Reads the placement with its reasons, and compares the outputs with the outputs of the CPU. It is not timed.
    Look,
    /// Profiles a few runs.
    Profile,
    /// Makes a session that writes its compiled graph.
    Compile,
    /// Times how long a session takes to start from it.
    Warm,
    /// A timed launch, with its number.
    Time(u32),
}

/// The EP that the app asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ep {
    Cpu,
    Qnn {
        #[serde(with = "path_bytes")]
        provider: PathBuf,
        #[serde(with = "path_bytes")]
        backend: PathBuf,
        soc_model: Option<String>,
        options: Vec<KeyValue>,
    },
}

/// QNN's option whose value is a file that QNN reads.
pub(crate) const AFFINITY: &str = "op_affinity";

/// Options of the QNN EP that are paths, which the app gives relative to its own working folder.
pub const PATH_OPTIONS: [&str; 9] = [
    "dump_qnn_ep_input_graph_dir",
    "dump_qnn_ir_dlc_dir",
    "framework_op_trace_dir",
    "json_qnn_graph_dir",
    AFFINITY,
    "profiling_file_path",
    "qnn_ir_backend_path",
    "qnn_saver_path",
    "skel_library_dir",
];

/// `KEY=VALUE` of the command line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeyValue {
    pub(crate) key: String,
    pub(crate) value: String,
}

impl FromStr for KeyValue {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
        let (key, value) = pair.ok_or("expected KEY=VALUE, for example batch=1")?;
        if text.contains('\0') {
            return Err("expected a text without a NUL".to_owned());
        }
        Ok(Self {
            key: key.to_owned(),
            value: value.to_owned(),
        })
    }
}

/// The EP's options for launches, whose working folder is another one: paths are relative to the folder of the caller.
pub(crate) fn with_whole_paths(
    options: &[KeyValue],
    absolute: impl Fn(&str, &Path) -> Result<PathBuf, WrongUse>,
) -> Result<Vec<KeyValue>, WrongUse> {
    let each = options.iter().map(|option| {
        let mut option = option.clone();
        if !PATH_OPTIONS.contains(&option.key.as_str()) || option.value.is_empty() {
            return Ok(option);
        }
        let argument = format!("--ep-option {}", option.key);
        let path = Path::new(&option.value);
        let path = match option.key == AFFINITY {
            true => absolute(&argument, path)?,
            false => std::path::absolute(path)
                .map_err(|error| WrongUse(format!("{argument} {}: {error}", option.value)))?,
        };
        option.value = path.display().to_string();
        Ok(option)
    });
    each.collect()
}
