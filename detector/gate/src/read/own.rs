//! Reads documents `epwatch.run/1`, and refuses numbers that a launch cannot have.

use std::{collections::BTreeSet, ops::RangeInclusive, sync::Arc};

use epwatch_proto::{SelectionPolicy, asked_for};
use serde_json::Value;

use super::input::{ReadError, SHOWN_CHARS, malformed, micros, run_times};
use crate::{
    mistakes::{Mistake, THIS_LAUNCH},
    placement::{InspectedChipset, NPU},
    profile::{MOST_SHARES, NodeShare, RunProfile},
    run::{NotFinite, Run, RunNode, RunTarget, RuntimeParts, Unit},
    run_document::{MeasuredRuntime, RunDocument, SCHEMA},
};

/// Temperatures that a battery can have.
const BATTERY_C: RangeInclusive<f64> = -60.0..=150.0;
/// Maximum number of files of a launch's profilers, and the longest name in a profile.
const MOST_PROFILES: usize = 4;
/// Maximum number of earlier tries of one launch.
const MOST_TRIES: usize = 16;
const MOST_NAME_BYTES: usize = 1_024;
/// Largest cosine: 1 and its rounding in 32 bits.
const COSINE: f64 = 1.0 + 1e-5;

pub(super) fn read(value: Value) -> Result<Run, ReadError> {
    let document: RunDocument<InspectedChipset> =
        serde_json::from_value(value).map_err(|error| {
            malformed(
                SCHEMA,
                error.to_string(),
                "the fields that docs/gate.md lists",
            )
        })?;
    let each = document.runs_us.iter().map(|us| *us as f64);
    let runs_us = run_times(SCHEMA, "runs_us", each)?;
    for (field, us) in [
        ("load_us", document.load_us),
        ("load_warm_us", document.load_warm_us),
        ("probe_us", document.probe_us),
        ("probe_after_us", document.probe_after_us),
    ] {
        if let Some(us) = us.filter(|us| micros(*us).is_none()) {
            let what = format!("{field} is {us} us");
            return Err(malformed(SCHEMA, what, "1 us to an hour"));
        }
    }
    document
        .check()
        .map_err(|what| malformed(SCHEMA, what, "numbers that a launch can have"))?;
    let placed = document.placement.as_ref();
    if runs_us.is_empty() && placed.is_none_or(|placed| placed.session == "ok") {
        let expected = "a run or more, or a placement whose session failed";
        return Err(malformed(SCHEMA, "runs_us is empty", expected));
    }
    let on = placed.map(InspectedChipset::shown);
    let mistakes = document.mistakes();
    let mut eps: BTreeSet<String> = document.per_op.iter().map(|op| op.ep.clone()).collect();
    // A session may give nodes to other EPs than the requested one. But a session that requests the CPU gives none to
    // an NPU.
    let runtime = document.runtime.parts();
    let ep = document.runtime.ep.as_ref();
    eps.extend(ep.filter(|ep| Unit::of_ep(ep) == Unit::Cpu).cloned());
    let requested = placed.map_or(&[][..], |placed| &placed.requested);
    let requested = match requested {
        [] => ep.map_or(&[][..], std::slice::from_ref),
        of_session => of_session,
    };
    let policy = document.runtime.policy()?;
    let asked = asked_for(requested, policy);
    let nodes = document.per_op.into_iter().map(|op| RunNode {
        unit: Unit::of_ep(&op.ep),
        name: op.name,
        op_type: op.op_type,
        events: 1,
        macs_by_shapes: op.macs,
    });
    Ok(Run {
        source: "run",
        target: RunTarget {
            row: document.launch.map_or(String::new(), |n| n.to_string()),
            chipset: document.target.chipset.or(on),
            device: document.target.device,
            phone: document.target.phone,
            firmware: document.target.firmware,
            os: document.target.os,
            runtime: document.runtime.name(policy, document.source),
            model_id: document.model.name.clone(),
            model: document.model.name,
            model_sha256: document.model.sha256.map(|hex| hex.to_ascii_lowercase()),
            model_data: document
                .model
                .data
                .into_iter()
                .map(|(file, hex)| (file, hex.to_ascii_lowercase()))
                .collect(),
            asked_for: asked,
        },
        runs_us,
        warmup: document.warmup,
        arm: document.arm,
        started_unix_ms: document.started_unix_ms,
        load_us: document.load_us,
        load_warm_us: document.load_warm_us,
        probe_us: document.probe_us,
        outputs: document.outputs,
        profile: document.profile,
        eps: (!eps.is_empty()).then_some(eps),
        nodes: nodes.collect(),
        placed: document.placement.map(Arc::new),
        runtime,
        mistakes,
        ..Run::default()
    })
}

impl MeasuredRuntime {
    /// The selection policy, which must be one that ONNX Runtime has.
    fn policy(&self) -> Result<Option<SelectionPolicy>, ReadError> {
        let Some(text) = &self.policy else {
            return Ok(None);
        };
        match SelectionPolicy::of_text(text) {
            Some(known) if known != SelectionPolicy::Unknown => Ok(Some(known)),
            _ => {
                let shown: String = text.chars().take(SHOWN_CHARS).collect();
                let what = format!("runtime.policy is {shown:?}");
                let expected = "a name of OrtExecutionProviderDevicePolicy, for example PREFER_NPU";
                Err(malformed(SCHEMA, what, expected))
            }
        }
    }

    fn parts(&self) -> RuntimeParts {
        RuntimeParts {
            ort_version: self.ort.clone(),
            ep: self.ep.clone(),
            ep_version: self.ep_version.clone(),
            qnn_sdk_version: self.qnn_sdk.clone(),
        }
    }

    /// Names all versions that must be equal for two launches to compare, including the program that measured them.
    fn name(&self, policy: Option<SelectionPolicy>, source: Option<String>) -> Option<String> {
        let with = |what: &str, version: &Option<String>| {
            let version = version.as_ref()?;
            Some(format!("{what} {version}"))
        };
        let ep = match (&self.ep, &self.ep_version) {
            (Some(ep), Some(version)) => Some(format!("{ep} {version}")),
            (ep, version) => ep.clone().or_else(|| version.clone()),
        };
        let mut parts = Vec::from_iter(with("ONNX Runtime", &self.ort));
        parts.extend(ep);
        parts.extend(with("QNN", &self.qnn_sdk));
        parts.extend(policy.map(|policy| format!("policy {policy}")));
        parts.extend(
            self.options
                .iter()
                .map(|(key, value)| format!("{key}={value}")),
        );
        parts.extend(with("measured by", &source));
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

/// A report repeats it, so that it is short.
fn check_profile(profile: &RunProfile) -> Result<(), String> {
    let (files, nodes) = (profile.files.len(), profile.nodes.len());
    if files > MOST_PROFILES || nodes > MOST_SHARES {
        return Err(format!("profile has {files} files and {nodes} nodes"));
    }
    let of_nodes = profile.nodes.iter();
    let mut texts = of_nodes
        .flat_map(|node| [&node.name, &node.op_type, &node.ep])
        .chain(&profile.files);
    if texts.any(|text| text.len() > MOST_NAME_BYTES) {
        return Err(format!(
            "profile has a name of more than {MOST_NAME_BYTES} bytes"
        ));
    }
    let is_share = |node: &&NodeShare| (0.0..=1.0).contains(&node.share);
    match profile.nodes.iter().find(|node| !is_share(node)) {
        Some(node) => Err(format!("profile has the share {}", node.share)),
        None => Ok(()),
    }
}

/// Refuses an output that cannot be: its elements are counted, and are the same ones if they do not differ.
fn check_not_finite(found: &NotFinite) -> Result<(), String> {
    if found.output.len() > MOST_NAME_BYTES {
        return Err(format!(
            "outputs.not_finite has a name of more than {MOST_NAME_BYTES} bytes"
        ));
    }
    let NotFinite {
        elements,
        expected,
        of,
        differs,
        ..
    } = *found;
    if !(1..=of).contains(&elements.max(expected)) {
        return Err(format!(
            "outputs.not_finite has {elements} elements and {expected} expected ones of {of}; expected one or more, and no more than all"
        ));
    }
    if !differs && elements != expected {
        return Err(format!(
            "outputs.not_finite has {elements} elements and {expected} expected ones that do not differ; expected equal numbers, or \
             \"differs\": true"
        ));
    }
    Ok(())
}

impl RunDocument<InspectedChipset> {
    /// Refuses numbers outside what they measure, and a placement of another chipset.
    fn check(&self) -> Result<(), String> {
        let outputs = self.outputs.clone().unwrap_or_default();
        for (field, value, range) in [
            ("outputs.cosine", outputs.cosine, -COSINE..=COSINE),
            ("outputs.top1", outputs.top1, 0.0..=1.0),
            ("outputs.max_abs", outputs.max_abs, 0.0..=f64::MAX),
            ("battery_c", self.battery_c, BATTERY_C),
            ("battery_after_c", self.battery_after_c, BATTERY_C),
        ] {
            if let Some(value) = value.filter(|value| !range.contains(value)) {
                return Err(format!("{field} is {value}"));
            }
        }
        if let Some(found) = &outputs.not_finite {
            check_not_finite(found)?;
        }
        if let Some(profile) = &self.profile {
            check_profile(profile)?;
        }
        let tries = &self.made_again;
        if tries.len() > MOST_TRIES || tries.iter().any(|why| why.len() > MOST_NAME_BYTES) {
            return Err(format!(
                "made_again has over {MOST_TRIES} texts or over {MOST_NAME_BYTES} bytes in one"
            ));
        }
        let Some(placed) = &self.placement else {
            return Ok(());
        };
        placed.check()?;
        let (on, shown) = (&self.target.chipset, placed.shown());
        match on.as_ref().filter(|on| **on != shown) {
            Some(on) => Err(format!(
                "target.chipset is {on} and placement.chipset {shown}"
            )),
            None => Ok(()),
        }
    }

    fn mistakes(&self) -> Vec<Mistake> {
        let state = self.device_state();
        let mut mistakes = Vec::from_iter(state.mistake(THIS_LAUNCH));
        if !self.made_again.is_empty() {
            mistakes.push(Mistake::made_again(THIS_LAUNCH, &self.made_again));
        }
        let os = self.target.os.as_deref().unwrap_or_default();
        let is_pc = os.contains("x86") || os.contains("emulator");
        let is_emulated = is_pc && self.runtime.ep.as_deref().is_none_or(|ep| ep == NPU);
        mistakes
            .extend(is_emulated.then(|| Mistake::cpu_latency(&format!("QNN's emulator ({os})"))));
        let device = self.target.device.as_deref().unwrap_or_default();
        mistakes.extend(device.contains("(Proxy)").then(|| Mistake::proxy(device)));
        mistakes
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        read::{ReadOptions, read, tests::only},
        run::{Arm, RunTarget, Unit},
    };

    #[test]
    fn a_throttled_launch_says_so() {
        let run = |fields: &str| {
            only(&format!(
                r#"{{"schema": "epwatch.run/1", "runs_us": [8210], "target": {{"chipset": "SM8650", "device": "a"}}{fields}}}"#
            ))
        };
        assert_eq!(run("").mistakes, []);
        assert_eq!(run("").target.chipset.as_deref(), Some("SM8650"));
        for fields in [
            r#", "thermal_after": 2"#,
            r#", "battery_c": 37.5"#,
            r#", "battery_c": 36.5, "battery_after_c": 37"#,
            r#", "probe_us": 100, "probe_after_us": 106"#,
        ] {
            assert_eq!(run(fields).mistakes[0].id, "throttled", "{fields}");
        }
        let again = &run(r#", "made_again": ["thermal status 2", "ended by signal 9"]"#).mistakes;
        assert_eq!(again[0].id, "made_again");
        assert_eq!(
            again[0].why,
            "this launch was made again (thermal status 2; ended by signal 9)"
        );
        assert!(!again[0].leaves_out());
        let faster = run(r#", "probe_us": 100, "probe_after_us": 94"#);
        assert_eq!(faster.mistakes[0].id, "faster_clock");
        assert_eq!(run(r#", "thermal_after": 1, "battery_c": 30"#).mistakes, []);
    }

    #[test]
    fn the_request_is_the_policy_or_the_eps() {
        let asked = |fields: &str| {
            let text = format!(r#"{{"schema": "epwatch.run/1", "runs_us": [1], {fields}}}"#);
            only(&text).target.asked_for
        };
        let placement = r#""placement": {"chipset": "SM8650", "soc_model": "57", "session": "ok", "error": null,
            "requested": ["QNNExecutionProvider", "XnnpackExecutionProvider"], "eps": {}, "cpu_nodes": [],
            "fingerprint_normalised": null, "reasons": []}"#;
        for (fields, expected) in [
            (r#""warmup": 0"#, None),
            (r#""runtime": {"ep": "QNN"}"#, Some("QNN")),
            (r#""runtime": {"policy": "PREFER_NPU"}"#, Some("PREFER_NPU")),
            (
                r#""runtime": {"policy": "OrtExecutionProviderDevicePolicy.PREFER_NPU", "ep": "QNN"}"#,
                Some("PREFER_NPU (QNN)"),
            ),
            (
                placement,
                Some("QNNExecutionProvider, XnnpackExecutionProvider"),
            ),
        ] {
            assert_eq!(asked(fields).as_deref(), expected, "{fields}");
        }
        for policy in ["", "PREFER_TPU"] {
            let fields = format!(r#""runs_us": [1], "runtime": {{"policy": "{policy}"}}"#);
            let text = format!(r#"{{"schema": "epwatch.run/1", {fields}}}"#);
            let error = read(text.as_bytes(), ReadOptions::default()).unwrap_err();
            assert!(
                error.to_string().contains("for example PREFER_NPU"),
                "{error}"
            );
        }
    }

    /// The whole document, as docs/gate.md lists it.
    #[test]
    fn every_field_of_the_document_is_read() {
        let run = only(
            r#"{"schema": "epwatch.run/1", "model": {"sha256": "ab", "data": {"scene.data": "CD"}, "name": "scene"},
                "target": {"chipset": "SM8650", "device": "Galaxy S24", "firmware": "f1", "os": "Android 15"},
                "runtime": {"ort": "1.23.0", "ep": "QNNExecutionProvider", "policy": "PREFER_NPU", "ep_version": "2.7.0", "qnn_sdk": "2.40",
                    "options": {"htp_performance_mode": "burst"}},
                "source": "bench 3", "launch": 4, "arm": "candidate", "started_unix_ms": 1790000000000, "load_us": 412000, "load_warm_us": 31000,
                "profile": {"files": ["candidate-ort-profile.json"],
                    "nodes": [{"name": "fc", "op_type": "Gemm", "ep": "CPUExecutionProvider", "share": 0.75}]},
                "runs_us": [9900, 8210, 8190], "warmup": 1, "thermal_before": 0, "thermal_after": 1, "battery_c": 31.5,
                "probe_us": 100, "probe_after_us": 101,
                "per_op": [{"name": "conv0", "op_type": "Conv", "ep": "QNNExecutionProvider", "cycles": 120, "macs": 900},
                    {"name": "fc", "op_type": "Gemm", "ep": "CPUExecutionProvider", "us": 12.5, "macs": 100}],
                "outputs": {"hash": "cd", "max_abs": 0.01, "cosine": 0.998, "top1": 1.0, "first_off": "relu_3",
                    "not_finite": {"output": "y", "elements": 3, "expected": 3, "of": 16, "differs": false}}}"#,
        );
        let RunTarget {
            row, os, runtime, ..
        } = &run.target;
        assert_eq!((&**row, os.as_deref()), ("4", Some("Android 15")));
        assert_eq!(
            runtime.as_deref(),
            Some(
                "ONNX Runtime 1.23.0, QNNExecutionProvider 2.7.0, QNN 2.40, policy prefer_npu, htp_performance_mode=burst, measured by bench 3"
            )
        );
        assert_eq!((run.warmup, run.arm), (Some(1), Some(Arm::Candidate)));
        assert_eq!((run.load_us, run.probe_us), (Some(412_000.0), Some(100.0)));
        let units: Vec<Unit> = run.nodes.iter().map(|node| node.unit).collect();
        assert_eq!(units, [Unit::Npu, Unit::Cpu]);
        let outputs = run.outputs.unwrap();
        assert_eq!(outputs.cosine, Some(0.998));
        assert_eq!(outputs.first_off.as_deref(), Some("relu_3"));
        assert_eq!(outputs.not_finite.unwrap().expected, 3);
        assert_eq!(run.target.model_data["scene.data"], "cd");
        assert_eq!(run.mistakes, []);
        let emulated = only(
            r#"{"schema": "epwatch.run/1", "runs_us": [1], "target": {"os": "Linux x86_64"},
                "runtime": {"ep": "QNNExecutionProvider"}}"#,
        );
        assert_eq!(emulated.mistakes[0].id, "cpu_latency");
    }

    #[test]
    fn unknown_fields_and_no_times_are_refused() {
        let check = |fields: &str, says: &str| {
            let text = format!(r#"{{"schema": "epwatch.run/1", {fields}}}"#);
            let error = read(text.as_bytes(), ReadOptions::default()).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        };
        check(r#""launch": 1"#, "runs_us");
        check(r#""run_us": [1]"#, "run_us");
        for (runs, says) in [
            ("", "runs_us is empty"),
            ("0", "runs_us[0] is 0"),
            ("1e30", "expected u64"),
            ("-1", "expected u64"),
            ("18446744073709551615", "1 us to an hour"),
        ] {
            check(&format!(r#""runs_us": [{runs}]"#), says);
        }
        let not_finite = |elements: u64, expected: u64, of: u64, differs: bool| {
            format!(
                r#""outputs": {{"not_finite": {{"output": "y", "elements": {elements}, "expected": {expected}, "of": {of}, "differs": {differs}}}}}"#
            )
        };
        for (field, says) in [
            (r#""load_us": -1"#, "load_us is -1"),
            (r#""arm": "both""#, "candidate"),
            (r#""battery_c": 1000"#, "battery_c is 1000"),
            (r#""battery_after_c": -100"#, "battery_after_c is -100"),
            (r#""cpu_khz": -1"#, "expected u64"),
            (
                r#""made_again": ["", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", ""]"#,
                "made_again has over 16 texts",
            ),
            (r#""outputs": {"cos": 1}"#, "cosine"),
            (r#""outputs": {"cosine": 2}"#, "outputs.cosine is 2"),
            (r#""outputs": {"cosine": 1e999}"#, "out of range"),
            (r#""outputs": {"max_abs": -1}"#, "outputs.max_abs is -1"),
            (r#""outputs": {"top1": 1.5}"#, "outputs.top1 is 1.5"),
            (&not_finite(3, 0, 16, false), "do not differ"),
            (&not_finite(0, 3, 16, false), "do not differ"),
            (&not_finite(0, 0, 0, false), "of 0; expected one or more"),
            (&not_finite(0, 0, 16, true), "of 16; expected one or more"),
            (&not_finite(17, 3, 16, true), "17 elements"),
            (&not_finite(3, 17, 16, true), "17 expected"),
            (
                r#""per_op": [{"name": "a", "ep": "b", "macs": -1}]"#,
                "expected u64",
            ),
        ] {
            check(&format!(r#""runs_us": [1], {field}"#), says);
        }
    }

    /// A placement in a document is as untrusted as its run times.
    #[test]
    fn placements_that_contradict_themselves_are_refused() {
        let document = |eps: &str, nodes: &str| {
            let text = format!(
                r#"{{"schema": "epwatch.run/1", "runs_us": [1], "target": {{"chipset": "SM8650"}}, "placement": {{
                    "chipset": "SM8650", "soc_model": "57", "session": "ok", "error": null, "eps": {{{eps}}},
                    "cpu_nodes": [{nodes}], "fingerprint_normalised": null, "reasons": []}}}}"#
            );
            read(text.as_bytes(), ReadOptions::default()).map(|mut runs| runs.remove(0))
        };
        let ep = |name: &str, share: f64, partitions: u32| {
            format!(
                r#""{name}": {{"nodes": 3, "partitions": {partitions}, "macs_share": {share}}}"#
            )
        };
        let node = |share: f64| {
            format!(
                r#"{{"name": "a", "op_type": "Gemm", "reason": "unknown", "reason_text": null, "macs_share": {share}, "benign": false}}"#
            )
        };
        let (npu, cpu) = ("QNNExecutionProvider", "CPUExecutionProvider");
        let both = |a: f64, b: f64| format!("{}, {}", ep(npu, a, 1), ep(cpu, b, 1));
        let run = document(&both(0.75, 0.25), &node(0.25)).unwrap();
        assert_eq!(run.target.chipset.as_deref(), Some("SM8650"));
        for (eps, nodes, says) in [
            (ep(npu, 5.0, 1), String::new(), "is 5"),
            (ep(npu, -0.5, 1), String::new(), "is -0.5"),
            (both(1.0, 0.5), node(0.5), "adds up to 1.5"),
            (both(1.0, 0.0), node(0.3), "to 0.3 of the CPU's nodes"),
            (ep(npu, 1.0, 0), String::new(), "no partition"),
        ] {
            let error = document(&eps, &nodes).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        let other = r#"{"schema": "epwatch.run/1", "runs_us": [1], "target": {"chipset": "SM8650"}, "placement": {
            "chipset": "SM8635", "soc_model": "68", "session": "ok", "error": null, "eps": {}, "cpu_nodes": [],
            "fingerprint_normalised": null, "reasons": []}}"#;
        let error = read(other.as_bytes(), ReadOptions::default()).unwrap_err();
        assert!(
            error.to_string().contains("placement.chipset SM8635"),
            "{error}"
        );
    }
}
