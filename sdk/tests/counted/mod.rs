//! Counts calls of libc's functions that open files and connections.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use libc::{
    AT_FDCWD, SYS_connect, SYS_mkdirat, SYS_openat, SYS_renameat2, SYS_socket, SYS_unlinkat,
    c_char, c_int, mode_t, sockaddr, socklen_t, syscall,
};

/// Calls of all threads.
pub(crate) static OF_PROCESS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Calls of this thread.
    pub(crate) static OF_THREAD: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    OF_PROCESS.fetch_add(1, Relaxed);
    OF_THREAD.set(OF_THREAD.get() + 1);
}

fn answer(result: libc::c_long) -> c_int {
    c_int::try_from(result).unwrap_or(-1)
}

// The mode is a variable argument in C, which Linux passes like this one.
#[unsafe(no_mangle)]
extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    openat64(AT_FDCWD, path, flags, mode)
}

#[unsafe(no_mangle)]
extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    openat64(AT_FDCWD, path, flags, mode)
}

#[unsafe(no_mangle)]
extern "C" fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    openat64(dir, path, flags, mode)
}

#[unsafe(no_mangle)]
extern "C" fn openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    count();
    // SAFETY: the caller's arguments, as the system call takes them.
    answer(unsafe { syscall(SYS_openat, dir, path, flags | libc::O_LARGEFILE, mode) })
}

#[unsafe(no_mangle)]
extern "C" fn mkdir(path: *const c_char, mode: mode_t) -> c_int {
    count();
    // SAFETY: as above.
    answer(unsafe { syscall(SYS_mkdirat, AT_FDCWD, path, mode) })
}

#[unsafe(no_mangle)]
extern "C" fn unlink(path: *const c_char) -> c_int {
    count();
    // SAFETY: as above.
    answer(unsafe { syscall(SYS_unlinkat, AT_FDCWD, path, 0) })
}

#[unsafe(no_mangle)]
extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    count();
    // SAFETY: as above.
    answer(unsafe { syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0) })
}

#[unsafe(no_mangle)]
extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    count();
    // SAFETY: as above.
    answer(unsafe { syscall(SYS_socket, domain, kind, protocol) })
}

#[unsafe(no_mangle)]
extern "C" fn connect(socket: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    count();
    // SAFETY: as above.
    answer(unsafe { syscall(SYS_connect, socket, address, len) })
}
