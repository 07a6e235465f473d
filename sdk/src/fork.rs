//! Forks of this process, and values that every process has for itself.
//!
//! A child of a fork has none of its parent's threads, and may inherit locks that such a thread held. So it never takes
//! a lock of the parent's SDK: each shared value is made anew in the child, at its first use there.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
};

static FORKS: AtomicU32 = AtomicU32::new(0);

/// Deepest chain of forks in which a value can be made again. Each process that needs the value makes it again, so
/// counting restarts at a value that a child has made itself.
const MAX_DEPTH: usize = 7;

/// Returns the number of forks between the process that first started the SDK and this one. The bindings put it into
/// their handles.
#[inline]
pub fn n_forks() -> u32 {
    FORKS.load(Relaxed)
}

/// Counts forks from now on. It does nothing on Android, where apps are forked before their code runs.
pub(crate) fn watch_forks() {
    // This is not a `Once`, because a child that is forked during the first call would wait for ever.
    static IS_WATCHED: AtomicBool = AtomicBool::new(false);
    if !IS_WATCHED.swap(true, Relaxed) {
        register();
    }
}

#[cfg(all(unix, not(target_os = "android")))]
fn register() {
    use std::ffi::c_int;

    type Handler = Option<unsafe extern "C" fn()>;
    unsafe extern "C" {
        fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> c_int;
    }
    unsafe extern "C" fn in_child() {
        FORKS.fetch_add(1, Relaxed);
    }
    // SAFETY: the handler changes one atomic number, which a child may do.
    unsafe {
        // If memory for the handler is missing, slow calls still compare process ids.
        let _ = pthread_atfork(None, None, Some(in_child));
    }
}

#[cfg(not(all(unix, not(target_os = "android"))))]
fn register() {}

/// Values that children of a fork have made to replace a value of their parent.
///
/// Each depth of forks has a slot of its own, so that a child never waits for a thread of its parent.
#[derive(Debug)]
pub(crate) struct InChildren<T> {
    made_after: u32,
    places: [OnceLock<Box<T>>; MAX_DEPTH],
}

impl<T> InChildren<T> {
    /// Makes the slots for a value of this process.
    pub(crate) fn new() -> Self {
        Self {
            made_after: n_forks(),
            places: [const { OnceLock::new() }; MAX_DEPTH],
        }
    }

    /// Whether the value belongs to this process.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.made_after == n_forks()
    }

    /// Returns this child's value, which the first call makes. `None` after too many forks in between.
    pub(crate) fn get(&self, make: impl FnOnce() -> T) -> Option<&T> {
        let made = self.place()?.get_or_init(|| Box::new(make()));
        Some(made)
    }

    /// Returns this child's value if it was already made.
    pub(crate) fn made(&self) -> Option<&T> {
        self.place()?.get().map(Box::as_ref)
    }

    fn place(&self) -> Option<&OnceLock<Box<T>>> {
        let depth = n_forks().checked_sub(self.made_after)?.checked_sub(1)?;
        self.places.get(usize::try_from(depth).ok()?)
    }
}
