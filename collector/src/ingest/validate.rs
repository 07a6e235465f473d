//! Validates a report before it goes into the WAL, so that the writer reads only reports that it can store. A refusal
//! names the field. It never decides about duplicates, quotas or keys: [`super`] does.

use std::borrow::Cow;

use epwatch_proto::{FastValidator, Outcome, Report, ReportKey};

/// The fields of a valid report that ingest uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CheckedReport<'a> {
    pub(crate) key: ReportKey,
    pub(crate) app_id: Cow<'a, str>,
    pub(crate) environment: Cow<'a, str>,
    /// Latency series with impossible numbers. The writer leaves them out.
    pub(crate) n_dropped_series: usize,
}

impl CheckedReport<'_> {
    pub(crate) fn app(&self) -> (&str, &str) {
        (&self.app_id, &self.environment)
    }
}

/// A report that does not go into the WAL. This includes duplicates, although their outcome is an ack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RefusedReport {
    pub(crate) outcome: Outcome,
    /// The field and its expected content.
    pub(crate) detail: String,
    /// Also present if the report is invalid, as long as its key could be read.
    pub(crate) key: Option<ReportKey>,
    /// App and environment; `None` if the report is invalid.
    pub(crate) app: Option<(String, String)>,
}

/// Validates every byte of one report. Reports of one call share one `validator`.
pub(crate) fn validate_report<'a>(
    bytes: &'a [u8],
    validator: &mut FastValidator<'a>,
) -> Result<CheckedReport<'a>, RefusedReport> {
    // Nearly all reports are valid, and the fast pass confirms this without an allocation.
    if let Some(valid) = validator.validate(bytes) {
        return Ok(CheckedReport {
            key: valid.key,
            app_id: Cow::Borrowed(valid.app_id),
            environment: Cow::Borrowed(valid.environment),
            n_dropped_series: 0,
        });
    }
    let report = Report::parse(bytes).map_err(|error| RefusedReport {
        outcome: error.outcome(),
        detail: error.detail(),
        key: ReportKey::peek(bytes),
        app: None,
    })?;
    let n_dropped_series = report.n_dropped_series(bytes);
    Ok(CheckedReport {
        key: report.key,
        app_id: Cow::Owned(report.app.id),
        n_dropped_series,
        environment: Cow::Owned(report.app.environment),
    })
}
