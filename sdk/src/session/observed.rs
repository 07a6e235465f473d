//! A session of `ort` whose runs are measured.
//!
//! A run costs the host two clock reads and a record. Outputs and errors are ORT's own, unchanged.

use epwatch_proto::{Placement, SessionUid};
use ort::session::{RunOptions, Session, SessionInputs, SessionOutputs};

use super::{
    observation::Observation,
    run::observed,
    shape_key::{ShapeKey, has_one_shape},
};
use crate::placement;

/// An ONNX Runtime session whose runs are measured.
#[derive(Debug)]
pub struct ObservedSession {
    session: Session,
    observation: Observation,
    has_one_shape: bool,
}

impl ObservedSession {
    pub(super) fn new(session: Session, observation: Observation) -> Self {
        Self {
            has_one_shape: has_one_shape(session.inputs()),
            session,
            observation,
        }
    }

    /// As [`Session::run`], measured.
    ///
    /// # Errors
    /// ORT's error; the run counts as failed.
    pub fn run<'s, 'i, 'v: 'i, const N: usize>(
        &'s mut self,
        input_values: impl Into<SessionInputs<'i, 'v, N>>,
    ) -> ort::Result<SessionOutputs<'s>> {
        let inputs = input_values.into();
        let shape = ShapeKey::of(self.has_one_shape, &self.session, &inputs);
        let (recorder, clock) = self.observation.here();
        let run = || self.session.run(inputs);
        observed(recorder, clock, &shape, run, code_of)
    }

    /// As [`Session::run_with_options`], measured. Options that select outputs are not supported, because `ort` does
    /// not export their type.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_with_options<'r, 's: 'r, 'i, 'v: 'i, const N: usize>(
        &'s mut self,
        input_values: impl Into<SessionInputs<'i, 'v, N>>,
        options: &'r RunOptions,
    ) -> ort::Result<SessionOutputs<'r>> {
        let inputs = input_values.into();
        let shape = ShapeKey::of(self.has_one_shape, &self.session, &inputs);
        let (recorder, clock) = self.observation.here();
        let run = || self.session.run_with_options(inputs, options);
        observed(recorder, clock, &shape, run, code_of)
    }

    /// Returns where the session runs. It does not change after creation.
    pub fn placement(&self) -> &Placement {
        self.observation.placement()
    }

    /// Returns the session's id in reports.
    pub fn uid(&self) -> SessionUid {
        self.observation.uid()
    }

    /// Whether its self-test runs although it ran before.
    pub(crate) fn repeats_self_test(&self) -> bool {
        self.observation.repeats_self_test
    }

    pub(crate) fn self_test_repeated(&mut self) {
        self.observation.repeats_self_test = false;
    }

    /// Returns `ort`'s session, for its inputs, outputs and metadata.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Returns `ort`'s session. Its own runs are not measured.
    pub fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }
}

fn code_of(error: &ort::Error) -> i32 {
    placement::status_code(error.code())
}
