//! A session without ONNX Runtime, for simulated devices.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{run::observed, shape_key::ShapeKey};
use crate::{
    recorder::{SessionRecorder, conditions::Conditions},
    time::Clock,
};

/// Records latencies as a real session does: same recorder, reports and spool. For hundreds of devices, or for
/// virtual time, use one [`Core`](crate::Core) per device.
#[derive(Debug)]
pub struct SimulatedSession {
    recorder: Arc<SessionRecorder>,
    clock: Clock,
}

impl SimulatedSession {
    pub(crate) fn new(recorder: Arc<SessionRecorder>, clock: Clock) -> Self {
        Self { recorder, clock }
    }

    /// Records a run that began now and took `latency`. See [`SessionRecorder::record`] for `shape_key`.
    pub fn record(&self, latency: Duration, shape_key: &str, conditions: &Conditions) {
        let began = self.clock.mono(Instant::now());
        self.recorder
            .record_under(began, latency, shape_key, conditions);
    }

    /// Measures a run of the host's own, under the conditions of the process. Exactly as
    /// [`ObservedSession::run`](crate::ObservedSession::run) with a fixed input shape. For runs that are not `ort`'s.
    #[inline]
    pub fn run<T>(&self, run: impl FnOnce() -> T) -> T {
        let run = || Ok::<T, Infallible>(run());
        let shape = ShapeKey::Static;
        let Ok(given) = observed(
            &self.recorder,
            &self.clock,
            &shape,
            run,
            |never| match *never {},
        );
        given
    }

    /// Returns its recorder.
    pub fn recorder(&self) -> &SessionRecorder {
        &self.recorder
    }
}

impl Drop for SimulatedSession {
    fn drop(&mut self) {
        self.recorder.close();
    }
}
