//! The SDK as an app uses it: real sessions, a real folder, a strict collector on loopback.
//!
//! One executable with a module per behaviour. Tests that change their process for good (a killed app, a second ONNX
//! Runtime, a plugin) run in a child. The child is this executable again, with one test.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test's helpers fail the test"
)]

#[expect(
    unsafe_code,
    reason = "pointers as a host in another language has them"
)]
mod attached;
mod baselines;
mod churn;
mod collectors;
mod consent;
mod directives;
mod first_contact;
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "it forks")]
mod fork;
mod harm;
mod kill;
mod placement;
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "the switch is an environment variable")]
mod runtime_telemetry;
mod self_test;
mod session;
#[cfg(target_os = "linux")]
mod start;
mod support;
mod tls;
mod upload;
