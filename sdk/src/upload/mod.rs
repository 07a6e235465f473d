//! Requests to the collector and their answers, without a network.
//!
//! The SDK's thread sends over gRPC (`grpc`), or the host does, through
//! [`Watch::next_upload`](crate::Watch::next_upload). A report is sent with the same key and bytes until it is
//! acknowledged, so a lost ack causes a duplicate and never a loss.

pub(crate) mod budget;
mod error;
#[cfg(feature = "grpc")]
pub(crate) mod grpc;
mod schedule;

use std::time::Duration;

use bytes::Bytes;
use epwatch_proto::{Outcome, ParseError, ReportKey, SendClock, UploadRequest, UploadResponse, v1};
use prost::Message;

use crate::{
    installation::Secret, random_u64, types::UploadFailureKind, upload::budget::NetworkKind,
};

pub use error::{FlushError, Refusal, Retry, UploadError};
pub(crate) use schedule::{Advice, Schedule};

/// The call of `epwatch.v1.CollectorService` that a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RequestKind {
    /// Reports: an `UploadRequest`, answered with an `UploadResponse`.
    Upload,
    /// Deletion of a forgotten installation: a `DeleteInstallationRequest`, answered with a
    /// `DeleteInstallationResponse`.
    DeleteInstallation,
}

impl RequestKind {
    /// Returns the call's path, for gRPC's `:path`.
    pub fn path(self) -> &'static str {
        match self {
            Self::Upload => "/epwatch.v1.CollectorService/Upload",
            Self::DeleteInstallation => "/epwatch.v1.CollectorService/DeleteInstallation",
        }
    }
}

/// One request. Return it together with its answer.
#[derive(Debug)]
pub struct UploadBatch {
    payload: Payload,
    /// Bytes reserved in the budget.
    pub(crate) reserved: u64,
    pub(crate) network: NetworkKind,
}

#[derive(Debug)]
pub(crate) enum Payload {
    Reports {
        keys: Vec<ReportKey>,
        request: Box<v1::UploadRequest>,
    },
    Deletion(Secret),
}

/// A collector's answer.
#[derive(Debug)]
pub(crate) enum CollectorAnswer {
    Upload(v1::UploadResponse),
    Deletion(v1::DeleteInstallationResponse),
}

/// Sends one request and waits for its answer. Also returns the number of bytes sent. While it waits, it calls the
/// function again and again, each time after the wait that the function returned. `None` ends the call.
pub(crate) type Transport = Box<
    dyn FnMut(
            &UploadBatch,
            &mut dyn FnMut() -> Option<Duration>,
        ) -> (Result<CollectorAnswer, UploadError>, u64)
        + Send,
>;

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
            // Never 0, because an empty answer has the id 0.
            request_id: random_u64().max(1),
        };
        let request = Box::new((&request).into());
        Self::of(Payload::Reports { keys, request })
    }

    /// A request for the deletion of an installation.
    pub(crate) fn deletion(secret: Secret) -> Self {
        Self::of(Payload::Deletion(secret))
    }

    fn of(payload: Payload) -> Self {
        Self {
            payload,
            reserved: 0,
            network: NetworkKind::Unknown,
        }
    }

    /// Returns the kind of call, which determines the path.
    pub fn kind(&self) -> RequestKind {
        match self.payload {
            Payload::Reports { .. } => RequestKind::Upload,
            Payload::Deletion(_) => RequestKind::DeleteInstallation,
        }
    }

    /// Returns the encoded request, for hosts that send it themselves: the one message of a gRPC call to
    /// [`kind().path()`](RequestKind::path), with the metadata `authorization: Bearer <app key>`.
    pub fn encoded(&self) -> Vec<u8> {
        match &self.payload {
            Payload::Reports { request, .. } => request.encode_to_vec(),
            Payload::Deletion(secret) => deletion_request(secret).encode_to_vec(),
        }
    }

    /// Returns the number of reports in the request.
    pub fn n_reports(&self) -> usize {
        match &self.payload {
            Payload::Reports { keys, .. } => keys.len(),
            Payload::Deletion(_) => 0,
        }
    }

    pub(crate) fn encoded_len(&self) -> u64 {
        let length = match &self.payload {
            Payload::Reports { request, .. } => request.encoded_len(),
            Payload::Deletion(secret) => deletion_request(secret).encoded_len(),
        };
        length as u64
    }

    pub(crate) fn payload(&self) -> &Payload {
        &self.payload
    }

    /// Reads the bytes that a host received.
    pub(crate) fn read_answer(&self, bytes: &[u8]) -> Result<CollectorAnswer, UploadError> {
        let answer = match &self.payload {
            Payload::Reports { .. } => {
                v1::UploadResponse::decode(bytes).map(CollectorAnswer::Upload)
            }
            Payload::Deletion(_) => {
                v1::DeleteInstallationResponse::decode(bytes).map(CollectorAnswer::Deletion)
            }
        };
        answer.map_err(|error| bad_answer(&error))
    }
}

pub(crate) fn deletion_request(secret: &Secret) -> v1::DeleteInstallationRequest {
    v1::DeleteInstallationRequest {
        secret: secret.bytes().to_vec().into(),
    }
}

/// Checks that a deletion's answer names the installation. A proxy's empty answer names none.
pub(crate) fn check_deleted(
    secret: &Secret,
    response: &v1::DeleteInstallationResponse,
) -> Result<(), ParseError> {
    if response.installation_id == secret.installation().as_bytes()[..] {
        return Ok(());
    }
    let got = format!("{} bytes", response.installation_id.len());
    let expected = "the deleted installation";
    Err(ParseError::malformed("installation_id", expected, got))
}

pub(crate) fn bad_answer(error: &dyn std::error::Error) -> UploadError {
    UploadError::new(UploadFailureKind::Server, format!("bad answer: {error}"))
}

/// The answer can be decoded, but it is not the collector's answer to this request.
pub(crate) fn not_an_answer(error: &ParseError) -> UploadError {
    let hint =
        "nothing is acknowledged; does a proxy or a captive portal answer for the collector?";
    let text = format!("bad answer: {error}; {hint}");
    UploadError::new(UploadFailureKind::Server, text)
}

/// The decision of an answer about one report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// The collector has the report, from this request or an earlier one.
    Acked,
    /// The collector will never accept the report.
    Refused(Refusal),
    /// The collector may accept the same bytes later.
    Kept,
}

/// Reads the answer to a request with this id and these reports. An answer to another request decides nothing.
pub(crate) fn settle(
    request_id: u64,
    keys: &[ReportKey],
    response: v1::UploadResponse,
) -> Result<(Vec<(ReportKey, Disposition)>, Advice), ParseError> {
    let response = UploadResponse::try_from(response)?;
    response.check_answers(request_id, keys.len())?;
    let mut settled: Vec<_> = keys.iter().map(|key| (*key, Disposition::Acked)).collect();
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
            Some(outcome) if outcome == Outcome::Stored || outcome.is_ack() => Disposition::Acked,
            _ if result.keep() => Disposition::Kept,
            outcome => Disposition::Refused(Refusal {
                outcome: outcome.map(Into::into),
                reports: 1,
                detail: result.detail.clone(),
            }),
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

    const ID: u64 = 77;

    fn keys() -> Vec<ReportKey> {
        let key = |sequence| ReportKey {
            installation: InstallationId::from_secret(b"x"),
            stream: StreamId(1),
            sequence: Sequence::new(sequence).unwrap(),
        };
        (1..=4).map(key).collect()
    }

    #[test]
    fn a_deletion_shows_its_secret_to_the_collector_only() {
        let secret = Secret::from_bytes(&[0xab; 32]).unwrap();
        let batch = UploadBatch::deletion(secret);
        assert_eq!(batch.kind(), RequestKind::DeleteInstallation);
        assert!(batch.kind().path().ends_with("/DeleteInstallation"));
        let request = v1::DeleteInstallationRequest::decode(&batch.encoded()[..]).unwrap();
        assert_eq!(request.secret, [0xab; 32][..]);
        assert!(!format!("{batch:?}").contains("171"), "{batch:?}");
        assert!(batch.read_answer(b"no message").is_err());
    }

    /// A captive portal answers with status 200 and an empty body, or with the answer to another device.
    #[test]
    fn a_deletion_is_acknowledged_by_the_installations_id_alone() {
        let secret = Secret::from_bytes(&[0xab; 32]).unwrap();
        let batch = UploadBatch::deletion(secret.clone());
        let answered = |installation_id: &[u8]| {
            let answer = v1::DeleteInstallationResponse {
                tombstoned_at_unix_ms: 1,
                installation_id: installation_id.to_vec().into(),
            };
            match batch.read_answer(&answer.encode_to_vec()).unwrap() {
                CollectorAnswer::Deletion(response) => check_deleted(&secret, &response).is_ok(),
                CollectorAnswer::Upload(_) => false,
            }
        };
        assert!(answered(secret.installation().as_bytes()));
        assert!(!answered(InstallationId::from_secret(b"x").as_bytes()));
        assert!(!answered(&[]));
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
    fn only_reports_that_may_be_accepted_later_are_kept() {
        let response = v1::UploadResponse {
            results: vec![
                result(0, v1::Outcome::Duplicate, false),
                result(1, v1::Outcome::RefusedMalformed, false),
                result(2, v1::Outcome::RefusedQuota, true),
            ],
            retry_after_ms: Some(1_500),
            n_reports: 4,
            request_id: ID,
            ..Default::default()
        };
        let (settled, advice) = settle(ID, &keys(), response).unwrap();
        let how: Vec<_> = settled.into_iter().map(|(_, how)| how).collect();
        use Disposition::{Acked, Kept, Refused};
        let refusal = Refusal {
            outcome: Some(Outcome::RefusedMalformed.into()),
            reports: 1,
            detail: String::new(),
        };
        assert_eq!(how, [Acked, Refused(refusal), Kept, Acked]);
        assert_eq!(advice.retry_after, Some(Duration::from_millis(1_500)));
    }

    #[test]
    fn an_answer_about_reports_that_were_not_sent_deletes_nothing() {
        let response = v1::UploadResponse {
            results: vec![result(4, v1::Outcome::Duplicate, false)],
            n_reports: 4,
            request_id: ID,
            ..Default::default()
        };
        assert!(settle(ID, &keys(), response).is_err());
    }

    #[test]
    fn an_answer_that_does_not_name_the_request_acknowledges_nothing() {
        let answer = |n_reports, request_id| v1::UploadResponse {
            server_time_unix_ms: 1,
            n_reports,
            request_id,
            ..Default::default()
        };
        assert!(settle(ID, &keys(), answer(4, ID)).is_ok());
        for (n_reports, request_id) in [(0, 0), (4, 0), (0, ID), (3, ID), (4, ID + 1)] {
            let settled = settle(ID, &keys(), answer(n_reports, request_id));
            assert!(settled.is_err(), "{n_reports} {request_id}");
        }
    }
}
