//! The SDK's own counters, cumulative since the stream began: what makes the loss ledger close.

use std::collections::BTreeMap;

use crate::{bounds::at_most, error::ParseError, v1, wire_enum::wire_enum};

wire_enum! {
    /// Why the device gave something up.
    pub enum DropReason: DropReason {
        /// The spool was full: the oldest goes first.
        SpoolFull = SpoolFull "spool_full",
        /// Older than the spool keeps.
        SpoolAge = SpoolAge "spool_age",
        /// The spool could not be written.
        SpoolIo = SpoolIo "spool_io",
        /// Torn or corrupt on disk.
        SpoolCorrupt = SpoolCorrupt "spool_corrupt",
        /// Refused for good by the collector.
        Refused = Refused "refused",
        /// Another thread held the series at that moment.
        Contended = Contended "contended",
        /// Recorded at the highest trackable value; nothing is missing.
        Clipped = Clipped "clipped",
        /// Consent was withdrawn.
        Consent = Consent "consent",
    }
}

wire_enum! {
    /// How an upload failed.
    pub enum UploadFailureKind: UploadFailureKind {
        /// No connection.
        Unreachable = Unreachable "unreachable",
        /// No answer in time.
        Timeout = Timeout "timeout",
        /// The connection could not be secured.
        Tls = Tls "tls",
        /// The key was refused.
        Unauthenticated = Unauthenticated "unauthenticated",
        /// The collector asked to slow down.
        PushedBack = PushedBack "pushed_back",
        /// The collector failed.
        Server = Server "server",
        /// The byte budget is used up.
        Budget = Budget "budget",
    }
}

wire_enum! {
    /// Why a directive was refused.
    pub enum DirectiveRefusal: DirectiveRefusal {
        /// The signature does not fit.
        BadSignature = BadSignature "bad_signature",
        /// The key is not known.
        UnknownKey = UnknownKey "unknown_key",
        /// It is over.
        Expired = Expired "expired",
        /// It is for others.
        OutOfScope = OutOfScope "out_of_scope",
        /// It cannot be read.
        Malformed = Malformed "malformed",
    }
}

/// What was given up for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dropped {
    /// Sealed reports, each of which has a sequence number that will never arrive.
    pub reports: u64,
    /// Runs, those inside such reports included.
    pub runs: u64,
}

/// The SDK's own counters, cumulative since the stream began.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SdkHealth {
    /// Runs the host made on observed sessions.
    pub runs_observed: u64,
    /// Runs in the histograms of this and earlier reports of the stream.
    pub runs_recorded: u64,
    /// What was given up, by reason.
    pub dropped: BTreeMap<DropReason, Dropped>,
    /// Series that went into the overflow stratum.
    pub overflowed_keys: u64,
    /// Failed uploads by kind.
    pub upload_failures: BTreeMap<UploadFailureKind, u64>,
    /// Bytes in the spool.
    pub spool_bytes: u64,
    /// Age of the oldest report in the spool; `None`: the spool is empty.
    pub spool_oldest_ms: Option<u64>,
    /// Directives applied.
    pub directives_applied: u64,
    /// Directives refused, by reason.
    pub directives_refused: BTreeMap<DirectiveRefusal, u64>,
    /// Times that consent was given or withdrawn.
    pub consent_changes: u64,
}

impl SdkHealth {
    /// Reports given up for any reason.
    pub fn dropped_reports(&self) -> u64 {
        let reports = self.dropped.values().map(|d| d.reports);
        reports.fold(0, u64::saturating_add)
    }
}

/// A list with a key of its own per entry, as a map.
fn by_key<W, K: Ord + Copy, V>(
    field: &str,
    entries: Vec<W>,
    most: usize,
    parse: impl Fn(W) -> Result<(K, V), ParseError>,
) -> Result<BTreeMap<K, V>, ParseError> {
    at_most(field, entries.len(), most)?;
    let mut map = BTreeMap::new();
    for (index, entry) in entries.into_iter().enumerate() {
        let at = || format!("{field}[{index}]");
        let (key, value) = parse(entry).map_err(|error| error.inside(&at()))?;
        if map.insert(key, value).is_some() {
            return Err(ParseError::malformed(
                &at(),
                "each at most once",
                "a second one",
            ));
        }
    }
    Ok(map)
}

impl TryFrom<v1::SdkHealth> for SdkHealth {
    type Error = ParseError;

    fn try_from(h: v1::SdkHealth) -> Result<Self, ParseError> {
        let dropped = by_key("dropped", h.dropped, DropReason::ALL.len(), |d| {
            let value = Dropped {
                reports: d.reports,
                runs: d.runs,
            };
            Ok((DropReason::parse("reason", d.reason)?, value))
        })?;
        let kinds = UploadFailureKind::ALL.len();
        let upload_failures = by_key("upload_failures", h.upload_failures, kinds, |f| {
            Ok((UploadFailureKind::parse("kind", f.kind)?, f.count))
        })?;
        let reasons = DirectiveRefusal::ALL.len();
        let refused = by_key("directives_refused", h.directives_refused, reasons, |r| {
            Ok((DirectiveRefusal::parse("reason", r.reason)?, r.count))
        })?;
        Ok(Self {
            runs_observed: h.runs_observed,
            runs_recorded: h.runs_recorded,
            dropped,
            overflowed_keys: h.overflowed_keys,
            upload_failures,
            spool_bytes: h.spool_bytes,
            spool_oldest_ms: h.spool_oldest_ms,
            directives_applied: h.directives_applied,
            directives_refused: refused,
            consent_changes: h.consent_changes,
        })
    }
}

impl From<&SdkHealth> for v1::SdkHealth {
    fn from(h: &SdkHealth) -> Self {
        let dropped = h.dropped.iter().map(|(reason, d)| v1::Dropped {
            reason: reason.to_wire(),
            reports: d.reports,
            runs: d.runs,
        });
        let failures = h
            .upload_failures
            .iter()
            .map(|(kind, n)| v1::UploadFailures {
                kind: kind.to_wire(),
                count: *n,
            });
        let refused = h.directives_refused.iter();
        let refused = refused.map(|(reason, n)| v1::DirectivesRefused {
            reason: reason.to_wire(),
            count: *n,
        });
        Self {
            runs_observed: h.runs_observed,
            runs_recorded: h.runs_recorded,
            dropped: dropped.collect(),
            overflowed_keys: h.overflowed_keys,
            upload_failures: failures.collect(),
            spool_bytes: h.spool_bytes,
            spool_oldest_ms: h.spool_oldest_ms,
            directives_applied: h.directives_applied,
            directives_refused: refused.collect(),
            consent_changes: h.consent_changes,
        }
    }
}
