//! From the spool to the collector and back, without a network: what is sent next, and what an
//! answer means for it.
//!
//! Who carries the bytes is another matter: the SDK's own thread over gRPC (`grpc.rs`), or the
//! host, through [`Watch::next_upload`](crate::Watch::next_upload). A report is sent with the same
//! key and the same bytes until it is acked, so a lost ack costs a duplicate and never a loss.

#[cfg(feature = "grpc")]
pub(crate) mod grpc;
mod schedule;

use std::time::Duration;

use bytes::Bytes;
use epwatch_proto::{
    Outcome, ParseError, ReportKey, SendClock, UploadFailureKind, UploadRequest, UploadResponse, v1,
};
use prost::Message;

pub(crate) use schedule::{Advice, Schedule};

/// One request on its way. Hand it back with the answer.
#[derive(Debug)]
pub struct UploadBatch {
    keys: Vec<ReportKey>,
    request: v1::UploadRequest,
}

impl UploadBatch {
    pub(crate) fn new(
        reports: Vec<(ReportKey, Bytes)>,
        clock: SendClock,
        sdk: epwatch_proto::Sdk,
        held_directive_ids: Vec<String>,
    ) -> Self {
        let (keys, reports) = reports.into_iter().unzip();
        let request = UploadRequest {
            reports,
            clock,
            sdk,
            held_directive_ids,
            attestation: None,
        };
        Self {
            keys,
            request: (&request).into(),
        }
    }

    /// The encoded `epwatch.v1.UploadRequest`, for hosts that send it themselves: the one message
    /// of a gRPC call to `epwatch.v1.CollectorService/Upload` with the metadata
    /// `authorization: Bearer <app key>`.
    pub fn encoded(&self) -> Vec<u8> {
        self.request.encode_to_vec()
    }

    /// How many reports it carries.
    pub fn n_reports(&self) -> usize {
        self.keys.len()
    }

    #[cfg(feature = "grpc")]
    pub(crate) fn request(&self) -> v1::UploadRequest {
        self.request.clone()
    }
}

/// Why an upload brought no answer.
#[derive(Debug, thiserror::Error)]
#[error("failed to upload: {message}")]
pub struct UploadError {
    kind: UploadFailureKind,
    message: String,
    retry_after: Option<Duration>,
}

impl UploadError {
    /// A failed upload of this kind, in words.
    pub fn new(kind: UploadFailureKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            retry_after: None,
        }
    }

    /// The collector asked to come no earlier.
    #[must_use]
    pub fn with_retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }

    /// What kind of failure it was: the label it is counted under.
    pub fn kind(&self) -> UploadFailureKind {
        self.kind
    }

    /// When to try again. Every failed upload is tried again: what is wrong may be put right, and
    /// the spool is bounded.
    pub fn retry(&self) -> Retry {
        match self.retry_after {
            Some(delay) => Retry::After(delay),
            None => Retry::Backoff,
        }
    }
}

/// When something may be tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retry {
    /// After a wait that grows.
    Backoff,
    /// Not before this wait.
    After(Duration),
}

/// What an answer means for one report of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    /// The collector has it: stored now, or before.
    Acked,
    /// It will never be accepted.
    Refused,
    /// The same bytes may be accepted later.
    Kept,
}

/// Reads an answer for a request of `batch`.
pub(crate) fn settle(
    batch: &UploadBatch,
    response: v1::UploadResponse,
) -> Result<(Vec<(ReportKey, Settled)>, Advice), ParseError> {
    let response = UploadResponse::try_from(response)?;
    let mut settled: Vec<_> = batch
        .keys
        .iter()
        .map(|key| (*key, Settled::Acked))
        .collect();
    for result in &response.results {
        let at = usize::try_from(result.index).unwrap_or(usize::MAX);
        let Some((_, how)) = settled.get_mut(at) else {
            let expected = format!("below {}", settled.len());
            return Err(ParseError::malformed(
                "results.index",
                expected,
                result.index,
            ));
        };
        *how = match result.outcome {
            Some(outcome) if outcome == Outcome::Stored || outcome.is_ack() => Settled::Acked,
            _ if result.keep() => Settled::Kept,
            _ => Settled::Refused,
        };
    }
    let ms = |ms: Option<u64>| ms.map(Duration::from_millis);
    let advice = Advice {
        retry_after: ms(response.retry_after_ms),
        next_interval: ms(response.next_interval_ms),
        max_request_bytes: response.max_request_bytes,
    };
    Ok((settled, advice))
}

#[cfg(test)]
mod tests {
    use super::*;
    use epwatch_proto::{InstallationId, Sequence, StreamId};

    fn batch() -> UploadBatch {
        let key = |sequence| ReportKey {
            installation: InstallationId::from_secret(b"x"),
            stream: StreamId(1),
            sequence: Sequence::new(sequence).unwrap(),
        };
        let reports = (1..=4)
            .map(|n| (key(n), Bytes::from_static(b"r")))
            .collect();
        let clock = SendClock::try_from(v1::SendClock::default()).unwrap();
        let sdk = epwatch_proto::Sdk {
            name: "epwatch-sdk".to_owned(),
            version: "0".to_owned(),
            language: "rust".to_owned(),
        };
        UploadBatch::new(reports, clock, sdk, Vec::new())
    }

    fn result(index: u32, outcome: v1::Outcome, retryable: bool) -> v1::ReportResult {
        v1::ReportResult {
            index,
            outcome: outcome.into(),
            retryable,
            ..Default::default()
        }
    }

    #[test]
    fn only_what_may_be_accepted_later_is_kept() {
        let response = v1::UploadResponse {
            results: vec![
                result(0, v1::Outcome::Duplicate, false),
                result(1, v1::Outcome::RefusedMalformed, false),
                result(2, v1::Outcome::RefusedQuota, true),
            ],
            retry_after_ms: Some(1_500),
            ..Default::default()
        };
        let (settled, advice) = settle(&batch(), response).unwrap();
        let how: Vec<_> = settled.iter().map(|(_, how)| *how).collect();
        use Settled::{Acked, Kept, Refused};
        assert_eq!(how, [Acked, Refused, Kept, Acked]);
        assert_eq!(advice.retry_after, Some(Duration::from_millis(1_500)));
    }

    #[test]
    fn an_answer_about_reports_that_were_not_sent_deletes_nothing() {
        let response = v1::UploadResponse {
            results: vec![result(4, v1::Outcome::Duplicate, false)],
            ..Default::default()
        };
        assert!(settle(&batch(), response).is_err());
    }
}
