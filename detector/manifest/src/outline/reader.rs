//! Reads an outline field by field, by their numbers in `onnx.proto`.

use std::{
    fs::File,
    io::{Read, Seek},
    path::{Path, PathBuf},
};

use super::{
    data::{Context, DataElsewhere},
    model::ModelOutline,
};
use crate::{
    ManifestError,
    graph::Dim,
    shapes::list,
    tensor::{MOST_DIMS, Tensor},
    wire::{WireReader, Wired},
};

/// Maximum number of levels of bodies within bodies.
const MOST_BODIES: u32 = 16;
/// Maximum number of bytes that are kept of a text in attributes or metadata.
const MOST_TEXT: u64 = 4096;
/// Key of the metadata that QNN writes into a precompiled model.
const COMPATIBILITY: &str = "ep_compatibility_info.QNNExecutionProvider";

impl ModelOutline {
    /// Reads a model file.
    ///
    /// # Errors
    /// The file cannot be read, is not an ONNX model or has too large a graph.
    pub fn of(model: &Path) -> Result<Self, ManifestError> {
        let folder = model.parent().unwrap_or(Path::new("")).to_owned();
        Self::read(File::open(model)?, folder)
    }

    pub(crate) fn read(model: impl Read + Seek, folder: PathBuf) -> Result<Self, ManifestError> {
        let mut outline = outline(model)?;
        outline.folder = folder;
        Ok(outline)
    }
}

fn outline<R: Read + Seek>(input: R) -> Result<ModelOutline, ManifestError> {
    let wire = WireReader::new(input)?;
    let end = wire.len();
    let mut reader = OutlineReader {
        wire,
        outline: ModelOutline::default(),
        bodies: 0,
    };
    while let Some((number, wired)) = reader.wire.field(end)? {
        match (number, wired) {
            (7, Wired::Until(until)) => reader.graph(until, true)?,
            (14, Wired::Until(until)) => {
                let (key, value) = reader.pair(until)?;
                if key == COMPATIBILITY {
                    reader.outline.compatibility = Some(value);
                }
            }
            (25, Wired::Until(until)) => reader.function(until)?,
            _ => reader.wire.pass(wired)?,
        }
    }
    Ok(reader.outline)
}

struct OutlineReader<R> {
    wire: WireReader<R>,
    outline: ModelOutline,
    bodies: u32,
}

impl<R: Read + Seek> OutlineReader<R> {
    fn graph(&mut self, end: u64, is_main: bool) -> Result<(), ManifestError> {
        if self.bodies == MOST_BODIES {
            return self.wire.damaged("fewer bodies within bodies");
        }
        self.bodies += 1;
        let mut weights = std::collections::HashSet::new();
        while let Some((number, wired)) = self.wire.field(end)? {
            match (number, wired) {
                (1, Wired::Until(until)) => self.node(until)?,
                (5, Wired::Until(until)) => {
                    let name = self.tensor(until)?;
                    // Older models list their weights among the inputs, so the names are collected to exclude them.
                    if is_main {
                        weights.insert(name);
                    }
                }
                (11, Wired::Until(until)) if is_main => self.input(until)?,
                _ => self.wire.pass(wired)?,
            }
        }
        if is_main {
            self.outline
                .inputs
                .retain(|(name, _)| !weights.contains(name));
        }
        self.bodies -= 1;
        Ok(())
    }

    fn function(&mut self, end: u64) -> Result<(), ManifestError> {
        let mut domain = String::new();
        while let Some((number, wired)) = self.wire.field(end)? {
            match (number, wired) {
                (7, Wired::Until(until)) => self.node(until)?,
                (10, Wired::Until(until)) => domain = self.wire.text(until)?,
                _ => self.wire.pass(wired)?,
            }
        }
        self.outline.functions.insert(domain);
        Ok(())
    }

    fn node(&mut self, end: u64) -> Result<(), ManifestError> {
        let (mut name, mut op_type, mut domain) = (String::new(), String::new(), String::new());
        let mut context = ContextAttributes::default();
        while let Some((number, wired)) = self.wire.field(end)? {
            match (number, wired) {
                (3, Wired::Until(until)) => name = self.wire.text(until)?,
                (4, Wired::Until(until)) => op_type = self.wire.text(until)?,
                (5, Wired::Until(until)) => self.attribute(until, &mut context)?,
                (7, Wired::Until(until)) => domain = self.wire.text(until)?,
                _ => self.wire.pass(wired)?,
            }
        }
        if op_type == "EPContext" && context.is_of_qnn() {
            self.outline.contexts.push(Context {
                node: name,
                file: context.file(),
                is_for_many: context.is_for_many,
            });
        }
        self.outline.ops.entry(domain).or_default().insert(op_type);
        Ok(())
    }

    fn attribute(
        &mut self,
        end: u64,
        context: &mut ContextAttributes,
    ) -> Result<(), ManifestError> {
        let (mut name, mut int, mut text) = (String::new(), 0, None);
        while let Some((number, wired)) = self.wire.field(end)? {
            match (number, wired) {
                (1, Wired::Until(until)) => name = self.wire.text(until)?,
                (3, Wired::Varint(value)) => int = value,
                (4, Wired::Until(until)) if until - self.wire.at() <= MOST_TEXT => {
                    text = Some(self.wire.text(until)?);
                }
                (5 | 10, Wired::Until(until)) => drop(self.tensor(until)?),
                (6 | 11, Wired::Until(until)) => self.graph(until, false)?,
                _ => self.wire.pass(wired)?,
            }
        }
        match name.as_str() {
            "ep_cache_context" => context.cache = text,
            "embed_mode" => context.is_embedded = int != 0,
            "is_multi_soc_ep_context" => context.is_for_many = int != 0,
            "source" => context.source = text,
            _ => {}
        }
        Ok(())
    }

    /// Returns the tensor's name, and records where its data is.
    fn tensor(&mut self, end: u64) -> Result<String, ManifestError> {
        let (mut found, mut kind, mut raw, mut is_elsewhere) =
            (DataElsewhere::default(), 0, None, false);
        let mut dims = Vec::new();
        while let Some((number, wired)) = self.wire.field(end)? {
            match (number, wired) {
                (1, wired) => self.wire.numbers(wired, &mut dims)?,
                (2, Wired::Varint(data_type)) => kind = data_type,
                (8, Wired::Until(until)) => found.tensor = self.wire.text(until)?,
                (9, Wired::Until(until)) => {
                    raw = Some(until - self.wire.at());
                    self.wire.pass(wired)?;
                }
                (13, Wired::Until(until)) => {
                    let (key, value) = self.pair(until)?;
                    match key.as_str() {
                        "location" => found.location = value,
                        "offset" => found.offset = value.parse().unwrap_or(u64::MAX),
                        "length" => found.length = value.parse().ok(),
                        _ => {}
                    }
                }
                (14, Wired::Varint(location)) => is_elsewhere = location == 1,
                _ => self.wire.pass(wired)?,
            }
        }
        found.dims = dims.iter().map(|dim| dim.unsigned_abs()).collect();
        let is_shape = found.dims.len() <= MOST_DIMS && dims.iter().all(|dim| *dim >= 0);
        let shape = is_shape.then(|| found.dims.clone());
        found.bytes = Tensor::of(shape, kind).bytes();
        let name = found.tensor.clone();
        match (is_elsewhere, raw, found.bytes) {
            (true, ..) => {
                self.wire
                    .budget
                    .spend(size_of::<DataElsewhere>() + name.len() + found.location.len())?;
                self.outline.elsewhere.push(found);
            }
            (false, Some(raw), Some(bytes)) if raw != bytes => self.outline.lying.push(format!(
                "tensor {name} has {raw} bytes of data, and its shape [{}] takes {bytes}",
                list(&found.dims)
            )),
            _ => {}
        }
        Ok(name)
    }

    fn input(&mut self, end: u64) -> Result<(), ManifestError> {
        let (mut name, mut dims) = (String::new(), Vec::new());
        while let Some((number, wired)) = self.wire.field(end)? {
            match (number, wired) {
                (1, Wired::Until(until)) => name = self.wire.text(until)?,
                (2, Wired::Until(until)) => dims = self.dims_of_type(until)?,
                _ => self.wire.pass(wired)?,
            }
        }
        self.outline.inputs.push((name, dims));
        Ok(())
    }

    /// The dimensions of a tensor's type; empty for other types.
    fn dims_of_type(&mut self, end: u64) -> Result<Vec<Dim>, ManifestError> {
        let mut dims = Vec::new();
        // TypeProto.tensor_type, then its shape, then each dim.
        while let Some((number, wired)) = self.wire.field(end)? {
            let (1, Wired::Until(tensor)) = (number, wired) else {
                self.wire.pass(wired)?;
                continue;
            };
            while let Some((number, wired)) = self.wire.field(tensor)? {
                let (2, Wired::Until(shape)) = (number, wired) else {
                    self.wire.pass(wired)?;
                    continue;
                };
                while let Some((number, wired)) = self.wire.field(shape)? {
                    match (number, wired) {
                        (1, Wired::Until(until)) => {
                            dims.push(crate::read::dim(&mut self.wire, until)?)
                        }
                        _ => self.wire.pass(wired)?,
                    }
                }
            }
        }
        Ok(dims)
    }

    /// A `StringStringEntryProto`.
    fn pair(&mut self, end: u64) -> Result<(String, String), ManifestError> {
        let (mut key, mut value) = (String::new(), String::new());
        while let Some((number, wired)) = self.wire.field(end)? {
            match (number, wired) {
                (1, Wired::Until(until)) if until - self.wire.at() <= MOST_TEXT => {
                    key = self.wire.text(until)?;
                }
                (2, Wired::Until(until)) if until - self.wire.at() <= MOST_TEXT => {
                    value = self.wire.text(until)?;
                }
                _ => self.wire.pass(wired)?,
            }
        }
        Ok((key, value))
    }
}

/// Attributes of an EPContext node.
#[derive(Debug, Default)]
struct ContextAttributes {
    cache: Option<String>,
    is_embedded: bool,
    is_for_many: bool,
    source: Option<String>,
}

impl ContextAttributes {
    /// An older ONNX Runtime leaves the name empty for QNN.
    fn is_of_qnn(&self) -> bool {
        let source = self.source.as_deref().unwrap_or_default();
        source.is_empty() || source.to_ascii_lowercase().contains("qnn")
    }

    fn file(&self) -> Option<String> {
        let file = self.cache.clone().filter(|_| !self.is_embedded);
        file.filter(|file| !file.is_empty())
    }
}
