//! Handles: index and generation of a slot, and the process that made it.
//!
//! Slots are never freed, so a handle of a closed value finds its slot and another generation there. A call holds the
//! slot's read lock while it uses the value; `close` waits for it. Calls on the inference path only try that lock, and
//! fail while `close` holds it. A child of a fork refuses its parent's handles before it touches a slot, because a
//! lock there may be held for ever.

use std::sync::{Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, TryLockError};

use epwatch_sdk::FlushError;

use crate::{
    fork::{n_forks, watch_forks},
    status::{EpwStatus, Failure},
};

const CHUNK: usize = 64;
const CHUNKS: usize = 64;
const INDEX_MASK: u64 = (CHUNK * CHUNKS) as u64 - 1;
const FORKS_SHIFT: u32 = 12;
const FORKS_MASK: u64 = (1 << (KIND_SHIFT - FORKS_SHIFT)) - 1;
const KIND_SHIFT: u32 = 24;
const GENERATION_SHIFT: u32 = 32;
/// Handles are positive as Java's `long`. A slot of this generation is not used again.
const LAST_GENERATION: u32 = i32::MAX.cast_unsigned();

/// Values of one kind, at most 4,096 at a time.
#[derive(Debug)]
pub(crate) struct Table<T> {
    kind: u8,
    chunks: [OnceLock<Box<[Slot<T>]>>; CHUNKS],
    free: Mutex<Free>,
}

type Slot<T> = RwLock<Held<T>>;

#[derive(Debug)]
struct Held<T> {
    generation: u32,
    value: Option<T>,
}

#[derive(Debug)]
struct Free {
    closed: Vec<usize>,
    /// The first slot that was never used.
    next: usize,
}

impl<T> Table<T> {
    pub(crate) const fn new(kind: u8) -> Self {
        Self {
            kind,
            chunks: [const { OnceLock::new() }; CHUNKS],
            free: Mutex::new(Free {
                closed: Vec::new(),
                next: 0,
            }),
        }
    }

    /// Keeps a value, and returns its handle.
    pub(crate) fn insert(&self, value: T) -> Result<u64, Failure> {
        watch_forks();
        let index = take(&self.free)?;
        let chunk = self.chunks[index / CHUNK].get_or_init(|| {
            let slots = std::iter::repeat_with(|| {
                RwLock::new(Held {
                    generation: 1,
                    value: None,
                })
            });
            slots.take(CHUNK).collect()
        });
        let slot = &chunk[index % CHUNK];
        let mut held = slot.write().unwrap_or_else(PoisonError::into_inner);
        held.value = Some(value);
        let generation = u64::from(held.generation) << GENERATION_SHIFT;
        let kind = u64::from(self.kind) << KIND_SHIFT;
        Ok(generation | kind | forks() << FORKS_SHIFT | index as u64)
    }

    /// Ends a handle, and returns its value. Waits for calls that use it.
    pub(crate) fn remove(&self, handle: u64) -> Result<T, Failure> {
        let (index, slot) = self.slot(handle).ok_or_else(|| self.refusal(handle))?;
        let mut held = slot.write().unwrap_or_else(PoisonError::into_inner);
        if held.generation != generation_of(handle) {
            return Err(closed());
        }
        let value = held.value.take().ok_or_else(closed)?;
        held.generation += 1;
        if held.generation < LAST_GENERATION {
            give_back(&self.free, index);
        }
        Ok(value)
    }

    /// Uses a value.
    pub(crate) fn with<R>(&self, handle: u64, call: impl FnOnce(&T) -> R) -> Result<R, Failure> {
        let (_, slot) = self.slot(handle).ok_or_else(|| self.refusal(handle))?;
        let held = slot.read().unwrap_or_else(PoisonError::into_inner);
        held_by(&held, handle).map(call).ok_or_else(closed)
    }

    /// As [`Self::with`], without waiting; `None` if the handle is closed or being closed.
    #[inline]
    pub(crate) fn try_with<R>(&self, handle: u64, call: impl FnOnce(&T) -> R) -> Option<R> {
        let (_, slot) = self.slot(handle)?;
        let held: RwLockReadGuard<'_, Held<T>> = match slot.try_read() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        held_by(&held, handle).map(call)
    }

    #[inline]
    fn slot(&self, handle: u64) -> Option<(usize, &Slot<T>)> {
        let is_here = self.is_its_kind(handle) && forks_of(handle) == forks();
        let index = usize::try_from(handle & INDEX_MASK)
            .ok()
            .filter(|_| is_here)?;
        let chunk = self.chunks.get(index / CHUNK)?.get()?;
        Some((index, &chunk[index % CHUNK]))
    }

    #[inline]
    fn is_its_kind(&self, handle: u64) -> bool {
        (handle >> KIND_SHIFT) & 0xff == u64::from(self.kind)
    }

    /// Why a handle cannot be used.
    #[cold]
    pub(crate) fn refusal(&self, handle: u64) -> Failure {
        // Only a child of a fork has handles of another process.
        if self.is_its_kind(handle) && forks_of(handle) < forks() {
            return Failure::new(EpwStatus::Forked, FlushError::Forked.to_string());
        }
        closed()
    }
}

#[inline]
fn forks() -> u64 {
    u64::from(n_forks()) & FORKS_MASK
}

#[inline]
fn forks_of(handle: u64) -> u64 {
    (handle >> FORKS_SHIFT) & FORKS_MASK
}

/// Returns a slot that holds nothing.
fn take(free: &Mutex<Free>) -> Result<usize, Failure> {
    let mut free = free.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(index) = free.closed.pop() {
        return Ok(index);
    }
    if free.next == CHUNK * CHUNKS {
        let text = format!("{} handles are open; close some", CHUNK * CHUNKS);
        return Err(Failure::new(EpwStatus::TooMany, text));
    }
    free.next += 1;
    Ok(free.next - 1)
}

fn give_back(free: &Mutex<Free>, index: usize) {
    let mut free = free.lock().unwrap_or_else(PoisonError::into_inner);
    free.closed.push(index);
}

#[inline]
fn held_by<T>(held: &Held<T>, handle: u64) -> Option<&T> {
    let is_its = held.generation == generation_of(handle);
    held.value.as_ref().filter(|_| is_its)
}

#[inline]
fn generation_of(handle: u64) -> u32 {
    u32::try_from(handle >> GENERATION_SHIFT).unwrap_or(0)
}

#[cold]
fn closed() -> Failure {
    let text = "the handle is closed, or of another kind";
    Failure::new(EpwStatus::Closed, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_or_foreign_handle_is_refused_for_ever() {
        let (numbers, others) = (Table::new(1), Table::new(2));
        let first = numbers.insert(10).unwrap();
        assert_eq!(numbers.with(first, |n| *n).unwrap(), 10);
        assert!(others.insert(20).is_ok());
        assert!(others.try_with(first, |n: &i32| *n).is_none());
        assert_eq!(numbers.remove(first).unwrap(), 10);
        // The slot is used again, under another handle.
        let second = numbers.insert(11).unwrap();
        assert_ne!(first, second);
        assert!(i64::try_from(second).is_ok_and(|handle| handle > 0));
        for handle in [first, 0, 1, u64::MAX, second ^ (1 << 40)] {
            assert!(numbers.try_with(handle, |_| ()).is_none());
            let refused = numbers.with(handle, |_| ()).unwrap_err();
            assert_eq!(refused.status, EpwStatus::Closed);
            assert!(numbers.remove(handle).is_err());
        }
        assert_eq!(numbers.try_with(second, |n| *n), Some(11));
    }

    #[test]
    fn too_many_handles_are_an_error() {
        let table = Table::new(1);
        let open: Vec<_> = (0..CHUNK * CHUNKS)
            .map(|n| table.insert(n).unwrap())
            .collect();
        assert_eq!(table.insert(0).unwrap_err().status, EpwStatus::TooMany);
        assert_eq!(table.remove(open[4_000]).unwrap(), 4_000);
        assert!(table.insert(0).is_ok());
    }
}
