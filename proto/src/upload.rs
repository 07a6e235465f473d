//! One call of Upload, both ways: the collector parses requests, the device parses responses.

use bytes::Bytes;

use crate::{
    device::Sdk,
    directive::SignedDirective,
    error::{MAX_DETAIL_BYTES, ParseError},
    ids::{MAX_DIRECTIVE_ID_BYTES, ReportKey},
    message::{
        Blob, Bool, Inner, InnerOrDefault, Kind, List, Maybe, MaybeInner, Name, Names, Text, U32,
        U64, UnixMs, at_most, message,
    },
    outcome::Outcome,
    report::MAX_BOOT_ID_BYTES,
    text::clipped,
    v1,
    wire_enum::WireEnum,
};

pub use crate::upload_wire::{MAX_DIRECTIVES, MAX_REPORTS};

/// Largest encoded request, unless the last response allowed another limit.
pub const MAX_REQUEST_BYTES: usize = 4 << 20;
/// Largest attestation token.
pub const MAX_ATTESTATION_BYTES: usize = 16 << 10;

/// One call of Upload. The reports are the received bytes, not parsed: a malformed report must not fail the others.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct UploadRequest {
    /// Encoded reports, 1 to [`MAX_REPORTS`].
    pub reports: Vec<Bytes>,
    pub clock: SendClock,
    pub sdk: Sdk,
    pub held_directive_ids: Vec<String>,
    pub attestation: Option<Attestation>,
    pub request_id: u64,
}

/// A device's clocks at one instant.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct SendClock {
    pub wall_unix_ms: Option<i64>,
    pub uptime_ms: Option<u64>,
    pub boot_id: String,
}

/// A platform's attestation, opaque here.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct Attestation {
    pub kind: String,
    pub token: Bytes,
}

/// The answer to Upload.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct UploadResponse {
    pub results: Vec<ReportResult>,
    pub server_time_unix_ms: i64,
    pub retry_after_ms: Option<u64>,
    pub next_interval_ms: Option<u64>,
    pub max_request_bytes: Option<u64>,
    pub directives: Vec<SignedDirective>,
    pub n_reports: u32,
    pub request_id: u64,
}

/// Outcome of one report of a request, if it was not newly stored.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct ReportResult {
    pub index: u32,
    pub key: Option<ReportKey>,
    /// `None` for an outcome that a newer collector knows and this version does not.
    pub outcome: Option<Outcome>,
    pub retryable: bool,
    pub detail: String,
}

impl UploadResponse {
    /// Checks that this answers the request with this id and number of reports. Only then is a report without a result
    /// stored.
    ///
    /// # Errors
    /// Names the field that differs. An answer that a proxy or a captive portal made up has neither field.
    pub fn check_answers(&self, request_id: u64, n_reports: usize) -> Result<(), ParseError> {
        if usize::try_from(self.n_reports) != Ok(n_reports) {
            let expected = format!("{n_reports}, as in the request");
            return Err(ParseError::malformed("n_reports", expected, self.n_reports));
        }
        if self.request_id != request_id {
            let expected = "the request's";
            return Err(ParseError::malformed("request_id", expected, "another"));
        }
        Ok(())
    }
}

impl ReportResult {
    /// Returns a result whose retry advice follows from its outcome; the detail is clipped.
    pub fn new(index: u32, key: Option<ReportKey>, outcome: Outcome, detail: &str) -> Self {
        Self {
            index,
            key,
            outcome: Some(outcome),
            retryable: outcome.retryable(),
            detail: clipped(detail, MAX_DETAIL_BYTES),
        }
    }

    /// Returns whether the device keeps its copy.
    pub fn keep(&self) -> bool {
        self.retryable && !self.outcome.is_some_and(Outcome::is_ack)
    }
}

/// Encoded reports, 1 to [`MAX_REPORTS`].
struct Reports;

impl Kind for Reports {
    type Wire = Vec<Bytes>;
    type Parsed = Vec<Bytes>;

    fn parse(field: &str, reports: Vec<Bytes>) -> Result<Vec<Bytes>, ParseError> {
        if reports.is_empty() {
            return Err(ParseError::malformed(field, "1 or more", 0));
        }
        at_most(field, reports.len(), MAX_REPORTS)?;
        Ok(reports)
    }

    fn encode(reports: &Vec<Bytes>) -> Vec<Bytes> {
        reports.clone()
    }
}

message! {
    UploadRequest = v1::UploadRequest {
        reports: Reports,
        clock: InnerOrDefault<SendClock>,
        sdk: Inner<Sdk>,
        held_directive_ids: Names<MAX_DIRECTIVES, MAX_DIRECTIVE_ID_BYTES>,
        attestation: MaybeInner<Attestation>,
        request_id: U64,
    }
}

message! {
    SendClock = v1::SendClock {
        wall_unix_ms: Maybe<UnixMs>,
        uptime_ms: Maybe<U64>,
        boot_id: Text<MAX_BOOT_ID_BYTES>,
    }
}

message! {
    Attestation = v1::Attestation {
        kind: Name<32>,
        token: Blob<0, MAX_ATTESTATION_BYTES>,
    }
}

message! {
    UploadResponse = v1::UploadResponse {
        results: List<ReportResult, MAX_REPORTS>,
        server_time_unix_ms: UnixMs,
        retry_after_ms: Maybe<U64>,
        next_interval_ms: Maybe<U64>,
        max_request_bytes: Maybe<U64>,
        directives: List<SignedDirective, MAX_DIRECTIVES>,
        n_reports: U32,
        request_id: U64,
    }
}

/// An outcome, which a newer collector may have introduced. For an unknown outcome `retryable` decides.
struct KnownOutcome;

impl Kind for KnownOutcome {
    type Wire = i32;
    type Parsed = Option<Outcome>;

    fn parse(_field: &str, outcome: i32) -> Result<Option<Outcome>, ParseError> {
        Ok(Outcome::from_number(outcome))
    }

    fn encode(outcome: &Option<Outcome>) -> i32 {
        outcome.map_or(0, Outcome::to_wire)
    }
}

message! {
    ReportResult = v1::ReportResult {
        index: U32,
        key: MaybeInner<ReportKey>,
        outcome: KnownOutcome,
        retryable: Bool,
        detail: Text<MAX_DETAIL_BYTES>,
    }
}
