//! End to end: the whole path, one module a behaviour.

mod alertmanager;
mod dashboards;
mod demo;
mod fleet;
mod layering;
mod schema;
mod support;
