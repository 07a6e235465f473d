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
    /// Another thread of this process runs the test now.
    Running,
    /// The test began several times and never ended, so the test itself may kill the process.
    GivenUp,
    /// The session has no node on the NPU, so there is nothing to compare.
    NotOnNpu,
    /// This process has repeated enough tests after run errors.
    EnoughRepeats,
    /// The SDK's folder is not open yet, consent is missing, or the folder cannot be used.
    NotReady,
}

/// Tests that run or have a result in this process.
#[derive(Debug, Default)]
pub(crate) struct SelfTestsInProcess {
    running: BTreeSet<TestKey>,
    finished: BTreeSet<TestKey>,
    unsaved: Vec<TestKey>,
    repeats: u32,
}

impl SelfTestsInProcess {
    /// Begins a test, if neither another thread nor an earlier result of this process forbids it. The caller ends it by
    /// [`Self::end`].
    pub(crate) fn begin(&mut self, key: TestKey, is_repeat: bool) -> Result<(), SelfTestSkip> {
        if self.running.contains(&key) {
            return Err(SelfTestSkip::Running);
        }
        if is_repeat {
            if self.repeats >= policy::MAX_SELF_TEST_REPEATS {
                return Err(SelfTestSkip::EnoughRepeats);
            }
            self.repeats += 1;
        } else if self.finished.contains(&key) {
            return Err(SelfTestSkip::Done);
        }
        self.running.insert(key);
        Ok(())
    }

    /// Ends a test, with a result or without.
    pub(crate) fn end(&mut self, key: TestKey) {
        self.running.remove(&key);
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

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: TestKey = [1; 16];

    #[test]
    fn a_test_runs_in_one_thread_at_a_time() {
        let mut tests = SelfTestsInProcess::default();
        assert_eq!(tests.begin(KEY, false), Ok(()));
        assert_eq!(tests.begin(KEY, false), Err(SelfTestSkip::Running));
        assert_eq!(tests.begin(KEY, true), Err(SelfTestSkip::Running));
        assert_eq!(tests.begin([2; 16], false), Ok(()));
        // Without a result it may begin again.
        tests.end(KEY);
        assert_eq!(tests.begin(KEY, false), Ok(()));
        tests.finish(KEY);
        tests.end(KEY);
        assert_eq!(tests.begin(KEY, false), Err(SelfTestSkip::Done));
        assert_eq!(tests.begin(KEY, true), Ok(()));
    }
}
