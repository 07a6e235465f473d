//! End to end: the whole path, one module a behaviour.

mod layering;
