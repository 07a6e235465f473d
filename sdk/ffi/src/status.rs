//! Status codes, the sentence that explains the last one, and the guard around every entry point.

use std::{
    any::Any,
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind},
};

use epwatch_proto::error_chain;
use epwatch_sdk::FlushError;

/// Result of a call. A number is never used for another meaning; a later version may add numbers.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EpwStatus {
    /// Done.
    Ok = 0,
    /// There is nothing to return or to do, which is not an error.
    None = 1,
    /// A null pointer, or a value out of range.
    InvalidArgument = 10,
    /// The struct's size belongs neither to this library nor to an older one.
    StructSize = 11,
    /// A text is not UTF-8.
    NotUtf8 = 12,
    /// The handle is closed, or of another kind.
    Closed = 13,
    /// Too many handles are open.
    TooMany = 14,
    /// The buffer is too small: it holds the first bytes, and `*length` is the whole length.
    BufferTooSmall = 15,
    /// The configuration is refused.
    Config = 20,
    /// The SDK's thread could not be started.
    Start = 21,
    /// No ONNX Runtime is loaded in this process.
    OrtNotFound = 30,
    /// ONNX Runtime is older than 1.24: runs are measured, without placement.
    OrtTooOld = 31,
    /// ONNX Runtime refused the option.
    OrtRefused = 32,
    /// The upload failed; the reports stay, and are returned again.
    Upload = 40,
    /// The time ran out before the work was done.
    Timeout = 41,
    /// The SDK could not start again in this forked process: it has no thread, or is too many forks away from the first
    /// process.
    Forked = 42,
    /// The folder cannot be used, or is full: recorded runs that are not in it are lost when the process ends, or
    /// earlier.
    Folder = 43,
    /// A bug of epwatch. The host goes on.
    Panic = 100,
}

/// A status other than success, with its sentence.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: EpwStatus,
    text: String,
}

impl Failure {
    pub(crate) fn new(status: EpwStatus, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { status, text }
    }

    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::new(EpwStatus::InvalidArgument, text)
    }
}

thread_local! {
    static LAST_ERROR: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Makes a call, and returns its status.
#[inline]
pub(crate) fn guarded(call: impl FnOnce() -> Result<EpwStatus, Failure>) -> EpwStatus {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(status)) => status,
        failed => keep(failed),
    }
}

/// Keeps the sentence for `epw_last_error`.
#[cold]
fn keep(result: Result<Result<EpwStatus, Failure>, Box<dyn Any + Send>>) -> EpwStatus {
    let failure = match result {
        Ok(Ok(status)) => return status,
        Ok(Err(failure)) => failure,
        Err(_panic) => {
            let text = "internal error of epwatch; standard error has the details";
            Failure::new(EpwStatus::Panic, text)
        }
    };
    // A thread that is ending cannot keep the sentence.
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = failure.text);
    failure.status
}

/// The failure of a flush, seal or stop, with its causes.
pub(crate) fn flush_failed(error: &FlushError) -> Failure {
    let status = match error {
        FlushError::Timeout => EpwStatus::Timeout,
        FlushError::Forked => EpwStatus::Forked,
        FlushError::Spool(_) => EpwStatus::Folder,
        _ => EpwStatus::Upload,
    };
    Failure::new(status, error_chain(error))
}

pub(crate) fn last_error() -> String {
    let last = LAST_ERROR.try_with(|last| last.borrow().clone());
    last.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_status_and_a_sentence() {
        assert_eq!(guarded(|| panic!("on purpose")), EpwStatus::Panic);
        assert!(last_error().contains("internal error"));
        assert_eq!(guarded(|| Ok(EpwStatus::Ok)), EpwStatus::Ok);
        std::thread::spawn(|| assert_eq!(last_error(), ""))
            .join()
            .unwrap();
    }
}
