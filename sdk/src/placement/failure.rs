//! ORT's errors: the reason why a session could not be made, and a text that may leave the device.
//!
//! The log reader's table of signatures is used. A text without an entry is `unknown`, never a guess.

use epwatch_proto::{ReasonCode, clipped};

use super::log::setup_reason;

/// Longest text of a start failure, in bytes.
const MAX_TEXT_BYTES: usize = 512;

/// `ORT_DEVICE_RESET`, by which EPs report a restarted DSP since ORT 1.28.
pub(crate) const DEVICE_RESET: i32 = 15;

/// Returns the reason by ORT's status code and message, or else the first reason of a captured log, which is less
/// precise.
pub(crate) fn start_failure_reason(
    ort_status_code: i32,
    message: &str,
    by_log: Option<ReasonCode>,
) -> ReasonCode {
    let by_code = (ort_status_code == DEVICE_RESET).then_some(ReasonCode::DspRestarted);
    let by_message = setup_reason(message);
    // If a session forbids the CPU, the message says only that, whatever the cause. Only the log has the cause.
    let is_consequence = by_message == Some(ReasonCode::CpuFallbackForbidden);
    by_code
        .or_else(|| by_log.filter(|_| is_consequence))
        .or(by_message)
        .or(by_log)
        .unwrap_or(ReasonCode::Unknown)
}

/// First line of an error without anything that could identify a user or a device: paths become `<path>`, digits `#`.
pub(crate) fn scrubbed(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    let words = line
        .split(' ')
        .map(|word| match word.contains(['/', '\\']) {
            true => "<path>".to_owned(),
            false => word.replace(|c: char| c.is_ascii_digit(), "#"),
        });
    clipped(&words.collect::<Vec<_>>().join(" "), MAX_TEXT_BYTES)
}

/// Number of an error in ORT's C API.
#[cfg(feature = "ort")]
pub(crate) fn status_code(code: ort::ErrorCode) -> i32 {
    ort::sys::OrtErrorCode::from(code) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seen_signatures_have_their_code_and_others_are_unknown() {
        let check = |text, reason| assert_eq!(start_failure_reason(1, text, None), reason);
        check(
            "Node 'x' was inserted using the NHWC format as requested by QNNExecutionProvider, but \
             was not selected by that EP.",
            ReasonCode::LayoutNotSelected,
        );
        check("QNN_COMMON_ERROR_MEM_ALLOC", ReasonCode::PrepareFailed);
        check("something else", ReasonCode::Unknown);
        let strict = "but fallback to CPU EP has been explicitly disabled by the user.";
        check(strict, ReasonCode::CpuFallbackForbidden);
        let skel = Some(ReasonCode::SkelLibraryMissing);
        assert_eq!(
            start_failure_reason(1, strict, skel),
            ReasonCode::SkelLibraryMissing
        );
        let reset = start_failure_reason(DEVICE_RESET, "something else", None);
        assert_eq!(reset, ReasonCode::DspRestarted);
    }

    #[test]
    fn paths_and_numbers_do_not_leave_the_device() {
        let text = scrubbed("Load model from /data/user/0/com.x/m.onnx failed: code 1002\nmore");
        assert_eq!(text, "Load model from <path> failed: code ####");
    }
}
