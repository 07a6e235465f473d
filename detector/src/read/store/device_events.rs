//! Queries for self-tests and failed starts.

use epwatch_proto::placement::QNN_EP;

use crate::read::Span;
use crate::read::error::{SourceError, failed};
use crate::read::reported::{StartRow, TestRow};

use super::deduplicated::Counted;

/// Each device's latest test of each input. Most reports have none: their other columns are not read.
/// Binds: look-back, its start.
const TESTS: &str = "
    SELECT app_id, environment, model_id, model_version, chipset, installation, input_id,
        argMax((firmware, npu_hash, tolerance, max_abs, cosine, top1_equal, error_code),
            (received_at, stream_id, sequence)) AS told
    FROM (
        SELECT app_id, environment, received_at, stream_id, sequence, chipset, firmware,
            installation, indexOf(session_uid, uid) AS at,
            session_model_id[at] AS model_id, session_model_version[at] AS model_version,
            session_requests_npu[at] AS requests_npu, session_directive_id[at] AS directive_id,
            input_id, npu_hash, tolerance, max_abs, cosine, top1_equal, error_code
        FROM (
            SELECT * FROM counted_reports_v1
            WHERE notEmpty(self_test_session) AND NOT (is_late OR is_unproven)
                AND bucket >= toDateTime(?) AND bucket < toDateTime(?)
                AND received_at >= toDateTime(?)
        )
        ARRAY JOIN self_test_session AS uid, self_test_input_id AS input_id,
            self_test_npu_hash AS npu_hash, self_test_tolerance AS tolerance,
            self_test_max_abs AS max_abs, self_test_cosine AS cosine,
            self_test_top1_equal AS top1_equal, self_test_error_code AS error_code
    )
    WHERE at > 0 AND requests_npu AND directive_id = ''
    GROUP BY app_id, environment, model_id, model_version, chipset, installation, input_id
    ORDER BY app_id, environment, model_id, model_version, chipset, installation, input_id";

/// Sessions that were asked onto the NPU and could not be made. Binds: window, its
/// start, NPU's EP.
const STARTS: &str = "
    SELECT app_id, environment, model_id, model_version, chipset, installation, firmware, reason,
        sum(failures) AS n
    FROM (
        SELECT app_id, environment, chipset, firmware, installation, start_model AS model_id,
            start_version AS model_version, reason, failures
        FROM (
            SELECT * FROM counted_reports_v1
            WHERE notEmpty(start_failure_model_id) AND NOT (is_late OR is_unproven)
                AND bucket >= toDateTime(?) AND bucket < toDateTime(?)
                AND received_at >= toDateTime(?)
        )
        ARRAY JOIN start_failure_model_id AS start_model,
            start_failure_model_version AS start_version,
            start_failure_requested_eps AS eps, start_failure_reason AS reason,
            start_failure_count AS failures
        WHERE empty(eps) OR has(eps, ?)
    )
    GROUP BY app_id, environment, model_id, model_version, chipset, installation, firmware, reason
    ORDER BY app_id, environment, model_id, model_version, chipset, installation, firmware, reason";

/// Reads the rows of all apps: most reports have neither, so they are few.
pub(super) async fn read(
    store: &Counted,
    span: &Span,
) -> Result<(Vec<TestRow>, Vec<StartRow>), SourceError> {
    let tests = store.plain_query(TESTS).bind(span.earliest_s());
    let tests = tests.bind(span.end_s()).bind(span.earliest_s());
    let tests = tests.fetch_all();
    let starts = store.plain_query(STARTS).bind(span.start_s());
    let starts = starts.bind(span.end_s()).bind(span.start_s());
    let starts = starts.bind(QNN_EP).fetch_all();
    let (tests, starts) = tokio::join!(tests, starts);
    Ok((
        tests.map_err(failed("self-tests"))?,
        starts.map_err(failed("failed starts"))?,
    ))
}
