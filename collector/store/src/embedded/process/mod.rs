//! The engine's process: its start, supervision and end, on both sides.
//!
//! `supervisor` runs in the parent, `child` and `listen` in the child; `control` holds the messages between them.
//! No module here reads a statement.

pub(super) mod child;
mod control;
mod listen;
pub(super) mod supervisor;
