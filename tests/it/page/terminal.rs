//! The same data in a terminal: a watched command, the answer to a roll-out, devices.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
};

use serde_json::Value;

use crate::{
    fleet::{APP, MODEL},
    support::{check_fails, check_succeeds, json},
};

/// Checks a command that prints again and again until Ctrl-C.
#[track_caller]
pub(super) fn check_watch(command: &mut std::process::Command, part: &str) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let twice = lines.filter(|line| line.as_ref().unwrap().contains(part));
    assert_eq!(twice.take(2).count(), 2, "{part}");
    let pid = child.id().to_string();
    let sent = std::process::Command::new("kill")
        .args(["-s", "INT", &pid])
        .status();
    assert!(sent.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

/// Checks that the roll-out of the paged version is stopped. SM8635 stops it, whatever the other chipsets say.
#[track_caller]
pub(super) fn check_rollout(
    at_shell: &dyn Fn(&[&str]) -> std::process::Command,
    environment: &str,
) {
    let rollout = |model: &str, version: &str, more: &[&str]| {
        let mut command = at_shell(&["rollout", APP, model, version, "--environment", environment]);
        let output = command.args(more).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let (code, text) = rollout(MODEL, "2", &[]);
    assert_eq!(code, Some(1), "{text}");
    for part in [
        "Stop: ",
        " 2 is at fault on SM8635\n",
        "stop",
        "; epwatch incident ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (_, text) = rollout(MODEL, "2", &["--json"]);
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["answer"], "stop");
    let chipsets = answer["chipsets"].as_array().unwrap();
    assert_eq!(
        (&chipsets[0]["chipset"], &chipsets[0]["answer"]),
        (&"SM8635".into(), &"stop".into())
    );
    assert!(
        chipsets[1..].iter().all(|of| of["answer"] != "stop"),
        "{text}"
    );
    // A typing error is an error, while a version that is not judged yet gets "not yet".
    let slip = format!("{MODEL}x");
    assert_eq!(rollout(&slip, "2", &[]).0, Some(2));
    let (code, text) = rollout(MODEL, "nosuch", &[]);
    assert_eq!(code, Some(3), "{text}");
}

/// Checks devices of the fleet in a terminal: the list, one device by the first digits of its id, and unknown ids.
#[track_caller]
pub(super) fn check_devices(
    at_shell: &dyn Fn(&[&str]) -> std::process::Command,
    environment: &str,
) {
    let listed = json(&mut at_shell(&["devices", "--app", APP]));
    let rows = listed["installations"].as_array().unwrap();
    let ids: std::collections::BTreeSet<_> = rows.iter().map(|row| row["id"].as_str()).collect();
    assert!(rows.len() > 10 && ids.len() == rows.len(), "{listed}");
    let id = rows[0]["id"].as_str().unwrap();
    let short = id.get(..8).unwrap();
    let one = json(&mut at_shell(&["devices", short]));
    assert_eq!(one["installation"]["id"], id);
    assert_eq!(one["installation"]["environment"], environment);
    let (session, runs) = (&one["models"][0], &one["latencies"][0]);
    assert_eq!(
        (&session["model"], &runs["model"]),
        (&MODEL.into(), &MODEL.into())
    );
    let nodes = ["npu_nodes", "cpu_nodes"].map(|key| session[key].as_u64().unwrap());
    assert_eq!(
        Some(nodes.iter().sum()),
        session["n_nodes"].as_u64(),
        "{one}"
    );
    let times = ["min_us", "mean_us", "max_us"].map(|key| runs[key].as_f64().unwrap());
    assert!(0.0 < times[0] && times.is_sorted(), "{one}");
    assert_eq!(one["left_out"], serde_json::json!([]));
    let text = check_succeeds(&mut at_shell(&["devices", &id.to_uppercase()]));
    assert!(text.contains(id) && text.contains(MODEL), "{text}");
    let text = check_succeeds(&mut at_shell(&["devices"]));
    // The fleet has more devices than a list, so another list may differ. Each row has digits that are enough to query
    // the device.
    let digits = text.lines().nth(1).and_then(|line| line.get(..8)).unwrap();
    assert!(!text.contains(id), "{text}");
    let first = json(&mut at_shell(&["devices", digits]));
    let first = first["installation"]["id"].as_str().unwrap();
    assert!(first.starts_with(digits), "{text}");
    // The fleet's devices still send reports, so the latest device changes.
    let last = json(&mut at_shell(&["devices", "--latest", "--app", APP]));
    let received = |row: &Value| row["last_received_ms"].as_i64().unwrap();
    assert_eq!(last["installation"]["app"], APP);
    assert!(
        received(&last["installation"]) >= received(&rows[0]),
        "{last}"
    );
    let absent = "00000000000000000000000000000000";
    check_fails(&mut at_shell(&["devices", absent]), 1, "no such device");
    check_fails(
        &mut at_shell(&["devices", "x' OR 1"]),
        2,
        "8 to 32 hexadecimal",
    );
    check_fails(
        &mut at_shell(&["devices", "--latest", "--app", "no.such"]),
        1,
        "no device has reported",
    );
}
