//! The graph of a model, without its weights.

use std::{collections::HashMap, rc::Rc};

use crate::{ManifestError, tensor::Tensor, wire::MemoryBudget};

/// Number of a tensor; 0 stands for an omitted input or output, whose name is empty.
pub(crate) type TensorId = usize;

/// Names of tensors, each once.
#[derive(Debug)]
pub(crate) struct Names {
    ids: HashMap<Rc<str>, TensorId>,
    texts: Vec<Rc<str>>,
}

impl Names {
    pub(crate) fn new() -> Self {
        let empty: Rc<str> = "".into();
        Self {
            ids: HashMap::from([(Rc::clone(&empty), 0)]),
            texts: vec![empty],
        }
    }

    pub(crate) fn id(
        &mut self,
        name: &str,
        budget: &mut MemoryBudget,
    ) -> Result<TensorId, ManifestError> {
        if let Some(id) = self.ids.get(name) {
            return Ok(*id);
        }
        budget.spend(name.len() + 96)?;
        let text: Rc<str> = name.into();
        self.texts.push(Rc::clone(&text));
        self.ids.insert(text, self.texts.len() - 1);
        Ok(self.texts.len() - 1)
    }

    pub(crate) fn text(&self, id: TensorId) -> &str {
        &self.texts[id]
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &str> {
        self.texts.iter().map(|text| &**text)
    }

    pub(crate) fn find(&self, name: &str) -> Option<TensorId> {
        self.ids.get(name).copied()
    }
}

/// A dimension in the model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Dim {
    Fixed(u64),
    /// A dimension with this name, which may be empty.
    Symbolic(String),
}

/// A tensor's declared type.
#[derive(Debug, Clone)]
pub(crate) struct Declared {
    pub(crate) id: TensorId,
    pub(crate) element: u64,
    /// The declared dimensions; `None` without a shape.
    pub(crate) dims: Option<Vec<Dim>>,
    /// The kind of value, for example `a sequence`; `None` for a tensor.
    pub(crate) kind: Option<&'static str>,
}

#[derive(Debug, Default)]
pub(crate) struct Attribute {
    pub(crate) name: String,
    pub(crate) int: i64,
    pub(crate) float: f32,
    pub(crate) ints: Vec<i64>,
    pub(crate) floats: Vec<f32>,
    pub(crate) text: String,
    pub(crate) tensor: Option<Tensor>,
    pub(crate) graphs: Vec<Graph>,
}

#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) op_type: String,
    pub(crate) domain: String,
    pub(crate) inputs: Vec<TensorId>,
    pub(crate) outputs: Vec<TensorId>,
    pub(crate) attributes: Vec<Attribute>,
}

impl Node {
    pub(crate) fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.attributes
            .iter()
            .find(|attribute| attribute.name == name)
    }

    pub(crate) fn int(&self, name: &str, default: i64) -> i64 {
        self.attribute(name)
            .map_or(default, |attribute| attribute.int)
    }

    pub(crate) fn ints(&self, name: &str) -> Option<&[i64]> {
        self.attribute(name).map(|attribute| &*attribute.ints)
    }

    pub(crate) fn text(&self, name: &str) -> &str {
        self.attribute(name).map_or("", |attribute| &attribute.text)
    }

    pub(crate) fn input(&self, at: usize) -> TensorId {
        self.inputs.get(at).copied().unwrap_or(0)
    }

    /// The node's name. A node without a name is shown by its first output.
    pub(crate) fn shown(&self, names: &Names) -> String {
        match (self.name.as_str(), self.outputs.first()) {
            ("", Some(output)) => format!("(unnamed, makes {})", names.text(*output)),
            ("", None) => "(unnamed)".to_owned(),
            (name, _) => name.to_owned(),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    pub(crate) inputs: Vec<Declared>,
    pub(crate) outputs: Vec<TensorId>,
    /// Declarations of `value_info` and of outputs.
    pub(crate) declared: Vec<Declared>,
    pub(crate) initializers: Vec<(TensorId, Tensor)>,
}

#[derive(Debug)]
pub(crate) struct OnnxModel {
    pub(crate) graph: Graph,
    pub(crate) names: Names,
    pub(crate) budget: MemoryBudget,
    /// Whether an initializer that is also an input is only the default of that input. Before version 4 of the format
    /// it is a constant.
    pub(crate) has_defaults: bool,
    /// Sizes of symbolic dimensions, from the shapes given for inputs.
    pub(crate) sizes: HashMap<String, u64>,
}
