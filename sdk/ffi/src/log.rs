//! Captures the log that ONNX Runtime writes while a session is made.

use std::{
    ffi::{CStr, c_char, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, PoisonError},
};

use epwatch_sdk::placement::log::{LogReader, SessionLog};

use crate::{
    handle::Table,
    runtime::{prepare_failed, runtime_given},
    status::{EpwStatus, Failure, guarded},
    text::ResultPlace,
};

static LOGS: Table<Mutex<LogReader>> = Table::new(5);

/// A captured log, which ONNX Runtime writes while sessions are made.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct EpwLog {
    /// 0 is none.
    pub id: u64,
}

/// Makes sessions of these OrtSessionOptions write to a log, at VERBOSE, in place of the app's own logger. The log has
/// the reason for each node that the NPU refuses. With ONNX Runtime 1.17 to 1.23 it also has the placement. A session
/// with these options formats some ten lines in each run. So pass a copy (CloneSessionOptions), make a session with the
/// copy just before your own, and release both. Then name the log in EpwModel. Options that write files or share
/// contexts are turned off in the copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epw_capture_log(
    ort_api_base: *const c_void,
    options: *mut c_void,
    log: *mut EpwLog,
) -> EpwStatus {
    // SAFETY: the header's first comment states the caller's duties; the options belong to the host's ONNX Runtime. The
    // parameter is never freed, and a closed log takes no more lines, so ONNX Runtime may write at any later time.
    guarded(|| unsafe {
        let log = ResultPlace::of(log)?;
        let runtime = runtime_given(ort_api_base)?;
        let id = LOGS.insert(Mutex::default())?;
        let parameter: *mut u64 = Box::leak(Box::new(id));
        match runtime.log_to(options, write_line, parameter.cast()) {
            Ok(()) => Ok(log.write(EpwLog { id })),
            Err(error) => {
                LOGS.close(id, |_| ())?;
                Err(prepare_failed(&error))
            }
        }
    })
}

/// Ends a log. Later lines are dropped.
#[unsafe(no_mangle)]
pub extern "C" fn epw_log_close(log: EpwLog) -> EpwStatus {
    guarded(|| LOGS.close(log.id, |_| EpwStatus::Ok))
}

/// ONNX Runtime's `OrtLoggingFunction`.
///
/// # Safety
/// The parameter is a handle's number, and the texts are NUL-terminated or null.
unsafe extern "system" fn write_line(
    log: *mut c_void,
    _severity: i32,
    _category: *const c_char,
    _id: *const c_char,
    location: *const c_char,
    message: *const c_char,
) {
    // ONNX Runtime calls this from C++, where no panic may pass.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: guaranteed by the caller.
        let (id, location, message) =
            unsafe { (*log.cast::<u64>(), text(location), text(message)) };
        let _ = LOGS.with(id, |reader| {
            let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
            reader.message(&location, &message);
        });
    }));
}

/// # Safety
/// The text is NUL-terminated or null.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: guaranteed by the caller.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

/// Takes the log of the session that was made; of several, the first.
pub(crate) fn taken(log: EpwLog) -> Result<Option<SessionLog>, Failure> {
    LOGS.with(log.id, |reader| {
        let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *reader).finish().into_iter().next()
    })
}
