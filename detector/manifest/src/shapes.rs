//! Shapes of inputs, as the model or the command line has them.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fmt,
    str::FromStr,
};

use crate::{
    ManifestError,
    graph::{Declared, Dim, Names, OnnxModel, TensorId},
};

/// Size of a dimension that a model leaves open, by its name, written `batch=1`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreeDim {
    name: String,
    size: u32,
}

impl FreeDim {
    /// Name in the model.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the size, which is at least 1.
    pub fn size(&self) -> u32 {
        self.size
    }
}

impl FromStr for FreeDim {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "expected for example batch=1".to_owned();
        let (name, size) = text.rsplit_once('=').ok_or_else(expected)?;
        let size = size.trim().parse().ok().filter(|size| *size > 0);
        Ok(Self {
            name: Some(name.to_owned())
                .filter(|n| !n.is_empty())
                .ok_or_else(expected)?,
            size: size.ok_or_else(expected)?,
        })
    }
}

impl fmt::Display for FreeDim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.size)
    }
}

/// A shape for an input, written `input=1,3,224,224`, or the size of a dimension of any input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputShape {
    input: String,
    dims: Vec<u64>,
    /// `input` is the name of a dimension.
    is_dim: bool,
}

impl From<&FreeDim> for InputShape {
    fn from(dim: &FreeDim) -> Self {
        Self {
            input: dim.name.clone(),
            dims: vec![dim.size.into()],
            is_dim: true,
        }
    }
}

impl FromStr for InputShape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "expected for example input=1,3,224,224".to_owned();
        // A name may itself contain '='.
        let (input, dims) = text.rsplit_once('=').ok_or_else(expected)?;
        let parsed: Result<Vec<u64>, _> = match dims {
            "" => Ok(Vec::new()),
            dims => dims.split(',').map(|dim| dim.trim().parse()).collect(),
        };
        Ok(Self {
            input: input.to_owned(),
            dims: parsed.map_err(|_| expected())?,
            is_dim: false,
        })
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(size) => write!(f, "{size}"),
            Self::Symbolic(name) if name.is_empty() => f.write_str("?"),
            Self::Symbolic(name) => f.write_str(name),
        }
    }
}

/// Texts with commas.
pub(crate) fn list<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    let texts: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    texts.join(",")
}

/// Writes the given shapes into the model's inputs, and keeps the sizes of its symbolic dimensions.
///
/// # Errors
/// A shape fits no input, or an input has no shape.
pub(crate) fn fix_inputs(model: &mut OnnxModel, given: &[InputShape]) -> Result<(), ManifestError> {
    let weights: HashSet<TensorId> = model.graph.initializers.iter().map(|(id, _)| *id).collect();
    let is_weight = |id| weights.contains(&id);
    let names = &model.names;
    let (sizes, given): (Vec<_>, Vec<_>) = given.iter().partition(|shape| shape.is_dim);
    for size in sizes {
        size_of_dim(size, &model.graph.inputs, &mut model.sizes)?;
    }
    for shape in given {
        let id = names.find(&shape.input);
        let mut inputs = model.graph.inputs.iter_mut();
        let Some(input) = inputs.find(|input| Some(input.id) == id && !is_weight(input.id)) else {
            let inputs = model
                .graph
                .inputs
                .iter()
                .filter(|input| !is_weight(input.id));
            let inputs = list(inputs.map(|input| names.text(input.id)));
            return Err(wrong(shape, format!("its inputs are {inputs}")));
        };
        if let Some(kind) = input.kind {
            return Err(wrong(
                shape,
                format!("it is {kind}, which has no fixed shape"),
            ));
        }
        let fits = |dims: &Vec<Dim>| {
            let mut pairs = dims.iter().zip(&shape.dims);
            dims.len() == shape.dims.len()
                && pairs.all(|(dim, size)| !matches!(dim, Dim::Fixed(fixed) if fixed != size))
        };
        if let Some(dims) = input.dims.as_ref() {
            if !fits(dims) {
                return Err(wrong(shape, format!("it has [{}]", list(dims))));
            }
            for (dim, size) in dims.iter().zip(&shape.dims) {
                if let Dim::Symbolic(name) = dim
                    && !name.is_empty()
                    && *model.sizes.entry(name.clone()).or_insert(*size) != *size
                {
                    return Err(wrong(shape, format!("{name} has two sizes")));
                }
            }
        }
        input.dims = Some(shape.dims.iter().copied().map(Dim::Fixed).collect());
    }
    let sizes = &model.sizes;
    for input in &mut model.graph.inputs {
        for dim in input.dims.iter_mut().flatten() {
            if let Dim::Symbolic(name) = dim
                && let Some(size) = sizes.get(name)
            {
                *dim = Dim::Fixed(*size);
            }
        }
    }
    let mut open = model
        .graph
        .inputs
        .iter()
        .filter(|input| !is_weight(input.id));
    match open.find(|input| fixed(input, model).is_none()) {
        Some(input) => Err(symbolic(input, names)),
        None => Ok(()),
    }
}

/// Records the size of a symbolic dimension.
fn size_of_dim(
    given: &InputShape,
    inputs: &[Declared],
    sizes: &mut HashMap<String, u64>,
) -> Result<(), ManifestError> {
    let (name, size) = (&given.input, given.dims.first().copied().unwrap_or(1));
    let named = inputs.iter().flat_map(|input| input.dims.iter().flatten());
    let named = named.filter_map(|dim| match dim {
        Dim::Symbolic(name) if !name.is_empty() => Some(name),
        _ => None,
    });
    let open: BTreeSet<&String> = named.collect();
    if !open.contains(name) {
        let expected = match open.is_empty() {
            true => "no input has a dimension with a name".to_owned(),
            false => format!("its open dimensions are {}", list(open)),
        };
        let name = name.clone();
        return Err(ManifestError::WrongDim {
            name,
            size,
            expected,
        });
    }
    if *sizes.entry(name.clone()).or_insert(size) != size {
        let (name, expected) = (name.clone(), "it is given twice".to_owned());
        return Err(ManifestError::WrongDim {
            name,
            size,
            expected,
        });
    }
    Ok(())
}

/// The shape, if all dimensions have a size.
pub(crate) fn fixed(declared: &Declared, model: &OnnxModel) -> Option<Vec<u64>> {
    let sizes = declared.dims.as_ref()?.iter().map(|dim| match dim {
        Dim::Fixed(size) => Some(*size),
        Dim::Symbolic(name) => model.sizes.get(name).copied(),
    });
    sizes.collect()
}

fn wrong(shape: &InputShape, expected: String) -> ManifestError {
    ManifestError::WrongShape {
        input: shape.input.clone(),
        given: list(&shape.dims),
        expected,
    }
}

fn symbolic(input: &Declared, names: &Names) -> ManifestError {
    if let Some(kind) = input.kind {
        let input = names.text(input.id).to_owned();
        return ManifestError::NoTensor { input, kind };
    }
    let (shape, example) = match &input.dims {
        None => ("no shape".to_owned(), "1,3,224,224".to_owned()),
        Some(dims) => {
            let example = dims.iter().map(|dim| match dim {
                Dim::Fixed(size) => *size,
                Dim::Symbolic(_) => 1,
            });
            (list(dims), list(example))
        }
    };
    ManifestError::Symbolic {
        input: names.text(input.id).to_owned(),
        shape,
        example,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read_from_text() {
        let shape: InputShape = "a=b=1, 3,224".parse().unwrap();
        assert_eq!((shape.input.as_str(), shape.dims), ("a=b", vec![1, 3, 224]));
        assert!("x=".parse::<InputShape>().unwrap().dims.is_empty());
        let dim: FreeDim = "a=batch=4".parse().unwrap();
        assert_eq!((dim.name(), dim.size()), ("a=batch", 4));
        for wrong in ["", "batch", "=1", "batch=0", "batch=-1", "batch=1,2"] {
            assert!(wrong.parse::<FreeDim>().is_err(), "{wrong}");
        }
        for wrong in ["", "x", "x=N,3", "x=-1", "x=1,,2"] {
            assert!(wrong.parse::<InputShape>().is_err(), "{wrong}");
        }
    }
}
