//! What is looked at before a report goes into the WAL: all of it. Whatever is refused is refused
//! here, with the field's name, so the writer finds only reports that it can store.

use std::borrow::Cow;

use epwatch_proto::{FastValidator, Outcome, Report, ReportKey};

/// What ingest needs to know of a sound report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ValidReport<'a> {
    pub(crate) key: ReportKey,
    pub(crate) app_id: Cow<'a, str>,
    pub(crate) environment: Cow<'a, str>,
}

impl ValidReport<'_> {
    /// Its app and environment.
    pub(crate) fn app(&self) -> (&str, &str) {
        (&self.app_id, &self.environment)
    }
}

/// Why a report does not go into the WAL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) outcome: Outcome,
    /// The field and what was expected of it.
    pub(crate) detail: String,
    /// Known even of reports that are broken behind it.
    pub(crate) key: Option<ReportKey>,
    /// The app and environment of a sound report.
    pub(crate) app: Option<(String, String)>,
}

/// Checks one report from its first byte to its last. Reports of one call share one `validator`.
pub(crate) fn check<'a>(
    bytes: &'a [u8],
    validator: &mut FastValidator<'a>,
) -> Result<ValidReport<'a>, Refusal> {
    // Nearly all that comes is sound, and the quick pass sees that without building anything.
    if let Some(valid) = validator.validate(bytes) {
        return Ok(ValidReport {
            key: valid.key,
            app_id: Cow::Borrowed(valid.app_id),
            environment: Cow::Borrowed(valid.environment),
        });
    }
    let report = Report::parse(bytes).map_err(|error| Refusal {
        outcome: error.outcome(),
        detail: error.detail(),
        key: ReportKey::peek(bytes),
        app: None,
    })?;
    Ok(ValidReport {
        key: report.key,
        app_id: Cow::Owned(report.app.id),
        environment: Cow::Owned(report.app.environment),
    })
}
