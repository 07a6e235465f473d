//! Reports that were not stored, as the table `report_outcomes` has them.

use clickhouse::Row;
use serde::Serialize;

use crate::refusal_counts::Kind;

/// How many ended so, in a bucket of time (seconds since 1970).
#[derive(Debug, Clone, Default, PartialEq, Row, Serialize)]
pub(crate) struct OutcomeRow {
    pub(crate) bucket: u32,
    pub(crate) collector_id: u64,
    pub(crate) app_id: String,
    pub(crate) environment: String,
    pub(crate) outcome: String,
    pub(crate) reports: u64,
}

impl OutcomeRow {
    pub(crate) fn of(kind: Kind, collector_id: u64, reports: u64) -> Self {
        Self {
            bucket: kind.bucket,
            collector_id,
            app_id: kind.app_id,
            environment: kind.environment,
            outcome: kind.outcome.to_owned(),
            reports,
        }
    }
}
