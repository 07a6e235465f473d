//! The wheel in fresh environments of Python, with the real onnxruntime and QNN's emulator. Reports arrive at a collector
//! that fails the test on anything out of contract.
//!
//! The programs are `tests/programs/*.py`; each ends with an error if what it sees in Python is wrong.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod compiled_model;
mod directives;
mod environment;
mod examples;
mod executorch;
mod fork;
mod guide;
mod litert;
mod placement;
mod preflight;
mod runs;
mod self_test;
mod testing;
mod torch;
mod types;
mod wheel;
