//! Rewrites nodes that an NPU refuses into equivalent forms that it accepts. Weights, external data and everything else
//! are copied byte by byte.

mod around;
mod data;
mod edit;
mod einsum;
mod encode;
mod norm;
mod outside;
mod parts;
mod rewritten;
mod rules;

pub use self::{
    outside::weights_outside,
    rewritten::{Rewrite, Rewritten},
};

use std::{fs::File, path::Path};

use crate::{
    InputShape, ManifestError, count, forms::forms, read, rewrite::edit::Edit, shapes,
    view::GraphView,
};

/// Writes a copy of a model in which the wanted nodes, chosen by name, have another form. If no node is rewritten, no
/// copy is written.
///
/// # Errors
/// The file is not an ONNX model, an input has no fixed shape, or a file cannot be read or written. It is also an error
/// if external data would be lost because the copy is in another folder.
pub fn rewrite(
    model: &Path,
    copy: &Path,
    given: &[InputShape],
    is_wanted: impl Fn(&str) -> bool,
) -> Result<Rewritten, ManifestError> {
    let mut read = read::model(File::open(model)?)?;
    shapes::fix_inputs(&mut read, given)?;
    let counted = count::counted(&mut read)?;
    let view = GraphView::new(&read.graph);
    let forms = forms(&view, &counted.tensors);
    let mut planner = rules::Planner {
        model,
        view: &view,
        names: &read.names,
        tensors: &counted.tensors,
        edit: Edit::new(&read.graph, &read.names),
        rewritten: Rewritten::default(),
    };
    for (at, form) in forms.iter().enumerate() {
        let node = view.node(at);
        if !node.name.is_empty() && is_wanted(&node.name) {
            planner.plan(at, form);
        }
    }
    let rules::Planner {
        edit, rewritten, ..
    } = planner;
    if !rewritten.rewrites.is_empty() {
        edit.write(model, copy)?;
    }
    Ok(rewritten)
}

#[cfg(test)]
mod tests;
