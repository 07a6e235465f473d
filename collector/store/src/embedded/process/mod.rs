//! The engine's process: its start, supervision and end, seen from both sides.
//!
//! `supervisor` runs in the parent, `child` and `listen` in the child; `control` is the language of the pipe
//! between them. Nothing here reads a statement.

pub(super) mod child;
mod control;
mod listen;
pub(super) mod supervisor;
