//! Types that simulated fleets and benchmarks drive: the state without I/O, and made-up devices. An app needs none of
//! it.

use epwatch_proto::{Placement, SessionOptions};

use crate::{client::Watch, config::ModelInfo, recorder::conditions::Conditions};

pub use crate::{
    config::CoreConfig,
    core::{Core, SealedReport, SessionInfo},
    host::device::simulated_device,
    random::{random_session_uid, random_stream, random_u64},
    recorder::SessionRecorder,
    session::SimulatedSession,
    time::Now,
};

impl Core {
    /// Sets the conditions of later runs that are recorded without their own.
    pub fn set_conditions(&self, conditions: &Conditions) {
        self.conditions.set(conditions, false);
    }
}

impl Watch {
    /// Makes a session without ONNX Runtime, for simulated devices. Its runs are recorded, reported and
    /// uploaded as usual.
    #[doc(hidden)]
    pub fn simulated_session(
        &self,
        model: ModelInfo,
        placement: Placement,
        options: SessionOptions,
    ) -> SimulatedSession {
        let mut info = SessionInfo::new(model, placement);
        info.options = options;
        SimulatedSession::open(&self.here(), info)
    }
}
