//! Self-tests and failed starts of some buckets.

use clickhouse::Row;
use epwatch_model::Installation;
use serde::Deserialize;

use crate::judge::device_events::{FailedStart, GoldenTest};
use crate::read::census::Census;
use crate::read::error::{SourceError, failed};
use crate::read::span::Bucket;

use super::buckets::of_buckets;
use super::deduplicated::Counted;
use super::queries::{CohortNames, cohort_of};

/// Tests of sessions that vote. Most reports have no tests, and their other columns are not read. Binds: buckets, the
/// first of them.
const TESTS: &str = "
    SELECT (app_id, environment, model_id, model_version, chipset) AS cohort, installation, firmware, at_s,
        received_ms, stream_id, sequence, input_id, npu_hash, tolerance, max_abs, cosine, top1_equal, first_off,
        error_code
    FROM (
        SELECT app_id, environment, session_chipset[at] AS chipset, firmware, installation, toUInt32(bucket) AS at_s,
            toUnixTimestamp64Milli(received_at) AS received_ms, stream_id, sequence,
            indexOf(session_uid, uid) AS at,
            session_model_id[at] AS model_id, session_model_version[at] AS model_version,
            session_requests_npu[at] AS requests_npu, session_directive_id[at] AS directive_id,
            input_id, npu_hash, tolerance, max_abs, cosine, top1_equal, first_off, error_code
        FROM (
            SELECT * FROM counted_reports_v1
            WHERE notEmpty(self_test_session) AND NOT (is_late OR is_unproven)
                AND bucket IN ? AND received_at >= toDateTime(?)
        )
        ARRAY JOIN self_test_session AS uid, self_test_input_id AS input_id,
            self_test_npu_hash AS npu_hash, self_test_tolerance AS tolerance,
            self_test_max_abs AS max_abs, self_test_cosine AS cosine,
            self_test_top1_equal AS top1_equal, self_test_first_off_output AS first_off,
            self_test_error_code AS error_code
    )
    WHERE at > 0 AND requests_npu AND directive_id = ''";

/// Sessions that requested an accelerator and could not be created. Binds: buckets, the first of them.
const STARTS: &str = "
    SELECT (app_id, environment, start_model, start_version, of_cohort) AS cohort, installation, firmware, toUInt32(bucket) AS at_s, reason, failures
    FROM (
        SELECT * FROM counted_reports_v1
        WHERE notEmpty(start_failure_model_id) AND NOT (is_late OR is_unproven)
            AND bucket IN ? AND received_at >= toDateTime(?)
    )
    ARRAY JOIN start_failure_model_id AS start_model, start_failure_model_version AS start_version,
        start_failure_chipset AS of_cohort, start_failure_reason AS reason,
        start_failure_count AS failures
    WHERE notEmpty(of_cohort)";

#[derive(Debug, Row, Deserialize)]
struct TestRow<'a> {
    #[serde(borrow)]
    cohort: CohortNames<'a>,
    installation: Installation,
    firmware: &'a str,
    at_s: Bucket,
    received_ms: i64,
    stream_id: u64,
    sequence: u64,
    input_id: &'a str,
    npu_hash: &'a str,
    tolerance: Option<f64>,
    max_abs: Option<f64>,
    cosine: Option<f64>,
    top1_equal: Option<bool>,
    first_off: &'a str,
    error_code: i32,
}

#[derive(Debug, Row, Deserialize)]
struct StartRow<'a> {
    #[serde(borrow)]
    cohort: CohortNames<'a>,
    installation: Installation,
    firmware: &'a str,
    at_s: Bucket,
    reason: &'a str,
    failures: u64,
}

/// Adds the self-tests of some buckets.
pub(super) async fn read_tests(
    store: &Counted,
    buckets: &[Bucket],
    census: &mut Census,
) -> Result<(), SourceError> {
    if buckets.is_empty() {
        return Ok(());
    }
    let Census { texts, events, .. } = census;
    let what = "self-tests";
    let query = of_buckets(store.plain_query(TESTS), buckets);
    let mut rows = query.fetch::<TestRow<'_>>().map_err(failed(what))?;
    while let Some(row) = rows.next().await.map_err(failed(what))? {
        let at = (row.at_s, (row.received_ms, row.stream_id, row.sequence));
        let test = GoldenTest {
            installation: row.installation,
            firmware: texts.shared(row.firmware),
            input_id: texts.shared(row.input_id),
            npu_hash: texts.shared(row.npu_hash),
            tolerance: row.tolerance,
            max_abs: row.max_abs,
            cosine: row.cosine,
            top1_equal: row.top1_equal,
            first_off: texts.shared(row.first_off),
            has_run: row.error_code == 0,
            is_proven: true,
        };
        events.add_test(cohort_of(row.cohort), at, test);
    }
    Ok(())
}

/// Adds the failed starts of some buckets.
pub(super) async fn read_starts(
    store: &Counted,
    buckets: &[Bucket],
    census: &mut Census,
) -> Result<(), SourceError> {
    if buckets.is_empty() {
        return Ok(());
    }
    let Census { texts, events, .. } = census;
    let what = "failed starts";
    let query = of_buckets(store.plain_query(STARTS), buckets);
    let mut rows = query.fetch::<StartRow<'_>>().map_err(failed(what))?;
    while let Some(row) = rows.next().await.map_err(failed(what))? {
        let start = FailedStart {
            installation: row.installation,
            firmware: texts.shared(row.firmware),
            reason: texts.shared(row.reason),
            count: row.failures,
            is_proven: true,
        };
        events.add_start(cohort_of(row.cohort), row.at_s, start);
    }
    Ok(())
}
