//! What a model file says of itself besides its arithmetic: domains of ops, open and empty inputs, where the data of tensors
//! is, graphs that were compiled before. It explains why a runtime refuses the file. Weights are skipped.

mod data;
mod model;
mod reader;
#[cfg(test)]
mod tests;

pub use self::data::Precompiled;
pub use self::model::ModelOutline;
