//! The functions of libc that Rust's standard library calls for files and sockets.

use libc::{
    AT_FDCWD, SYS_connect, SYS_copy_file_range, SYS_fchmod, SYS_fchmodat, SYS_fdatasync, SYS_flock,
    SYS_fsync, SYS_ftruncate, SYS_mkdirat, SYS_openat, SYS_pread64, SYS_pwrite64, SYS_read,
    SYS_renameat2, SYS_socket, SYS_unlinkat, SYS_write, c_char, c_int, c_uint, c_void, mode_t,
    off64_t, size_t, sockaddr, socklen_t, ssize_t, syscall,
};

use crate::{Answer, Call, answer, is_armed};

/// Returns -1 with `errno` if the call is to fail. A call that writes no bytes happens wholly or not at all.
macro_rules! unless_it_fails {
    ($call:expr, $real:expr) => {
        match answer($call) {
            Answer::Real | Answer::Half => $real,
            Answer::Error(code) | Answer::HalfThenError(code) => failed(code),
        }
    };
}

macro_rules! system_call {
    ($($argument:expr),+) => {
        // SAFETY: these are the caller's arguments, as the system call takes them; a length is at most the caller's.
        unsafe { syscall($($argument),+) }
    };
}

fn failed<T: From<i8>>(code: c_int) -> T {
    // SAFETY: this is the address of this thread's `errno`.
    unsafe { *libc::__errno_location() = code };
    T::from(-1)
}

fn int(result: libc::c_long) -> c_int {
    c_int::try_from(result).unwrap_or(-1)
}

fn size(result: libc::c_long) -> ssize_t {
    ssize_t::try_from(result).unwrap_or(-1)
}

fn opened(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    let makes = flags & libc::O_CREAT != 0;
    let call = if makes { Call::Grows } else { Call::Other };
    unless_it_fails!(
        call,
        int(system_call!(
            SYS_openat,
            dir,
            path,
            flags | libc::O_LARGEFILE,
            mode
        ))
    )
}

// The mode is a variable argument in C, which Linux passes like this one.
#[unsafe(no_mangle)]
extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    opened(AT_FDCWD, path, flags, mode)
}

#[unsafe(no_mangle)]
extern "C" fn openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    opened(dir, path, flags, mode)
}

#[unsafe(no_mangle)]
extern "C" fn read(file: c_int, to: *mut c_void, n: size_t) -> ssize_t {
    unless_it_fails!(Call::Other, size(system_call!(SYS_read, file, to, n)))
}

#[unsafe(no_mangle)]
extern "C" fn pread64(file: c_int, to: *mut c_void, n: size_t, at: off64_t) -> ssize_t {
    unless_it_fails!(
        Call::Other,
        size(system_call!(SYS_pread64, file, to, n, at))
    )
}

/// Calls `write` with the number of bytes that are to be written. A panic's message is always written.
fn written(file: c_int, n: size_t, write: impl Fn(size_t) -> ssize_t) -> ssize_t {
    if file <= libc::STDERR_FILENO {
        return write(n);
    }
    match answer(Call::Writes) {
        Answer::Real => write(n),
        Answer::Error(code) => failed(code),
        Answer::Half if n > 1 => write(n / 2),
        Answer::Half => failed(libc::ENOSPC),
        Answer::HalfThenError(code) => {
            write(n / 2);
            failed(code)
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn write(file: c_int, from: *const c_void, n: size_t) -> ssize_t {
    written(file, n, |n| size(system_call!(SYS_write, file, from, n)))
}

#[unsafe(no_mangle)]
extern "C" fn pwrite64(file: c_int, from: *const c_void, n: size_t, at: off64_t) -> ssize_t {
    written(file, n, |n| {
        size(system_call!(SYS_pwrite64, file, from, n, at))
    })
}

#[unsafe(no_mangle)]
extern "C" fn copy_file_range(
    from: c_int,
    from_at: *mut off64_t,
    to: c_int,
    to_at: *mut off64_t,
    n: size_t,
    flags: c_uint,
) -> ssize_t {
    written(to, n, |n| {
        size(system_call!(
            SYS_copy_file_range,
            from,
            from_at,
            to,
            to_at,
            n,
            flags
        ))
    })
}

#[unsafe(no_mangle)]
extern "C" fn fsync(file: c_int) -> c_int {
    if is_armed() {
        return unless_it_fails!(Call::Other, 0);
    }
    int(system_call!(SYS_fsync, file))
}

#[unsafe(no_mangle)]
extern "C" fn fdatasync(file: c_int) -> c_int {
    if is_armed() {
        return unless_it_fails!(Call::Other, 0);
    }
    int(system_call!(SYS_fdatasync, file))
}

#[unsafe(no_mangle)]
extern "C" fn flock(file: c_int, how: c_int) -> c_int {
    unless_it_fails!(Call::Other, int(system_call!(SYS_flock, file, how)))
}

#[unsafe(no_mangle)]
extern "C" fn ftruncate64(file: c_int, len: off64_t) -> c_int {
    unless_it_fails!(Call::Other, int(system_call!(SYS_ftruncate, file, len)))
}

#[unsafe(no_mangle)]
extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    unless_it_fails!(
        Call::Grows,
        int(system_call!(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0))
    )
}

#[unsafe(no_mangle)]
extern "C" fn mkdir(path: *const c_char, mode: mode_t) -> c_int {
    unless_it_fails!(
        Call::Grows,
        int(system_call!(SYS_mkdirat, AT_FDCWD, path, mode))
    )
}

#[unsafe(no_mangle)]
extern "C" fn unlink(path: *const c_char) -> c_int {
    unless_it_fails!(
        Call::Other,
        int(system_call!(SYS_unlinkat, AT_FDCWD, path, 0))
    )
}

#[unsafe(no_mangle)]
extern "C" fn unlinkat(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    unless_it_fails!(
        Call::Other,
        int(system_call!(SYS_unlinkat, dir, path, flags))
    )
}

#[unsafe(no_mangle)]
extern "C" fn chmod(path: *const c_char, mode: mode_t) -> c_int {
    unless_it_fails!(
        Call::Other,
        int(system_call!(SYS_fchmodat, AT_FDCWD, path, mode))
    )
}

#[unsafe(no_mangle)]
extern "C" fn fchmod(file: c_int, mode: mode_t) -> c_int {
    unless_it_fails!(Call::Other, int(system_call!(SYS_fchmod, file, mode)))
}

#[unsafe(no_mangle)]
extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    unless_it_fails!(
        Call::Other,
        int(system_call!(SYS_socket, domain, kind, protocol))
    )
}

#[unsafe(no_mangle)]
extern "C" fn connect(socket: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    unless_it_fails!(
        Call::Other,
        int(system_call!(SYS_connect, socket, address, len))
    )
}
