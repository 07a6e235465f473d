//! Directives from a collector's answer to the next session. They arrive over gRPC and through the host's own
//! transport, across a restart, and with several processes on one folder.

use std::{
    fs,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use epwatch_proto::{
    Directive, DirectiveAction, DirectiveRefusal, DirectiveScope, ReasonCode, StartPhase,
    UploadRequest, placement::QNN_EP, v1,
};
use epwatch_sdk::{ConfigError, ModelInfo, ObservedSession, SdkConfig, SdkConfigBuilder, Watch};
use ort::session::Session;
use prost::Message;
use ring::signature::{Ed25519KeyPair, KeyPair};

use crate::support::{
    self, KEY, NOWHERE, TIMEOUT,
    collector::{Answer, Collector},
    environment, fixture, is_alone,
    qnn::{self, htp},
    run, session_of, until,
};

const HOUR: i64 = 3_600_000;

fn operator() -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[9; 32]).unwrap()
}

fn public_key() -> [u8; 32] {
    operator().public_key().as_ref().try_into().unwrap()
}

/// The server's time, a year ahead of the device's clock. Only the server's time counts.
fn server_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap() + 365 * 24 * HOUR
}

fn signed(id: &str, model: &str, action: DirectiveAction) -> v1::SignedDirective {
    let directive = Directive {
        id: id.to_owned(),
        scope: DirectiveScope {
            model_id: model.to_owned(),
            chipset: "SM8650".to_owned(),
            ..DirectiveScope::default()
        },
        action,
        not_before_unix_ms: server_now() - HOUR,
        expires_unix_ms: server_now() + HOUR,
    }
    .to_bytes();
    let signature = operator().sign(&directive);
    v1::SignedDirective {
        directive: directive.into(),
        key_id: "ops".to_owned(),
        signature: signature.as_ref().to_vec().into(),
    }
}

fn answer(directives: Vec<v1::SignedDirective>) -> v1::UploadResponse {
    v1::UploadResponse {
        server_time_unix_ms: server_now(),
        directives,
        ..Default::default()
    }
}

fn config(dir: &Path, endpoint: &str) -> SdkConfigBuilder {
    support::config(dir, endpoint).with_directive_key("ops", public_key())
}

fn watch(dir: &Path, endpoint: &str) -> Watch {
    support::start(config(dir, endpoint))
}

fn model(id: &str) -> ModelInfo {
    ModelInfo::new(id, "1").unwrap()
}

/// Records runs, so that a report is due.
fn run_something(watch: &Watch) {
    run(&session_of(watch, "other", "1"), 1);
}

#[test]
fn an_answers_directive_holds_for_the_next_session_and_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let collector = Collector::start(KEY);
    let off = signed("npu-off-7", "m", DirectiveAction::NpuOff);
    // A malformed directive in the same answer invalidates neither the acks nor this directive.
    let broken = v1::SignedDirective::default();
    collector.answer([Answer::Ok(answer(vec![broken, off]))]);
    let first = watch(dir.path(), &collector.endpoint());
    assert!(first.plan_within(&model("m"), TIMEOUT).is_known());
    assert!(first.plan(&model("m")).use_npu());
    run_something(&first);
    first.flush(TIMEOUT).unwrap();
    let plan = first.plan(&model("m"));
    assert!(!plan.use_npu());
    assert_eq!(plan.directive_id(), Some("npu-off-7"));
    assert!(first.plan(&model("other")).use_npu());
    crate::support::check_explains(&first, "directive npu-off-7: do not use the NPU, model m");
    first.stop(TIMEOUT).unwrap();

    // It applies to the first session of the next process.
    let next = watch(dir.path(), &collector.endpoint());
    let plan = next.plan_within(&model("m"), TIMEOUT);
    assert!(!plan.use_npu() && plan.is_known());
    let builder = Session::builder(environment()).unwrap();
    let session = next
        .session(model("m"), builder)
        .requesting([QNN_EP])
        .with_plan(&plan)
        .commit_from_file(fixture("models/mlp.fp32.onnx"))
        .unwrap();
    assert!(session.placement().wire().requested_eps.is_empty());
    assert_eq!(
        session.placement().wire().reasons,
        [ReasonCode::NpuOffByDirective]
    );
    crate::support::check_explains(&next, "changed by directive npu-off-7");
    next.flush(TIMEOUT).unwrap();
    let report = collector.reports().pop().unwrap();
    let described = report.session(session.uid().wire()).unwrap();
    assert_eq!(described.requested_eps, [QNN_EP]);
    assert!(described.placement.requested_eps.is_empty());
    assert_eq!(described.directive_id, "npu-off-7");
    assert_eq!(report.health.directives_applied, 1);
    assert!(report.health.directives_refused.is_empty());
    let refused = &collector.reports()[0].health.directives_refused;
    assert!(
        refused.is_empty(),
        "counted from the next report on: {refused:?}"
    );
    next.stop(TIMEOUT).unwrap();
}

#[test]
fn a_host_that_sends_by_itself_gets_directives_and_names_them() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), NOWHERE).with_uploads_by_host();
    let watch = support::start(config);
    assert!(watch.plan_within(&model("m"), TIMEOUT).is_known());
    let exchange = |directives: Vec<v1::SignedDirective>| {
        run_something(&watch);
        // The flush seals, and leaves sending to the host.
        let _ = watch.flush(TIMEOUT);
        let batch = watch.next_upload().unwrap();
        let request = v1::UploadRequest::decode(&*batch.encoded()).unwrap();
        let bytes = support::answered(&batch, answer(directives));
        watch.upload_result(&batch, Ok(&bytes)).unwrap();
        UploadRequest::try_from(request).unwrap().held_directive_ids
    };
    let forged = v1::SignedDirective {
        key_id: "others".to_owned(),
        ..signed("forged", "m", DirectiveAction::NpuOff)
    };
    let variant = DirectiveAction::PreferredVariant("small".to_owned());
    let first = exchange(vec![
        signed("v", "m", variant),
        signed("s", "", DirectiveAction::Sampling(50)),
        forged,
    ]);
    assert!(first.is_empty());
    assert_eq!(watch.plan(&model("m")).preferred_variant(), Some("small"));
    let revoke = signed("r", "", DirectiveAction::Revoke("v".to_owned()));
    assert_eq!(exchange(vec![revoke]), ["v", "s"]);
    assert_eq!(watch.plan(&model("m")).preferred_variant(), None);
    assert_eq!(exchange(vec![]), ["s", "r"]);
    let health = watch.health();
    assert_eq!(
        health.directives_refused,
        [(DirectiveRefusal::UnknownKey, 1)].into()
    );
    // Sampling applies to the later sessions, and the revoke to the variant.
    assert_eq!(health.directives_applied, 2);
    watch.stop(TIMEOUT).unwrap();
}

#[test]
fn a_broken_file_costs_the_directives_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let collector = Collector::start(KEY);
    fs::write(dir.path().join("directives"), b"epwdir1\nnot what it seems").unwrap();
    let watch = watch(dir.path(), &collector.endpoint());
    let plan = watch.plan_within(&model("m"), TIMEOUT);
    assert!(plan.is_known() && plan.use_npu());
    run_something(&watch);
    watch.flush(TIMEOUT).unwrap();
    let refused = collector.reports()[0].health.directives_refused.clone();
    assert_eq!(refused, [(DirectiveRefusal::Malformed, 1)].into());
    watch.stop(TIMEOUT).unwrap();
}

#[test]
fn a_directive_that_cannot_be_kept_holds_in_this_process_and_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let collector = Collector::start(KEY);
    fs::create_dir(dir.path().join("directives")).unwrap();
    let off = signed("off", "m", DirectiveAction::NpuOff);
    collector.answer([Answer::Ok(answer(vec![off]))]);
    let watch = watch(dir.path(), &collector.endpoint());
    run_something(&watch);
    let error = watch.flush(TIMEOUT).unwrap_err().to_string();
    assert!(error.contains("failed to keep directives"), "{error}");
    // The report was acked nevertheless.
    assert_eq!(collector.reports().len(), 1);
    assert!(watch.next_upload().is_none());
    assert!(!watch.plan(&model("m")).use_npu());
    watch.stop(TIMEOUT).unwrap();
}

#[test]
fn a_directive_of_one_process_holds_in_another_on_the_same_folder() {
    let dir = tempfile::tempdir().unwrap();
    let collector = Collector::start(KEY);
    let one = watch(dir.path(), &collector.endpoint());
    let other = watch(dir.path(), &collector.endpoint());
    assert!(other.plan_within(&model("m"), TIMEOUT).use_npu());
    collector.answer([Answer::Ok(answer(vec![signed(
        "off",
        "m",
        DirectiveAction::NpuOff,
    )]))]);
    run_something(&one);
    one.flush(TIMEOUT).unwrap();
    // The other process reads the file at its next seal.
    other.flush(TIMEOUT).unwrap();
    assert!(!other.plan(&model("m")).use_npu());
    // A wipe of the folder removes it from both.
    fs::remove_file(dir.path().join("directives")).unwrap();
    for watch in [&one, &other] {
        watch.flush(TIMEOUT).unwrap();
        assert!(watch.plan(&model("m")).use_npu());
    }
    assert!(!dir.path().join("directives").exists());
    one.stop(TIMEOUT).unwrap();
    other.stop(TIMEOUT).unwrap();
}

#[test]
fn a_shorter_report_interval_holds_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let collector = Collector::start(KEY);
    let often = DirectiveAction::ReportIntervalMs(1_000);
    let mut ok = answer(vec![signed("often", "", often)]);
    ok.next_interval_ms = Some(50);
    collector.answer([Answer::Ok(ok)]);
    let watch = watch(dir.path(), &collector.endpoint());
    run_something(&watch);
    watch.flush(TIMEOUT).unwrap();
    run_something(&watch);
    // The configured interval is an hour, and no flush is called.
    until("a report sealed by directive", || {
        collector.calls().len() >= 2
    });
    watch.stop(TIMEOUT).unwrap();
}

#[test]
fn sampled_runs_are_fewer_and_all_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let collector = Collector::start(KEY);
    let sampling = signed("s", "m", DirectiveAction::Sampling(10));
    collector.answer([Answer::Ok(answer(vec![sampling]))]);
    let watch = watch(dir.path(), &collector.endpoint());
    let session = session_of(&watch, "m", "1");
    run(&session, 100);
    watch.flush(TIMEOUT).unwrap();
    // The interval that began before the answer keeps its sampling.
    run(&session, 1);
    watch.flush(TIMEOUT).unwrap();
    run(&session, 5_000);
    watch.flush(TIMEOUT).unwrap();
    let reports = collector.reports();
    assert!(reports[0].series.iter().all(|s| s.sampled_one_in == 1));
    let series = &reports.last().unwrap().series[0];
    assert_eq!((series.sampled_one_in, series.runs_seen), (10, 5_000));
    assert!((300..800).contains(&series.n), "{}", series.n);
    let health = &reports.last().unwrap().health;
    assert_eq!(health.runs_observed, 5_101);
    assert_eq!(health.runs_recorded, 101 + series.n);
    watch.stop(TIMEOUT).unwrap();
}

#[test]
fn recording_off_ends_all_records_of_a_model_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let collector = Collector::start(KEY);
    let off = signed("quiet", "m", DirectiveAction::RecordingOff);
    collector.answer([Answer::Ok(answer(vec![off]))]);
    let first = watch(dir.path(), &collector.endpoint());
    let (session, other) = (
        session_of(&first, "m", "1"),
        session_of(&first, "other", "1"),
    );
    run(&session, 10);
    first.flush(TIMEOUT).unwrap();
    let fails = |watch: &Watch| {
        let phase = StartPhase::EpRegistration;
        watch.start_failed(
            model("m"),
            &[QNN_EP],
            phase.into(),
            ReasonCode::Unknown.into(),
            "no",
        );
    };
    run(&session, 10);
    session.recorder().record_error(2);
    fails(&first);
    let later = session_of(&first, "m", "1");
    run(&later, 10);
    run(&other, 7);
    first.flush(TIMEOUT).unwrap();
    let reports = collector.reports();
    let second = &reports[1];
    assert_eq!(second.series.iter().map(|s| s.n).sum::<u64>(), 7);
    let models: Vec<_> = second
        .sessions
        .iter()
        .map(|s| s.model.id.as_str())
        .collect();
    assert_eq!(models, ["other"]);
    assert!(second.run_errors.is_empty() && second.start_failures.is_empty());
    assert_eq!(second.health.directives_applied, 1);
    assert_eq!(second.health.runs_observed, 17);
    crate::support::check_explains(&first, "directive quiet: record nothing, model m");
    drop((session, other, later));
    first.stop(TIMEOUT).unwrap();

    // The next process records nothing from its first run on. It sends only one report, whose answer may hold a revoke.
    let next = watch(dir.path(), &collector.endpoint());
    assert!(next.plan_within(&model("m"), TIMEOUT).is_known());
    let session = session_of(&next, "m", "1");
    run(&session, 10);
    fails(&next);
    let revoke = signed("loud", "", DirectiveAction::Revoke("quiet".to_owned()));
    collector.answer([Answer::Ok(answer(vec![revoke]))]);
    next.flush(TIMEOUT).unwrap();
    let told = collector.reports().pop().unwrap();
    assert!(told.sessions.is_empty() && told.series.is_empty() && told.start_failures.is_empty());
    assert_eq!(told.health.directives_applied, 1);
    run(&session, 10);
    next.flush(TIMEOUT).unwrap();
    let loud = collector.reports().pop().unwrap();
    assert_eq!(loud.series.iter().map(|s| s.n).sum::<u64>(), 10);
    assert_eq!(loud.sessions.len(), 1);
    next.stop(TIMEOUT).unwrap();
}

#[test]
fn the_next_session_is_off_the_npu_and_the_running_one_is_not_touched() {
    if !is_alone(the_next_session_is_off_the_npu_and_the_running_one_is_not_touched) {
        return;
    }
    let (plugin, htp) = (qnn::plugin(), htp("57"));
    let dir = tempfile::tempdir().unwrap();
    let collector = Collector::start(KEY);
    let watch = watch(dir.path(), &collector.endpoint());
    let session = |ignores_the_plan: bool| {
        let plan = watch.plan_within(&model("m"), TIMEOUT);
        let asked = match ignores_the_plan {
            true => plugin.session_builder(&htp),
            false => plugin.session_builder_for(&plan, &htp),
        };
        qnn::request(&watch, "m", asked.unwrap())
            .with_plan(&plan)
            .commit_from_file(fixture("models/mlp.fp32.onnx"))
            .unwrap()
    };
    let on_npu = |session: &ObservedSession| session.placement().wire().ep(QNN_EP).is_some();
    let before = session(false);
    assert!(on_npu(&before));
    let off = signed("off", "m", DirectiveAction::NpuOff);
    collector.answer([Answer::Ok(answer(vec![off]))]);
    watch.flush(TIMEOUT).unwrap();
    // The running session is unchanged. The next one is off the NPU.
    assert!(on_npu(&before) && before.placement().wire().requests_npu());
    let after = session(false);
    assert!(!on_npu(&after) && !after.placement().wire().requests_npu());
    assert_eq!(
        after.placement().wire().reasons,
        [ReasonCode::NpuOffByDirective]
    );
    // If the host requests the NPU in spite of the plan, the true placement is reported.
    let disobedient = session(true);
    assert!(on_npu(&disobedient) && disobedient.placement().wire().requests_npu());
    let reasons = &disobedient.placement().wire().reasons;
    assert!(!reasons.contains(&ReasonCode::NpuOffByDirective));
    watch.flush(TIMEOUT).unwrap();
    let report = collector.reports().pop().unwrap();
    let ids = [&after, &disobedient].map(|s| {
        let described = report.session(s.uid().wire()).unwrap();
        assert_eq!(described.requested_eps, [QNN_EP]);
        described.directive_id.clone()
    });
    assert_eq!(ids, ["off", ""]);
    watch.stop(TIMEOUT).unwrap();
}

#[test]
fn unusable_keys_are_refused_with_the_way_out() {
    let build = |keys: &[(&str, [u8; 32])]| {
        let mut builder = SdkConfig::builder("app", "http://127.0.0.1:1", "key", "dir");
        for (id, key) in keys {
            builder = builder.with_directive_key(*id, *key);
        }
        builder.build().map(|_| ())
    };
    assert!(build(&[("a", public_key()), ("b", public_key())]).is_ok());
    let placeholder = build(&[("a", [0; 32])]).unwrap_err();
    assert!(placeholder.to_string().contains("not a placeholder"));
    let twice = build(&[("a", public_key()), ("a", public_key())]).unwrap_err();
    assert!(matches!(twice, ConfigError::DirectiveKey { .. }));
    let unnamed = build(&[("", public_key())]).unwrap_err();
    assert!(unnamed.to_string().contains("1 to 64 bytes"));
}
