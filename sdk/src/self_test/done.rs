//! Which self-tests this installation has done: once per (model, firmware, runtime, input).
//!
//! `DIR/self-tests.json`, replaced whole under the folder's lock. A test is written down *before*
//! it runs: should the NPU take the process down with it, the app's next starts try
//! [`MAX_ATTEMPTS`] times in all and then let it be. It counts as done when its result is sealed
//! into a report. What cannot be read is no memory: tests run once more.

use std::{io, path::Path};

use serde::{Deserialize, Serialize};

use crate::{
    core::TestKey,
    folder::{self, files},
    installation,
};

/// Starts of a test that may end without a result.
pub(crate) const MAX_ATTEMPTS: u32 = 3;
/// Tests that are remembered; the one not touched for longest goes first.
const MAX_ENTRIES: usize = 256;
/// Far above what as many take.
pub(crate) const MAX_FILE_BYTES: u64 = 64 << 10;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    key: TestKey,
    is_done: bool,
    unfinished: u32,
}

/// All tests, the one touched last at the end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct TestMemory {
    entries: Vec<Entry>,
}

/// Whether a test is to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin {
    /// It is, and was noted as begun.
    Run,
    /// Its result is known.
    Done,
    /// It never came to an end.
    GivenUp,
}

impl TestMemory {
    pub(crate) fn from_json(json: &[u8]) -> Self {
        let mut entries: Vec<Entry> = serde_json::from_slice(json).unwrap_or_default();
        let surplus = entries.len().saturating_sub(MAX_ENTRIES);
        entries.drain(..surplus);
        Self { entries }
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(&self.entries).unwrap_or_default()
    }

    /// Asks for a test; `is_repeat`: whether or not it was done before.
    pub(crate) fn begin(&mut self, key: TestKey, is_repeat: bool) -> Begin {
        let mut entry = self.take(key);
        let answer = match (
            entry.unfinished >= MAX_ATTEMPTS,
            entry.is_done && !is_repeat,
        ) {
            (true, _) => Begin::GivenUp,
            (_, true) => Begin::Done,
            _ => {
                entry.unfinished += 1;
                Begin::Run
            }
        };
        self.entries.push(entry);
        answer
    }

    /// The test came to an end and its result is kept.
    pub(crate) fn finish(&mut self, key: TestKey) {
        self.take(key);
        self.entries.push(Entry {
            key,
            is_done: true,
            unfinished: 0,
        });
    }

    /// The entry of a key, taken out, or a new one.
    fn take(&mut self, key: TestKey) -> Entry {
        if let Some(at) = self.entries.iter().position(|e| e.key == key) {
            return self.entries.remove(at);
        }
        if self.entries.len() >= MAX_ENTRIES {
            self.entries.remove(0);
        }
        Entry {
            key,
            is_done: false,
            unfinished: 0,
        }
    }
}

/// Writes down that these tests are done. Only on the SDK's own thread.
///
/// # Errors
/// If the file cannot be written: the tests will run once more in another process.
pub(crate) fn save_finished(dir: &Path, keys: &[TestKey]) -> io::Result<()> {
    change_memory(dir, |memory| {
        for key in keys {
            memory.finish(*key);
        }
    })
    .map(|_| ())
}

/// `None`: another process has wiped the folder, and nothing comes into it after that.
pub(super) fn change_memory<T>(
    dir: &Path,
    change: impl FnOnce(&mut TestMemory) -> T,
) -> io::Result<Option<T>> {
    let _lock = files::FileLock::wait(&dir.join(folder::LOCK))?;
    if !installation::exists(dir) {
        return Ok(None);
    }
    let path = dir.join(folder::SELF_TESTS);
    let json = match files::read_bounded(&path, MAX_FILE_BYTES) {
        Ok(json) => json.unwrap_or_default(),
        // Not ours any more: as if it were not there.
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Vec::new(),
        Err(error) => return Err(error),
    };
    let mut memory = TestMemory::from_json(&json);
    let changed = change(&mut memory);
    let after = memory.to_json();
    if after != json {
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
        let mut memory = TestMemory::default();
        assert_eq!(memory.begin(KEY, false), Begin::Run);
        memory.finish(KEY);
        let mut memory = TestMemory::from_json(&memory.to_json());
        assert_eq!(memory.begin(KEY, false), Begin::Done);
        assert_eq!(memory.begin([2; 16], false), Begin::Run);
        assert_eq!(memory.begin(KEY, true), Begin::Run);
        // The repetition ended badly: the first result stands.
        assert_eq!(memory.begin(KEY, false), Begin::Done);
    }

    #[test]
    fn a_test_that_never_ends_is_given_up() {
        let mut memory = TestMemory::default();
        for _ in 0..MAX_ATTEMPTS {
            assert_eq!(memory.begin(KEY, false), Begin::Run);
            memory = TestMemory::from_json(&memory.to_json());
        }
        assert_eq!(memory.begin(KEY, false), Begin::GivenUp);
        assert_eq!(memory.begin(KEY, true), Begin::GivenUp);
    }

    #[test]
    fn memory_is_bounded_and_a_broken_file_is_none() {
        let mut memory = TestMemory::default();
        for n in 0..=u8::MAX {
            memory.begin([n; 16], false);
            memory.finish([n; 16]);
        }
        memory.begin(*b"one more than is", false);
        assert_eq!(memory.entries.len(), MAX_ENTRIES);
        assert!(memory.to_json().len() < usize::try_from(MAX_FILE_BYTES).unwrap());
        assert_eq!(memory.begin([0; 16], false), Begin::Run);
        assert_eq!(TestMemory::from_json(b"[{"), TestMemory::default());
    }
}
