//! What a model file says of itself besides its arithmetic: domains of ops, open and empty inputs, where the data of tensors
//! is, graphs that were compiled before. It explains why a runtime refuses the file. Weights are skipped.

mod data;
mod reader;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{Read, Seek},
    path::{Path, PathBuf},
};

use crate::{ManifestError, graph::Dim, shapes::list};

pub use self::data::Precompiled;
use self::data::{Context, DataElsewhere};

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

/// A model file without its weights.
#[derive(Debug, Default)]
pub struct ModelOutline {
    /// Where files that the model names are looked up.
    folder: PathBuf,
    inputs: Vec<(String, Vec<Dim>)>,
    /// Op types by domain.
    ops: BTreeMap<String, BTreeSet<String>>,
    /// Domains of the model's own functions.
    functions: BTreeSet<String>,
    elsewhere: Vec<DataElsewhere>,
    /// Tensors with another size than their shape, each in words.
    lying: Vec<String>,
    contexts: Vec<Context>,
    /// Metadata of a precompiled model: what QNN compiled it for.
    compatibility: Option<String>,
}

impl ModelOutline {
    /// Reads a model file.
    ///
    /// # Errors
    /// The file cannot be read, is no ONNX model or has too large a graph.
    pub fn of(model: &Path) -> Result<Self, ManifestError> {
        let folder = model.parent().unwrap_or(Path::new("")).to_owned();
        Self::read(File::open(model)?, folder)
    }

    pub(crate) fn read(model: impl Read + Seek, folder: PathBuf) -> Result<Self, ManifestError> {
        let mut outline = reader::outline(model)?;
        outline.folder = folder;
        Ok(outline)
    }

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

    /// The first input without elements, with its shape, for example that of an empty cache.
    pub fn empty_input(&self) -> Option<String> {
        let mut inputs = self.inputs.iter();
        let (name, dims) = inputs.find(|(_, dims)| dims.contains(&Dim::Fixed(0)))?;
        Some(format!("input {name} has the shape [{}]", list(dims)))
    }

    /// Ops that ONNX Runtime does not have, as `domain:Op`: a library of the app has them.
    pub fn custom_ops(&self) -> Vec<String> {
        let is_custom = |domain: &String| {
            !OWN_DOMAINS.contains(&domain.as_str()) && !self.functions.contains(domain)
        };
        let custom = self.ops.iter().filter(|(domain, _)| is_custom(domain));
        custom
            .flat_map(|(domain, ops)| ops.iter().map(move |op| format!("{domain}:{op}")))
            .collect()
    }

    /// What QNN compiled the graph for; `None` if it was not compiled before.
    pub fn precompiled(&self) -> Option<Precompiled> {
        data::precompiled(&self.contexts, self.compatibility.as_deref())
    }

    /// The first tensor or graph whose data is not what the model says, with file and name.
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

#[cfg(test)]
mod tests;
