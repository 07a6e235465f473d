//! A session follows the operator's signed directive.

use std::{
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use epwatch_proto::{Directive, DirectiveAction, DirectiveScope, hex, v1};
use epwatch_strict_collector::{Answer, Collector};
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};

use crate::environment::{KEY, environment, model, run_with};

const HOUR_MS: i64 = 3_600_000;

/// An answer that turns the NPU off for the segmenter.
fn npu_off(operator: &Ed25519KeyPair) -> v1::UploadResponse {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let now = i64::try_from(since.as_millis()).unwrap();
    let directive = Directive {
        id: "off".to_owned(),
        scope: DirectiveScope {
            model_id: "segmenter".to_owned(),
            ..DirectiveScope::default()
        },
        action: DirectiveAction::NpuOff,
        not_before_unix_ms: now - HOUR_MS,
        expires_unix_ms: now + HOUR_MS,
    }
    .to_bytes();
    let signature = operator.sign(&directive);
    v1::UploadResponse {
        server_time_unix_ms: now,
        directives: vec![v1::SignedDirective {
            directive: directive.into(),
            key_id: "ops".to_owned(),
            signature: signature.as_ref().to_vec().into(),
        }],
        ..Default::default()
    }
}

#[test]
fn an_operator_turns_the_npu_off() {
    let operator = Ed25519KeyPair::from_seed_unchecked(&[9; 32]).unwrap();
    let public = hex(operator.public_key().as_ref());
    let collector = Collector::start(KEY);
    collector.answer([Answer::Ok(npu_off(&operator))]);
    let model = model("d_mlp.fp32.onnx");
    let args = [&*model, Path::new(&public)];
    let printed = run_with(&collector, environment(), "directive.py", &args);
    let explained: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(explained["requested"], json!(["QNNExecutionProvider"]));
    assert_eq!(explained["requested_in_effect"], json!([]));
    assert_eq!(explained["directive"], "off");
    let reasons = explained["reasons"].as_array().unwrap();
    let codes: Vec<_> = reasons.iter().map(|reason| &reason["code"]).collect();
    assert_eq!(codes, ["npu_off_by_directive"]);
}
