//! Self-tests that this installation has done: once per (model, firmware, runtime, input).
//!
//! `DIR/self-tests`, a [`message_file`], is replaced atomically under the folder's lock. A test is written to the file
//! *before* it runs. If the NPU crashes the process, the app's next starts try again, [`MAX_ATTEMPTS`] times in all. A
//! test is done when its result is sealed into a report. An unreadable file counts as empty, so tests run once more.

use std::{io, path::Path};

use prost::Message;

use crate::{
    core::{SelfTestSkip, TestKey},
    folder::{
        self, files,
        message_file::{self, Magic},
    },
    installation,
};

const MAGIC: &Magic = b"epwtst1\n";
/// Maximum number of attempts of a test that end without a result.
pub(crate) const MAX_ATTEMPTS: u32 = 3;
/// Maximum number of tests that are remembered. The test unused for longest is forgotten first.
const MAX_ENTRIES: usize = 256;
/// Far above the size of a full file.
pub(crate) const MAX_FILE_BYTES: u64 = 64 << 10;

#[derive(Clone, PartialEq, Eq, Message)]
struct TestEntry {
    /// A [`TestKey`].
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bool, tag = "2")]
    is_done: bool,
    #[prost(uint32, tag = "3")]
    unfinished: u32,
}

/// All tests, the one used last at the end.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct DoneTests {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<TestEntry>,
}

impl DoneTests {
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let mut tests: Self = message_file::parse(MAGIC, bytes).unwrap_or_default();
        let surplus = tests.entries.len().saturating_sub(MAX_ENTRIES);
        tests.entries.drain(..surplus);
        tests
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        message_file::to_bytes(MAGIC, self)
    }

    /// Records that a test is about to run. With `is_repeat` it may run even if it was done before.
    pub(crate) fn begin(&mut self, key: TestKey, is_repeat: bool) -> Result<(), SelfTestSkip> {
        let mut entry = self.take(key);
        let is_given_up = entry.unfinished >= MAX_ATTEMPTS;
        let begun = match (is_given_up, entry.is_done && !is_repeat) {
            (true, _) => Err(SelfTestSkip::GivenUp),
            (_, true) => Err(SelfTestSkip::Done),
            _ => Ok(()),
        };
        entry.unfinished += u32::from(begun.is_ok());
        self.entries.push(entry);
        begun
    }

    /// Records that the test ended and its result is kept.
    pub(crate) fn finish(&mut self, key: TestKey) {
        self.take(key);
        self.entries.push(TestEntry {
            key: key.to_vec(),
            is_done: true,
            unfinished: 0,
        });
    }

    /// Removes and returns the entry of a key, or makes a new one.
    fn take(&mut self, key: TestKey) -> TestEntry {
        if let Some(at) = self.entries.iter().position(|e| e.key == key) {
            return self.entries.remove(at);
        }
        if self.entries.len() >= MAX_ENTRIES {
            self.entries.remove(0);
        }
        TestEntry {
            key: key.to_vec(),
            is_done: false,
            unfinished: 0,
        }
    }
}

/// Records that these tests are done. Call it only on the SDK's thread.
///
/// # Errors
/// Fails if the file cannot be written. The tests will then run once more in another process.
pub(crate) fn save_finished(dir: &Path, keys: &[TestKey]) -> io::Result<()> {
    change_done(dir, |tests| {
        for key in keys {
            tests.finish(*key);
        }
    })
    .map(|_| ())
}

/// `None` if another process has wiped the folder. Nothing may be written after that.
pub(super) fn change_done<T>(
    dir: &Path,
    change: impl FnOnce(&mut DoneTests) -> T,
) -> io::Result<Option<T>> {
    let _lock = files::FileLock::wait(&dir.join(folder::LOCK))?;
    if !installation::exists(dir) {
        return Ok(None);
    }
    let path = dir.join(folder::SELF_TESTS);
    let before = files::read_ours(&path, MAX_FILE_BYTES)?.unwrap_or_default();
    let mut tests = DoneTests::parse(&before);
    let changed = change(&mut tests);
    let after = tests.to_bytes();
    if after != before {
        files::replace(&path, &after)?;
    }
    Ok(Some(changed))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: TestKey = [1; 16];

    #[test]
    fn a_test_runs_once_and_again_when_asked_to_repeat() {
        let mut tests = DoneTests::default();
        assert_eq!(tests.begin(KEY, false), Ok(()));
        tests.finish(KEY);
        let mut tests = DoneTests::parse(&tests.to_bytes());
        assert_eq!(tests.begin(KEY, false), Err(SelfTestSkip::Done));
        assert_eq!(tests.begin([2; 16], false), Ok(()));
        assert_eq!(tests.begin(KEY, true), Ok(()));
        // The repetition failed, so the first result still counts.
        assert_eq!(tests.begin(KEY, false), Err(SelfTestSkip::Done));
    }

    #[test]
    fn a_test_that_never_ends_is_given_up() {
        let mut tests = DoneTests::default();
        for _ in 0..MAX_ATTEMPTS {
            assert_eq!(tests.begin(KEY, false), Ok(()));
            tests = DoneTests::parse(&tests.to_bytes());
        }
        assert_eq!(tests.begin(KEY, false), Err(SelfTestSkip::GivenUp));
        assert_eq!(tests.begin(KEY, true), Err(SelfTestSkip::GivenUp));
    }

    #[test]
    fn memory_is_bounded_and_a_broken_file_is_none() {
        let mut tests = DoneTests::default();
        for n in 0..=u8::MAX {
            assert_eq!(tests.begin([n; 16], false), Ok(()));
            tests.finish([n; 16]);
        }
        assert_eq!(tests.begin(*b"one more than is", false), Ok(()));
        assert_eq!(tests.entries.len(), MAX_ENTRIES);
        assert!(tests.to_bytes().len() < usize::try_from(MAX_FILE_BYTES).unwrap());
        assert_eq!(tests.begin([0; 16], false), Ok(()));
        assert_eq!(DoneTests::parse(b"epwtst1\n[{"), DoneTests::default());
    }
}
