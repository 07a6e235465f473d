//! The outline that was read from a model file, and the queries on it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
};

use crate::{graph::Dim, shapes::list};

use super::data::{self, Context, DataElsewhere, Precompiled};

/// Domains of ops that ONNX Runtime has itself.
const OWN_DOMAINS: [&str; 11] = [
    "",
    "ai.onnx",
    "ai.onnx.ml",
    "ai.onnx.preview",
    "ai.onnx.preview.training",
    "ai.onnx.training",
    "com.microsoft",
    "com.microsoft.experimental",
    "com.microsoft.nchwc",
    "com.ms.internal.nhwc",
    "org.pytorch.aten",
];

/// ONNX Runtime's texts about an op that it does not have.
const NOT_REGISTERED: [&str; 2] = ["is not a registered function/op", "No Op registered for"];

/// A model file without its weights.
#[derive(Debug, Default)]
pub struct ModelOutline {
    /// Folder in which files that the model names are looked up.
    pub(super) folder: PathBuf,
    pub(super) inputs: Vec<(String, Vec<Dim>)>,
    /// Op types by domain.
    pub(super) ops: BTreeMap<String, BTreeSet<String>>,
    /// Domains of the model's own functions.
    pub(super) functions: BTreeSet<String>,
    pub(super) elsewhere: Vec<DataElsewhere>,
    /// Tensors whose data does not match their shape, each as a text.
    pub(super) lying: Vec<String>,
    pub(super) contexts: Vec<Context>,
    /// Metadata of a precompiled model: the target that QNN compiled it for.
    pub(super) compatibility: Option<String>,
}

impl ModelOutline {
    /// The op types of the model, bodies included.
    pub fn op_types(&self) -> impl Iterator<Item = &str> {
        self.ops.values().flatten().map(String::as_str)
    }

    /// Names of dimensions of inputs without a size.
    pub fn open_dims(&self) -> BTreeSet<&str> {
        let dims = self.inputs.iter().flat_map(|(_, dims)| dims);
        dims.filter_map(|dim| match dim {
            Dim::Symbolic(name) if !name.is_empty() => Some(name.as_str()),
            _ => None,
        })
        .collect()
    }

    /// The first input without elements, with its shape, for example the input of an empty cache.
    pub fn empty_input(&self) -> Option<String> {
        let mut inputs = self.inputs.iter();
        let (name, dims) = inputs.find(|(_, dims)| dims.contains(&Dim::Fixed(0)))?;
        Some(format!("input {name} has the shape [{}]", list(dims)))
    }

    /// Ops that ONNX Runtime does not have, as `domain:Op`. A library of the app must provide them.
    pub(crate) fn custom_ops(&self) -> Vec<String> {
        let is_custom = |domain: &String| {
            !OWN_DOMAINS.contains(&domain.as_str()) && !self.functions.contains(domain)
        };
        let custom = self.ops.iter().filter(|(domain, _)| is_custom(domain));
        custom
            .flat_map(|(domain, ops)| ops.iter().map(move |op| format!("{domain}:{op}")))
            .collect()
    }

    /// The ops that a runtime's error is about because no library of the app provides them; `None` for another error.
    pub fn missing_ops(&self, error: &str) -> Option<String> {
        let custom = self.custom_ops();
        let is_unknown = NOT_REGISTERED.iter().any(|words| error.contains(words));
        (is_unknown && !custom.is_empty()).then(|| custom.join(", "))
    }

    /// Files next to the model that hold its tensors or compiled graphs, by their paths from the model's folder, as the model
    /// names them. A path out of the folder is left out: ONNX Runtime refuses it.
    pub fn data_files(&self) -> BTreeSet<&Path> {
        let tensors = self.elsewhere.iter().map(|of| Path::new(&of.location));
        let graphs = self.contexts.iter().filter_map(|of| of.file.as_deref());
        let all = tensors.chain(graphs.map(Path::new));
        all.filter(|path| is_inside(path)).collect()
    }

    /// Returns the first file with tensors or a compiled graph that is there, and is not a plain file. A session would wait for
    /// a FIFO for ever.
    pub fn irregular_data(&self) -> Option<String> {
        let mut files = self.data_files().into_iter();
        files.find_map(|file| {
            let found = self.folder.join(file).metadata().ok()?;
            let words = "which is not a plain file; expected a file";
            (!found.is_file()).then(|| format!("it has its data in {}, {words}", file.display()))
        })
    }

    /// The target that QNN compiled the graph for; `None` if it was not precompiled.
    pub fn precompiled(&self) -> Option<Precompiled> {
        data::precompiled(&self.contexts, self.compatibility.as_deref())
    }

    /// Returns the first tensor or graph whose data does not match the model, with file and name.
    pub fn missing_data(&self) -> Option<String> {
        let context = self.contexts.iter().find_map(|of| of.problem(&self.folder));
        let elsewhere = || {
            self.elsewhere
                .iter()
                .find_map(|of| of.problem(&self.folder))
        };
        context
            .or_else(elsewhere)
            .or_else(|| self.lying.first().cloned())
    }
}

/// Whether a path names something below its folder, and never leaves the folder on the way.
fn is_inside(path: &Path) -> bool {
    let mut depth = 0_usize;
    for part in path.components() {
        match part {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir if depth > 0 => depth -= 1,
            _ => return false,
        }
    }
    depth > 0
}
