//! Requests for hosts that send by themselves: each is an HTTP POST whose body is the given bytes.

use std::{ffi::c_char, time::Duration};

use epwatch_sdk::{UploadBatch, UploadError, Watch, types::UploadFailureKind};

use crate::{
    handle::Table,
    status::{EpwStatus, Failure, guarded},
    text::{EpwText, ResultPlace, array, copy_out},
    watch::EpwWatch,
};

pub(crate) static UPLOADS: Table<Upload> = Table::new(4);

/// Longest answer of a collector that is read.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// A request, and the SDK that it belongs to.
#[derive(Debug)]
pub(crate) struct Upload {
    watch: Watch,
    batch: UploadBatch,
}

/// A request to the collector. It is open until its answer or failure is given.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct EpwUpload {
    /// 0 is none.
    pub id: u64,
}

/// Returns the next request for a host that sends by itself, or EPW_STATUS_NONE if there is nothing to send now.
/// Touches the disk: call it from a background thread, one request at a time. POST epw_upload_body to the endpoint with
/// the path of epw_upload_path, `content-type: application/proto` and `authorization: Bearer <app key>`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epw_next_upload(watch: EpwWatch, upload: *mut EpwUpload) -> EpwStatus {
    guarded(|| {
        // SAFETY: the header's first comment states the caller's duties.
        let upload = unsafe { ResultPlace::of(upload)? };
        let next = next_upload(watch.id)?;
        Ok(next.map_or(EpwStatus::None, |id| upload.write(EpwUpload { id })))
    })
}

pub(crate) fn next_upload(watch: u64) -> Result<Option<u64>, Failure> {
    let watch = crate::watch::watch(watch)?;
    let Some(batch) = watch.next_upload() else {
        return Ok(None);
    };
    UPLOADS.insert(Upload { watch, batch }).map(Some)
}

/// Copies the path of a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epw_upload_path(
    upload: EpwUpload,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> EpwStatus {
    guarded(|| {
        // SAFETY: the header's first comment states the caller's duties.
        unsafe { copy_out(path(upload.id)?.as_bytes(), buffer, capacity, length) }
    })
}

pub(crate) fn path(upload: u64) -> Result<&'static str, Failure> {
    UPLOADS.with(upload, |upload| upload.batch.kind().path())
}

/// Copies the body of a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epw_upload_body(
    upload: EpwUpload,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> EpwStatus {
    guarded(|| {
        // SAFETY: the header's first comment states the caller's duties.
        unsafe { copy_out(&body(upload.id)?, buffer, capacity, length) }
    })
}

pub(crate) fn body(upload: u64) -> Result<Vec<u8>, Failure> {
    UPLOADS.with(upload, |upload| upload.batch.encoded())
}

/// Passes on the body of the collector's answer with HTTP status 200 and `content-type: application/proto`, and closes
/// the request. Returns EPW_STATUS_UPLOAD if the answer does not acknowledge this request, for example a proxy's empty
/// answer. Nothing is deleted then, and a later request has the same content.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epw_upload_answer(
    upload: EpwUpload,
    answer: *const u8,
    length: usize,
) -> EpwStatus {
    guarded(|| {
        // SAFETY: the header's first comment states the caller's duties.
        let answer = unsafe { array(answer, length, MAX_ANSWER_BYTES)? };
        settle(upload.id, Ok(answer))
    })
}

/// Passes on another HTTP status of the collector, or 0 if there was none, and closes the request. `retry_after_ms` is
/// the collector's retry-after, or 0; `message` is for epw_explain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epw_upload_failed(
    upload: EpwUpload,
    http_status: i32,
    retry_after_ms: u64,
    message: EpwText,
) -> EpwStatus {
    guarded(|| {
        // SAFETY: the header's first comment states the caller's duties.
        failed(upload.id, http_status, retry_after_ms, unsafe {
            message.get()?
        })
    })
}

pub(crate) fn failed(
    upload: u64,
    http_status: i32,
    retry_after_ms: u64,
    message: &str,
) -> Result<EpwStatus, Failure> {
    let kind = match http_status {
        0 => UploadFailureKind::Unreachable,
        401 | 403 => UploadFailureKind::Unauthenticated,
        408 | 504 => UploadFailureKind::Timeout,
        429 | 503 => UploadFailureKind::PushedBack,
        _ => UploadFailureKind::Server,
    };
    let mut error = UploadError::new(kind, message);
    if retry_after_ms > 0 {
        error = error.with_retry_after(Duration::from_millis(retry_after_ms));
    }
    match settle(upload, Err(error)) {
        // The host already knows of this failure.
        Err(failure) if failure.status == EpwStatus::Upload => Ok(EpwStatus::Ok),
        settled => settled,
    }
}

pub(crate) fn settle(
    upload: u64,
    answer: Result<&[u8], UploadError>,
) -> Result<EpwStatus, Failure> {
    let result = |upload: &Upload| upload.watch.upload_result(&upload.batch, answer);
    let settled = UPLOADS.close(upload, result)?;
    let failed = |error: UploadError| Failure::new(EpwStatus::Upload, error.to_string());
    settled.map(|()| EpwStatus::Ok).map_err(failed)
}
