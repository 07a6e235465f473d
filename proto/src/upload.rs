//! One call of Upload, both ways: the collector parses requests, the device parses responses.

use bytes::Bytes;

use crate::{
    bounds::{at_most, list, required, required_text, text, texts, unix_ms},
    device::Sdk,
    directive::SignedDirective,
    error::{Inside, MAX_DETAIL_BYTES, ParseError},
    ids::ReportKey,
    outcome::Outcome,
    report::MAX_BOOT_ID_BYTES,
    text::clipped,
    v1,
};

/// Largest encoded request, unless the last response allowed another limit.
pub const MAX_REQUEST_BYTES: usize = 4 << 20;
/// Most reports of one request.
pub const MAX_REPORTS: usize = 1_000;
/// Most directives of a response, and most ids of a request.
pub const MAX_DIRECTIVES: usize = 64;
/// Largest attestation token.
pub const MAX_ATTESTATION_BYTES: usize = 16 << 10;

/// One call of Upload. The reports are the bytes that came in, not yet parsed: one that is
/// malformed must not take the others with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadRequest {
    /// Encoded reports, 1 to [`MAX_REPORTS`].
    pub reports: Vec<Bytes>,
    /// The device's clocks when the call was made.
    pub clock: SendClock,
    /// The SDK that sends.
    pub sdk: Sdk,
    /// Directives that the device holds.
    pub held_directive_ids: Vec<String>,
    /// Proof by the platform.
    pub attestation: Option<Attestation>,
}

/// A device's clocks at one instant.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SendClock {
    /// Wall clock.
    pub wall_unix_ms: Option<i64>,
    /// Time since boot, sleep included.
    pub uptime_ms: Option<u64>,
    /// Id of the boot; empty: not known.
    pub boot_id: String,
}

/// A platform's attestation, opaque here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attestation {
    /// For example `play_integrity`.
    pub kind: String,
    /// The platform's token.
    pub token: Bytes,
}

/// The answer to Upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadResponse {
    /// One for each report that was not newly stored.
    pub results: Vec<ReportResult>,
    /// The collector's wall clock.
    pub server_time_unix_ms: i64,
    /// Wait at least this long before the next call.
    pub retry_after_ms: Option<u64>,
    /// Send this often from now on.
    pub next_interval_ms: Option<u64>,
    /// Accept no larger request than this.
    pub max_request_bytes: Option<u64>,
    /// Directives that the device does not hold; signatures not yet verified.
    pub directives: Vec<SignedDirective>,
}

/// How one report of a request ended, if it was not newly stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportResult {
    /// Position in the request.
    pub index: u32,
    /// Key, if the report could be read that far.
    pub key: Option<ReportKey>,
    /// How it ended; `None`: an outcome that a newer collector has and this version does not.
    pub outcome: Option<Outcome>,
    /// Whether the same bytes may be accepted later.
    pub retryable: bool,
    /// Names the refused field and what was expected.
    pub detail: String,
}

impl ReportResult {
    /// A result whose retry advice follows from its outcome; the detail is clipped.
    pub fn new(index: u32, key: Option<ReportKey>, outcome: Outcome, detail: &str) -> Self {
        Self {
            index,
            key,
            outcome: Some(outcome),
            retryable: outcome.retryable(),
            detail: clipped(detail, MAX_DETAIL_BYTES),
        }
    }

    /// Whether the device keeps its copy.
    pub fn keep(&self) -> bool {
        self.retryable && !self.outcome.is_some_and(Outcome::is_ack)
    }
}

impl TryFrom<v1::UploadRequest> for UploadRequest {
    type Error = ParseError;

    fn try_from(r: v1::UploadRequest) -> Result<Self, ParseError> {
        if r.reports.is_empty() {
            return Err(ParseError::malformed("reports", "1 or more", 0));
        }
        at_most("reports", r.reports.len(), MAX_REPORTS)?;
        let sdk = required("sdk", r.sdk)?;
        let clock = r.clock.unwrap_or_default();
        let attestation = r.attestation.map(Attestation::try_from).transpose();
        Ok(Self {
            reports: r.reports,
            clock: SendClock::try_from(clock).inside("clock")?,
            sdk: Sdk::try_from(sdk).inside("sdk")?,
            held_directive_ids: texts(
                "held_directive_ids",
                r.held_directive_ids,
                MAX_DIRECTIVES,
                64,
            )?,
            attestation: attestation.inside("attestation")?,
        })
    }
}

impl TryFrom<v1::SendClock> for SendClock {
    type Error = ParseError;

    fn try_from(c: v1::SendClock) -> Result<Self, ParseError> {
        let wall = c.wall_unix_ms.map(|t| unix_ms("wall_unix_ms", t));
        Ok(Self {
            wall_unix_ms: wall.transpose()?,
            uptime_ms: c.uptime_ms,
            boot_id: text("boot_id", c.boot_id, MAX_BOOT_ID_BYTES)?,
        })
    }
}

impl TryFrom<v1::Attestation> for Attestation {
    type Error = ParseError;

    fn try_from(a: v1::Attestation) -> Result<Self, ParseError> {
        if a.token.len() > MAX_ATTESTATION_BYTES {
            let expected = format!("at most {MAX_ATTESTATION_BYTES} bytes");
            return Err(ParseError::malformed("token", expected, a.token.len()));
        }
        Ok(Self {
            kind: required_text("kind", a.kind, 32)?,
            token: a.token,
        })
    }
}

impl TryFrom<v1::UploadResponse> for UploadResponse {
    type Error = ParseError;

    fn try_from(r: v1::UploadResponse) -> Result<Self, ParseError> {
        let directive = SignedDirective::try_from;
        Ok(Self {
            results: list("results", r.results, MAX_REPORTS, ReportResult::try_from)?,
            server_time_unix_ms: unix_ms("server_time_unix_ms", r.server_time_unix_ms)?,
            retry_after_ms: r.retry_after_ms,
            next_interval_ms: r.next_interval_ms,
            max_request_bytes: r.max_request_bytes,
            directives: list("directives", r.directives, MAX_DIRECTIVES, directive)?,
        })
    }
}

impl TryFrom<v1::ReportResult> for ReportResult {
    type Error = ParseError;

    fn try_from(r: v1::ReportResult) -> Result<Self, ParseError> {
        let key = r.key.map(ReportKey::try_from).transpose().inside("key")?;
        Ok(Self {
            index: r.index,
            key,
            // A device outlives collectors: what it does not know it judges by `retryable`.
            outcome: Outcome::parse("outcome", r.outcome).ok(),
            retryable: r.retryable,
            detail: text("detail", r.detail, MAX_DETAIL_BYTES)?,
        })
    }
}

impl From<&UploadRequest> for v1::UploadRequest {
    fn from(r: &UploadRequest) -> Self {
        Self {
            reports: r.reports.clone(),
            clock: Some((&r.clock).into()),
            sdk: Some((&r.sdk).into()),
            held_directive_ids: r.held_directive_ids.clone(),
            attestation: r.attestation.as_ref().map(|a| v1::Attestation {
                kind: a.kind.clone(),
                token: a.token.clone(),
            }),
        }
    }
}

impl From<&SendClock> for v1::SendClock {
    fn from(c: &SendClock) -> Self {
        Self {
            wall_unix_ms: c.wall_unix_ms,
            uptime_ms: c.uptime_ms,
            boot_id: c.boot_id.clone(),
        }
    }
}

impl From<&UploadResponse> for v1::UploadResponse {
    fn from(r: &UploadResponse) -> Self {
        Self {
            results: r.results.iter().map(Into::into).collect(),
            server_time_unix_ms: r.server_time_unix_ms,
            retry_after_ms: r.retry_after_ms,
            next_interval_ms: r.next_interval_ms,
            max_request_bytes: r.max_request_bytes,
            directives: r.directives.iter().map(Into::into).collect(),
        }
    }
}

impl From<&ReportResult> for v1::ReportResult {
    fn from(r: &ReportResult) -> Self {
        Self {
            index: r.index,
            key: r.key.as_ref().map(Into::into),
            outcome: r.outcome.map_or(0, Outcome::to_wire),
            retryable: r.retryable,
            detail: r.detail.clone(),
        }
    }
}
