//! epwatch's SDK for C, C++ and the JVM.
//!
//! Each exported function turns numbers, pointers and texts into a call of the SDK and its answer into a status. Each
//! catches panics. Handles are numbers of slots ([`handle`]), so that use after close returns an error. ONNX Runtime is
//! the host's: it is neither linked nor loaded here. `jni` has the same calls for `dev.epwatch.Native` of
//! `sdk/android`.
#![expect(
    unsafe_code,
    reason = "every entry point takes pointers from another language"
)]
#![expect(
    clippy::missing_safety_doc,
    reason = "the head of the header has the rules of all calls"
)]

pub mod assignment;
pub mod compiled_model;
mod handle;
#[cfg(feature = "jni")]
pub mod jni;
pub mod log;
pub mod model;
pub mod plan;
mod runtime;
pub mod self_test;
pub mod session;
pub mod status;
pub mod text;
pub mod upload;
pub mod watch;
