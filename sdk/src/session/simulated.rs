//! A session without ONNX Runtime, for simulated devices.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    recorder::{SessionRecorder, conditions::Conditions},
    session::{run::observed, shape_key::ShapeKey},
    time::Clock,
};

/// Takes latencies as a real session would measure them: same recorder, same reports, same spool.
/// For devices by the hundred, and for virtual time, use a [`Core`](crate::Core) each.
#[derive(Debug)]
pub struct SimulatedSession {
    recorder: Arc<SessionRecorder>,
    clock: Clock,
}

impl SimulatedSession {
    pub(crate) fn new(recorder: Arc<SessionRecorder>, clock: Clock) -> Self {
        Self { recorder, clock }
    }

    /// Records a run that began now and took `latency`. See
    /// [`SessionRecorder::record`] for `shape_key`.
    pub fn record(&self, latency: Duration, shape_key: &str, conditions: &Conditions) {
        let began = self.clock.mono(Instant::now());
        self.recorder
            .record_under(began, latency, shape_key, conditions);
    }

    /// Makes a run of the host's own and measures it, exactly as
    /// [`ObservedSession::run`](crate::ObservedSession::run) measures one of a model that admits
    /// one shape only, under the conditions set for the process. For runs that are not `ort`'s.
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

    /// The recorder behind it.
    pub fn recorder(&self) -> &SessionRecorder {
        &self.recorder
    }
}

impl Drop for SimulatedSession {
    fn drop(&mut self) {
        self.recorder.close();
    }
}
