//! Self-tests of this process, between request and report.

use std::collections::BTreeSet;

use crate::policy;

/// What a test is known by: SHA-256, cut, of everything that makes it worth repeating.
pub(crate) type TestKey = [u8; 16];

/// Why a self-test did not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SelfTestSkip {
    /// It was done on this firmware and runtime before.
    Done,
    /// It was begun several times and never came to an end: it may be what takes the app down.
    GivenUp,
    /// Nothing of the session is on the NPU, so that there is nothing to compare.
    NotOnNpu,
    /// This process repeated enough of them after run errors.
    EnoughRepeats,
    /// The SDK's folder is not open: not yet, not without consent, or it cannot be used.
    NotReady,
}

/// What is kept of self-tests between request and report.
#[derive(Debug, Default)]
pub(crate) struct TestsOfProcess {
    finished: BTreeSet<TestKey>,
    unsaved: Vec<TestKey>,
    repeats: u32,
}

impl TestsOfProcess {
    /// Whether a test may run, as far as this process knows.
    pub(crate) fn ask(&mut self, key: TestKey, is_repeat: bool) -> Result<(), SelfTestSkip> {
        if is_repeat {
            if self.repeats >= policy::MAX_SELF_TEST_REPEATS {
                return Err(SelfTestSkip::EnoughRepeats);
            }
            self.repeats += 1;
            return Ok(());
        }
        match self.finished.contains(&key) {
            true => Err(SelfTestSkip::Done),
            false => Ok(()),
        }
    }

    pub(crate) fn finish(&mut self, key: TestKey) {
        self.finished.insert(key);
        self.unsaved.push(key);
    }

    /// Keys whose results are in reports now.
    pub(crate) fn take_unsaved(&mut self) -> Vec<TestKey> {
        std::mem::take(&mut self.unsaved)
    }
}
