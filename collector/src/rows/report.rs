//! A report's row: numbers absent on the wire are 0 or NULL as the schema says, enums their names.

use epwatch_proto::occurred::{self, EndClock};
use epwatch_proto::placement::{CPU_EP, is_npu_ep};
use epwatch_proto::{BaselineKind, LatencySeries, Report, SelfTest, Session, StartFailure};

use super::table::ReportRow;
use super::{Stored, share};

pub(super) fn row(stored: &Stored) -> ReportRow<'_> {
    let mut row = head(stored);
    let report = &stored.report;
    add_device(&mut row, stored);
    add_runtime(&mut row, report);
    add_ended_streams(&mut row, report);
    for session in &report.sessions {
        add_session(&mut row, session);
    }
    for series in &report.series {
        add_series(&mut row, report, series);
    }
    for test in &report.self_tests {
        add_self_test(&mut row, test);
    }
    for failure in &report.start_failures {
        add_start_failure(&mut row, failure);
    }
    for errors in &report.run_errors {
        row.run_error_session.push(errors.session_uid.get());
        row.run_error_ort_status.push(errors.ort_status_code);
        row.run_error_count.push(errors.count);
    }
    add_health(&mut row, report);
    row
}

fn head(stored: &Stored) -> ReportRow<'_> {
    let report = &stored.report;
    let end = EndClock {
        wall_unix_ms: report.interval_end_unix_ms,
        uptime_ms: report.uptime_at_end_ms,
        boot_id: &report.boot_id,
    };
    let occurred = occurred::estimate(stored.received_ms, &stored.sent, end);
    let labels = report.app.rollout_labels.iter();
    ReportRow {
        collector_id: stored.collector_id,
        wal_offset: stored.wal_offset,
        received_at: stored.received_ms,
        bucket: stored.bucket,
        installation: *report.key.installation.as_bytes(),
        stream_id: report.key.stream.0,
        sequence: report.key.sequence.get(),
        occurred_at: occurred.at_ms,
        occurred_source: occurred.source,
        clock_skew_ms: occurred.clock_skew_ms,
        interval_length_ms: report.interval_length_ms,
        is_late: occurred.is_late,
        is_unproven: stored.is_unproven,
        app_id: &stored.app_id,
        environment: &stored.environment,
        app_version: &report.app.version,
        app_build: &report.app.build,
        rollout_labels: labels
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect(),
        ..ReportRow::default()
    }
}

fn add_device<'a>(row: &mut ReportRow<'a>, stored: &'a Stored) {
    let device = &stored.report.device;
    row.chipset = &stored.chipset;
    row.chipset_raw = &device.chipset_raw;
    row.device_manufacturer = &device.manufacturer;
    row.device_model = &device.model;
    row.board = &device.board;
    row.soc_id = device.soc_id.unwrap_or(0);
    row.abi = &device.abi;
    row.os = &device.os;
    row.os_version = &device.os_version;
    row.api_level = device.api_level.unwrap_or(0);
    row.firmware = &device.vendor_fingerprint_hash;
    row.security_patch = &device.security_patch;
    row.hexagon_arch = device.hexagon_arch.unwrap_or(0);
    row.ram_class = device.ram_class.as_str();
    row.reportable_contexts = device
        .reportable_contexts
        .iter()
        .map(|context| context.as_str())
        .collect();
}

fn add_runtime<'a>(row: &mut ReportRow<'a>, report: &'a Report) {
    let (runtime, sdk) = (&report.runtime, &report.sdk);
    row.ort_version = &runtime.ort_version;
    row.ep_package = &runtime.ep_package;
    row.ep_version = &runtime.ep_version;
    row.ep_linkage = runtime.ep_linkage.as_str();
    row.backend = runtime.backend.as_str();
    row.qnn_sdk_version = &runtime.qnn_sdk_version;
    row.backend_build_id = &runtime.backend_build_id;
    row.sdk_name = &sdk.name;
    row.sdk_version = &sdk.version;
    row.sdk_language = &sdk.language;
}

fn add_ended_streams(row: &mut ReportRow<'_>, report: &Report) {
    for ended in &report.ended_streams {
        row.ended_stream_id.push(ended.stream.0);
        row.ended_last_sequence.push(ended.last_sequence);
        row.ended_unsealed_runs.push(ended.unsealed_runs);
    }
}

fn add_session<'a>(row: &mut ReportRow<'a>, session: &'a Session) {
    let (model, options, placement) = (&session.model, &session.options, &session.placement);
    row.session_uid.push(session.uid.get());
    row.session_model_id.push(&model.id);
    row.session_model_version.push(&model.version);
    row.session_model_sha256.push(
        model
            .sha256
            .map(|hash| hash.to_string())
            .unwrap_or_default(),
    );
    row.session_app_requested_eps
        .push(texts(&session.requested_eps));
    row.session_directive_id.push(&session.directive_id);
    row.session_performance_mode.push(&options.performance_mode);
    row.session_soc_model.push(&options.soc_model);
    row.session_creation_us
        .push(session.creation_us.unwrap_or(0));
    row.session_created_at.push(session.created_at_unix_ms);

    let requested = placement.requested_eps.iter().filter(|ep| *ep != CPU_EP);
    row.session_requested_eps
        .push(requested.map(String::as_str).collect());
    row.session_requests_npu.push(placement.requests_npu());
    row.session_graph_kind.push(placement.graph_kind.as_str());
    row.session_placement_source.push(placement.source.as_str());
    // Either may be missing; both have the algorithm of their rules' version.
    let algorithm = placement
        .normalised
        .or(placement.exact)
        .map_or(0, |print| print.algorithm);
    row.session_fingerprint_algorithm.push(algorithm);
    row.session_fingerprint_exact
        .push(placement.exact.map_or(0, |print| print.value));
    row.session_fingerprint_normalised
        .push(placement.normalised.map_or(0, |print| print.value));
    row.session_n_nodes.push(placement.n_nodes);
    let npu = placement.eps.iter().filter(|share| is_npu_ep(&share.ep));
    row.session_npu_nodes
        .push(npu.clone().map(|share| share.n_nodes).sum());
    row.session_npu_partitions
        .push(npu.filter_map(|share| share.n_partitions).sum());
    row.session_cpu_nodes
        .push(placement.ep(CPU_EP).map_or(0, |share| share.n_nodes));
    let benign = placement
        .cpu_nodes
        .iter()
        .filter(|node| node.benign)
        .count();
    row.session_cpu_benign_nodes
        .push(u32::try_from(benign).expect("at most 256"));
    row.session_npu_macs_share
        .push(share(placement.npu_macs_share()));
    row.session_macs_attributed
        .push(share(placement.macs_attributed));
    row.session_reasons.push(
        placement
            .reasons
            .iter()
            .map(|reason| reason.as_str())
            .collect(),
    );
}

fn add_series<'a>(row: &mut ReportRow<'a>, report: &Report, series: &'a LatencySeries) {
    let place = report
        .sessions
        .iter()
        .position(|session| session.uid == series.session_uid);
    let place = place.map_or(0, |index| index + 1);
    row.series_session
        .push(u16::try_from(place).expect("at most 64 sessions"));
    let stratum = &series.stratum;
    row.series_phase.push(stratum.phase.as_str());
    row.series_thermal.push(stratum.thermal.as_str());
    row.series_power_save.push(stratum.power_save.as_str());
    row.series_performance_mode.push(&stratum.performance_mode);
    row.series_shape_key.push(&stratum.shape_key);
    row.series_session_age.push(stratum.session_age.as_str());
    row.series_is_clean.push(stratum.is_clean());
    row.series_hist_scheme.push(series.hist_scheme.as_str());
    row.series_hist_bucket
        .push(series.histogram.indices().to_vec());
    row.series_hist_count
        .push(series.histogram.counts().to_vec());
    row.series_n.push(series.n);
    row.series_sum_us.push(series.sum_us);
    row.series_m2_us2.push(series.m2_us2);
    row.series_min_us.push(series.min_us);
    row.series_max_us.push(series.max_us);
    row.series_runs_seen.push(series.runs_seen);
    row.series_sampled_one_in.push(series.sampled_one_in);
    row.series_dropped_runs.push(series.dropped_runs);
    row.series_first_runs_us.push(series.first_runs_us.clone());
    row.series_slow_fast_switches
        .push(series.slow_fast_switches);
    row.series_longest_slow_streak
        .push(series.longest_slow_streak);
    row.series_beyond_1_4x
        .push(series.exceed.map(|exceed| exceed.beyond_1_4x));
    row.series_beyond_2x
        .push(series.exceed.map(|exceed| exceed.beyond_2x));
    row.series_beyond_3x
        .push(series.exceed.map(|exceed| exceed.beyond_3x));
    add_baselines(row, series);
}

fn add_baselines<'a>(row: &mut ReportRow<'a>, series: &'a LatencySeries) {
    let previous = series.baselines.of_kind(BaselineKind::PreviousVersion);
    row.series_previous_version
        .push(previous.map_or("", |b| &b.model_version));
    row.series_previous_n.push(previous.map_or(0, |b| b.n));
    row.series_previous_p10_us
        .push(previous.map_or(0.0, |b| b.p10_us));
    row.series_previous_p50_us
        .push(previous.map_or(0.0, |b| b.p50_us));
    row.series_previous_p95_us
        .push(previous.map_or(0.0, |b| b.p95_us));
    row.series_previous_cv.push(previous.map_or(0.0, |b| b.cv));
    let earlier = series.baselines.of_kind(BaselineKind::EarlierRuntime);
    row.series_earlier_firmware
        .push(earlier.map_or("", |b| &b.vendor_fingerprint_hash));
    // As the views name a runtime.
    let runtime = earlier.map(|b| format!("{}/{}", b.ort_version, b.ep_version));
    row.series_earlier_runtime.push(runtime.unwrap_or_default());
    row.series_earlier_n.push(earlier.map_or(0, |b| b.n));
    row.series_earlier_p10_us
        .push(earlier.map_or(0.0, |b| b.p10_us));
    row.series_earlier_p50_us
        .push(earlier.map_or(0.0, |b| b.p50_us));
    row.series_earlier_p95_us
        .push(earlier.map_or(0.0, |b| b.p95_us));
    row.series_earlier_cv.push(earlier.map_or(0.0, |b| b.cv));
    let absence = series.baselines.absence();
    row.series_baseline_absence
        .push(absence.map_or("", |absence| absence.as_str()));
}

fn add_self_test<'a>(row: &mut ReportRow<'a>, test: &'a SelfTest) {
    row.self_test_session.push(test.session_uid.get());
    row.self_test_input_id.push(&test.input_id);
    row.self_test_tolerance.push(test.tolerance);
    row.self_test_npu_hash.push(hex(test.npu_output_hash));
    row.self_test_cpu_hash.push(hex(test.cpu_output_hash));
    row.self_test_max_abs.push(test.max_abs);
    row.self_test_cosine.push(test.cosine);
    row.self_test_top1_equal.push(test.top1_equal);
    row.self_test_error_code.push(test.error_code);
}

fn add_start_failure<'a>(row: &mut ReportRow<'a>, failure: &'a StartFailure) {
    row.start_failure_model_id.push(&failure.model.id);
    row.start_failure_model_version.push(&failure.model.version);
    row.start_failure_requested_eps
        .push(texts(&failure.requested_eps));
    row.start_failure_phase.push(failure.phase.as_str());
    row.start_failure_reason.push(failure.reason.as_str());
    row.start_failure_ort_status.push(failure.ort_status_code);
    row.start_failure_text.push(&failure.text);
    row.start_failure_count.push(failure.count);
}

fn add_health(row: &mut ReportRow<'_>, report: &Report) {
    let health = &report.health;
    row.health_runs_observed = health.runs_observed;
    row.health_runs_recorded = health.runs_recorded;
    for (reason, dropped) in &health.dropped {
        row.health_dropped_reports
            .push((reason.as_str(), dropped.reports));
        row.health_dropped_runs
            .push((reason.as_str(), dropped.runs));
    }
    row.health_overflowed_keys = health.overflowed_keys;
    let failures = health.upload_failures.iter();
    row.health_upload_failures = failures.map(|(kind, n)| (kind.as_str(), *n)).collect();
    row.health_spool_bytes = health.spool_bytes;
    row.health_spool_oldest_ms = health.spool_oldest_ms;
    row.health_directives_applied = health.directives_applied;
    let refused = health.directives_refused.iter();
    row.health_directives_refused = refused.map(|(reason, n)| (reason.as_str(), *n)).collect();
    row.health_consent_changes = health.consent_changes;
}

fn texts(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

fn hex(hash: Option<[u8; 16]>) -> String {
    let Some(hash) = hash else {
        return String::new();
    };
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}
