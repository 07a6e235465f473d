//! Self-tests of this process between request and report.

use std::collections::BTreeSet;

use crate::policy;

/// Identity of a test: SHA-256, cut, of everything whose change makes it worth repeating.
pub(crate) type TestKey = [u8; 16];

/// Reason for a self-test that did not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SelfTestSkip {
    /// It ran before on this firmware and runtime.
    Done,
    /// It began several times and never ended: the test may be what ends the process.
    GivenUp,
    /// The session has no node on the NPU, so there is nothing to compare.
    NotOnNpu,
    /// This process has repeated enough tests after run errors.
    EnoughRepeats,
    /// The SDK's folder is not open yet, consent is missing, or the folder cannot be used.
    NotReady,
}

/// Tests whose result is known in this process.
#[derive(Debug, Default)]
pub(crate) struct SelfTestsInProcess {
    finished: BTreeSet<TestKey>,
    unsaved: Vec<TestKey>,
    repeats: u32,
}

impl SelfTestsInProcess {
    /// Whether a test may run, by the results of this process.
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

    /// Takes the keys of tests whose results are in sealed reports now.
    pub(crate) fn take_unsaved(&mut self) -> Vec<TestKey> {
        std::mem::take(&mut self.unsaved)
    }
}
