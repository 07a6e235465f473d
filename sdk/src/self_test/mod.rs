//! The golden self-test: does the NPU compute what the CPU computes?
//!
//! A wrong driver or a wrongly prepared graph gives wrong outputs at full speed, and neither placement nor latency
//! shows the error. An app may therefore run a reference input ([`GoldenInput`]) on its NPU session and on a CPU
//! session of the same model. The app chooses the time and the thread. The test runs once per model version, firmware
//! and runtime, and again on a session that was made after a failed run (a restarted DSP). Reports hold cut hashes of
//! the outputs and distances, never the outputs or the input.
//!
//! ```no_run
//! # #[cfg(feature = "ort")]
//! # fn example(
//! #     watch: epwatch_sdk::Watch,
//! #     mut session: epwatch_sdk::ObservedSession,
//! #     cpu_builder: ort::session::builder::SessionBuilder,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! use epwatch_sdk::self_test::{GoldenInput, SelfTestOutcome};
//!
//! let golden = GoldenInput::load("segmenter/cat-1")?.with_tolerance(0.05)?;
//! let mut cpu_builder = cpu_builder;
//! let outcome = watch.self_test(&mut session, &golden, || {
//!     cpu_builder.commit_from_file("segmenter.onnx")
//! });
//! if let SelfTestOutcome::Ran(test) = outcome {
//!     println!("NPU and CPU are {:?} apart", test.max_abs);
//! }
//! # Ok(()) }
//! ```
//!
//! [`GoldenInput::ready`] makes inputs for any model, so that nobody needs data. If the CPU runs the same quantised
//! file, the distances show only the NPU's error. If the CPU runs the file before quantisation, they also contain the
//! loss by quantisation. The detector tells the two apart by comparing chipsets.
//!
//! The folder `segmenter/cat-1` holds ONNX tensors: `input_0.pb`, `input_1.pb` and so on. ONNX's own package writes
//! them from NumPy arrays, under the input's name in the model:
//!
//! ```python
//! tensor = onnx.numpy_helper.from_array(numpy.load("cat.npy"), name="pixel_values")
//! pathlib.Path("segmenter/cat-1/input_0.pb").write_bytes(tensor.SerializeToString())
//! ```

pub mod code;
mod compare;
mod done;
mod element;
mod golden;
mod output;
#[cfg(feature = "ort")]
mod ready;
mod result;
#[cfg(feature = "ort")]
mod run;
mod started;
mod tensor;
mod tensor_proto;

#[cfg(feature = "ort")]
use std::{
    error::Error,
    panic::{AssertUnwindSafe, catch_unwind},
};

#[cfg(feature = "ort")]
use ort::session::Session as OrtSession;

pub use crate::core::SelfTestSkip;
#[cfg(feature = "ort")]
use crate::{client::Watch, random_session_uid, session::ObservedSession, types::SelfTest};
pub(crate) use done::save_finished;

pub use element::GoldenElement;
pub use golden::GoldenInput;
#[cfg(feature = "ort")]
pub use output::NotFinite;
pub use output::Output;
#[cfg(feature = "ort")]
pub use ready::ReadyInput;
pub use started::StartedSelfTest;
pub use tensor::{GoldenError, GoldenTensor};

/// Result of a request for a self-test.
#[cfg(feature = "ort")]
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum SelfTestOutcome {
    /// The test ran, and this result is reported. A failure has an error code.
    Ran(SelfTest),
    /// The test did not run.
    Skipped(SelfTestSkip),
}

#[cfg(feature = "ort")]
impl Watch {
    /// Runs a golden input on `session` and on a CPU session that `cpu_session` makes. Skipped if it ran before on this
    /// firmware and runtime, or if the session has no node on the NPU. The CPU session is made only if the test runs,
    /// and then dropped.
    ///
    /// The test costs a session creation and two runs, which are not measured, and touches the SDK's folder. Call
    /// it from a background thread, when the app is idle. At the start of a process it waits up to five seconds
    /// for the folder.
    ///
    /// A failure is not an error of the host, but the error code of the result (see [`code`]). `cpu_session` may return
    /// ORT's error or any other.
    pub fn self_test<E>(
        &self,
        session: &mut ObservedSession,
        golden: &GoldenInput,
        cpu_session: impl FnOnce() -> Result<OrtSession, E>,
    ) -> SelfTestOutcome
    where
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        let (uid, is_repeat) = (session.uid(), session.repeats_self_test());
        let started = match StartedSelfTest::begin(self, uid.0, golden, is_repeat) {
            Ok(started) => started,
            Err(skip) => return SelfTestOutcome::Skipped(skip),
        };
        session.self_test_repeated();
        let ran = catch_unwind(AssertUnwindSafe(|| {
            run::compared(uid.0, session.session_mut(), golden, cpu_session)
        }));
        SelfTestOutcome::Ran(started.keep(ran.ok()).into())
    }
}

/// Runs a golden input on `session` and on a CPU session of the same model. Needs no [`Watch`]: nothing is reported,
/// and nothing touches a disk. It is for programs that measure a model on a device.
///
/// A failure is an error code of the result, as in [`Watch::self_test`].
#[cfg(feature = "ort")]
pub fn compared<E>(
    session: &mut OrtSession,
    golden: &GoldenInput,
    cpu_session: impl FnOnce() -> Result<OrtSession, E>,
) -> SelfTest
where
    E: Into<Box<dyn Error + Send + Sync>>,
{
    run::compared(random_session_uid(), session, golden, cpu_session).into()
}

/// Runs a golden input on `session`, and returns the outputs that have a NaN or an infinity, in the session's order.
/// [`compared`] leaves out such elements if both sessions have them, so that they have no distance.
///
/// # Errors
/// Returns an error code as in [`code`] if the run failed, or an output is not a tensor of numbers.
#[cfg(feature = "ort")]
pub fn not_finite(session: &mut OrtSession, golden: &GoldenInput) -> Result<Vec<NotFinite>, i32> {
    let outputs = run::outputs(session, golden)?;
    Ok(outputs.iter().filter_map(compare::not_finite).collect())
}

#[cfg(test)]
#[cfg(feature = "ort")]
mod tests;
