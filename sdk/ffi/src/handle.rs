//! Handles: each holds the index and generation of a slot, and the number of forks before it was made.
//!
//! Slots are never freed, so the handle of a closed value leads to its old slot, which holds another handle. A call
//! holds the slot's read lock while it uses the value; `close` waits for it. Calls on the inference path only try that
//! lock, and fail while `close` holds it.
//!
//! The child of a fork may inherit a lock that a thread of its parent held, and that is never released. So free slots
//! are found without a lock. In the child, locks of slots that the parent filled are only tried. The parent's values
//! also belong to the child, and stay in their slots when the child closes them.

use std::{
    array,
    marker::PhantomData,
    ptr,
    sync::{
        PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
        atomic::{
            AtomicBool, AtomicPtr,
            Ordering::{AcqRel, Acquire, Relaxed, Release},
        },
    },
};

use epwatch_sdk::n_forks;

use crate::status::{EpwStatus, Failure};

const CHUNK: usize = 64;
const CHUNKS: usize = 64;
const INDEX_MASK: u64 = (CHUNK * CHUNKS) as u64 - 1;
const FORKS_SHIFT: u32 = 12;
const FORKS_MASK: u64 = (1 << (KIND_SHIFT - FORKS_SHIFT)) - 1;
const KIND_SHIFT: u32 = 24;
const GENERATION_SHIFT: u32 = 32;
/// Handles must be positive as Java's `long`. A slot of this generation is not used again.
const LAST_GENERATION: u64 = i32::MAX.cast_unsigned() as u64;

/// Values of one kind, at most 4,096 at a time.
#[derive(Debug)]
pub(crate) struct Table<T> {
    kind: u8,
    /// Each is null until one of its slots is needed, and then stays.
    chunks: [AtomicPtr<Chunk<T>>; CHUNKS],
    owns: PhantomData<Chunk<T>>,
}

type Chunk<T> = [Slot<T>; CHUNK];

#[derive(Debug)]
struct Slot<T> {
    is_taken: AtomicBool,
    /// A child of a fork has closed the value that its parent put into this slot.
    is_closed_here: AtomicBool,
    held: RwLock<HandleValue<T>>,
}

#[derive(Debug)]
struct HandleValue<T> {
    /// The latest.
    handle: u64,
    value: Option<T>,
}

impl<T> Table<T> {
    pub(crate) const fn new(kind: u8) -> Self {
        Self {
            kind,
            chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS],
            owns: PhantomData,
        }
    }

    /// Keeps a value, and returns its handle.
    pub(crate) fn insert(&self, value: T) -> Result<u64, Failure> {
        for (index, slot) in self.slots().enumerate() {
            let taken = slot
                .is_taken
                .compare_exchange(false, true, Acquire, Relaxed);
            if taken.is_err() {
                continue;
            }
            // A call with an old handle may hold the slot's read lock, perhaps in a thread that this forked process
            // lacks.
            let Some(mut held) = try_write(&slot.held) else {
                slot.is_taken.store(false, Release);
                continue;
            };
            let generation = (held.handle >> GENERATION_SHIFT) + 1;
            let kind = u64::from(self.kind) << KIND_SHIFT;
            held.handle =
                generation << GENERATION_SHIFT | kind | forks() << FORKS_SHIFT | index as u64;
            held.value = Some(value);
            return Ok(held.handle);
        }
        let text = format!("{} handles are open; close some", CHUNK * CHUNKS);
        Err(Failure::new(EpwStatus::TooMany, text))
    }

    /// Ends a handle after a last call with its value. Waits for calls that use it.
    pub(crate) fn close<R>(&self, handle: u64, last: impl FnOnce(&T) -> R) -> Result<R, Failure> {
        let slot = self.slot(handle).ok_or_else(closed)?;
        if is_inherited(handle) {
            let held = try_read(&slot.held).ok_or_else(closed)?;
            let value = held_by(&held, handle).ok_or_else(closed)?;
            return match slot.is_closed_here.swap(true, Relaxed) {
                true => Err(closed()),
                false => Ok(last(value)),
            };
        }
        let value = {
            let mut held = slot.held.write().unwrap_or_else(PoisonError::into_inner);
            if held.handle != handle {
                return Err(closed());
            }
            held.value.take().ok_or_else(closed)?
        };
        if handle >> GENERATION_SHIFT < LAST_GENERATION {
            slot.is_taken.store(false, Release);
        }
        Ok(last(&value))
    }

    /// Uses a value.
    pub(crate) fn with<R>(&self, handle: u64, call: impl FnOnce(&T) -> R) -> Result<R, Failure> {
        if is_inherited(handle) {
            return self.try_with(handle, call).ok_or_else(closed);
        }
        let slot = self.slot(handle).ok_or_else(closed)?;
        let held = slot.held.read().unwrap_or_else(PoisonError::into_inner);
        held_by(&held, handle).map(call).ok_or_else(closed)
    }

    /// Does the same as [`Self::with`] without waiting; `None` if the handle is closed or being closed.
    #[inline]
    pub(crate) fn try_with<R>(&self, handle: u64, call: impl FnOnce(&T) -> R) -> Option<R> {
        let slot = self.slot(handle)?;
        let held = try_read(&slot.held)?;
        let is_closed_here = is_inherited(handle) && slot.is_closed_here.load(Relaxed);
        let value = held_by(&held, handle).filter(|_| !is_closed_here)?;
        Some(call(value))
    }

    #[inline]
    fn slot(&self, handle: u64) -> Option<&Slot<T>> {
        let is_its_kind = (handle >> KIND_SHIFT) & 0xff == u64::from(self.kind);
        let index = usize::try_from(handle & INDEX_MASK)
            .ok()
            .filter(|_| is_its_kind)?;
        let chunk = self.chunks.get(index / CHUNK)?.load(Acquire);
        // SAFETY: it is null, or a chunk that lives as long as the table.
        let chunk = unsafe { chunk.as_ref() }?;
        Some(&chunk[index % CHUNK])
    }

    /// Every slot; makes chunks as they are reached.
    fn slots(&self) -> impl Iterator<Item = &Slot<T>> {
        self.chunks.iter().flat_map(chunk_of)
    }
}

/// Not a `OnceLock`, which would wait in the child of a fork for a thread of the parent.
fn chunk_of<T>(place: &AtomicPtr<Chunk<T>>) -> &Chunk<T> {
    let mut chunk = place.load(Acquire);
    if chunk.is_null() {
        let made: Box<Chunk<T>> = Box::new(array::from_fn(|_| Slot {
            is_taken: AtomicBool::new(false),
            is_closed_here: AtomicBool::new(false),
            held: RwLock::new(HandleValue {
                handle: 0,
                value: None,
            }),
        }));
        let made = Box::into_raw(made);
        chunk = match place.compare_exchange(ptr::null_mut(), made, AcqRel, Acquire) {
            Ok(_) => made,
            Err(theirs) => {
                // SAFETY: it was made above, and no other code has it.
                drop(unsafe { Box::from_raw(made) });
                theirs
            }
        };
    }
    // SAFETY: a chunk that is in the table lives as long as the table.
    unsafe { &*chunk }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        for place in &mut self.chunks {
            let chunk = *place.get_mut();
            if !chunk.is_null() {
                // SAFETY: the chunk was made from a box, and no call uses it any more.
                drop(unsafe { Box::from_raw(chunk) });
            }
        }
    }
}

#[inline]
fn forks() -> u64 {
    u64::from(n_forks()) & FORKS_MASK
}

/// Whether the parent of this forked process has made the handle.
#[inline]
fn is_inherited(handle: u64) -> bool {
    (handle >> FORKS_SHIFT) & FORKS_MASK != forks()
}

#[inline]
fn try_read<T>(held: &RwLock<HandleValue<T>>) -> Option<RwLockReadGuard<'_, HandleValue<T>>> {
    match held.try_read() {
        Ok(held) => Some(held),
        Err(TryLockError::Poisoned(held)) => Some(held.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

fn try_write<T>(held: &RwLock<HandleValue<T>>) -> Option<RwLockWriteGuard<'_, HandleValue<T>>> {
    match held.try_write() {
        Ok(held) => Some(held),
        Err(TryLockError::Poisoned(held)) => Some(held.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[inline]
fn held_by<T>(held: &HandleValue<T>, handle: u64) -> Option<&T> {
    held.value.as_ref().filter(|_| held.handle == handle)
}

#[cold]
pub(crate) fn closed() -> Failure {
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
        assert_eq!(numbers.close(first, |n| *n).unwrap(), 10);
        // The slot is used again, under another handle.
        let second = numbers.insert(11).unwrap();
        assert_ne!(first, second);
        assert!(i64::try_from(second).is_ok_and(|handle| handle > 0));
        for handle in [first, 0, 1, u64::MAX, second ^ (1 << 40)] {
            assert!(numbers.try_with(handle, |_| ()).is_none());
            let refused = numbers.with(handle, |_| ()).unwrap_err();
            assert_eq!(refused.status, EpwStatus::Closed);
            assert!(numbers.close(handle, |_| ()).is_err());
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
        assert_eq!(table.close(open[4_000], |n| *n).unwrap(), 4_000);
        assert!(table.insert(0).is_ok());
    }
}
