//! What ORT's error text says of a session that could not be made.
//!
//! A table of signatures seen with onnxruntime 1.31.1 and onnxruntime-qnn 2.7.0; a text that is
//! not in it is `unknown`, never a guess.

use epwatch_proto::{ReasonCode, clipped};

/// Longest text of a start failure, in bytes.
const MAX_TEXT_BYTES: usize = 512;

/// First match counts.
const SIGNATURES: [(&str, ReasonCode); 8] = [
    (
        "was inserted using the nhwc format",
        ReasonCode::LayoutNotSelected,
    ),
    ("invalid ort_version_supported", ReasonCode::EpTooOldForOrt),
    ("qnn_common_error_mem_alloc", ReasonCode::PrepareFailed),
    ("error code: 1002", ReasonCode::PrepareFailed),
    ("failed to finalize qnn graph", ReasonCode::PrepareFailed),
    ("qnn setupbackend failed", ReasonCode::BackendSetupFailed),
    ("ep context", ReasonCode::EpcontextWithoutEp),
    ("epcontext", ReasonCode::EpcontextWithoutEp),
];

/// Why a session could not be made, by ORT's words.
pub(crate) fn start_failure_reason(message: &str) -> ReasonCode {
    let message = message.to_lowercase();
    let known = SIGNATURES.iter().find(|(text, _)| message.contains(text));
    known.map_or(ReasonCode::Unknown, |(_, reason)| *reason)
}

/// First line of an error without what could name a user or a device: paths become `<path>`, digits
/// `#`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seen_signatures_have_their_code_and_others_are_unknown() {
        let check = |text, reason| assert_eq!(start_failure_reason(text), reason);
        check(
            "Node 'x' was inserted using the NHWC format as requested by QNNExecutionProvider, but \
             was not selected by that EP.",
            ReasonCode::LayoutNotSelected,
        );
        check("QNN_COMMON_ERROR_MEM_ALLOC", ReasonCode::PrepareFailed);
        check("something else", ReasonCode::Unknown);
    }

    #[test]
    fn paths_and_numbers_do_not_leave_the_device() {
        let text = scrubbed("Load model from /data/user/0/com.x/m.onnx failed: code 1002\nmore");
        assert_eq!(text, "Load model from <path> failed: code ####");
    }
}
