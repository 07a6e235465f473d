//! What is around every run that is measured: two clock reads and a record.
//!
//! One function for sessions of ONNX Runtime and for simulated ones, so that what the benchmark
//! measures is what a host pays.

use std::time::Instant;

use crate::{recorder::SessionRecorder, session::shape_key::ShapeKey, time::Clock};

/// Makes a run and records it: its latency, or the ORT status code of its error. What the run
/// gives is handed on as it is; should it panic, nothing is recorded.
#[inline]
pub(crate) fn observed<T, E>(
    recorder: &SessionRecorder,
    clock: &Clock,
    shape: &ShapeKey,
    run: impl FnOnce() -> Result<T, E>,
    status_code: impl FnOnce(&E) -> i32,
) -> Result<T, E> {
    let began = Instant::now();
    let result = run();
    let latency = began.elapsed();
    match &result {
        Ok(_) => match shape {
            ShapeKey::Static => recorder.record_static(clock.mono(began), latency),
            ShapeKey::Of { .. } => recorder.record(clock.mono(began), latency, shape.as_str()),
        },
        Err(error) => recorder.record_error(status_code(error)),
    }
    result
}
