//! Signs the files of a release, and compares files with such a signature. The signature is an in-toto statement of the
//! predicate `release` in a DSSE envelope, like evidence of a gate. `.ci/dist` signs, `epwatch verify --file` verifies.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use epwatch_gate::evidence::{STATEMENT, Statement, Subject};
use epwatch_manifest::sha256_of_file;
use serde_json::json;

use crate::{
    gate::dsse::signed,
    output::{self, WrongUse},
    signing_key::SigningKey,
};

/// <https://github.com/in-toto/attestation/blob/main/spec/predicates/release.md>
const RELEASE: &str = "https://in-toto.io/attestation/release/v0.1";
const PURL: &str = concat!("pkg:generic/epwatch@", env!("CARGO_PKG_VERSION"));

/// Signs files as a release of this version, and prints the envelope.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The private key (PEM), as `epwatch gate keygen` makes it.
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// The files; the statement has their names without folders.
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

pub(crate) fn sign(args: &Args) -> anyhow::Result<ExitCode> {
    let key = SigningKey::read(&args.key)?;
    let subject = args.files.iter().map(|path| subject(path));
    let statement = Statement {
        statement: STATEMENT.to_owned(),
        subject: subject.collect::<Result<_, _>>()?,
        predicate_type: RELEASE.to_owned(),
        predicate: json!({"purl": PURL}),
    };
    let statement = serde_json::to_vec(&statement)?;
    output::json(&signed(&statement, &key))?;
    Ok(ExitCode::SUCCESS)
}

fn subject(path: &Path) -> Result<Subject, WrongUse> {
    let sha256 = sha256_of_file(path);
    let sha256 =
        sha256.map_err(|error| WrongUse(format!("failed to read {}: {error}", path.display())))?;
    let name = path.file_name().unwrap_or_default();
    Ok(Subject::new(name.to_string_lossy(), sha256))
}

/// Returns the files that a signed statement of a release does not name with this content.
///
/// # Errors
/// The statement is of another kind, or a file cannot be read.
pub(crate) fn problems(statement: &Statement, files: &[PathBuf]) -> Result<Vec<String>, WrongUse> {
    if statement.predicate_type != RELEASE || statement.statement != STATEMENT {
        return Err(WrongUse(
            "it is signed, and is not a release; expected release.dsse.json".to_owned(),
        ));
    }
    let mut problems = Vec::new();
    for path in files {
        let here = subject(path)?;
        if !statement
            .subject
            .iter()
            .any(|one| one.digest == here.digest)
        {
            problems.push(format!("{} is not a file of this release", path.display()));
        }
    }
    Ok(problems)
}
