//! A self-test whose sessions the host runs, because the host has no `ort` or is written in another language.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use epwatch_proto::{Device, PlacementSource, Runtime, SelfTest, Session, SessionUid};
use sha2::{Digest, Sha256};

use super::{
    code,
    done::change_done,
    golden::{GoldenInput, hash_part},
    output::Output,
    result::{failed, fill},
};
use crate::{
    client::Watch,
    core::{Core, SelfTestSkip, TestKey},
    policy,
    session::AttachedSession,
    shared::Shared,
    types,
};

/// A self-test that has begun. A test that never ends counts as an attempt that crashed the process.
#[derive(Debug)]
pub struct StartedSelfTest {
    shared: Arc<Shared>,
    key: TestKey,
    /// The result if the SDK fails.
    failed: SelfTest,
}

impl StartedSelfTest {
    /// Records on disk that the test begins. With `is_repeat` it begins even if it was done before.
    pub(super) fn begin(
        watch: &Watch,
        uid: SessionUid,
        golden: &GoldenInput,
        is_repeat: bool,
    ) -> Result<Self, SelfTestSkip> {
        let begun = catch_unwind(AssertUnwindSafe(|| {
            let shared = watch.here();
            shared.wait_until_opened(policy::SELF_TEST_WAIT);
            // Computed without the lock, because an input may be large.
            let checksum = golden.checksum();
            let key = {
                let mut core = shared.core();
                let key = key_of(&core, uid, &checksum)?;
                core.self_tests.begin(key, is_repeat)?;
                key
            };
            let started = Self {
                shared,
                key,
                failed: failed(uid, golden, code::INTERNAL),
            };
            let dir = &started.shared.config.dir;
            let begun = change_done(dir, |tests| tests.begin(key, is_repeat));
            begun.ok().flatten().ok_or(SelfTestSkip::NotReady)??;
            Ok(started)
        }));
        begun.unwrap_or(Err(SelfTestSkip::NotReady))
    }

    /// Ends the test with the outputs of both sessions, or with the error code of the session that failed: ORT's, or
    /// one of [`code`](super::code). Returns the result that is reported.
    pub fn end(
        &self,
        on_npu: Result<Vec<Output>, i32>,
        on_cpu: Result<Vec<Output>, i32>,
    ) -> types::SelfTest {
        let compared = catch_unwind(AssertUnwindSafe(|| {
            let mut test = self.failed.clone();
            test.error_code = fill(&mut test, on_npu, || on_cpu).err().unwrap_or(0);
            test
        }));
        self.keep(compared.ok()).into()
    }

    /// Keeps a result for the next report. Pass `None` if a bug of the SDK prevented a result.
    pub(super) fn keep(&self, test: Option<SelfTest>) -> SelfTest {
        let test = test.unwrap_or_else(|| self.failed.clone());
        let mut core = self.shared.core();
        // If the interval has too many results, the test is repeated later.
        if core.self_tested(test.clone()) {
            core.self_tests.finish(self.key);
        }
        test
    }
}

/// The child of a fork does not end its parent's test, whose locks another thread may have held.
impl Drop for StartedSelfTest {
    fn drop(&mut self) {
        if !self.shared.is_forked() {
            self.shared.core().self_tests.end(self.key);
        }
    }
}

impl Watch {
    /// Begins a self-test of a session that the host runs itself. The host then runs the golden input on this session
    /// and on a CPU session of the same model, without recording. It ends the test with the outputs of both.
    ///
    /// Touches the SDK's folder, and waits for it up to five seconds at the start of a process.
    ///
    /// ```no_run
    /// use epwatch_sdk::{AttachedSession, Watch, self_test::{GoldenInput, GoldenTensor, Output, SelfTestSkip}};
    ///
    /// # fn run_on_npu() -> Vec<f32> { vec![] }
    /// # fn run_on_cpu() -> Vec<f32> { vec![] }
    /// # fn example(watch: &Watch, session: &AttachedSession) -> Result<(), Box<dyn std::error::Error>> {
    /// let golden = GoldenInput::new("ones")?.with_input("x", GoldenTensor::new(&[1, 4], &[1.0_f32; 4])?)?;
    /// match watch.begin_self_test(session, &golden) {
    ///     Ok(test) => {
    ///         let output = |values: Vec<f32>| {
    ///             let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    ///             Output::new("y", 1, &[1, 4], &bytes)
    ///         };
    ///         let test = test.end(Ok(vec![output(run_on_npu())?]), Ok(vec![output(run_on_cpu())?]));
    ///         println!("NPU and CPU are {:?} apart", test.max_abs);
    ///     }
    ///     Err(SelfTestSkip::Done) => {}
    ///     Err(skip) => println!("no self-test: {skip:?}"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Returns the reason why the test does not run.
    pub fn begin_self_test(
        &self,
        session: &AttachedSession,
        golden: &GoldenInput,
    ) -> Result<StartedSelfTest, SelfTestSkip> {
        let is_repeat = session.repeats_self_test();
        let started = StartedSelfTest::begin(self, session.uid().0, golden, is_repeat)?;
        session.self_test_repeated();
        Ok(started)
    }
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

/// Whether the session requested the NPU, and has nodes there if its placement is known.
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
