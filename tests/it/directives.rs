//! `epwatch directive` and `epwatch collector key`, as an operator runs them, up to the device that receives the
//! directive.

use std::time::Duration;

use epwatch_collector::{Collector, config::AppKeyConfig};
use epwatch_engines::{Engine, ensure};
use epwatch_proto::{
    Placement, ReasonCode, SessionOptions,
    placement::QNN_EP,
    unhex,
    v1::{self, collector_service_client::CollectorServiceClient},
};
use epwatch_sdk::{
    ModelInfo, SdkConfig, Watch, runtime,
    simulation::{SimulatedSession, simulated_device},
};
use epwatch_server::Period;
use epwatch_test_support::until;
use ort::session::Session;
use prost::Message;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::support::{Running, Store, check_fails, check_succeeds, epwatch, json, server};

const APP: &str = "com.example.camera";

/// A directive for the model on one chipset.
const MAKE: &str =
    "directive make --npu-off --for 7d --app com.example.camera --model detector --chipset SM8650";

const MODEL_FILE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/fixtures/models/mlp.fp32.onnx"
);

/// Returns an upload of a report of the model. The report is malformed, but has a directive's scope.
fn upload(held: &[&str]) -> v1::UploadRequest {
    let report = v1::Report {
        app: Some(v1::App {
            id: APP.into(),
            environment: "production".into(),
            ..Default::default()
        }),
        device: Some(v1::Device {
            chipset_raw: "QTI SM8650".into(),
            ..Default::default()
        }),
        sessions: vec![v1::Session {
            model: Some(v1::Model {
                id: "detector".into(),
                version: "7".into(),
                ..Default::default()
            }),
            ..Default::default()
        }],
        ..Default::default()
    };
    v1::UploadRequest {
        reports: vec![report.encode_to_vec().into()],
        sdk: Some(v1::Sdk {
            name: "test".into(),
            version: "1".into(),
            language: "rust".into(),
        }),
        held_directive_ids: held.iter().map(|id| (*id).to_owned()).collect(),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directive_goes_from_the_operator_to_the_device_and_back() {
    let store = Store::start().await;
    let dir = store.dir.path().to_owned();
    let at = format!("--clickhouse {}", store.address());
    let run = |words: &str| {
        let mut command = epwatch(words);
        command.current_dir(&dir);
        command
    };
    let key = json(&mut run(&format!(
        "collector key --app {APP} --kind app --environment *"
    )));
    let secret = key["key"].as_str().unwrap().to_owned();
    assert_eq!(key["kind"], "app");
    let mut config = store.collector_config("wal");
    config.refresh = Period(std::time::Duration::from_millis(50));
    config.keys = vec![AppKeyConfig {
        sha256: key["sha256"].as_str().unwrap().to_owned(),
        app: APP.to_owned(),
        ..AppKeyConfig::default()
    }];
    let collector = Collector::start(config, store.client(), CancellationToken::new())
        .await
        .unwrap();

    let keygen = "directive keygen --out ops.pem";
    let made = json(&mut run(keygen));
    let public_key = made["public_key"].as_str().unwrap();
    check_fails(&mut run(keygen), 3, "ops.pem");
    json(&mut run(&format!("{MAKE} --id off --out off.directive")));
    let sign = "directive sign off.directive --key ops.pem --out off.signed";
    assert_eq!(json(&mut run(sign))["key_id"], made["key_id"]);
    let show = |public_key: &str| format!("directive show off.signed --public-key {public_key}");
    assert_eq!(json(&mut run(&show(public_key)))["verified"], true);
    check_fails(&mut run(&show(&"0".repeat(64))), 1, "");
    // A directive that lasts longer than the contract allows is not made.
    let too_long = "directive make --npu-off --everyone --out x --not-before 2026-01-01T00:00:00Z --expires 2027-01-01T00:00:00Z";
    check_fails(&mut run(too_long), 2, "expires");
    check_fails(&mut run("directive make --out x"), 2, "--npu-off");

    let publish = |file: &str| run(&format!("directive publish {file} --anyway {at}"));
    for _ in 0..2 {
        let published = json(&mut publish("off.signed"));
        assert_eq!(published["published"][0]["id"], "off");
    }
    check_fails(&mut publish("off.directive"), 3, "not signed");
    json(&mut run(&format!(
        "{MAKE} --id off --key ops.pem --out again.signed"
    )));
    check_fails(&mut publish("again.signed"), 1, "unique for ever");

    let address = format!("http://{}", collector.listen());
    let device = CollectorServiceClient::connect(address).await.unwrap();
    let handed = async |held: &[&str]| {
        let mut call = tonic::Request::new(upload(held));
        let bearer = format!("Bearer {secret}").parse().unwrap();
        call.metadata_mut().insert("authorization", bearer);
        let answer = device.clone().upload(call).await.unwrap().into_inner();
        answer.directives
    };
    until("the directive is handed out", async || {
        handed(&[]).await.len() == 1
    })
    .await;
    let bytes = std::fs::read(dir.join("off.signed")).unwrap();
    assert_eq!(handed(&[]).await[0].encode_to_vec(), bytes);
    assert!(handed(&["off"]).await.is_empty());

    let list =
        |more: &str| json(&mut run(&format!("directive list {at} {more}")))["directives"].clone();
    let listed = list("");
    assert_eq!(listed[0]["id"], "off");
    assert_eq!(listed[0]["state"], "live");
    let revoke = |id: &str| run(&format!("directive revoke {id} --key ops.pem {at}"));
    check_fails(&mut revoke("none"), 1, "none");
    let revoked = json(&mut revoke("off"));
    let revocation = revoked["published"][0]["id"].as_str().unwrap().to_owned();
    until("the revocation replaces it", async || {
        let handed = handed(&["off"]).await;
        handed.len() == 1
            && epwatch_proto::Directive::parse(&handed[0].directive)
                .unwrap()
                .id
                == revocation
    })
    .await;
    let all = list("--all");
    let states: Vec<&Value> = all
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["state"])
        .collect();
    assert_eq!(states, ["live", "revoked"]);
    collector.stop().await;
    store.engine.stop().await;
}

/// Without these checks, an operator at night could sign and publish a directive for a wrong chipset, which no device
/// obeys.
#[test]
fn a_directive_names_whom_it_is_for() {
    let dir = tempfile::tempdir().unwrap();
    let make = |words: &str| {
        let mut command = epwatch(&format!("directive make --npu-off --out x {words}"));
        command.current_dir(dir.path());
        command
    };
    check_fails(&mut make(""), 2, "--everyone");
    check_fails(&mut make("--everyone --app a"), 2, "--everyone");
    check_fails(&mut make("--chipset SM8365"), 2, "mean SM8635?");
    check_fails(&mut make("--chipset SM9999"), 2, "--unlisted-chipset");
    check_fails(
        &mut make("--chipset other:unknown"),
        2,
        "--unlisted-chipset",
    );
    // The cohort of another accelerator shares its chipset with sessions on the NPU.
    for more in ["", " --unlisted-chipset"] {
        let mut command = make(more.trim());
        command.args(["--chipset", "SM8650 [CUDA]"]);
        check_fails(
            &mut command,
            2,
            "would reach sessions on the NPU of SM8650 too",
        );
    }
    assert!(!dir.path().join("x").exists());
    let chipset = |words: &str| json(&mut make(words))["scope"]["chipset"].clone();
    assert_eq!(chipset("--everyone"), "");
    assert_eq!(chipset("--chipset sm8635"), "SM8635");
    assert_eq!(chipset("--chipset SM9999 --unlisted-chipset"), "SM9999");
}

#[tokio::test(flavor = "multi_thread")]
async fn publish_and_list_count_the_devices() {
    let store = Store::start().await;
    let dir = store.dir.path().to_owned();
    let run = |words: &str| {
        let mut command = epwatch(words);
        command.current_dir(&dir);
        command
    };
    let at = format!("--clickhouse {}", store.address());
    json(&mut run("directive keygen --out ops.pem"));
    json(&mut run(&format!(
        "{MAKE} --id off --key ops.pem --out off.signed"
    )));
    let publish = format!("directive publish off.signed {at}");
    check_fails(&mut run(&publish), 1, "fits no device");
    let listed = || json(&mut run(&format!("directive list {at}")))["directives"].clone();
    assert_eq!(listed(), serde_json::json!([]));

    // Of three devices with the model, one is on the chipset and obeys. One reported two days ago.
    for (device, chipset, directive, age) in [
        (1, "SM8650", "off", 0),
        (2, "SM8550", "", 0),
        (3, "SM8650", "", 48),
    ] {
        let insert = format!(
            "INSERT INTO reports (installation, stream_id, sequence, received_at, collector_id, wal_offset, bucket, \
             app_id, environment, chipset, session_uid, session_model_id, session_model_version, \
             session_directive_id) SELECT unhex(repeat('0{device}', 16)), 1, 1, now() - INTERVAL {age} HOUR AS at, 1, \
             {device}, toStartOfHour(at), '{APP}', 'production', '{chipset}', [1], ['detector'], ['7'], ['{directive}']"
        );
        store.client().query_raw(&insert).execute().await.unwrap();
    }
    assert_eq!(json(&mut run(&publish))["published"][0]["devices"], 1);
    let listed = listed();
    assert_eq!(
        (&listed[0]["devices"], &listed[0]["obeyed"]),
        (&1.into(), &1.into())
    );
    assert_eq!(listed[0]["sent"], 0, "no collector runs");
    store.engine.stop().await;
}

/// A device with the SDK, whose model runs on an SM8650.
struct Device {
    watch: Watch,
    session: SimulatedSession,
    _dir: tempfile::TempDir,
}

impl Device {
    fn start(endpoint: &str, key_id: &str, public_key: [u8; 32]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = SdkConfig::builder(APP, endpoint, "demo-key", dir.path())
            .with_consent(true)
            .with_device(simulated_device("SM8650").into())
            .with_directive_key(key_id, public_key);
        let watch = Watch::start(config.build().unwrap()).unwrap();
        let placement = Placement::unavailable(vec![], ReasonCode::AssignmentApiUnavailable);
        let session = watch.simulated_session(model(), placement, SessionOptions::default());
        Self {
            watch,
            session,
            _dir: dir,
        }
    }

    /// Sends a report.
    fn report(&self) {
        self.session.run(|| ());
        self.watch.flush(TIMEOUT).unwrap();
    }
}

const TIMEOUT: Duration = Duration::from_secs(300);

fn model() -> ModelInfo {
    ModelInfo::new("detector", "7").unwrap()
}

/// The directive to leave the NPU is sent once to each device. One device obeys, and the other has another operator's
/// key.
#[tokio::test(flavor = "multi_thread")]
async fn list_counts_to_whom_a_directive_was_sent_and_what_they_did() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut command = server("serve", &data);
    command
        .env("EPWATCH_COLLECTOR__REFRESH", "50ms")
        .env("EPWATCH_COLLECTOR__BATCH__PERIOD", "50ms");
    let (_serve, started) = Running::start(&mut command);
    let endpoint = started["endpoint"].as_str().unwrap();
    let run = |words: &str| {
        let mut command = epwatch(words);
        command.current_dir(dir.path());
        command
    };
    let at = format!("--data-dir {}", data.display());
    let made = json(&mut run("directive keygen --out ops.pem"));
    let public_key = unhex(made["public_key"].as_str().unwrap()).unwrap();
    let public_key: [u8; 32] = public_key.try_into().unwrap();
    let key_id = made["key_id"].as_str().unwrap();
    json(&mut run(&format!(
        "{MAKE} --id off --key ops.pem --out off.signed"
    )));
    json(&mut run(&format!(
        "directive publish off.signed --anyway {at}"
    )));

    let obeying = Device::start(endpoint, key_id, public_key);
    let refusing = Device::start(endpoint, "another", [7; 32]);
    let listed = || json(&mut run(&format!("directive list {at}")))["directives"][0].clone();
    until("it is sent to both", async || {
        obeying.report();
        refusing.report();
        listed()["sent"] == 2
    })
    .await;
    let plan = obeying.watch.plan_within(&model(), TIMEOUT);
    assert_eq!(plan.directive_id(), Some("off"));
    assert_eq!(listed()["obeyed"], 0, "no session was made since");

    let library = ensure(Engine::OnnxRuntime).unwrap().ort_library();
    let environment = runtime::load(library).unwrap().build().unwrap();
    let made = obeying
        .watch
        .session(model(), Session::builder(&environment).unwrap())
        .requesting([QNN_EP])
        .with_plan(&plan)
        .commit_from_file(MODEL_FILE)
        .unwrap();
    until("obeyed and refused are in the store", async || {
        obeying.report();
        refusing.report();
        let listed = listed();
        listed["obeyed"] == 1 && listed["refused"] == serde_json::json!({"unknown_key": 1})
    })
    .await;
    drop(made);
    let line = check_succeeds(&mut run(&format!("directive list {at}")));
    let expected = "fits 2 devices of the last day, sent to 2, obeyed by 1; devices there that refused directives since: \
                    1 unknown_key";
    assert!(line.contains(expected), "{line}");
}
