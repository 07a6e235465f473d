//! Counts the forks between the first handle and now, so that a child of a fork refuses its parent's handles.
//!
//! A child has none of the SDK's threads, and may inherit locks that a thread of its parent holds.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

static FORKS: AtomicU32 = AtomicU32::new(0);

/// Forks on the way from the process with the first handle to this one.
#[inline]
pub(crate) fn n_forks() -> u32 {
    FORKS.load(Relaxed)
}

/// Counts forks from now on. Not on Android, whose apps are forked before their code runs.
pub(crate) fn watch_forks() {
    #[cfg(all(unix, not(target_os = "android")))]
    {
        use std::{ffi::c_int, sync::Once};

        type Handler = Option<unsafe extern "C" fn()>;
        unsafe extern "C" {
            fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> c_int;
        }
        unsafe extern "C" fn in_child() {
            FORKS.fetch_add(1, Relaxed);
        }
        static REGISTERED: Once = Once::new();
        // SAFETY: the handler changes one atomic number, which a child may do.
        REGISTERED.call_once(|| unsafe {
            // Without memory for it flush and seal still compare the process.
            let _ = pthread_atfork(None, None, Some(in_child));
        });
    }
}
