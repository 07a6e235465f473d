//! The report of a volunteer: the results from a device in one signed file. docs/device.md lists its fields.
//!
//! Each field is listed explicitly, so that nothing else from the launches' files gets into the report. There is no
//! path, no name of a model, node, tensor or user, no text of an error, and no time of day. The key is made for this
//! report and forgotten; its public half is written next to the report. So the signature shows that the file was not
//! changed later, but not who made it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use epwatch_gate::{
    dsse::Envelope,
    evidence::{SEEN, STATEMENT, Statement, Subject},
    run_document::MeasuredOn,
};
use epwatch_proto::hex;
use ring::{
    rand::SystemRandom,
    signature::{Ed25519KeyPair, KeyPair},
};
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{
    document::{self, RunDocument},
    report_file::{PUBLIC_KEY, key_of, replace_report},
    say::say,
};

/// Name and version of the document.
const SCHEMA: &str = "epwatch.seen/1";
/// The bytes before the 32 bytes of an Ed25519 key in DER (RFC 8410, section 4).
const SPKI: [u8; 12] = [48, 42, 48, 5, 6, 3, 43, 101, 112, 3, 33, 0];
/// Domains whose ops are public.
const PUBLIC_DOMAINS: [&str; 3] = ["", "ai.onnx", "com.microsoft"];
const BASE64_LINE: usize = 64;

#[derive(Debug, Serialize)]
struct SeenReport {
    schema: &'static str,
    program: String,
    target: MeasuredOn,
    ort: Option<String>,
    ep: Option<String>,
    /// Options of the EP; values that are paths are left out.
    options: BTreeMap<String, String>,
    models: Vec<SeenModel>,
    /// Whether each thing that the runner does worked here.
    works: BTreeMap<&'static str, bool>,
    /// Whether the runner itself failed.
    is_broken_off: bool,
}

#[derive(Debug, Serialize)]
struct SeenModel {
    sha256: String,
    /// `ok`, `failed` or `unproven`.
    session: String,
    eps: Value,
    partitions: usize,
    /// Nodes on the CPU by op.
    cpu_ops: BTreeMap<String, u32>,
    /// Codes of reasons, as in docs/reasons.md.
    reasons: BTreeSet<String>,
    fingerprint_normalised: Option<String>,
    launches: usize,
    /// Launches that were made again, because the device throttled them or a signal ended them.
    made_again: usize,
    median_us: Option<f64>,
    fastest_us: Option<u64>,
    slowest_us: Option<u64>,
    load_us: Option<f64>,
    load_warm_us: Option<f64>,
    thermal_most: Option<u8>,
    battery_most_c: Option<f64>,
    max_abs: Option<f64>,
    cosine: Option<f64>,
    top1: Option<f64>,
}

/// Writes what was seen in a folder of launches as one signed file without names, next to its public key, and says so.
///
/// # Errors
/// Fails if a launch cannot be read, or the files cannot be written.
pub fn write_report(folder: &Path, file: &Path, is_broken_off: bool) -> anyhow::Result<()> {
    let report = of_folder(folder, is_broken_off)?;
    let models = report.models.iter();
    let subject = models.map(|model| Subject::new("model", &model.sha256));
    let statement = Statement {
        statement: STATEMENT.to_owned(),
        subject: subject.collect(),
        predicate_type: SEEN.to_owned(),
        predicate: json!(report),
    };
    let no_key = || anyhow::anyhow!("failed to make a key: the system gives no randomness");
    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| no_key())?;
    let key = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).map_err(|_| no_key())?;
    let public = key.public_key().as_ref();
    let json = format!(
        r#"{{"keytype":"ed25519","keyval":{{"public":"{}"}},"scheme":"ed25519"}}"#,
        hex(public)
    );
    let key_id = hex(&Sha256::digest(json));
    let envelope = Envelope::signed(&serde_json::to_vec(&statement)?, key_id, |bytes| {
        key.sign(bytes)
    });
    let written = |path: &Path, text: String| {
        let written = replace_report(path, &text);
        written.with_context(|| format!("failed to write the report {}", path.display()))
    };
    written(file, serde_json::to_string(&envelope)? + "\n")?;
    let key_file = key_of(file);
    written(&key_file, pem(&[&SPKI[..], public].concat()))?;
    say(format_args!(
        "{} has what was seen here; send it with {}",
        file.display(),
        key_file.display()
    ));
    Ok(())
}

fn pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<&str> = text
        .as_bytes()
        .chunks(BASE64_LINE)
        .filter_map(|line| std::str::from_utf8(line).ok())
        .collect();
    format!(
        "{PUBLIC_KEY}\n{}\n-----END PUBLIC KEY-----\n",
        lines.join("\n")
    )
}

fn of_folder(folder: &Path, is_broken_off: bool) -> anyhow::Result<SeenReport> {
    let mut sides: BTreeMap<String, Launches> = BTreeMap::new();
    let mut names: Vec<PathBuf> = Vec::new();
    for entry in
        fs::read_dir(folder).with_context(|| format!("failed to read {}", folder.display()))?
    {
        names.push(entry?.path());
    }
    names.sort();
    for path in names {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let Some((arm, rest)) = name
            .split_once('-')
            .filter(|(arm, _)| ["candidate", "baseline"].contains(arm))
        else {
            continue;
        };
        let Ok(document) = document::read(&path) else {
            continue;
        };
        let side = sides.entry(arm.to_owned()).or_default();
        if rest == "look.json" {
            side.look = Some(document);
        } else if rest.ends_with(".json") {
            side.made.push(document);
        } else {
            side.again += 1;
        }
    }
    let first = sides
        .values()
        .find_map(|side| side.look.as_ref().or(side.made.first()));
    let first = first.with_context(|| format!("{} has no launch to report", folder.display()))?;
    // Names of dimensions come from the model. An option's value that may be a file is a name, too.
    let is_file = |key: &str, value: &str| {
        value.contains(['/', '\\', '.'])
            || ["path", "file", "dir"]
                .iter()
                .any(|part| key.contains(part))
    };
    let options = first.runtime.options.iter();
    let options = options.filter(|(key, _)| !key.starts_with("dim "));
    let options = options.map(|(key, value)| {
        let value = if is_file(key, value) {
            "(a path)"
        } else {
            value
        };
        (key.clone(), value.to_owned())
    });
    let models: Vec<SeenModel> = sides.values().rev().filter_map(Launches::seen).collect();
    let all = || sides.values().flat_map(|side| &side.made);
    let looks = || sides.values().filter_map(|side| side.look.as_ref());
    let profiles = || looks().flat_map(|look| look.profile.iter().flat_map(|found| &found.files));
    let works = BTreeMap::from([
        ("session", models.iter().all(|model| model.session == "ok")),
        (
            "placement",
            models
                .iter()
                .all(|model| model.fingerprint_normalised.is_some()),
        ),
        ("outputs", models.iter().all(|model| model.cosine.is_some())),
        (
            "ort_profile",
            profiles().any(|name| name.ends_with("ort-profile.json")),
        ),
        (
            "qnn_profile",
            profiles().any(|name| name.ends_with("qnn-profile.csv")),
        ),
        (
            "compiled_graph",
            models.iter().any(|model| model.load_warm_us.is_some()),
        ),
        (
            "run_times",
            all().any(|document| !document.runs_us.is_empty()),
        ),
        (
            "thermal_status",
            all().any(|document| document.thermal_before.is_some()),
        ),
        (
            "battery",
            all().any(|document| document.battery_c.is_some()),
        ),
        (
            "cpu_probe",
            all().any(|document| document.probe_us.is_some()),
        ),
    ]);
    Ok(SeenReport {
        schema: SCHEMA,
        program: format!("epwatch-run {}", env!("CARGO_PKG_VERSION")),
        target: first.target.clone(),
        ort: first.runtime.ort.clone(),
        ep: first.runtime.ep.clone(),
        options: options.collect(),
        models,
        works,
        is_broken_off,
    })
}

/// Documents of one model.
#[derive(Debug, Default)]
struct Launches {
    look: Option<RunDocument>,
    made: Vec<RunDocument>,
    again: usize,
}

impl Launches {
    fn seen(&self) -> Option<SeenModel> {
        let first = self.look.as_ref().or(self.made.first())?;
        let placement = serde_json::to_value(first.placement.as_ref()).unwrap_or_default();
        let text = |key: &str| placement[key].as_str().map(ToOwned::to_owned);
        let nodes = placement["cpu_nodes"].as_array().into_iter().flatten();
        let mut cpu_ops: BTreeMap<String, u32> = BTreeMap::new();
        for node in nodes.clone() {
            let domain = node["domain"].as_str().unwrap_or_default();
            let op = match PUBLIC_DOMAINS.contains(&domain) {
                true => node["op_type"].as_str().unwrap_or_default(),
                false => "(an op of the app)",
            };
            *cpu_ops.entry(op.to_owned()).or_default() += 1;
        }
        let codes = placement["reasons"].as_array().into_iter().flatten();
        let codes = codes.filter_map(|reason| reason["code"].as_str());
        let reasons = nodes
            .filter_map(|node| node["reason"].as_str())
            .chain(codes);
        let mut runs: Vec<u64> = self
            .made
            .iter()
            .flat_map(|document| {
                document
                    .runs_us
                    .iter()
                    .skip(document.warmup.unwrap_or(0))
                    .copied()
            })
            .collect();
        runs.sort_unstable();
        let outputs = first.outputs.clone().unwrap_or_default();
        let again = self
            .made
            .iter()
            .map(|one| one.made_again.len())
            .sum::<usize>();
        let heat = self
            .made
            .iter()
            .flat_map(|d| [d.thermal_before, d.thermal_after]);
        Some(SeenModel {
            sha256: first.model.sha256.clone()?,
            session: text("session").unwrap_or_else(|| "ok".to_owned()),
            eps: placement["eps"].clone(),
            partitions: placement["npu_partitions"].as_array().map_or(0, Vec::len),
            cpu_ops,
            reasons: reasons.map(ToOwned::to_owned).collect(),
            fingerprint_normalised: text("fingerprint_normalised"),
            launches: self
                .made
                .iter()
                .filter(|one| !one.runs_us.is_empty())
                .count(),
            made_again: again.max(self.again),
            median_us: runs.get(runs.len() / 2).map(|us| *us as f64),
            fastest_us: runs.first().copied(),
            slowest_us: runs.last().copied(),
            load_us: self
                .made
                .iter()
                .filter_map(|document| document.load_us)
                .reduce(f64::max),
            load_warm_us: first.load_warm_us,
            thermal_most: heat.flatten().max(),
            battery_most_c: self
                .made
                .iter()
                .flat_map(|document| [document.battery_c, document.battery_after_c])
                .flatten()
                .reduce(f64::max),
            max_abs: outputs.max_abs,
            cosine: outputs.cosine,
            top1: outputs.top1,
        })
    }
}
