//! Writes a verdict: each report, and the signed evidence.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::Context;
use epwatch_gate::{
    evidence, report,
    verdict::{self, Verdict},
};
use epwatch_proto::ModelHash;
use epwatch_run::{ReportKind, key_of, replace_report};

use super::dsse;
use crate::{
    output::{self, WrongUse},
    signing_key::SigningKey,
};

/// Options that choose the reports.
#[derive(Debug, clap::Args)]
pub(super) struct ReportArgs {
    /// Print one JSON document, epwatch.gate/1.
    #[arg(long)]
    pub(super) json: bool,
    /// Print GitHub's ::error and ::warning lines too.
    #[arg(long, conflicts_with = "json")]
    annotations: bool,
    /// Write all reports into a folder: gate.json, gate.md, comment.md, gate.xml (JUnit), gate.sarif.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Sign the result with this Ed25519 key (PKCS #8 in PEM, as `epwatch gate keygen` makes it), into
    /// gate.dsse.json and test-result.dsse.json of --out. `epwatch verify` checks them.
    #[arg(long, value_name = "KEY", requires = "out")]
    pub(super) attest: Option<PathBuf>,
    /// Write a summary in Markdown.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Write a short table in Markdown for a comment on a pull or merge request. Its first line is a hidden mark.
    #[arg(long, value_name = "FILE")]
    comment: Option<PathBuf>,
    /// Write JUnit XML.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write SARIF 2.1.0.
    #[arg(long, value_name = "FILE")]
    sarif: Option<PathBuf>,
}

impl ReportArgs {
    /// Writes a GitHub error line for a gate that judged nothing, if such lines are requested.
    pub(super) fn annotate_wrong_use(&self, error: &anyhow::Error) -> io::Result<()> {
        match error
            .downcast_ref::<WrongUse>()
            .filter(|_| self.annotations)
        {
            Some(WrongUse(why)) => output::line(report::annotations::wrong_use(why)),
            None => Ok(()),
        }
    }

    /// The folder that gets all reports (`--out`).
    pub(super) fn folder(&self) -> Option<&Path> {
        self.out.as_deref()
    }

    /// Makes the folder of --out before judging, and checks each file, so that a result can be written. `seen` is the file of
    /// `--report`.
    pub(super) fn prepare(&self, seen: Option<&Path>) -> Result<(), WrongUse> {
        if let Some(folder) = &self.out {
            fs::create_dir_all(folder).map_err(|error| {
                let shown = folder.display();
                WrongUse(format!(
                    "failed to make the folder {shown} of --out: {error}"
                ))
            })?;
        }
        let options = [
            ("--markdown", &self.markdown, MARKDOWN),
            ("--comment", &self.comment, COMMENT),
            ("--junit", &self.junit, JUNIT),
            ("--sarif", &self.sarif, SARIF),
        ];
        let mut apart: Vec<(&str, &Path)> = Vec::new();
        for (argument, path, kind) in options {
            if let Some(path) = path {
                output::check_report(argument, path, kind)?;
                apart.push((argument, path));
            }
        }
        apart.extend(seen.map(|path| ("--report", path)));
        check_apart(&apart)?;
        let Some(folder) = &self.out else {
            return Ok(());
        };
        for (name, kind) in IN_FOLDER {
            let path = folder.join(name);
            output::check_report("--out", &path, kind)?;
            // The same report may be in the folder and at the path of its option.
            let others = options.iter().filter(|(.., of)| *of != kind);
            let others =
                others.filter_map(|(argument, path, _)| Some((*argument, path.as_deref()?)));
            for other in others.chain(seen.map(|path| ("--report", path))) {
                check_apart(&[("--out", &path), other])?;
            }
        }
        Ok(())
    }

    /// Writes the reports, and returns the hash of the evidence. Reports in files come first, so that they exist
    /// whatever happens to standard output.
    pub(super) fn write(
        &self,
        verdict: &Verdict,
        key: Option<&SigningKey>,
    ) -> anyhow::Result<Option<ModelHash>> {
        let mut evidence = None;
        if let Some(folder) = &self.out {
            evidence = attest(folder, verdict, key)?;
        }
        let file = |name: &str, path: Option<&PathBuf>, text: String| {
            let in_folder = self.out.as_ref().map(|folder| folder.join(name));
            for path in in_folder.iter().chain(path) {
                replace_report(path, &text)
                    .with_context(|| format!("failed to write the report {}", path.display()))?;
            }
            anyhow::Ok(())
        };
        let json = serde_json::to_string_pretty(verdict)?;
        file("gate.json", None, json + "\n")?;
        let markdown = report::markdown::markdown(verdict);
        file("gate.md", self.markdown.as_ref(), markdown)?;
        let comment = report::comment::comment(verdict);
        file("comment.md", self.comment.as_ref(), comment)?;
        file(
            "gate.xml",
            self.junit.as_ref(),
            report::junit::junit(verdict),
        )?;
        let sarif = format!("{:#}\n", report::sarif::sarif(verdict));
        file("gate.sarif", self.sarif.as_ref(), sarif)?;
        if self.json {
            output::json(verdict)?;
            return Ok(evidence);
        }
        output::line(report::table::table(verdict, output::columns()))?;
        if self.annotations {
            output::line(report::annotations::annotations(verdict))?;
        }
        Ok(evidence)
    }
}

const MARKDOWN: ReportKind = ReportKind::Text(report::markdown::BEGINS);
const COMMENT: ReportKind = ReportKind::Text(report::comment::MARK);
const JUNIT: ReportKind = ReportKind::Text(report::junit::BEGINS);
const SARIF: ReportKind = ReportKind::Json(report::sarif::TOOL_AT, report::sarif::TOOL);

/// Files of `--out`.
const IN_FOLDER: [(&str, ReportKind); 7] = [
    ("gate.json", ReportKind::Json("/schema", verdict::SCHEMA)),
    ("gate.md", MARKDOWN),
    ("comment.md", COMMENT),
    ("gate.xml", JUNIT),
    ("gate.sarif", SARIF),
    (EVIDENCE[0], ReportKind::Signed(evidence::TEST_RESULT)),
    (EVIDENCE[1], ReportKind::Signed(evidence::GATE)),
];

/// Refuses two options with one file, of which only one report would remain. A report of what was seen has a second file.
pub(super) fn check_apart(options: &[(&str, &Path)]) -> Result<(), WrongUse> {
    let mut known: Vec<(&str, PathBuf)> = Vec::new();
    for (argument, path) in options {
        let key = (*argument == "--report").then(|| key_of(path));
        for path in [path.to_path_buf()].into_iter().chain(key) {
            let place = place_of(&path);
            if let Some((other, _)) = known.iter().find(|(_, known)| *known == place) {
                return Err(WrongUse(format!(
                    "{other} and {argument} are one file, {}: give each its own",
                    path.display()
                )));
            }
            // A stream takes several reports.
            known.extend((!path.starts_with("/dev")).then_some((*argument, place)));
        }
    }
    Ok(())
}

/// A path whose folder has one name.
fn place_of(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|path| !path.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    folder.join(path.file_name().unwrap_or_default())
}

/// Files of [`evidence::statements`], in their order.
const EVIDENCE: [&str; 2] = ["test-result.dsse.json", "gate.dsse.json"];

/// Writes signed evidence, and returns the SHA-256 of the last file. Old files are removed in any case, because another
/// run's evidence would be taken for this run's.
fn attest(
    folder: &Path,
    verdict: &Verdict,
    key: Option<&SigningKey>,
) -> anyhow::Result<Option<ModelHash>> {
    let paths = EVIDENCE.map(|name| folder.join(name));
    for path in &paths {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error)
                    .with_context(|| format!("failed to remove old {}", path.display()));
            }
            _ => {}
        }
    }
    let made_at = verdict.made_at.as_deref().unwrap_or_default();
    let statements = evidence::statements(verdict, made_at);
    let mut written = None;
    if let (Some(key), Some(statements)) = (key, statements) {
        for (path, statement) in paths.iter().zip(&statements) {
            let envelope = dsse::signed(&serde_json::to_vec(statement)?, key);
            let text = serde_json::to_string(&envelope)? + "\n";
            replace_report(path, &text)
                .with_context(|| format!("failed to write the evidence {}", path.display()))?;
            written = Some(ModelHash::of(text.as_bytes()));
        }
    }
    Ok(written)
}
