//! Rows of `reports`, column by column; `migrations/0002_reports.sql` documents each. A number that is absent on the
//! wire is 0 or NULL, as in the schema; an enum is stored as its name. Times are milliseconds since 1970, buckets
//! seconds.

use epwatch_proto::placement::{CPU_EP, stored_share};
use epwatch_proto::{
    BaselineAbsence, BaselineKind, DeviceType, LatencySeries, Report, SelectionPolicy,
    SelfBaseline, Session, hex,
};
use epwatch_store::native::encode::{ColumnDef, column};

use super::column::{FillReport, TIME, U32S, WORD, WORDS};

const WORD_LISTS: &str = "Array(Array(LowCardinality(String)))";
const COUNTS: &str = "Map(LowCardinality(String), UInt64)";
const U64S: &str = "Array(UInt64)";
const F64S: &str = "Array(Float64)";
const MAYBE_U64S: &str = "Array(Nullable(UInt64))";
const MAYBE_F64S: &str = "Array(Nullable(Float64))";

/// One line per column.
#[rustfmt::skip]
pub(super) static REPORTS: [ColumnDef<FillReport>; 156] = [
    column("collector_id", "UInt64", |c, r| c.put(r.collector_id)),
    column("wal_offset", "UInt64", |c, r| c.put(r.wal_offset)),
    column("received_at", TIME, |c, r| c.put(r.received_ms)),
    column("bucket", "DateTime('UTC')", |c, r| c.put(r.bucket)),
    column("installation", "FixedString(16)", |c, r| c.put(*r.report.key.installation.as_bytes())),
    column("stream_id", "UInt64", |c, r| c.put(r.report.key.stream.0)),
    column("sequence", "UInt64", |c, r| c.put(r.report.key.sequence.get())),
    column("occurred_at", TIME, |c, r| c.put(r.occurred.at_ms)),
    column("occurred_source", WORD, |c, r| c.word(r.occurred.source)),
    column("clock_skew_ms", "Int64", |c, r| c.put(r.occurred.clock_skew_ms)),
    column("interval_length_ms", "UInt64", |c, r| c.put(r.report.interval_length_ms)),
    column("is_late", "Bool", |c, r| c.put(r.occurred.is_late)),
    column("is_unproven", "Bool", |c, r| c.put(r.mark.is_unproven)),
    column("is_own", "Bool", |c, r| c.put(r.mark.is_own)),
    column("network", "UInt32", |c, r| c.put(r.mark.network[0])),
    column("network_wide", "UInt32", |c, r| c.put(r.mark.network[1])),
    column("app_id", WORD, |c, r| c.word(&r.app_id)),
    column("environment", WORD, |c, r| c.word(&r.environment)),
    column("app_version", WORD, |c, r| c.word(&r.report.app.version)),
    column("app_build", WORD, |c, r| c.word(&r.report.app.build)),
    column("rollout_labels", "Map(LowCardinality(String), LowCardinality(String))", |c, r| c.list(&r.report.app.rollout_labels, |c, (key, value)| c.pair(key, value))),

    column("chipset", WORD, |c, r| c.word(&r.chipset)),
    column("chipset_raw", WORD, |c, r| c.word(&r.report.device.chipset_raw)),
    column("device_manufacturer", WORD, |c, r| c.word(&r.report.device.manufacturer)),
    column("device_model", WORD, |c, r| c.word(&r.report.device.model)),
    column("board", WORD, |c, r| c.word(&r.report.device.board)),
    column("soc_id", "UInt32", |c, r| c.put(r.report.device.soc_id.unwrap_or(0))),
    column("abi", WORD, |c, r| c.word(&r.report.device.abi)),
    column("os", WORD, |c, r| c.word(&r.report.device.os)),
    column("os_version", WORD, |c, r| c.word(&r.report.device.os_version)),
    column("api_level", "UInt32", |c, r| c.put(r.report.device.api_level.unwrap_or(0))),
    column("firmware", WORD, |c, r| c.word(&r.report.device.vendor_fingerprint_hash)),
    column("security_patch", WORD, |c, r| c.word(&r.report.device.security_patch)),
    column("hexagon_arch", "UInt32", |c, r| c.put(r.report.device.hexagon_arch.unwrap_or(0))),
    column("ram_class", WORD, |c, r| c.word(r.report.device.ram_class.as_str())),
    column("reportable_contexts", WORDS, |c, r| c.list(&r.report.device.reportable_contexts, |c, context| c.word(context.as_str()))),

    column("ort_version", WORD, |c, r| c.word(&r.report.runtime.ort_version)),
    column("ep_package", WORD, |c, r| c.word(&r.report.runtime.ep_package)),
    column("ep_version", WORD, |c, r| c.word(&r.report.runtime.ep_version)),
    column("ep_linkage", WORD, |c, r| c.word(r.report.runtime.ep_linkage.as_str())),
    column("backend", WORD, |c, r| c.word(r.report.runtime.backend.as_str())),
    column("qnn_sdk_version", WORD, |c, r| c.word(&r.report.runtime.qnn_sdk_version)),
    column("backend_build_id", WORD, |c, r| c.word(&r.report.runtime.backend_build_id)),
    column("sdk_name", WORD, |c, r| c.word(&r.report.sdk.name)),
    column("sdk_version", WORD, |c, r| c.word(&r.report.sdk.version)),
    column("sdk_language", WORD, |c, r| c.word(&r.report.sdk.language)),

    column("ended_stream_id", U64S, |c, r| c.list(&r.report.ended_streams, |c, e| c.put(e.stream.0))),
    column("ended_last_sequence", MAYBE_U64S, |c, r| c.list(&r.report.ended_streams, |c, e| c.maybe(e.last_sequence))),
    column("ended_unsealed_runs", MAYBE_U64S, |c, r| c.list(&r.report.ended_streams, |c, e| c.maybe(e.unsealed_runs))),

    column("session_uid", U64S, |c, r| c.list(&r.report.sessions, |c, s| c.put(s.uid.get()))),
    column("session_model_id", WORDS, |c, r| c.list(&r.report.sessions, |c, s| c.word(&s.model.id))),
    column("session_model_version", WORDS, |c, r| c.list(&r.report.sessions, |c, s| c.word(&s.model.version))),
    column("session_model_sha256", WORDS, |c, r| c.list(&r.report.sessions, |c, s| c.word(&s.model.sha256.map_or_else(String::new, |hash| hash.to_string())))),
    column("session_source_sha256", WORDS, |c, r| c.list(&r.report.sessions, |c, s| c.word(&s.model.source_sha256.map_or_else(String::new, |hash| hash.to_string())))),
    column("session_ep_compatibility", WORDS, |c, r| c.list(&r.report.sessions, |c, s| c.word(&s.model.ep_compatibility))),
    column("session_app_requested_eps", WORD_LISTS, |c, r| c.list(&r.report.sessions, |c, s| c.list(&s.requested_eps, |c, ep| c.word(ep)))),
    column("session_directive_id", WORDS, |c, r| c.list(&r.report.sessions, |c, s| c.word(&s.directive_id))),
    column("session_performance_mode", WORDS, |c, r| c.list(&r.report.sessions, |c, s| c.word(&s.options.performance_mode))),
    column("session_soc_model", WORDS, |c, r| c.list(&r.report.sessions, |c, s| c.word(&s.options.soc_model))),
    column("session_htp_arch", WORDS, |c, r| c.list(&r.report.sessions, |c, s| c.word(&s.options.htp_arch))),
    column("session_graph_optimization_level", WORDS, |c, r| c.list(&r.report.sessions, |c, s| c.word(&s.options.graph_optimization_level))),
    column("session_selection_policy", WORDS, |c, r| c.list(&r.report.sessions, |c, s| c.word(s.options.selection_policy.map_or("", SelectionPolicy::as_str)))),
    column("session_device_type", WORDS, |c, r| c.list(&r.report.sessions, |c, s| c.word(s.options.device_type.map_or("", DeviceType::as_str)))),
    column("session_devices", WORD_LISTS, |c, r| c.list(&r.report.sessions, |c, s| c.list(&s.devices, |c, device| c.word(&device.to_string())))),
    column("session_creation_us", U64S, |c, r| c.list(&r.report.sessions, |c, s| c.put(s.creation_us.unwrap_or(0)))),
    column("session_created_at", "Array(DateTime64(3, 'UTC'))", |c, r| c.list(&r.report.sessions, |c, s| c.put(s.created_at_unix_ms))),
    column("session_requested_eps", WORD_LISTS, |c, r| c.list(&r.report.sessions, |c, s| c.list(requested(s), |c, ep| c.word(ep)))),
    column("session_requests_npu", "Array(Bool)", |c, r| c.list(&r.report.sessions, |c, s| c.put(s.placement.requests_npu()))),
    column("session_chipset", WORDS, |c, r| c.list(&r.session_chipsets, |c, chipset| c.word(chipset))),
    column("session_graph_kind", WORDS, |c, r| c.list(&r.report.sessions, |c, s| c.word(s.placement.graph_kind.as_str()))),
    column("session_placement_source", WORDS, |c, r| c.list(&r.report.sessions, |c, s| c.word(s.placement.source.as_str()))),
    column("session_fingerprint_algorithm", U32S, |c, r| c.list(&r.report.sessions, |c, s| c.put(s.placement.fingerprint_algorithm()))),
    column("session_fingerprint_exact", U64S, |c, r| c.list(&r.report.sessions, |c, s| c.put(s.placement.exact.map_or(0, |f| f.value)))),
    column("session_fingerprint_normalised", U64S, |c, r| c.list(&r.report.sessions, |c, s| c.put(s.placement.normalised.map_or(0, |f| f.value)))),
    column("session_n_nodes", U32S, |c, r| c.list(&r.report.sessions, |c, s| c.put(s.placement.n_nodes))),
    column("session_npu_nodes", U32S, |c, r| c.list(&r.report.sessions, |c, s| c.put(s.placement.n_npu_nodes()))),
    column("session_npu_partitions", U32S, |c, r| c.list(&r.report.sessions, |c, s| c.put(s.placement.n_npu_partitions()))),
    column("session_cpu_nodes", U32S, |c, r| c.list(&r.report.sessions, |c, s| c.put(s.placement.n_cpu_nodes()))),
    column("session_cpu_benign_nodes", U32S, |c, r| c.list(&r.report.sessions, |c, s| c.put(s.placement.n_benign_cpu_nodes()))),
    column("session_npu_macs_share", "Array(Nullable(Float32))", |c, r| c.list(&r.report.sessions, |c, s| c.maybe(s.placement.npu_macs_share().map(stored_share)))),
    column("session_macs_attributed", "Array(Nullable(Float32))", |c, r| c.list(&r.report.sessions, |c, s| c.maybe(s.placement.macs_attributed.map(stored_share)))),
    column("session_reasons", WORD_LISTS, |c, r| c.list(&r.report.sessions, |c, s| c.list(&s.placement.reasons, |c, reason| c.word(reason.as_str())))),

    column("series_session", "Array(UInt16)", |c, r| c.list(&r.report.series, |c, s| c.put(place_of_session(&r.report, s)))),
    column("series_phase", WORDS, |c, r| c.list(&r.report.series, |c, s| c.word(s.stratum.phase.as_str()))),
    column("series_thermal", WORDS, |c, r| c.list(&r.report.series, |c, s| c.word(s.stratum.thermal.as_str()))),
    column("series_power_save", WORDS, |c, r| c.list(&r.report.series, |c, s| c.word(s.stratum.power_save.as_str()))),
    column("series_performance_mode", WORDS, |c, r| c.list(&r.report.series, |c, s| c.word(&s.stratum.performance_mode))),
    column("series_shape_key", WORDS, |c, r| c.list(&r.report.series, |c, s| c.word(&s.stratum.shape_key))),
    column("series_session_age", WORDS, |c, r| c.list(&r.report.series, |c, s| c.word(s.stratum.session_age.as_str()))),
    column("series_is_clean", "Array(Bool)", |c, r| c.list(&r.report.series, |c, s| c.put(s.stratum.is_clean()))),
    column("series_hist_scheme", WORDS, |c, r| c.list(&r.report.series, |c, s| c.word(s.hist_scheme.as_str()))),
    column("series_hist_bucket", "Array(Array(UInt16))", |c, r| c.list(&r.report.series, |c, s| c.numbers(s.histogram.indices()))),
    column("series_hist_count", "Array(Array(UInt64))", |c, r| c.list(&r.report.series, |c, s| c.numbers(s.histogram.counts()))),
    column("series_n", U64S, |c, r| c.list(&r.report.series, |c, s| c.put(s.n))),
    column("series_sum_us", F64S, |c, r| c.list(&r.report.series, |c, s| c.put(s.sum_us))),
    column("series_m2_us2", F64S, |c, r| c.list(&r.report.series, |c, s| c.put(s.m2_us2))),
    column("series_min_us", F64S, |c, r| c.list(&r.report.series, |c, s| c.put(s.min_us))),
    column("series_max_us", F64S, |c, r| c.list(&r.report.series, |c, s| c.put(s.max_us))),
    column("series_runs_seen", U64S, |c, r| c.list(&r.report.series, |c, s| c.put(s.runs_seen))),
    column("series_sampled_one_in", U32S, |c, r| c.list(&r.report.series, |c, s| c.put(s.sampled_one_in))),
    column("series_dropped_runs", U64S, |c, r| c.list(&r.report.series, |c, s| c.put(s.dropped_runs))),
    column("series_first_runs_us", "Array(Array(UInt64))", |c, r| c.list(&r.report.series, |c, s| c.numbers(&s.first_runs_us))),
    column("series_slow_fast_switches", MAYBE_U64S, |c, r| c.list(&r.report.series, |c, s| c.maybe(s.slow_fast_switches))),
    column("series_longest_slow_streak", MAYBE_U64S, |c, r| c.list(&r.report.series, |c, s| c.maybe(s.longest_slow_streak))),
    column("series_beyond_1_4x", MAYBE_U64S, |c, r| c.list(&r.report.series, |c, s| c.maybe(s.exceed.map(|exceed| exceed.beyond_1_4x)))),
    column("series_beyond_2x", MAYBE_U64S, |c, r| c.list(&r.report.series, |c, s| c.maybe(s.exceed.map(|exceed| exceed.beyond_2x)))),
    column("series_beyond_3x", MAYBE_U64S, |c, r| c.list(&r.report.series, |c, s| c.maybe(s.exceed.map(|exceed| exceed.beyond_3x)))),

    column("series_previous_version", WORDS, |c, r| c.list(&r.report.series, |c, s| c.word(previous(s).map_or("", |b| &b.model_version)))),
    column("series_previous_n", U64S, |c, r| c.list(&r.report.series, |c, s| c.put(previous(s).map_or(0, |b| b.n)))),
    column("series_previous_p10_us", F64S, |c, r| c.list(&r.report.series, |c, s| c.put(previous(s).map_or(0.0, |b| b.p10_us)))),
    column("series_previous_p50_us", F64S, |c, r| c.list(&r.report.series, |c, s| c.put(previous(s).map_or(0.0, |b| b.p50_us)))),
    column("series_previous_p95_us", F64S, |c, r| c.list(&r.report.series, |c, s| c.put(previous(s).map_or(0.0, |b| b.p95_us)))),
    column("series_previous_cv", F64S, |c, r| c.list(&r.report.series, |c, s| c.put(previous(s).map_or(0.0, |b| b.cv)))),
    column("series_earlier_firmware", WORDS, |c, r| c.list(&r.report.series, |c, s| c.word(earlier(s).map_or("", |b| &b.vendor_fingerprint_hash)))),
    column("series_earlier_runtime", WORDS, |c, r| c.list(&r.report.series, |c, s| c.word(&earlier(s).map_or_else(String::new, SelfBaseline::runtime_name)))),
    column("series_earlier_n", U64S, |c, r| c.list(&r.report.series, |c, s| c.put(earlier(s).map_or(0, |b| b.n)))),
    column("series_earlier_p10_us", F64S, |c, r| c.list(&r.report.series, |c, s| c.put(earlier(s).map_or(0.0, |b| b.p10_us)))),
    column("series_earlier_p50_us", F64S, |c, r| c.list(&r.report.series, |c, s| c.put(earlier(s).map_or(0.0, |b| b.p50_us)))),
    column("series_earlier_p95_us", F64S, |c, r| c.list(&r.report.series, |c, s| c.put(earlier(s).map_or(0.0, |b| b.p95_us)))),
    column("series_earlier_cv", F64S, |c, r| c.list(&r.report.series, |c, s| c.put(earlier(s).map_or(0.0, |b| b.cv)))),
    column("series_baseline_absence", WORDS, |c, r| c.list(&r.report.series, |c, s| c.word(s.baselines.absence().map_or("", BaselineAbsence::as_str)))),

    column("self_test_session", U64S, |c, r| c.list(&r.report.self_tests, |c, t| c.put(t.session_uid.get()))),
    column("self_test_input_id", WORDS, |c, r| c.list(&r.report.self_tests, |c, t| c.word(&t.input_id))),
    column("self_test_tolerance", MAYBE_F64S, |c, r| c.list(&r.report.self_tests, |c, t| c.maybe(t.tolerance))),
    column("self_test_npu_hash", "Array(String)", |c, r| c.list(&r.report.self_tests, |c, t| c.text(&hex(t.npu_output_hash.as_slice().as_flattened())))),
    column("self_test_cpu_hash", "Array(String)", |c, r| c.list(&r.report.self_tests, |c, t| c.text(&hex(t.cpu_output_hash.as_slice().as_flattened())))),
    column("self_test_max_abs", MAYBE_F64S, |c, r| c.list(&r.report.self_tests, |c, t| c.maybe(t.max_abs))),
    column("self_test_cosine", MAYBE_F64S, |c, r| c.list(&r.report.self_tests, |c, t| c.maybe(t.cosine))),
    column("self_test_top1_equal", "Array(Nullable(Bool))", |c, r| c.list(&r.report.self_tests, |c, t| c.maybe(t.top1_equal))),
    column("self_test_error_code", "Array(Int32)", |c, r| c.list(&r.report.self_tests, |c, t| c.put(t.error_code))),
    column("self_test_first_off_output", WORDS, |c, r| c.list(&r.report.self_tests, |c, t| c.word(&t.first_off_output))),

    column("start_failure_model_id", WORDS, |c, r| c.list(&r.report.start_failures, |c, f| c.word(&f.model.id))),
    column("start_failure_model_version", WORDS, |c, r| c.list(&r.report.start_failures, |c, f| c.word(&f.model.version))),
    column("start_failure_requested_eps", WORD_LISTS, |c, r| c.list(&r.report.start_failures, |c, f| c.list(&f.requested_eps, |c, ep| c.word(ep)))),
    column("start_failure_device_type", WORDS, |c, r| c.list(&r.report.start_failures, |c, f| c.word(f.device_type.map_or("", DeviceType::as_str)))),
    column("start_failure_chipset", WORDS, |c, r| c.list(&r.start_failure_chipsets, |c, chipset| c.word(chipset))),
    column("start_failure_phase", WORDS, |c, r| c.list(&r.report.start_failures, |c, f| c.word(f.phase.as_str()))),
    column("start_failure_reason", WORDS, |c, r| c.list(&r.report.start_failures, |c, f| c.word(f.reason.as_str()))),
    column("start_failure_ort_status", "Array(Int32)", |c, r| c.list(&r.report.start_failures, |c, f| c.put(f.ort_status_code))),
    column("start_failure_text", "Array(String)", |c, r| c.list(&r.report.start_failures, |c, f| c.text(&f.text))),
    column("start_failure_count", U64S, |c, r| c.list(&r.report.start_failures, |c, f| c.put(f.count))),

    column("run_error_session", U64S, |c, r| c.list(&r.report.run_errors, |c, e| c.put(e.session_uid.get()))),
    column("run_error_ort_status", "Array(Int32)", |c, r| c.list(&r.report.run_errors, |c, e| c.put(e.ort_status_code))),
    column("run_error_count", U64S, |c, r| c.list(&r.report.run_errors, |c, e| c.put(e.count))),

    column("health_runs_observed", "UInt64", |c, r| c.put(r.report.health.runs_observed)),
    column("health_runs_recorded", "UInt64", |c, r| c.put(r.report.health.runs_recorded)),
    column("health_dropped_reports", COUNTS, |c, r| c.list(&r.report.health.dropped, |c, (reason, dropped)| c.count(reason.as_str(), dropped.reports))),
    column("health_dropped_runs", COUNTS, |c, r| c.list(&r.report.health.dropped, |c, (reason, dropped)| c.count(reason.as_str(), dropped.runs))),
    column("health_overflowed_keys", "UInt64", |c, r| c.put(r.report.health.overflowed_keys)),
    column("health_upload_failures", COUNTS, |c, r| c.list(&r.report.health.upload_failures, |c, (kind, n)| c.count(kind.as_str(), *n))),
    column("health_spool_bytes", "UInt64", |c, r| c.put(r.report.health.spool_bytes)),
    column("health_spool_oldest_ms", "Nullable(UInt64)", |c, r| c.maybe(r.report.health.spool_oldest_ms)),
    column("health_directives_applied", "UInt64", |c, r| c.put(r.report.health.directives_applied)),
    column("health_directives_refused", COUNTS, |c, r| c.list(&r.report.health.directives_refused, |c, (kind, n)| c.count(kind.as_str(), *n))),
    column("health_consent_changes", "UInt64", |c, r| c.put(r.report.health.consent_changes)),
    column("health_internal_errors", "UInt64", |c, r| c.put(r.report.health.internal_errors)),
];

fn requested(session: &Session) -> impl Iterator<Item = &String> {
    let requested = session.placement.requested_eps.iter();
    requested.filter(|ep| *ep != CPU_EP)
}

/// Returns the session's number, counted from 1; 0 if the report has no such session.
fn place_of_session(report: &Report, series: &LatencySeries) -> u16 {
    let mut uids = report.sessions.iter().map(|session| session.uid);
    let place = uids.position(|uid| uid == series.session_uid);
    let place = place.map_or(0, |index| index + 1);
    u16::try_from(place).expect("at most 64 sessions")
}

fn previous(series: &LatencySeries) -> Option<&SelfBaseline> {
    series.baselines.of_kind(BaselineKind::PreviousVersion)
}

fn earlier(series: &LatencySeries) -> Option<&SelfBaseline> {
    series.baselines.of_kind(BaselineKind::EarlierRuntime)
}
