//! `epwatch verify`: checks the evidence of a gate, offline.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use epwatch_gate::{
    dsse::Envelope,
    evidence::{SEEN, Statement, Subject},
};
use epwatch_manifest::ModelOutline;
use epwatch_server::Period;
use jiff::Timestamp;
use serde::Serialize;

use crate::{
    gate::dsse::opened,
    input_file::{self, FilePurpose},
    output::{self, No, WrongUse},
    release,
    signing_key::PublicKey,
};

/// The clock of the signing machine may be this far ahead.
const MOST_AHEAD: Duration = Duration::from_secs(300);

/// Checks evidence that `epwatch gate --attest` signed: signature, result, model, policy and age; or files of a release; or
/// a report of `epwatch run --report`, which it prints.
///
/// Needs no network. Exit code 0: the evidence is signed with the key, its result is pass, and everything given is what
/// was judged. Exit code 1: at least one of these does not hold. Exit code 2: wrong use, or no evidence.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// gate.dsse.json or test-result.dsse.json.
    evidence: PathBuf,
    /// The public key (PEM), which `epwatch gate keygen` writes into its file .pub.
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// A model file, which must be one that was judged. Files next to it that hold its tensors are compared too.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    model: Vec<PathBuf>,
    /// A file of a release; the first argument is its release.dsse.json then.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["model", "policy", "max_age"])]
    file: Vec<PathBuf>,
    /// The policy file, which must be the one that was used.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Oldest evidence that counts, for example 30d. Only gate.dsse.json has a time.
    #[arg(long, value_name = "TIME")]
    max_age: Option<Period>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Evidence with a valid signature.
#[derive(Debug, Serialize)]
struct Verified {
    /// The key's id in evidence and `keygen`.
    evidence_id: String,
    /// The key's short id in `keygen` and directives.
    key_id: String,
    predicate_type: String,
    /// `pass` or `fail`.
    result: &'static str,
    made_at: Option<Timestamp>,
    models: Vec<Subject>,
    /// Files next to these models, which hold tensors or compiled graphs.
    data: Vec<Subject>,
    /// SHA-256 of the policy file; `None` for the default policy.
    policy: Option<String>,
    /// All failed comparisons, each as a sentence.
    problems: Vec<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let key = PublicKey::read(&args.key).map_err(|error| WrongUse(format!("--key: {error:#}")))?;
    let shown = args.evidence.display();
    let wrong = |why: &dyn std::fmt::Display| {
        WrongUse(format!(
            "{shown} is not evidence: {why}; expected gate.dsse.json or test-result.dsse.json of `epwatch gate --attest`"
        ))
    };
    let text = input_file::read(&args.evidence, FilePurpose::Evidence)
        .map_err(|error| WrongUse(format!("failed to read {shown}: {error}")))?;
    let envelope: Envelope = serde_json::from_slice(&text).map_err(|error| wrong(&error))?;
    let Some(statement) = opened(&envelope, &key) else {
        let text = format!(
            "{shown} is not signed with the key {}, or was changed",
            args.key.display()
        );
        return Err(No(text).into());
    };
    let statement: Statement = serde_json::from_slice(&statement).map_err(|error| wrong(&error))?;
    if !args.file.is_empty() {
        return verify_release(args, &statement, &key);
    }
    if statement.predicate_type == SEEN {
        // A device's report only states what was seen; it has no result to compare.
        if !args.model.is_empty() || args.policy.is_some() || args.max_age.is_some() {
            return Err(wrong(&"it is a report of a device, which judges nothing").into());
        }
        output::json(&statement.predicate)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut verified = verified(&key, statement).map_err(|why| wrong(&why))?;
    verified.problems = problems(args, &verified, Timestamp::now())?;
    if args.json {
        output::json(&verified)?;
    } else {
        output::line(text_of(&verified, args).trim_end())?;
    }
    match verified.problems.is_empty() {
        true => Ok(ExitCode::SUCCESS),
        false => Err(No(verified.problems.join("\n")).into()),
    }
}

/// Compares files with the release that names them.
fn verify_release(args: &Args, statement: &Statement, key: &PublicKey) -> anyhow::Result<ExitCode> {
    let problems = release::problems(statement, &args.file)?;
    if args.json {
        output::json(&serde_json::json!({
            "evidence_id": key.evidence_id(),
            "key_id": key.short_id(),
            "predicate_type": statement.predicate_type,
            "files": statement.subject,
            "problems": problems,
        }))?;
    } else {
        output::line(format_args!(
            "signed by  {} (key id {})",
            key.evidence_id(),
            key.short_id()
        ))?;
        for file in &statement.subject {
            let name = file.name.escape_debug();
            output::line(format_args!("file       {} {name}", file.digest.sha256))?;
        }
    }
    match problems.is_empty() {
        true => Ok(ExitCode::SUCCESS),
        false => Err(No(problems.join("\n")).into()),
    }
}

/// Parses a statement of a gate.
fn verified(key: &PublicKey, statement: Statement) -> Result<Verified, String> {
    let claims = statement.claims()?;
    let made_at = claims
        .made_at
        .map(|text| text.parse().map_err(|_| "its time cannot be read"));
    Ok(Verified {
        evidence_id: key.evidence_id(),
        key_id: key.short_id(),
        result: if claims.is_pass { "pass" } else { "fail" },
        made_at: made_at.transpose()?,
        policy: claims.policy,
        predicate_type: claims.predicate_type,
        models: claims.models,
        data: claims.data,
        problems: Vec::new(),
    })
}

/// Compares the evidence with the given models and policy.
fn problems(args: &Args, verified: &Verified, now: Timestamp) -> Result<Vec<String>, WrongUse> {
    let mut problems = Vec::new();
    if verified.result != "pass" {
        problems.push("the gate failed".to_owned());
    }
    for path in &args.model {
        problems.extend(problems_of_model(path, verified)?);
    }
    if let Some(path) = &args.policy
        && verified.policy.as_ref() != Some(&hash(path, FilePurpose::Document)?)
    {
        let text = format!("{} is not the policy that was used", path.display());
        problems.push(text);
    }
    if let Some(made_at) = verified.made_at {
        let age = now.duration_since(made_at);
        if age < jiff::SignedDuration::ZERO && age.unsigned_abs() > MOST_AHEAD {
            problems.push(format!("the evidence is of the future, {made_at}"));
        }
    }
    if let Some(most) = args.max_age {
        match verified.made_at.map(|made_at| now.duration_since(made_at)) {
            None => {
                let text = "--max-age needs evidence with a time: verify gate.dsse.json";
                return Err(WrongUse(text.to_owned()));
            }
            Some(age) if age.unsigned_abs() > most.0 && age.is_positive() => {
                problems.push(format!("the evidence is older than {most}"));
            }
            Some(_) => {}
        }
    }
    Ok(problems)
}

fn hash(path: &Path, kind: FilePurpose) -> Result<String, WrongUse> {
    let failed = |error| WrongUse(format!("failed to read {}: {error}", path.display()));
    input_file::sha256(path, kind).map_err(failed)
}

/// Compares a model, and the files next to it that hold its data, with the evidence.
fn problems_of_model(path: &Path, verified: &Verified) -> Result<Vec<String>, WrongUse> {
    let (shown, sha256) = (path.display(), hash(path, FilePurpose::Model)?);
    let models = verified.models.iter();
    let same = models.filter(|model| model.digest.sha256 == sha256);
    let folders: Vec<&Path> = same
        .map(|model| Path::new(&model.name).parent().unwrap_or(Path::new("")))
        .collect();
    if folders.is_empty() {
        return Ok(vec![format!("{shown} is not a model that was judged")]);
    }
    let mut problems = Vec::new();
    let outline = ModelOutline::of(path).ok();
    for file in outline.iter().flat_map(ModelOutline::data_files) {
        // The model names the file, so its name in the evidence differs by the model's folder alone.
        let is_it = |data: &&Subject| {
            let mut folders = folders.iter();
            folders.any(|folder| folder.join(file) == Path::new(&data.name))
        };
        let judged: Vec<&Subject> = verified.data.iter().filter(is_it).collect();
        if judged.is_empty() {
            output::remark(format_args!(
                "the evidence does not cover {}, which holds data of {shown}: compare its hash with the release's",
                file.display()
            ));
            continue;
        }
        let here = path.parent().unwrap_or(Path::new("")).join(file);
        let sha256 = hash(&here, FilePurpose::Model)?;
        if !judged.iter().any(|data| data.digest.sha256 == sha256) {
            problems.push(format!(
                "{} is not the data of {shown} that was judged",
                here.display()
            ));
        }
    }
    Ok(problems)
}

fn text_of(verified: &Verified, args: &Args) -> String {
    let mut text = format!(
        "signed by  {} (key id {})\n",
        verified.evidence_id, verified.key_id
    );
    if let Some(made_at) = verified.made_at {
        _ = writeln!(text, "made at    {made_at}");
    }
    _ = writeln!(text, "result     {}", verified.result);
    for (what, files) in [("model", &verified.models), ("data", &verified.data)] {
        for file in files {
            _ = writeln!(
                text,
                "{what:<10} {} {}",
                file.digest.sha256,
                file.name.escape_debug()
            );
        }
    }
    if let Some(policy) = &verified.policy {
        _ = writeln!(text, "policy     {policy}");
    }
    if args.model.is_empty() {
        text.push_str("not compared with a model; --model FILE does\n");
    }
    text
}
