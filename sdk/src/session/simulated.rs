//! A session without ONNX Runtime, for simulated devices.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    observation::{Described, Observation},
    run::observed,
    shape_key::ShapeKey,
};
use crate::{
    core::SessionInfo,
    directives::EffectiveRequest,
    recorder::{SessionRecorder, conditions::Conditions},
    shared::Shared,
};

/// Records latencies as a real session does: same recorder, reports and spool. For hundreds of devices, or for
/// virtual time, use one [`Core`](crate::simulation::Core) per device.
#[derive(Debug)]
pub struct SimulatedSession(Observation);

impl SimulatedSession {
    pub(crate) fn open(shared: &Arc<Shared>, info: SessionInfo) -> Self {
        let described = Described {
            info,
            in_effect: EffectiveRequest::default(),
            hash_from: None,
        };
        Self(Observation::open(shared, described))
    }

    /// Records a run that began now and took `latency`. See [`SessionRecorder::record`] for `shape_key`.
    pub fn record(&self, latency: Duration, shape_key: &str, conditions: &Conditions) {
        let (recorder, clock) = self.0.here();
        let began = clock.mono(Instant::now());
        recorder.record_under(began, latency, shape_key, conditions);
    }

    /// Measures a run of the host's own, under the conditions of the process. It works exactly as
    /// [`ObservedSession::run`](crate::ObservedSession::run) with a fixed input shape, for runs that are not made by
    /// `ort`.
    #[inline]
    pub fn run<T>(&self, run: impl FnOnce() -> T) -> T {
        let run = || Ok::<T, Infallible>(run());
        let shape = ShapeKey::Static;
        let (recorder, clock) = self.0.here();
        let Ok(given) = observed(recorder, clock, &shape, run, |never| match *never {});
        given
    }

    /// Returns its recorder.
    pub fn recorder(&self) -> &SessionRecorder {
        self.0.here().0
    }
}
