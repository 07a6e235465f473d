//! The SDK as an app uses it: real sessions, a real folder, a strict collector on loopback.
//!
//! One executable, a module a behaviour. What changes a process for good (a killed app, a second
//! ONNX Runtime, a plugin) happens in a child: this executable again, with one test.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test's helpers fail the test"
)]

mod baselines;
mod churn;
mod consent;
mod directives;
mod harm;
mod kill;
mod placement;
mod self_test;
mod session;
mod support;
mod tls;
mod upload;
