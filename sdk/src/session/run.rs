//! The measurement around every run: two clock reads and one call of the recorder.
//!
//! Real and simulated sessions use the same function, so that the benchmark measures the host's real cost.

use std::time::{Duration, Instant};

use crate::{recorder::SessionRecorder, session::shape_key::ShapeKey, time::Clock};

/// Makes a run and records its latency, or the ORT status code of its error. Returns the run's result unchanged. If
/// the run panics nothing is recorded.
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
    note(
        recorder,
        clock.mono(began),
        latency,
        shape,
        &result,
        status_code,
    );
    result
}

/// Records a run that ended.
#[inline]
pub(crate) fn note<T, E>(
    recorder: &SessionRecorder,
    began: Duration,
    latency: Duration,
    shape: &ShapeKey,
    result: &Result<T, E>,
    status_code: impl FnOnce(&E) -> i32,
) {
    match result {
        Ok(_) => match shape {
            ShapeKey::Static => recorder.record_static(began, latency),
            ShapeKey::Of(_) => recorder.record(began, latency, shape.as_str()),
        },
        Err(error) => recorder.record_error(status_code(error)),
    }
}
