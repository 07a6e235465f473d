//! One message per bound of the contract: a valid one with a single change, and the field that is
//! refused for it.

use bytes::Bytes;
use epwatch_proto::{Outcome::*, *};
use prost::Message as _;

use crate::samples;

type Change<T> = fn(&mut T);

#[track_caller]
fn check<W, P>(valid: impl Fn() -> W, cases: &[(&str, Outcome, Change<W>)])
where
    W: prost::Message + 'static,
    P: TryFrom<W, Error = ParseError> + std::fmt::Debug,
{
    P::try_from(valid()).expect("the sample is valid before the change");
    for (field, outcome, change) in cases {
        let mut wire = valid();
        change(&mut wire);
        if let Some(report) = around(&wire) {
            let bytes = report.encode_to_vec();
            assert_eq!(FastValidator::default().validate(&bytes), None, "{field}");
        }
        let error = P::try_from(wire).expect_err(field);
        assert_eq!(
            (error.field(), error.outcome()),
            (*field, *outcome),
            "{error}"
        );
    }
}

/// Puts the message into a report that is valid without the change.
fn around(wire: &dyn std::any::Any) -> Option<v1::Report> {
    let mut report = v1::Report::from(&samples::full_report());
    if let Some(wire) = wire.downcast_ref::<v1::Report>() {
        report = wire.clone();
    } else if let Some(session) = wire.downcast_ref::<v1::Session>() {
        report.sessions[0] = session.clone();
    } else if let Some(placement) = wire.downcast_ref::<v1::Placement>() {
        report.sessions[0].placement = Some(placement.clone());
    } else {
        report.series[0] = wire.downcast_ref::<v1::LatencySeries>()?.clone();
    }
    Some(report)
}

/// Checks a table of a message: both types, the valid message, then each change by the field that is refused for it.
macro_rules! refused {
    ($wire:ty => $parsed:ty, $valid:expr, |$message:ident|
        $( $( $unsupported:ident )? $field:literal => { $($change:tt)* } )+) => {
        check::<$wire, $parsed>(
            || $valid.into(),
            &[$( ($field, refused!(@ $( $unsupported )?), |$message| { $($change)*; }), )+],
        );
    };
    (@) => { RefusedMalformed };
    (@ unsupported) => { RefusedUnsupported };
}

fn long(n: usize) -> String {
    "x".repeat(n + 1)
}

fn n<T: Clone>(of: &T, count: usize) -> Vec<T> {
    vec![of.clone(); count]
}

fn app(r: &mut v1::Report) -> &mut v1::App {
    r.app.as_mut().unwrap()
}
fn device(r: &mut v1::Report) -> &mut v1::Device {
    r.device.as_mut().unwrap()
}
fn runtime(r: &mut v1::Report) -> &mut v1::Runtime {
    r.runtime.as_mut().unwrap()
}
fn health(r: &mut v1::Report) -> &mut v1::SdkHealth {
    r.health.as_mut().unwrap()
}

#[test]
fn report_frame() {
    refused! { v1::Report => Report, &samples::full_report(), |r|
        "key" => { r.key = None }
        "key.installation_id" => { r.key.as_mut().unwrap().installation_id = Bytes::from_static(&[1; 15]) }
        "key.sequence" => { r.key.as_mut().unwrap().sequence = 0 }
        "ended_streams" => { r.ended_streams = n(&r.ended_streams[0], 65) }
        "ended_streams[2]" => { r.ended_streams.push(r.ended_streams[0]) }
        "ended_streams[1].stream_id" => { r.ended_streams[1].stream_id = samples::key().stream.0 }
        "interval_start_unix_ms" => { r.interval_start_unix_ms = -1 }
        "interval_end_unix_ms" => { r.interval_end_unix_ms = MAX_UNIX_MS + 1 }
        "interval_length_ms" => { r.interval_length_ms = 31 * 86_400_000 + 1 }
        "boot_id" => { r.boot_id = long(64) }
        "app" => { r.app = None }
        "app.id" => { app(r).id.clear() }
        "app.id" => { app(r).id = long(128) }
        "app.version" => { app(r).version = long(64) }
        "app.build" => { app(r).build = "a\nb".into() }
        "app.environment" => { app(r).environment.clear() }
        "app.environment" => { app(r).environment = long(32) }
        "app.rollout_labels" => { app(r).rollout_labels = n(&v1::Label::default(), 9) }
        "app.rollout_labels[0].key" => { app(r).rollout_labels[0].key.clear() }
        "app.rollout_labels[0].value" => { app(r).rollout_labels[0].value = long(64) }
        "app.rollout_labels[1]" => {
            let twice = app(r).rollout_labels[0].clone();
            app(r).rollout_labels.push(twice)
        }
        "sdk" => { r.sdk = None }
        "sdk.name" => { r.sdk.as_mut().unwrap().name = long(32) }
        "sdk.version" => { r.sdk.as_mut().unwrap().version = long(32) }
        "sdk.language" => { r.sdk.as_mut().unwrap().language = long(16) }
        "sessions" => { r.sessions = n(&r.sessions[0], 65) }
        "sessions[1]" => { r.sessions.push(r.sessions[0].clone()) }
        "series" => { r.series = n(&r.series[0], 257) }
        "series[1]" => { r.series.push(r.series[0].clone()) }
        "series[0].session_uid" => { r.series[0].session_uid = 8 }
        "self_tests[0].session_uid" => { r.self_tests[0].session_uid = 8 }
        "run_errors[0].session_uid" => { r.run_errors[0].session_uid = 8 }
        "self_tests" => { r.self_tests = n(&r.self_tests[0], 65) }
        "start_failures" => { r.start_failures = n(&r.start_failures[0], 33) }
        "run_errors" => { r.run_errors = n(&r.run_errors[0], 65) }
        "health" => { r.health = None }
    }
}

#[test]
fn report_device_and_runtime() {
    refused! { v1::Report => Report, &samples::full_report(), |r|
        "device" => { r.device = None }
        "device.chipset_raw" => { device(r).chipset_raw = long(128) }
        "device.chipset" => { device(r).chipset = long(64) }
        "device.soc_manufacturer" => { device(r).soc_manufacturer = long(64) }
        "device.board" => { device(r).board = long(64) }
        "device.abi" => { device(r).abi = long(32) }
        "device.manufacturer" => { device(r).manufacturer = long(64) }
        "device.model" => { device(r).model = long(64) }
        "device.os" => { device(r).os = long(32) }
        "device.os_version" => { device(r).os_version = long(64) }
        "device.vendor_fingerprint_hash" => { device(r).vendor_fingerprint_hash = "A".repeat(32) }
        "device.security_patch" => { device(r).security_patch = long(16) }
        "device.ram_class" => { device(r).ram_class = 0 }
        unsupported "device.ram_class" => { device(r).ram_class = 99 }
        "device.reportable_contexts" => { device(r).reportable_contexts = vec![1; 5] }
        "device.reportable_contexts[1]" => { device(r).reportable_contexts = vec![1, 1] }
        unsupported "device.reportable_contexts[0]" => { device(r).reportable_contexts = vec![99] }
        "runtime" => { r.runtime = None }
        "runtime.ort_version" => { runtime(r).ort_version = long(32) }
        "runtime.ep_package" => { runtime(r).ep_package = long(64) }
        "runtime.ep_version" => { runtime(r).ep_version = long(32) }
        unsupported "runtime.ep_linkage" => { runtime(r).ep_linkage = 99 }
        "runtime.backend" => { runtime(r).backend = 0 }
        "runtime.qnn_sdk_version" => { runtime(r).qnn_sdk_version = long(64) }
        "runtime.backend_build_id" => { runtime(r).backend_build_id = long(128) }
    }
}

#[test]
fn report_failures_and_health() {
    refused! { v1::Report => Report, &samples::full_report(), |r|
        "self_tests[0].input_id" => { r.self_tests[0].input_id.clear() }
        "self_tests[0].tolerance" => { r.self_tests[0].tolerance = Some(f64::NAN) }
        "self_tests[0].npu_output_hash" => { r.self_tests[0].npu_output_hash = Bytes::from_static(&[0; 17]) }
        "self_tests[0].cpu_output_hash" => { r.self_tests[0].cpu_output_hash = Bytes::from_static(&[0; 1]) }
        "self_tests[0].max_abs" => { r.self_tests[0].max_abs = Some(-1.0) }
        "self_tests[0].cosine" => { r.self_tests[0].cosine = Some(1.1) }
        "start_failures[0].model" => { r.start_failures[0].model = None }
        "start_failures[0].requested_eps[0]" => { r.start_failures[0].requested_eps[0].clear() }
        unsupported "start_failures[0].phase" => { r.start_failures[0].phase = 99 }
        unsupported "start_failures[0].reason" => { r.start_failures[0].reason = 99 }
        "start_failures[0].text" => { r.start_failures[0].text = long(512) }
        "start_failures[0].count" => { r.start_failures[0].count = 0 }
        "start_failures[0].device_type" => { r.start_failures[0].device_type = Some(0) }
        "run_errors[0].count" => { r.run_errors[0].count = 0 }
        "health.dropped" => { health(r).dropped = n(&v1::Dropped::default(), 9) }
        "health.dropped[1]" => { health(r).dropped[1].reason = health(r).dropped[0].reason }
        unsupported "health.dropped[0].reason" => { health(r).dropped[0].reason = 99 }
        unsupported "health.upload_failures[0].kind" => { health(r).upload_failures[0].kind = 99 }
        unsupported "health.directives_refused[0].reason" => { health(r).directives_refused[0].reason = 99 }
    }
}

fn model(s: &mut v1::Session) -> &mut v1::Model {
    s.model.as_mut().unwrap()
}
fn options(s: &mut v1::Session) -> &mut v1::SessionOptions {
    s.options.as_mut().unwrap()
}

#[test]
fn session() {
    refused! { v1::Session => Session, &samples::session(), |s|
        "uid" => { s.uid = 0 }
        "model" => { s.model = None }
        "model.id" => { model(s).id.clear() }
        "model.id" => { model(s).id = long(128) }
        "model.version" => { model(s).version = long(64) }
        "model.sha256" => { model(s).sha256 = Bytes::from_static(b"x") }
        "model.source_sha256" => { model(s).source_sha256 = Bytes::from_static(&[0; 33]) }
        "model.ep_compatibility" => { model(s).ep_compatibility = long(512) }
        "requested_eps" => { s.requested_eps = n(&"e".to_owned(), 9) }
        "requested_eps[0]" => { s.requested_eps[0] = long(64) }
        "directive_id" => { s.directive_id = long(64) }
        "options.performance_mode" => { options(s).performance_mode = long(32) }
        "options.soc_model" => { options(s).soc_model = long(32) }
        "options.htp_arch" => { options(s).htp_arch = long(16) }
        "options.graph_optimization_level" => { options(s).graph_optimization_level = long(16) }
        "options.selection_policy" => { options(s).selection_policy = Some(0) }
        unsupported "options.device_type" => { options(s).device_type = Some(99) }
        "devices" => { s.devices = n(&s.devices[0], 9) }
        "devices[0].ep" => { s.devices[0].ep.clear() }
        "devices[0].device_type" => { s.devices[0].device_type = 0 }
        unsupported "devices[0].device_type" => { s.devices[0].device_type = 99 }
        "devices[0].vendor" => { s.devices[0].vendor = long(64) }
        "placement" => { s.placement = None }
        "placement.n_nodes" => { s.placement.as_mut().unwrap().n_nodes = 4 }
        "created_at_unix_ms" => { s.created_at_unix_ms = i64::MIN }
    }
}

#[test]
fn placement() {
    refused! { v1::Placement => Placement, &samples::placement(), |p|
        "requested_eps" => { p.requested_eps = n(&"e".to_owned(), 9) }
        "eps" => { p.eps = n(&p.eps[0], 9) }
        "eps[2]" => { p.eps.push(p.eps[0].clone()) }
        "eps[0].ep" => { p.eps[0].ep.clear() }
        "eps[0].n_nodes" => { p.eps[0].n_nodes = 0 }
        "eps[0].op_types" => { p.eps[0].op_types = n(&v1::OpCount::default(), 257) }
        "eps[1].op_types[0].op_type" => { p.eps[1].op_types[0].op_type = long(64) }
        "eps[1].op_types[0].n_nodes" => { p.eps[1].op_types[0].n_nodes = 0 }
        "eps[1].op_types[1]" => { p.eps[1].op_types[1] = p.eps[1].op_types[0].clone() }
        "eps[0].macs_share" => { p.eps[0].macs_share = Some(1.5) }
        "n_nodes" => { p.n_nodes = 1_000_001 }
        "n_nodes" => { p.n_nodes = 2 }
        "cpu_nodes" => { p.cpu_nodes = n(&p.cpu_nodes[0], 257) }
        "cpu_nodes" => { p.cpu_nodes = n(&p.cpu_nodes[0], 3) }
        "cpu_nodes[0].name" => { p.cpu_nodes[0].name = long(256) }
        "cpu_nodes[0].op_type" => { p.cpu_nodes[0].op_type.clear() }
        "cpu_nodes[0].domain" => { p.cpu_nodes[0].domain = long(64) }
        unsupported "cpu_nodes[0].reason" => { p.cpu_nodes[0].reason = 99 }
        "cpu_nodes[0].reason_text" => { p.cpu_nodes[0].reason_text = long(256) }
        "cpu_nodes[0].macs_share" => { p.cpu_nodes[0].macs_share = Some(-0.1) }
        "cpu_nodes_truncated" => { p.cpu_nodes_truncated = true }
        "macs_attributed" => { p.macs_attributed = Some(0.9) }
        "macs_attributed" => { p.macs_attributed = None }
        "macs_attributed" => { p.macs_attributed = Some(f64::INFINITY) }
        "manifest_sha256" => { p.manifest_sha256 = Bytes::from_static(b"x") }
        "graph_kind" => { p.graph_kind = 0 }
        unsupported "source" => { p.source = 99 }
        "eps" => { p.source = PlacementSource::Unavailable.to_wire() }
        "exact.algorithm" => { p.exact.as_mut().unwrap().algorithm = 0 }
        "normalised.algorithm" => { p.normalised.as_mut().unwrap().algorithm = 0 }
        "reasons" => { p.reasons = vec![1; 17] }
        unsupported "reasons[0]" => { p.reasons[0] = 9 }
    }
}

fn stratum(s: &mut v1::LatencySeries) -> &mut v1::Stratum {
    s.stratum.as_mut().unwrap()
}
fn whole_ns(s: &mut v1::LatencySeries) -> &mut v1::WholeNanoseconds {
    s.whole_ns.as_mut().unwrap()
}
/// The series as a sender without whole nanoseconds writes it.
fn in_us(s: &mut v1::LatencySeries) -> &mut v1::LatencySeries {
    s.whole_ns = None;
    (s.sum_us, s.min_us, s.max_us) = (10_000.0, 1_000.0, 4_000.0);
    s
}
fn exceed(s: &mut v1::LatencySeries) -> &mut v1::ExceedCounts {
    s.exceed.as_mut().unwrap()
}

#[test]
fn latency_series() {
    refused! { v1::LatencySeries => LatencySeries, &samples::series(), |s|
        "session_uid" => { s.session_uid = 0 }
        "stratum" => { s.stratum = None }
        "stratum.phase" => { stratum(s).phase = 0 }
        unsupported "stratum.thermal" => { stratum(s).thermal = 99 }
        unsupported "stratum.power_save" => { stratum(s).power_save = 99 }
        "stratum.performance_mode" => { stratum(s).performance_mode = long(32) }
        "stratum.shape_key" => { stratum(s).shape_key = long(128) }
        unsupported "stratum.session_age" => { stratum(s).session_age = 99 }
        unsupported "hist_scheme" => { s.hist_scheme = 2 }
        "hist_scheme" => { s.hist_scheme = 0 }
        "histogram" => { s.histogram = Bytes::new() }
        "histogram" => { s.histogram = vec![0; 8_193].into() }
        "histogram.cookie" => { s.histogram = vec![0; 64].into() }
        "n" => { s.n = 0 }
        "n" => { s.n = 5 }
        "sum_us" => { in_us(s).sum_us = f64::NAN }
        "sum_us" => { in_us(s).sum_us = 3_999.0 }
        "sum_us" => { in_us(s).sum_us = 16_001.0 }
        "m2_us2" => { s.m2_us2 = -1.0 }
        "m2_us2" => { s.m2_us2 = f64::INFINITY }
        "m2_us2" => { s.m2_us2 = 9_000_100.0 }
        "min_us" => { in_us(s).min_us = 4_001.0 }
        "max_us" => { in_us(s).max_us = f64::INFINITY }
        "runs_seen" => { s.runs_seen = 4 }
        "dropped_runs" => { s.dropped_runs = u64::MAX }
        "whole_ns" => { s.max_us = 4_000.0 }
        "sum_us" => { whole_ns(s).sum = 3_999_000 }
        "min_us" => { whole_ns(s).min = 4_001_000 }
        "first_runs_us" => { s.first_runs_us = vec![1; 4] }
        "slow_fast_switches" => { s.slow_fast_switches = Some(11) }
        "longest_slow_streak" => { s.longest_slow_streak = Some(11) }
        "exceed.beyond_1_4x" => { exceed(s).beyond_1_4x = 5 }
        "exceed.beyond_2x" => { exceed(s).beyond_2x = 4 }
        "exceed.beyond_3x" => { exceed(s).beyond_3x = 3 }
        "exceed" => { s.baselines.clear(); s.baseline_absence = BaselineAbsence::Lost.to_wire() }
        "baselines" => { s.baselines = n(&s.baselines[0], 3) }
        "baselines[1]" => { s.baselines[1] = s.baselines[0].clone() }
        "baseline_absence" => { s.baselines.clear() }
        "baseline_absence" => { s.baseline_absence = 1 }
        unsupported "baselines[0].kind" => { s.baselines[0].kind = 99 }
        "baselines[0].model_version" => { s.baselines[0].model_version.clear() }
        "baselines[0].n" => { s.baselines[0].n = 0 }
        "baselines[0].p10_us" => { s.baselines[0].p10_us = 0.0 }
        "baselines[0].p50_us" => { s.baselines[0].p50_us = 899.0 }
        "baselines[0].p95_us" => { s.baselines[0].p95_us = 999.0 }
        "baselines[0].cv" => { s.baselines[0].cv = f64::NAN }
        "baselines[0].vendor_fingerprint_hash" => { s.baselines[0].vendor_fingerprint_hash = long(32) }
        "baselines[0].ort_version" => { s.baselines[0].ort_version = long(32) }
        "baselines[0].ep_version" => { s.baselines[0].ep_version = long(32) }
    }
}

#[test]
fn upload() {
    refused! { v1::UploadRequest => UploadRequest, &samples::upload_request(), |r|
        "reports" => { r.reports.clear() }
        "reports" => { r.reports = vec![Bytes::new(); 1_001] }
        "clock.wall_unix_ms" => { r.clock.as_mut().unwrap().wall_unix_ms = Some(-1) }
        "clock.boot_id" => { r.clock.as_mut().unwrap().boot_id = long(64) }
        "sdk" => { r.sdk = None }
        "held_directive_ids" => { r.held_directive_ids = n(&"d".to_owned(), 65) }
        "held_directive_ids[0]" => { r.held_directive_ids[0] = long(64) }
        "attestation.kind" => { r.attestation.as_mut().unwrap().kind.clear() }
        "attestation.token" => { r.attestation.as_mut().unwrap().token = vec![0; 16_385].into() }
    }
    refused! { v1::UploadResponse => UploadResponse, &samples::upload_response(), |r|
        "results" => { r.results = n(&r.results[0], 1_001) }
        "results[0].key.sequence" => { r.results[0].key.as_mut().unwrap().sequence = 0 }
        "results[0].detail" => { r.results[0].detail = long(256) }
        "server_time_unix_ms" => { r.server_time_unix_ms = -1 }
        "directives" => { r.directives = n(&r.directives[0], 65) }
    }
}

/// A device is older than the collector it talks to.
#[test]
fn outcome_of_a_newer_collector_is_judged_by_its_retry_advice() {
    let mut wire = v1::UploadResponse::from(&samples::upload_response());
    wire.results[0].outcome = 99;
    wire.results[0].retryable = true;
    let response = UploadResponse::try_from(wire).unwrap();
    assert_eq!(response.results[0].outcome, None);
    assert!(response.results[0].keep());
    let keeps: Vec<_> = samples::upload_response()
        .results
        .iter()
        .map(|r| r.keep())
        .collect();
    assert_eq!(keeps, [false, false, true]);
}

#[test]
fn directives() {
    use v1::directive::Action;
    refused! { v1::SignedDirective => SignedDirective, &samples::directives()[0].1, |d|
        "directive" => { d.directive = Bytes::new() }
        "directive" => { d.directive = vec![0; 4_097].into() }
        "key_id" => { d.key_id.clear() }
        "signature" => { d.signature = Bytes::from_static(&[0; 63]) }
    }
    refused! { v1::Directive => Directive, &samples::directive("d", DirectiveAction::NpuOff), |d|
        "id" => { d.id.clear() }
        "scope.app_id" => { d.scope.as_mut().unwrap().app_id = long(128) }
        "scope.chipset" => { d.scope.as_mut().unwrap().chipset = long(64) }
        "action" => { d.action = None }
        "sampling.one_in" => { d.action = Some(Action::Sampling(v1::Sampling { one_in: 0 })) }
        "report_interval.interval_ms" => {
            let interval_ms = 999;
            d.action = Some(Action::ReportInterval(v1::ReportInterval { interval_ms }))
        }
        "preferred_variant.variant" => { d.action = Some(Action::PreferredVariant(v1::PreferredVariant::default())) }
        "revoke.directive_id" => { d.action = Some(Action::Revoke(v1::Revoke::default())) }
        "not_before_unix_ms" => { d.not_before_unix_ms = i64::MIN }
        "expires_unix_ms" => { d.expires_unix_ms = d.not_before_unix_ms }
        "expires_unix_ms" => { d.expires_unix_ms = d.not_before_unix_ms + 90 * 86_400_000 + 1 }
    }
}

#[test]
fn manifest_and_recording() {
    refused! { v1::ModelManifest => ModelManifest, &samples::manifest(), |m|
        "algorithm" => { m.algorithm = 0 }
        unsupported "algorithm" => { m.algorithm = 3 }
        "total_macs" => { m.total_macs = 99 }
        "total_macs" => { m.nodes[0].macs = u64::MAX }
        "nodes" => { m.nodes = n(&m.nodes[0], 100_001) }
        "nodes[0].name" => { m.nodes[0].name = long(512) }
        "nodes[0].op_type" => { m.nodes[0].op_type = long(64) }
    }
    refused! { v1::RecordedReport => RecordedReport, &samples::recorded()[0], |r|
        "received_at_unix_ms" => { r.received_at_unix_ms = -1 }
        "app_id" => { r.app_id.clear() }
        "environment" => { r.environment = long(32) }
        "sent.boot_id" => { r.sent_boot_id = long(64) }
    }
}

/// Sums over all manifests of an app must fit into 64 bits, and a share of MACs is a `Float64`.
#[test]
fn total_macs_end_at_2_to_the_53rd() {
    let manifest = |total_macs| v1::ModelManifest {
        algorithm: 1,
        total_macs,
        nodes: Vec::new(),
    };
    ModelManifest::try_from(manifest(1 << 53)).unwrap();
    for beyond in [(1 << 53) + 1, u64::MAX] {
        let error = ModelManifest::try_from(manifest(beyond)).unwrap_err();
        assert!(error.detail().contains("total_macs"), "{}", error.detail());
    }
}

#[test]
fn a_series_with_impossible_numbers_is_left_out_of_its_report() {
    type Change = fn(&mut LatencySeries);
    let whole = samples::full_report();
    let cases: [(&str, Change); 6] = [
        ("max_us beyond the histogram", |s| s.max_us = 1.7e308),
        // The sum of so many runs has a greater rounding error.
        ("max_us of many runs beyond their bucket", |s| {
            let n = 1 << 26;
            s.histogram = SparseHistogram::from_parts(vec![100], vec![n]).unwrap();
            (s.n, s.runs_seen, s.dropped_runs, s.m2_us2) = (n, n, 0, 0.0);
            (s.min_us, s.max_us) = (100.0, 5_000.0);
            s.sum_us = n as f64 * 100.0;
        }),
        ("max_us below the highest bucket", |s| {
            (s.max_us, s.m2_us2) = (s.min_us, 0.0);
            s.sum_us = s.n as f64 * s.min_us;
        }),
        ("min_us below the lowest bucket", |s| s.min_us = 0.0),
        ("sum_us below the buckets' least", |s| {
            s.sum_us = s.n as f64 * s.min_us;
        }),
        ("more runs than fit into the interval", |s| {
            let n = 1 << 47;
            s.histogram = SparseHistogram::from_parts(vec![100], vec![n]).unwrap();
            (s.n, s.runs_seen, s.dropped_runs, s.m2_us2) = (n, n, 0, 0.0);
            (s.min_us, s.max_us) = (100.0, 100.0);
            s.sum_us = n as f64 * 100.0;
        }),
    ];
    for (what, change) in cases {
        let mut report = whole.clone();
        change(&mut report.series[0]);
        let bytes = report.to_bytes();
        let parsed = Report::parse(&bytes).expect(what);
        assert_eq!(parsed.series, whole.series[1..], "{what}");
        assert_eq!(parsed.n_dropped_series(&bytes), 1, "{what}");
        assert_eq!(FastValidator::default().validate(&bytes), None, "{what}");
    }
    assert_eq!(whole.n_dropped_series(&whole.to_bytes()), 0);
}

/// Sums of counters of many reports stay within the store's numbers.
#[test]
fn counters_end_at_2_to_the_48th() {
    const MAX: u64 = 1 << 48;
    type Change = fn(&mut v1::Report, u64);
    let cases: [(&str, Change); 5] = [
        ("key.sequence", |r, n| r.key.as_mut().unwrap().sequence = n),
        ("ended_streams[0].last_sequence", |r, n| {
            r.ended_streams[0].last_sequence = Some(n);
        }),
        ("ended_streams[0].unsealed_runs", |r, n| {
            r.ended_streams[0].unsealed_runs = Some(n);
        }),
        ("health.runs_observed", |r, n| {
            r.health.as_mut().unwrap().runs_observed = n;
        }),
        ("health.dropped[0]", |r, n| {
            r.health.as_mut().unwrap().dropped[0].reports = n;
        }),
    ];
    for (field, change) in cases {
        for n in [MAX, MAX + 1, u64::MAX] {
            let mut report = v1::Report::from(&samples::full_report());
            change(&mut report, n);
            let bytes = report.encode_to_vec();
            let is_fast = FastValidator::default().validate(&bytes).is_some();
            match Report::parse(&bytes) {
                Ok(_) => assert!(n == MAX && is_fast, "{field}: {n}"),
                Err(error) => assert_eq!((error.field(), n > MAX, is_fast), (field, true, false)),
            }
        }
    }
}
