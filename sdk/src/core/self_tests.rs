//! Self-tests of this process, from their request to the report of their result.

use std::collections::BTreeSet;

use crate::policy;

/// Identity of a test: a shortened SHA-256 of everything that makes a repetition worthwhile when it changes.
pub(crate) type TestKey = [u8; 16];

/// Reason for a self-test that did not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SelfTestSkip {
    /// The test ran before on this firmware and runtime.
    Done,
    /// The test began several times and never ended, so the test itself may kill the process.
    GivenUp,
    /// The session has no node on the NPU, so there is nothing to compare.
    NotOnNpu,
    /// This process has repeated enough tests after run errors.
    EnoughRepeats,
    /// The SDK's folder is not open yet, consent is missing, or the folder cannot be used.
    NotReady,
}

/// Tests that already have a result in this process.
#[derive(Debug, Default)]
pub(crate) struct SelfTestsInProcess {
    finished: BTreeSet<TestKey>,
    unsaved: Vec<TestKey>,
    repeats: u32,
}

impl SelfTestsInProcess {
    /// Decides by the results of this process whether a test may run.
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
