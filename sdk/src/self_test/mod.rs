//! The golden self-test: does the NPU compute what the CPU computes?
//!
//! A wrong driver or a wrongly prepared graph gives wrong outputs at full speed, and neither placement nor latency
//! shows it. An app may therefore run a reference input ([`GoldenInput`]) on its NPU session and on a CPU session of
//! the same model. It chooses the time and the thread. The test runs once per model version, firmware and runtime, and
//! again on a session that was made after a failed run (a restarted DSP). Reports hold cut hashes of the outputs and
//! distances, never the outputs or the input.
//!
//! ```no_run
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
//! [`GoldenInput::ready`] makes inputs for any model, so that nobody needs data. With the same quantised file on the CPU, the
//! distances are the NPU's own. With the file before its quantisation, they hold the loss of the quantisation too, and
//! the detector tells the two apart by comparing chipsets.
//!
//! The folder `segmenter/cat-1` holds ONNX tensors: `input_0.pb`, `input_1.pb` and so on. ONNX's own package writes
//! them from NumPy arrays, under the name that the model has for the input:
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
mod ready;
mod run;
mod tensor;
mod tensor_proto;

use std::{
    error::Error,
    panic::{AssertUnwindSafe, catch_unwind},
};

use epwatch_proto::{Device, PlacementSource, Runtime, SelfTest, Session, SessionUid};
use ort::session::Session as OrtSession;
use sha2::{Digest, Sha256};

pub use crate::core::SelfTestSkip;
use crate::{
    client::Watch,
    core::{Core, TestKey},
    policy, random_session_uid,
    session::ObservedSession,
};
use done::change_done;
pub(crate) use done::save_finished;

pub use element::GoldenElement;
pub use golden::GoldenInput;
use golden::hash_part;
pub use ready::ReadyInput;
pub use tensor::{GoldenError, GoldenTensor};

/// Result of a request for a self-test.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum SelfTestOutcome {
    /// The test ran, and this is reported. A failure has an error code.
    Ran(SelfTest),
    /// The test did not run.
    Skipped(SelfTestSkip),
}

impl Watch {
    /// Runs a golden input on `session` and on a CPU session that `cpu_session` makes. Skipped if it ran before on
    /// this firmware and runtime, or if the session has no node on the NPU. The CPU session is made only if the test
    /// runs, and dropped after.
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
        let uid = session.uid();
        let begun = catch_unwind(AssertUnwindSafe(|| self.begin_self_test(session, golden)));
        let key = match begun {
            Ok(Ok(key)) => key,
            Ok(Err(skip)) => return SelfTestOutcome::Skipped(skip),
            Err(_panic) => return SelfTestOutcome::Skipped(SelfTestSkip::NotReady),
        };
        let ran = catch_unwind(AssertUnwindSafe(|| {
            run::compared(uid, session.session_mut(), golden, cpu_session)
        }));
        let test = ran.unwrap_or_else(|_panic| run::failed(uid, golden, code::INTERNAL));
        let shared = self.here();
        let mut core = shared.core();
        // If the interval has too many results, the test is repeated later.
        if core.self_tested(test.clone()) {
            core.self_tests.finish(key);
        }
        SelfTestOutcome::Ran(test)
    }

    /// Notes on disk that the test begins.
    fn begin_self_test(
        &self,
        session: &mut ObservedSession,
        golden: &GoldenInput,
    ) -> Result<TestKey, SelfTestSkip> {
        let shared = self.here();
        shared.wait_until_opened(policy::SELF_TEST_WAIT);
        let is_repeat = session.repeats_self_test();
        // Computed without the lock, because an input may be large.
        let checksum = golden.checksum();
        let key = {
            let mut core = shared.core();
            let key = key_of(&core, session.uid(), &checksum)?;
            core.self_tests.ask(key, is_repeat)?;
            key
        };
        let begun = change_done(&shared.config.dir, |tests| tests.begin(key, is_repeat));
        begun.ok().flatten().ok_or(SelfTestSkip::NotReady)??;
        session.self_test_repeated();
        Ok(key)
    }
}

/// Runs a golden input on `session` and on a CPU session of the same model. Needs no [`Watch`]: nothing is reported, and
/// nothing touches a disk. For programs that measure a model on a device.
///
/// A failure is an error code of the result, as [`Watch::self_test`] has it.
pub fn compared<E>(
    session: &mut OrtSession,
    golden: &GoldenInput,
    cpu_session: impl FnOnce() -> Result<OrtSession, E>,
) -> SelfTest
where
    E: Into<Box<dyn Error + Send + Sync>>,
{
    run::compared(random_session_uid(), session, golden, cpu_session)
}

fn key_of(core: &Core, uid: SessionUid, input: &[u8]) -> Result<TestKey, SelfTestSkip> {
    if core.installation.is_none() {
        return Err(SelfTestSkip::NotReady);
    }
    let session = core.sessions().find(|s| s.uid == uid);
    let session = session.ok_or(SelfTestSkip::NotReady)?;
    if !is_on_npu(session) {
        return Err(SelfTestSkip::NotOnNpu);
    }
    Ok(key(session, &core.device, &core.runtime, input))
}

/// Whether the NPU was requested, and has nodes if that is known.
fn is_on_npu(session: &Session) -> bool {
    let placement = &session.placement;
    let has_nodes = placement.n_npu_nodes() > 0;
    placement.requests_npu() && (has_nodes || placement.source == PlacementSource::Unavailable)
}

fn key(session: &Session, device: &Device, runtime: &Runtime, input: &[u8]) -> TestKey {
    let mut sha = Sha256::new();
    for text in [
        &session.model.id,
        &session.model.version,
        &session.options.soc_model,
        &device.vendor_fingerprint_hash,
        &runtime.ort_version,
        &runtime.ep_package,
        &runtime.ep_version,
        &runtime.qnn_sdk_version,
        &runtime.backend_build_id,
    ] {
        hash_part(&mut sha, text.as_bytes());
    }
    sha.update(device.chipset.to_string());
    sha.update(input);
    let digest: [u8; 32] = sha.finalize().into();
    let (cut, _) = digest.split_first_chunk().expect("16 of 32 bytes");
    *cut
}

#[cfg(test)]
mod tests;
