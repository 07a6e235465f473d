//! `ModelProto` and the messages in it, by their numbers in `onnx.proto`.

use std::{
    collections::HashMap,
    io::{Read, Seek},
};

use crate::{
    ManifestError,
    graph::{Attribute, Declared, Dim, Graph, Names, Node, OnnxModel, TensorId},
    tensor::{MOST_DIMS, Tensor, element},
    wire::{WireReader, Wired},
};

/// Maximum number of levels of bodies within bodies.
const MOST_BODIES: u32 = 16;
/// Longest data of a tensor whose values may be a shape, in bytes.
const MOST_DATA: u64 = 8 * MOST_DIMS as u64;

pub(crate) fn model<R: Read + Seek>(input: R) -> Result<OnnxModel, ManifestError> {
    let wire = WireReader::new(input)?;
    let end = wire.len();
    let mut reader = ModelReader {
        wire,
        names: Names::new(),
        bodies: 0,
    };
    let (mut graph, mut has_functions, mut ir_version) = (None, false, None);
    while let Some((number, wired)) = reader.wire.field(end)? {
        match (number, wired) {
            (1, Wired::Varint(version)) => ir_version = Some(version),
            (7, Wired::Until(until)) if graph.is_none() => graph = Some(reader.graph(until)?),
            (25, Wired::Until(_)) => {
                has_functions = true;
                reader.wire.pass(wired)?;
            }
            _ => reader.wire.pass(wired)?,
        }
    }
    let Some(graph) = graph else {
        return reader.wire.damaged("a graph");
    };
    if has_functions {
        return Err(ManifestError::Uncountable {
            node: "of the model".to_owned(),
            op_type: "functions".to_owned(),
            why: "nodes may call them; inline them with onnx.inliner.inline_local_functions",
        });
    }
    Ok(OnnxModel {
        graph,
        names: reader.names,
        budget: reader.wire.budget,
        has_defaults: ir_version.is_none_or(|version| version >= 4),
        sizes: HashMap::new(),
    })
}

struct ModelReader<R> {
    wire: WireReader<R>,
    names: Names,
    bodies: u32,
}

impl<R: Read + Seek> ModelReader<R> {
    fn graph(&mut self, end: u64) -> Result<Graph, ManifestError> {
        if self.bodies == MOST_BODIES {
            return self.wire.damaged("fewer bodies within bodies");
        }
        self.bodies += 1;
        let mut graph = Graph::default();
        while let Some((number, wired)) = self.wire.field(end)? {
            let Wired::Until(until) = wired else {
                continue;
            };
            match number {
                1 => {
                    let node = self.node(until)?;
                    graph.nodes.push(node);
                }
                5 => {
                    let initializer = self.tensor(until)?;
                    graph.initializers.push(initializer);
                }
                11 => graph.inputs.push(self.declared(until)?),
                12 => {
                    let output = self.declared(until)?;
                    graph.outputs.push(output.id);
                    graph.declared.push(output);
                }
                13 => graph.declared.push(self.declared(until)?),
                _ => self.wire.pass(wired)?,
            }
        }
        self.bodies -= 1;
        Ok(graph)
    }

    fn tensor_id(&mut self, until: u64) -> Result<TensorId, ManifestError> {
        let name = self.wire.text(until)?;
        self.wire.budget.spend(size_of::<TensorId>())?;
        self.names.id(&name, &mut self.wire.budget)
    }

    fn node(&mut self, end: u64) -> Result<Node, ManifestError> {
        self.wire.budget.spend(2 * size_of::<Node>())?;
        let mut node = Node::default();
        while let Some((number, wired)) = self.wire.field(end)? {
            match (number, wired) {
                (1, Wired::Until(until)) => node.inputs.push(self.tensor_id(until)?),
                (2, Wired::Until(until)) => node.outputs.push(self.tensor_id(until)?),
                (3, Wired::Until(until)) => node.name = self.wire.text(until)?,
                (4, Wired::Until(until)) => node.op_type = self.wire.text(until)?,
                (5, Wired::Until(until)) => node.attributes.push(self.attribute(until)?),
                (7, Wired::Until(until)) => node.domain = self.wire.text(until)?,
                _ => self.wire.pass(wired)?,
            }
        }
        Ok(node)
    }

    fn attribute(&mut self, end: u64) -> Result<Attribute, ManifestError> {
        self.wire.budget.spend(2 * size_of::<Attribute>())?;
        let mut attribute = Attribute::default();
        while let Some((number, wired)) = self.wire.field(end)? {
            match (number, wired) {
                (1, Wired::Until(until)) => attribute.name = self.wire.text(until)?,
                (2, Wired::Fixed32(bits)) => attribute.float = f32::from_bits(bits),
                (3, Wired::Varint(int)) => attribute.int = int.cast_signed(),
                // Texts of interest are short: an equation, a layout, a kind of padding.
                (4, Wired::Until(until)) => attribute.text = self.wire.text(until)?,
                (5, Wired::Until(until)) => attribute.tensor = Some(self.tensor(until)?.1),
                (6 | 11, Wired::Until(until)) => attribute.graphs.push(self.graph(until)?),
                (7, wired) => self.floats(wired, &mut attribute.floats)?,
                (8, wired) => self.wire.numbers(wired, &mut attribute.ints)?,
                _ => self.wire.pass(wired)?,
            }
        }
        Ok(attribute)
    }

    fn floats(&mut self, wired: Wired, to: &mut Vec<f32>) -> Result<(), ManifestError> {
        match wired {
            Wired::Fixed32(bits) => {
                self.wire.budget.spend(size_of::<f32>())?;
                to.push(f32::from_bits(bits));
            }
            Wired::Until(until) => {
                let bytes = self.wire.vec(until)?;
                let (floats, _) = bytes.as_chunks();
                to.extend(floats.iter().map(|bytes| f32::from_le_bytes(*bytes)));
            }
            _ => return self.wire.damaged("floats"),
        }
        Ok(())
    }

    /// Reads name, shape and kind of a tensor. Values are only read from small tensors without external data.
    fn tensor(&mut self, end: u64) -> Result<(TensorId, Tensor), ManifestError> {
        let (mut id, mut dims, mut kind) = (0, Vec::new(), 0);
        let (mut ints, mut floats, mut raw) = (Vec::new(), Vec::new(), Vec::new());
        while let Some((number, wired)) = self.wire.field(end)? {
            let is_small = match wired {
                Wired::Until(until) => until - self.wire.at() <= 2 * MOST_DATA,
                _ => ints.len() + floats.len() < 4 * MOST_DIMS,
            };
            match (number, wired) {
                (1, wired) => self.wire.numbers(wired, &mut dims)?,
                (2, Wired::Varint(data_type)) => kind = data_type,
                (8, Wired::Until(until)) => id = self.tensor_id(until)?,
                (5 | 7, wired) if is_small => self.wire.numbers(wired, &mut ints)?,
                (4, wired) if is_small => self.floats(wired, &mut floats)?,
                (9, Wired::Until(until)) if is_small => raw = self.wire.vec(until)?,
                _ => self.wire.pass(wired)?,
            }
        }
        let mut shape = Vec::with_capacity(dims.len());
        for dim in dims {
            match u64::try_from(dim) {
                Ok(dim) => shape.push(dim),
                Err(_) => return self.wire.damaged("a tensor's dimension of 0 or more"),
            }
        }
        match kind {
            element::I64 => ints.extend(raw.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b))),
            element::I32 => {
                let all = raw.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b));
                ints.extend(all.map(i64::from));
            }
            element::U8 | element::BOOL => ints.extend(raw.iter().map(|b| i64::from(*b))),
            element::I8 => ints.extend(raw.iter().map(|b| i64::from(b.cast_signed()))),
            element::F32 => floats.extend(raw.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b))),
            _ => {}
        }
        let n: Option<u64> = crate::tensor::product(&shape);
        let whole = |len: usize| n == Some(len as u64) && len <= MOST_DIMS;
        let mut tensor = Tensor::of(Some(shape), kind);
        let is_whole = matches!(
            kind,
            element::U8 | element::I8 | element::I32 | element::I64 | element::BOOL
        );
        tensor.ints = (whole(ints.len()) && is_whole).then_some(ints);
        tensor.floats = (whole(floats.len()) && kind == element::F32).then_some(floats);
        self.wire.budget.spend(tensor.memory())?;
        Ok((id, tensor))
    }

    fn declared(&mut self, end: u64) -> Result<Declared, ManifestError> {
        self.wire.budget.spend(2 * size_of::<Declared>())?;
        let mut declared = Declared {
            id: 0,
            element: 0,
            dims: None,
            kind: None,
        };
        while let Some((number, wired)) = self.wire.field(end)? {
            match (number, wired) {
                (1, Wired::Until(until)) => declared.id = self.tensor_id(until)?,
                (2, Wired::Until(until)) => {
                    while let Some((number, wired)) = self.wire.field(until)? {
                        declared.kind = declared.kind.or(kind_of_value(number));
                        match (number, wired) {
                            (1, Wired::Until(until)) => self.tensor_type(until, &mut declared)?,
                            _ => self.wire.pass(wired)?,
                        }
                    }
                }
                _ => self.wire.pass(wired)?,
            }
        }
        Ok(declared)
    }

    fn tensor_type(&mut self, end: u64, declared: &mut Declared) -> Result<(), ManifestError> {
        while let Some((number, wired)) = self.wire.field(end)? {
            match (number, wired) {
                (1, Wired::Varint(kind)) => declared.element = kind,
                (2, Wired::Until(until)) => {
                    let mut dims = Vec::new();
                    while let Some((number, wired)) = self.wire.field(until)? {
                        match (number, wired) {
                            (1, Wired::Until(until)) => {
                                self.wire.budget.spend(2 * size_of::<Dim>())?;
                                dims.push(dim(&mut self.wire, until)?);
                            }
                            _ => self.wire.pass(wired)?,
                        }
                    }
                    declared.dims = Some(dims);
                }
                _ => self.wire.pass(wired)?,
            }
        }
        Ok(())
    }
}

/// A dimension of a shape.
pub(crate) fn dim<R: Read + Seek>(
    wire: &mut WireReader<R>,
    end: u64,
) -> Result<Dim, ManifestError> {
    let mut dim = Dim::Symbolic(String::new());
    while let Some((number, wired)) = wire.field(end)? {
        match (number, wired) {
            // Exporters also write -1 for a dimension that is not fixed.
            (1, Wired::Varint(size)) if size <= i64::MAX as u64 => dim = Dim::Fixed(size),
            (2, Wired::Until(until)) => dim = Dim::Symbolic(wire.text(until)?),
            _ => wire.pass(wired)?,
        }
    }
    Ok(dim)
}

/// The kind of a value that is not a tensor, by its field of `TypeProto`.
fn kind_of_value(number: u64) -> Option<&'static str> {
    match number {
        4 => Some("a sequence"),
        5 => Some("a map"),
        8 => Some("a sparse tensor"),
        9 => Some("optional"),
        _ => None,
    }
}
