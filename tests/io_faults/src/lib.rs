//! Counts the file and socket calls of a thread, and makes the n-th fail, in the manner of SQLite's I/O tests. A test
//! that uses this crate is linked with its functions in place of libc's. So the code under test is the product's, on
//! real files. Other threads are not affected. Linux on 64 bits only.
//!
//! `fallocate` and `statvfs` are not covered, because `rustix` calls them without libc.

#[expect(unsafe_code, reason = "stands in for functions of libc")]
mod calls;

use std::cell::Cell;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The fate of the chosen call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call fails with `EIO` and changes nothing; later calls succeed.
    Broken,
    /// The call and all later calls that need space fail with `ENOSPC`.
    Full,
    /// A write writes half of its bytes, and the next write fails with `ENOSPC`.
    Short,
    /// The call succeeds, and then the process "ends": all later calls fail.
    Killed,
    /// The call fails after half of its bytes were written, and then the process "ends": all later calls fail.
    Torn,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Broken,
        Self::Full,
        Self::Short,
        Self::Killed,
        Self::Torn,
    ];
}

/// Kinds of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// Opens, reads, syncs, locks, sockets.
    Other,
    /// Makes files or names.
    Grows,
    Writes,
}

/// The answer to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Real,
    Error(libc::c_int),
    /// Writes half, and returns that.
    Half,
    /// Writes half, and fails.
    HalfThenError(libc::c_int),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting {
        left: u64,
    },
    /// [`Fault::Short`] had its short write.
    ShortWritten,
    Hit,
}

thread_local! {
    static PLAN: Cell<Option<(Fault, Stage)>> = const { Cell::new(None) };
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

static CALLS_OF_PROCESS: AtomicU64 = AtomicU64::new(0);

/// Returns how many calls this thread makes while `run` runs.
pub fn calls_of(run: impl FnOnce()) -> u64 {
    let before = CALLS.get();
    run();
    CALLS.get() - before
}

/// Returns how many calls all threads made so far.
#[must_use]
pub fn calls_of_process() -> u64 {
    CALLS_OF_PROCESS.load(Relaxed)
}

/// Runs `run` with a fault at its `nth` call that the fault applies to, counted from 0. Also returns whether there was one.
///
/// # Panics
/// Panics if the functions are not linked in libc's place.
pub fn with_fault<T>(nth: u64, fault: Fault, run: impl FnOnce() -> T) -> (T, bool) {
    /// Removes the fault also when `run` panics.
    struct Disarm;
    impl Drop for Disarm {
        fn drop(&mut self) {
            PLAN.set(None);
        }
    }
    let _disarm = Disarm;
    PLAN.set(Some((Fault::Broken, Stage::Waiting { left: 0 })));
    let probed = std::fs::File::open("/");
    assert!(
        probed.is_err(),
        "this test is not linked with the functions that stand in for libc"
    );
    PLAN.set(Some((fault, Stage::Waiting { left: nth })));
    let value = run();
    let was_hit = PLAN
        .get()
        .is_none_or(|(_, stage)| !matches!(stage, Stage::Waiting { .. }));
    (value, was_hit)
}

/// Calls `run` with each fault at each `step`th of its calls, until a run has no call left to fail. `prepare` runs before
/// it and `check` after it, both without a fault. Returns the number of faults.
pub fn each_fault<P, T>(
    step: usize,
    mut prepare: impl FnMut() -> P,
    mut run: impl FnMut(P) -> T,
    mut check: impl FnMut(T, Fault, u64),
) -> u64 {
    let mut n_faults = 0;
    for fault in Fault::ALL {
        for nth in (0..).step_by(step) {
            let prepared = prepare();
            let (outcome, was_hit) = with_fault(nth, fault, || run(prepared));
            check(outcome, fault, nth);
            if !was_hit {
                break;
            }
            n_faults += 1;
        }
    }
    n_faults
}

/// Calls `check` with each damage of the file. In each byte, one bit and then all bits are flipped, and the file is cut
/// before the byte. `step` is the distance between these bytes. The file is whole afterwards. Returns the number of
/// damages.
///
/// # Panics
/// Panics if the file cannot be read or written.
pub fn each_damage(path: &Path, step: usize, mut check: impl FnMut(Range<usize>, &str)) -> u64 {
    let whole = std::fs::read(path).expect("the file can be read");
    let write = |bytes: &[u8]| std::fs::write(path, bytes).expect("the file can be written");
    let mut n_damages = 0;
    for at in (0..whole.len()).step_by(step) {
        let bit = 1 << (at % 8);
        for (mask, name) in [(bit, "one bit"), (0xff, "all bits")] {
            let mut damaged = whole.clone();
            damaged[at] ^= mask;
            write(&damaged);
            check(at..at + 1, name);
        }
        write(&whole[..at]);
        check(at..whole.len(), "cut");
        n_damages += 3;
    }
    write(&whole);
    n_damages
}

/// Makes a folder whose syncs take no time, if the machine has a file system in memory.
///
/// # Panics
/// Panics if no folder can be made.
#[must_use]
pub fn dir_in_memory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    };
    made.expect("a temporary folder can be made")
}

/// True while a thread waits for its fault, or after it. A process that ends loses nothing that it has written, so syncs
/// need not reach the disk.
pub(crate) fn is_armed() -> bool {
    PLAN.get().is_some()
}

/// Decides about a call of this thread.
pub(crate) fn answer(call: Call) -> Answer {
    CALLS.set(CALLS.get() + 1);
    CALLS_OF_PROCESS.fetch_add(1, Relaxed);
    let Some((fault, stage)) = PLAN.get() else {
        return Answer::Real;
    };
    let applies = match fault {
        Fault::Broken | Fault::Killed => true,
        Fault::Full => call != Call::Other,
        Fault::Short | Fault::Torn => call == Call::Writes,
    };
    match (fault, stage) {
        (_, Stage::Waiting { left: 1.. }) | (Fault::Short, Stage::ShortWritten) if !applies => {
            Answer::Real
        }
        (_, Stage::Waiting { left: left @ 1.. }) => {
            PLAN.set(Some((fault, Stage::Waiting { left: left - 1 })));
            Answer::Real
        }
        (Fault::Short, Stage::ShortWritten) => {
            PLAN.set(Some((fault, Stage::Hit)));
            Answer::Error(libc::ENOSPC)
        }
        (_, Stage::Waiting { .. }) if !applies => Answer::Real,
        (_, Stage::Waiting { .. }) => {
            let next = match fault {
                Fault::Short => Stage::ShortWritten,
                _ => Stage::Hit,
            };
            PLAN.set(Some((fault, next)));
            match fault {
                Fault::Broken => Answer::Error(libc::EIO),
                Fault::Full => Answer::Error(libc::ENOSPC),
                Fault::Short => Answer::Half,
                Fault::Killed => Answer::Real,
                Fault::Torn => Answer::HalfThenError(libc::EIO),
            }
        }
        (Fault::Full, Stage::Hit) if applies => Answer::Error(libc::ENOSPC),
        (Fault::Killed | Fault::Torn, _) => Answer::Error(libc::EIO),
        _ => Answer::Real,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write;

    use super::*;

    /// Open, write of two bytes, sync: the file's content after each fault.
    #[test]
    fn each_call_of_a_small_program_fails_in_each_way() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut found = Vec::new();
        let n_faults = each_fault(
            1,
            || (),
            |()| {
                let _ = File::create(&path).and_then(|mut file| {
                    file.write_all(b"ab")?;
                    file.sync_all()
                });
            },
            |(), fault, nth| {
                let content = fs::read_to_string(&path).unwrap_or_else(|_| "none".to_owned());
                found.push((fault, nth, content));
                let _ = fs::remove_file(&path);
            },
        );
        let of = |fault| {
            let of = found.iter().filter(move |(of, ..)| *of == fault);
            of.map(|(_, _, content)| content.as_str())
                .collect::<Vec<_>>()
        };
        assert_eq!(of(Fault::Broken), ["none", "", "ab", "ab"]);
        assert_eq!(of(Fault::Full), ["none", "", "ab"]);
        assert_eq!(of(Fault::Short), ["a", "ab"]);
        assert_eq!(of(Fault::Killed), ["", "ab", "ab", "ab"]);
        assert_eq!(of(Fault::Torn), ["a", "ab"]);
        assert_eq!(n_faults, 3 + 2 + 1 + 3 + 1);
    }

    #[test]
    fn each_byte_is_damaged_in_each_way() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, b"ab").unwrap();
        let mut found = Vec::new();
        each_damage(&path, 1, |_, _| found.push(fs::read(&path).unwrap()));
        let expected: [&[u8]; 6] = [b"`b", b"\x9eb", b"", b"a`", b"a\x9d", b"a"];
        assert_eq!(found, expected);
        assert_eq!(fs::read(&path).unwrap(), b"ab");
    }
}
