//! End to end: the whole path, one module a behaviour.

mod alertmanager;
mod layering;
mod schema;
mod support;
