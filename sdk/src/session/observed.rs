//! A session of `ort` whose runs are measured.
//!
//! A run costs the host two clock reads and one call of the recorder. Outputs and errors are ORT's own, unchanged.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use ort::session::{InferenceFut, IoBinding, RunOptions, Session, SessionInputs, SessionOutputs};

use super::{
    observation::Observation,
    run::{note, observed},
    shape_key::{ShapeKey, has_one_shape},
};
use crate::{
    placement::{self, Placement},
    types::SessionUid,
};

/// An ONNX Runtime session whose runs are measured.
#[derive(Debug)]
pub struct ObservedSession {
    session: Session,
    observation: Observation,
    has_one_shape: bool,
    /// Whether the session's self-test runs again although it ran before.
    repeats_self_test: bool,
}

impl ObservedSession {
    pub(super) fn new(session: Session, observation: Observation, repeats_self_test: bool) -> Self {
        Self {
            has_one_shape: has_one_shape(session.inputs()),
            session,
            observation,
            repeats_self_test,
        }
    }

    /// Same as [`Session::run`], measured.
    ///
    /// # Errors
    /// Returns ORT's error; the run counts as failed.
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

    /// Calls [`Session::run_with_options`] and measures the run. Options that select outputs go through
    /// [`Self::measure`], because `ort` does not export their type.
    ///
    /// # Errors
    /// Fails as [`Self::run`] does.
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

    /// Calls [`Session::run_binding`] and measures the run. The shapes of bound inputs are not known here: runs of a
    /// model with free dimensions count together, unless [`Self::measure_shape`] names the shapes.
    ///
    /// # Errors
    /// Fails as [`Self::run`] does.
    pub fn run_binding<'b, 's: 'b>(
        &'s mut self,
        binding: &'b IoBinding,
    ) -> ort::Result<SessionOutputs<'b>> {
        self.measure(|session| session.run_binding(binding))
    }

    /// Calls [`Session::run_async`] and measures from this call to the end of the run. A run that is dropped earlier is
    /// not counted.
    ///
    /// # Errors
    /// Returns ORT's error, here or as the run's result; the run counts as failed.
    pub fn run_async<'r, 's: 'r, 'i, const N: usize>(
        &'s mut self,
        input_values: impl Into<SessionInputs<'i, 'static, N>>,
        options: &'r RunOptions,
    ) -> ort::Result<ObservedRun<'r>> {
        let inputs = input_values.into();
        let shape = ShapeKey::of(self.has_one_shape, &self.session, &inputs);
        let began = Instant::now();
        let run = self.session.run_async(inputs, options);
        let run =
            run.inspect_err(|error| self.observation.here().0.record_error(code_of(error)))?;
        Ok(ObservedRun {
            run,
            observation: &self.observation,
            shape,
            began,
        })
    }

    /// Measures a run that the app makes by itself. Runs of a model with free dimensions count together;
    /// [`Self::measure_shape`] tells them apart.
    ///
    /// # Errors
    /// Fails as [`Self::run`] does.
    pub fn measure<'s, T>(
        &'s mut self,
        run: impl FnOnce(&'s mut Session) -> ort::Result<T>,
    ) -> ort::Result<T> {
        let shape = match self.has_one_shape {
            true => ShapeKey::Static,
            false => ShapeKey::unknown(),
        };
        self.measured(&shape, run)
    }

    /// Does the same as [`Self::measure`], for inputs of these shapes. See [`AttachedSession::record_shape`] for
    /// `shape_key`.
    ///
    /// [`AttachedSession::record_shape`]: crate::AttachedSession::record_shape
    ///
    /// # Errors
    /// Fails as [`Self::run`] does.
    pub fn measure_shape<'s, T>(
        &'s mut self,
        shape_key: &str,
        run: impl FnOnce(&'s mut Session) -> ort::Result<T>,
    ) -> ort::Result<T> {
        self.measured(&ShapeKey::given(shape_key), run)
    }

    fn measured<'s, T>(
        &'s mut self,
        shape: &ShapeKey,
        run: impl FnOnce(&'s mut Session) -> ort::Result<T>,
    ) -> ort::Result<T> {
        let (recorder, clock) = self.observation.here();
        let session = &mut self.session;
        observed(recorder, clock, shape, || run(session), code_of)
    }

    /// Records a run that the app has measured. Runs of a model with free dimensions count together, as with
    /// [`Self::measure`].
    pub fn record(&self, began: Instant, latency: Duration) {
        let (recorder, clock) = self.observation.here();
        match self.has_one_shape {
            true => recorder.record_static(clock.mono(began), latency),
            false => recorder.record(clock.mono(began), latency, ""),
        }
    }

    /// Returns where the session runs. It does not change after creation.
    pub fn placement(&self) -> Placement<'_> {
        Placement::of(self.observation.placement())
    }

    /// Returns the session's id in reports.
    pub fn uid(&self) -> SessionUid {
        SessionUid(self.observation.uid())
    }

    /// Whether the session's self-test runs again although it ran before.
    pub(crate) fn repeats_self_test(&self) -> bool {
        self.repeats_self_test
    }

    pub(crate) fn self_test_repeated(&mut self) {
        self.repeats_self_test = false;
    }

    /// Returns `ort`'s session, for its inputs, outputs and metadata.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Returns `ort`'s session. Its own runs are not measured.
    pub fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Ends the recording, and returns `ort`'s session.
    pub fn into_inner(self) -> Session {
        self.session
    }
}

/// A run of [`ObservedSession::run_async`] that is under way.
#[must_use = "a run that is dropped ends, and is not measured"]
pub struct ObservedRun<'r> {
    run: InferenceFut<'r>,
    observation: &'r Observation,
    shape: ShapeKey,
    began: Instant,
}

/// `ort`'s future has no Debug.
impl std::fmt::Debug for ObservedRun<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObservedRun").finish_non_exhaustive()
    }
}

impl<'r> Future for ObservedRun<'r> {
    type Output = ort::Result<SessionOutputs<'r>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = std::task::ready!(Pin::new(&mut self.run).poll(context));
        let latency = self.began.elapsed();
        let (recorder, clock) = self.observation.here();
        note(
            recorder,
            clock.mono(self.began),
            latency,
            &self.shape,
            &result,
            code_of,
        );
        Poll::Ready(result)
    }
}

fn code_of(error: &ort::Error) -> i32 {
    placement::status_code(error.code())
}
