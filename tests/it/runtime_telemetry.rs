//! ONNX Runtime's own telemetry is off in the processes of the command. `sdk/tests/it/runtime_telemetry.rs` watches the network.

use std::{path::Path, process::Command};

use epwatch_runtimes::{has_telemetry, with_telemetry};

use crate::support::{check_succeeds, epwatch, json};

const MODELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models");

/// Checks a command although a person has set the variable for other programs.
#[track_caller]
fn runs_without_telemetry(mut command: Command, cache: &Path) {
    with_telemetry(&mut command, cache);
    command.env("ORT_DISABLE_TELEMETRY", "0");
    check_succeeds(&mut command);
    assert!(!has_telemetry(cache), "{command:?}");
}

#[test]
fn no_command_leaves_an_id_of_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let inspect = epwatch(&format!("inspect {MODELS}/d_mlp.fp32.onnx --soc SM8650"));
    runs_without_telemetry(inspect, folder.path());
    let out = folder.path().join("fixed.onnx");
    let fix = format!("gate fix {MODELS}/forms.qu8.onnx --soc SM8650");
    let mut fix = epwatch(&fix);
    fix.arg("--out").arg(out);
    runs_without_telemetry(fix, folder.path());
}

#[test]
fn the_list_of_engines_names_the_switch() {
    let text = check_succeeds(&mut epwatch("engines"));
    let line = "onnxruntime sends telemetry of its own to Microsoft. epwatch runs it with ORT_DISABLE_TELEMETRY=1";
    assert!(text.contains(line), "{text}");
    let listed = json(&mut epwatch("engines"));
    let mut engines = listed.as_array().unwrap().iter();
    let newest = engines.find(|engine| engine["engine"] == "onnxruntime");
    assert_eq!(newest.unwrap()["telemetry_switch"], "ORT_DISABLE_TELEMETRY");
}
