//! Changes of a model, and writing the changed copy.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::{BufWriter, Read, Seek, SeekFrom, Write},
    path::Path,
};

use epwatch_proto::wire::push_varint;

use super::encode::{NewNode, NewTensor, dims_field, opset_field, push_key};
use crate::{
    ManifestError,
    graph::{Graph, Names},
    wire::{WireReader, Wired},
};

/// The domain of ONNX Runtime's own ops.
pub(super) const MICROSOFT: &str = "com.microsoft";

/// Changes of one graph.
#[derive(Debug, Default)]
pub(super) struct Edit {
    /// Nodes to remove, by their index in the graph.
    pub(super) removed: HashSet<usize>,
    /// New nodes, by the index of the node that they come before.
    pub(super) added: HashMap<usize, Vec<NewNode>>,
    pub(super) tensors: Vec<NewTensor>,
    /// New shapes of weights, by name.
    pub(super) dims: HashMap<String, Vec<u64>>,
    /// Tensors whose declared shape became wrong.
    pub(super) undeclared: HashSet<String>,
    taken: HashSet<String>,
}

/// A part of the copy.
pub(super) enum Part {
    /// Bytes of the model from the first offset up to the second.
    Copied(u64, u64),
    New(Vec<u8>),
}

impl Part {
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Copied(from, until) => until - from,
            Self::New(bytes) => bytes.len() as u64,
        }
    }
}

impl Edit {
    pub(super) fn new(graph: &Graph, names: &Names) -> Self {
        let mut taken: HashSet<String> = graph.nodes.iter().map(|n| n.name.clone()).collect();
        taken.extend(names.all().map(str::to_owned));
        Self {
            taken,
            ..Self::default()
        }
    }

    /// A name that no node and no tensor has.
    pub(super) fn name(&mut self, base: &str) -> String {
        let mut name = base.to_owned();
        let mut number = 1_usize;
        while !self.taken.insert(name.clone()) {
            number += 1;
            name = format!("{base}_{number}");
        }
        name
    }

    /// Writes the copy.
    pub(super) fn write(&self, model: &Path, copy: &Path) -> Result<(), ManifestError> {
        let mut wire = WireReader::new(File::open(model)?)?;
        let end = wire.len();
        let mut parts = Vec::new();
        let (mut has_graph, mut has_microsoft, mut is_external) = (false, false, false);
        loop {
            let at = wire.at();
            let Some((number, wired)) = wire.field(end)? else {
                break;
            };
            match (number, wired) {
                (7, Wired::Until(until)) if !has_graph => {
                    has_graph = true;
                    let inner = self.graph(&mut wire, until, &mut is_external)?;
                    let len = inner.iter().map(Part::len).sum();
                    let mut head = Vec::new();
                    push_key(&mut head, 7, 2);
                    push_varint(&mut head, len);
                    parts.push(Part::New(head));
                    parts.extend(inner);
                }
                (8, Wired::Until(until)) => {
                    while let Some((number, wired)) = wire.field(until)? {
                        match (number, wired) {
                            (1, Wired::Until(until)) => {
                                has_microsoft |= wire.text(until)? == MICROSOFT;
                            }
                            _ => wire.pass(wired)?,
                        }
                    }
                    parts.push(Part::Copied(at, wire.at()));
                }
                _ => {
                    wire.pass(wired)?;
                    parts.push(Part::Copied(at, wire.at()));
                }
            }
        }
        if !has_graph {
            return wire.damaged("a graph");
        }
        let mut added = self.added.values().flatten();
        if added.any(|node| node.domain == MICROSOFT) && !has_microsoft {
            parts.push(Part::New(opset_field(MICROSOFT, 1)));
        }
        let folder = |path: &Path| {
            let parent = path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty());
            parent.unwrap_or(Path::new(".")).canonicalize().ok()
        };
        if is_external && folder(model) != folder(copy) {
            return Err(ManifestError::ExternalData);
        }
        written(model, copy, &parts)
    }

    /// The parts of the graph's message.
    fn graph<R: Read + Seek>(
        &self,
        wire: &mut WireReader<R>,
        end: u64,
        is_external: &mut bool,
    ) -> Result<Vec<Part>, ManifestError> {
        let mut parts = Vec::new();
        let mut node = 0_usize;
        loop {
            let at = wire.at();
            let Some((number, wired)) = wire.field(end)? else {
                break;
            };
            match (number, wired) {
                (1, Wired::Until(_)) => {
                    wire.pass(wired)?;
                    for new in self.added.get(&node).into_iter().flatten() {
                        parts.push(Part::New(new.encoded()));
                    }
                    if !self.removed.contains(&node) {
                        parts.push(Part::Copied(at, wire.at()));
                    }
                    node += 1;
                }
                (5, Wired::Until(until)) => {
                    self.tensor(wire, at, until, is_external, &mut parts)?
                }
                (13, Wired::Until(until)) => {
                    let mut name = String::new();
                    while let Some((number, wired)) = wire.field(until)? {
                        match (number, wired) {
                            (1, Wired::Until(until)) => name = wire.text(until)?,
                            _ => wire.pass(wired)?,
                        }
                    }
                    if !self.undeclared.contains(&name) {
                        parts.push(Part::Copied(at, wire.at()));
                    }
                }
                _ => {
                    wire.pass(wired)?;
                    parts.push(Part::Copied(at, wire.at()));
                }
            }
        }
        parts.extend(self.tensors.iter().map(|new| Part::New(new.encoded())));
        Ok(parts)
    }

    /// Returns the parts of a weight, with new dimensions if the edit has any for it.
    fn tensor<R: Read + Seek>(
        &self,
        wire: &mut WireReader<R>,
        at: u64,
        until: u64,
        is_external: &mut bool,
        parts: &mut Vec<Part>,
    ) -> Result<(), ManifestError> {
        let (mut name, mut fields) = (String::new(), Vec::new());
        loop {
            let from = wire.at();
            let Some((number, wired)) = wire.field(until)? else {
                break;
            };
            match (number, wired) {
                (8, Wired::Until(until)) => name = wire.text(until)?,
                (14, Wired::Varint(1)) => *is_external = true,
                _ => wire.pass(wired)?,
            }
            if number != 1 {
                fields.push(Part::Copied(from, wire.at()));
            }
        }
        let Some(dims) = self.dims.get(&name) else {
            parts.push(Part::Copied(at, until));
            return Ok(());
        };
        let dims = dims_field(dims);
        let len = dims.len() as u64 + fields.iter().map(Part::len).sum::<u64>();
        let mut head = Vec::new();
        push_key(&mut head, 5, 2);
        push_varint(&mut head, len);
        head.extend(dims);
        parts.push(Part::New(head));
        parts.extend(fields);
        Ok(())
    }
}

fn written(model: &Path, copy: &Path, parts: &[Part]) -> Result<(), ManifestError> {
    let mut to = BufWriter::new(File::create(copy)?);
    copied(model, &mut to, parts)?;
    to.flush()?;
    Ok(())
}

/// Writes the parts one after the other.
pub(super) fn copied(
    model: &Path,
    to: &mut impl Write,
    parts: &[Part],
) -> Result<(), ManifestError> {
    let mut from = File::open(model)?;
    for part in parts {
        match part {
            Part::New(bytes) => to.write_all(bytes)?,
            Part::Copied(at, until) => {
                from.seek(SeekFrom::Start(*at))?;
                std::io::copy(&mut (&from).take(until - at), to)?;
            }
        }
    }
    Ok(())
}
