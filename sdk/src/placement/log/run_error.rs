//! Errors of a run, after the session was made.

use epwatch_proto::clipped;

use super::reason::setup_reason;
use crate::types;
use epwatch_proto::ReasonCode;

/// A partition that failed when it ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunError {
    /// The fused node, for example `QNN_77121_4`; empty if the line does not name it.
    pub node: String,
    /// QNN's number, for example 6031.
    pub code: Option<u32>,
    /// The code `run_failed`, or `dsp_restarted`.
    pub reason: types::ReasonCode,
    /// The message.
    pub text: String,
    /// Lines with the same node and number.
    pub count: u64,
}

/// Longest message that is kept, in bytes.
const MAX_TEXT_BYTES: usize = 512;

/// `Non-zero status code returned while running QNN_77121_4 node. Name:'..' Status Message: QNN graph execute error. Error code: 6031`
pub(super) fn run_error(text: &str) -> Option<RunError> {
    let reason = setup_reason(text)?;
    let is_run = text.contains("graph execute error") || text.contains("while running ");
    if !matches!(reason, ReasonCode::RunFailed | ReasonCode::DspRestarted) || !is_run {
        return None;
    }
    let node = text.split_once("while running ");
    let node = node.and_then(|(_, rest)| rest.split(" node").next());
    let code = text.rsplit_once("rror code: ").map(|(_, rest)| rest);
    let digits = code.map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
    Some(RunError {
        node: clipped(node.unwrap_or_default().trim(), 128),
        code: digits.flatten().and_then(|digits| digits.parse().ok()),
        reason: reason.into(),
        text: clipped(text, MAX_TEXT_BYTES),
        count: 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_nodes_of_public_errors() {
        let check = |text: &str, node: &str, code: Option<u32>, reason| {
            let found = run_error(text).unwrap();
            assert_eq!(
                (&*found.node, found.code, found.reason.into()),
                (node, code, reason)
            );
        };
        let running = "Non-zero status code returned while running QNN_7_4 node. Name:'Q_4_4' Status Message: ";
        let failed = ReasonCode::RunFailed;
        check(
            &format!("{running}QNN graph execute error. Error code: 6031"),
            "QNN_7_4",
            Some(6031),
            failed,
        );
        check(
            &format!("{running}QNN graph execute error. Error code: 6001 at x.cc:5"),
            "QNN_7_4",
            Some(6001),
            failed,
        );
        check(
            "QNN graph execute error. Error code: 1100",
            "",
            Some(1100),
            failed,
        );
        let ssr = "NPU crashed. SSR detected. Caused QNN graph execute error. Error code: 1007";
        check(
            &format!("{running}{ssr}"),
            "QNN_7_4",
            Some(1007),
            ReasonCode::DspRestarted,
        );
        assert_eq!(run_error("Failed to load skel, error: 4000"), None);
    }
}
