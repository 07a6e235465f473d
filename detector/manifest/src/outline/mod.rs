//! The outline of a model file: its properties other than arithmetic. It has the domains of ops, open and empty inputs,
//! the locations of tensors' data, and precompiled graphs. It explains why a runtime refuses the file. Weights are
//! skipped.

mod data;
mod model;
mod reader;
#[cfg(test)]
mod tests;

pub use self::data::{CompiledElsewhere, Precompiled};
pub use self::model::ModelOutline;
