//! What is looked at before a report goes into the log: all of it. Whatever is refused is refused
//! here, with the field's name, so the writer finds only reports that it can store.

use bytes::Bytes;
use epwatch_proto::v1::{self, Outcome};
use prost::Message;

use crate::seen::Key;

/// From the contract: `Report`.
const MAX_REPORT_BYTES: usize = 256 << 10;

/// What ingest needs to know of a sound report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) key: Key,
    pub(crate) app_id: String,
    pub(crate) environment: String,
}

/// Why a report does not go into the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) outcome: Outcome,
    /// The field and what was expected of it.
    pub(crate) detail: String,
    /// What is known of the report, if it could be read that far.
    pub(crate) facts: Option<Facts>,
}

/// Checks what a call says beside its reports; returns the device's clocks.
pub(crate) fn check_call(
    message: &v1::UploadRequest,
    max_reports: usize,
) -> Result<v1::SendClock, String> {
    let n_reports = message.reports.len();
    if !(1..=max_reports).contains(&n_reports) {
        return Err(format!(
            "reports: expected 1 to {max_reports}, found {n_reports}"
        ));
    }
    let clock = message.clock.clone().unwrap_or_default();
    Ok(clock)
}

/// Checks one report from its first byte to its last.
pub(crate) fn check(bytes: &Bytes) -> Result<Facts, Refusal> {
    let refuse = |outcome, detail| Refusal {
        outcome,
        detail,
        facts: None,
    };
    if bytes.len() > MAX_REPORT_BYTES {
        let detail = format!(
            "report: expected at most {MAX_REPORT_BYTES} bytes, found {}",
            bytes.len()
        );
        return Err(refuse(Outcome::RefusedTooLarge, detail));
    }
    let message = v1::Report::decode(bytes.clone())
        .map_err(|error| refuse(Outcome::RefusedMalformed, format!("report: {error}")))?;
    let key = message.key.unwrap_or_default();
    let app = message.app.unwrap_or_default();
    Ok(Facts {
        key: Key {
            installation: key.installation_id[..].try_into().unwrap_or_default(),
            stream_id: key.stream_id,
            sequence: key.sequence,
        },
        app_id: app.id,
        environment: app.environment,
    })
}
