//! Forks of this process, and values of which every process has one of its own.
//!
//! A child of a fork has none of its parent's threads, and may inherit locks that such a thread held. So it never takes
//! a lock of the parent's SDK: each shared value begins again in the child, at its first use there.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
};

static FORKS: AtomicU32 = AtomicU32::new(0);

/// Children of children that begin again. A value is made again by each process that needs it, so the count starts over
/// with a value that a child has made itself.
const MAX_DEPTH: usize = 7;

/// Returns the forks between the process that started the SDK first and this one. The bindings number their handles by it.
#[inline]
pub fn n_forks() -> u32 {
    FORKS.load(Relaxed)
}

/// Counts forks from now on. Not on Android, whose apps are forked before their code runs.
pub(crate) fn watch_forks() {
    // Not a `Once`: a child that is forked during the first call would wait for ever.
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
        // Without memory for it, slow calls still compare the process.
        let _ = pthread_atfork(None, None, Some(in_child));
    }
}

#[cfg(not(all(unix, not(target_os = "android"))))]
fn register() {}

/// What children of a fork have made in place of a value of their parent.
///
/// Each depth has a place of its own, so that a child never waits for a thread of its parent.
#[derive(Debug)]
pub(crate) struct InChildren<T> {
    made_after: u32,
    places: [OnceLock<Box<T>>; MAX_DEPTH],
}

impl<T> InChildren<T> {
    /// For a value of this process.
    pub(crate) fn new() -> Self {
        Self {
            made_after: n_forks(),
            places: [const { OnceLock::new() }; MAX_DEPTH],
        }
    }

    /// Whether the value is of this process.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.made_after == n_forks()
    }

    /// Returns this child's value, which the first call makes. `None` if too many forks lie between.
    pub(crate) fn get(&self, make: impl FnOnce() -> T) -> Option<&T> {
        let made = self.place()?.get_or_init(|| Box::new(make()));
        Some(made)
    }

    /// Returns this child's value if it was made.
    pub(crate) fn made(&self) -> Option<&T> {
        self.place()?.get().map(Box::as_ref)
    }

    fn place(&self) -> Option<&OnceLock<Box<T>>> {
        let depth = n_forks().checked_sub(self.made_after)?.checked_sub(1)?;
        self.places.get(usize::try_from(depth).ok()?)
    }
}
