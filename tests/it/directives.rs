//! `epwatch directive` and `epwatch collector key`, as an operator runs them, up to the device that receives the
//! directive.

use std::{path::Path, process::Command};

use epwatch_collector::{Collector, config::AppKeyConfig};
use epwatch_proto::v1::{self, collector_service_client::CollectorServiceClient};
use epwatch_server::Period;
use prost::Message;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::support::{Store, check_fails, check_succeeds, epwatch, until};

const APP: &str = "com.example.camera";

fn run_in(dir: &Path, args: &[&str]) -> Command {
    let mut command = epwatch();
    command.current_dir(dir).args(args);
    command
}

#[track_caller]
fn json(dir: &Path, args: &[&str]) -> Value {
    serde_json::from_str(&check_succeeds(&mut run_in(dir, args))).unwrap()
}

#[track_caller]
fn fails(dir: &Path, args: &[&str], code: i32, text: &str) {
    check_fails(&mut run_in(dir, args), code, text);
}

/// A directive for the model on one chipset.
fn make<'a>(extra: &[&'a str]) -> Vec<&'a str> {
    let head = ["directive", "make", "--npu-off", "--for", "7d"];
    let scope = ["--app", APP, "--model", "detector", "--chipset", "SM8650"];
    [&head[..], &scope, extra].concat()
}

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
    let key = json(&dir, &["collector", "key", "--app", APP, "--json"]);
    let secret = key["key"].as_str().unwrap().to_owned();
    assert_eq!(key["upload_only"], true);
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

    let made = json(&dir, &["directive", "keygen", "--out", "ops.pem", "--json"]);
    let public_key = made["public_key"].as_str().unwrap();
    fails(
        &dir,
        &["directive", "keygen", "--out", "ops.pem"],
        3,
        "ops.pem",
    );
    json(
        &dir,
        &make(&["--id", "off", "--out", "off.directive", "--json"]),
    );
    let sign = [
        "directive",
        "sign",
        "off.directive",
        "--key",
        "ops.pem",
        "--out",
        "off.signed",
        "--json",
    ];
    let signed = json(&dir, &sign);
    assert_eq!(signed["key_id"], made["key_id"]);
    let show = [
        "directive",
        "show",
        "off.signed",
        "--json",
        "--public-key",
        public_key,
    ];
    assert_eq!(json(&dir, &show)["verified"], true);
    let zeros = "0".repeat(64);
    let wrong = ["directive", "show", "off.signed", "--public-key", &zeros];
    fails(&dir, &wrong, 1, "");
    // A directive that lasts longer than the contract allows is not made.
    fails(
        &dir,
        &[
            "directive",
            "make",
            "--npu-off",
            "--out=x",
            "--not-before=2026-01-01T00:00:00Z",
            "--expires=2027-01-01T00:00:00Z",
        ],
        2,
        "expires",
    );
    fails(&dir, &["directive", "make", "--out", "x"], 2, "--npu-off");

    let at = store.address();
    let publish = [
        "directive",
        "publish",
        "off.signed",
        "--clickhouse",
        &at,
        "--json",
    ];
    for _ in 0..2 {
        let published = json(&dir, &publish);
        assert_eq!(published["published"][0]["id"], "off");
    }
    fails(
        &dir,
        &["directive", "publish", "off.directive", "--clickhouse", &at],
        3,
        "not signed",
    );
    json(
        &dir,
        &make(&[
            "--id",
            "off",
            "--key",
            "ops.pem",
            "--out",
            "again.signed",
            "--json",
        ]),
    );
    fails(
        &dir,
        &["directive", "publish", "again.signed", "--clickhouse", &at],
        1,
        "unique for ever",
    );

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

    let list = ["directive", "list", "--clickhouse", &at, "--json"];
    let listed = json(&dir, &list);
    assert_eq!(listed["directives"][0]["id"], "off");
    assert_eq!(listed["directives"][0]["state"], "live");
    fails(
        &dir,
        &[
            "directive",
            "revoke",
            "none",
            "--key",
            "ops.pem",
            "--clickhouse",
            &at,
        ],
        1,
        "none",
    );
    let revoke = [
        "directive",
        "revoke",
        "off",
        "--key",
        "ops.pem",
        "--clickhouse",
        &at,
        "--json",
    ];
    let revoked = json(&dir, &revoke);
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
    let states: Vec<Value> = json(&dir, &[&list[..], &["--all"]].concat())["directives"]
        .as_array()
        .unwrap()
        .iter()
        .map(|listed| listed["state"].clone())
        .collect();
    assert_eq!(states, ["live", "revoked"]);
    collector.stop().await;
    store.engine.stop().await;
}
