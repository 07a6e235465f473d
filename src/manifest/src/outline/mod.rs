//! The outline of a model file: its facts other than the arithmetic. It has the domains of ops, open and empty inputs,
//! the places of tensors' data, and graphs that were compiled before. It explains why a runtime refuses the file.
//! Weights are skipped.

mod data;
mod model;
mod reader;
#[cfg(test)]
mod tests;

pub use self::data::Precompiled;
pub use self::model::ModelOutline;
