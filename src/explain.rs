//! `epwatch explain CODE`: the page of a reason code.

use std::process::ExitCode;

use epwatch_proto::{ReasonCode, signs_of};
use serde::Serialize;

use crate::output::{self, WrongUse};

/// Explains a reason code: what it means, how it shows, its causes and the way out.
///
/// Reports, `inspect`, `gate` and `logs` name these codes. Without CODE it lists all of them. docs/reasons.md has the
/// same pages. Exit codes: 0 explained, 2 no such code.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// For example fp16_not_supported.
    code: Option<String>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct PageDocument {
    code: &'static str,
    meaning: &'static str,
    fix: String,
    about: &'static str,
    /// Codes of the causes, the likeliest first.
    causes: Vec<&'static str>,
    signs: Vec<ShownSign>,
    source: &'static str,
}

#[derive(Debug, Serialize)]
struct ShownSign {
    line: &'static str,
    source: &'static str,
}

impl PageDocument {
    fn of(code: ReasonCode) -> Self {
        let signs = signs_of(code).map(|sign| ShownSign {
            line: sign.line,
            source: sign.source,
        });
        Self {
            code: code.as_str(),
            meaning: code.meaning(),
            fix: code.way_out(&[]),
            about: code.about(),
            causes: code.causes().iter().map(|cause| cause.as_str()).collect(),
            signs: signs.collect(),
            source: code.source(),
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Some(asked) = &args.code else {
        return list(args.json);
    };
    let name = asked.trim().to_ascii_lowercase().replace('-', "_");
    let code = ReasonCode::from_name(&name).ok_or_else(|| unknown(asked, &name))?;
    if args.json {
        output::json(&PageDocument::of(code))?;
    } else {
        output::line(text(code))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn list(is_json: bool) -> anyhow::Result<ExitCode> {
    if is_json {
        let pages: Vec<PageDocument> = ReasonCode::ALL
            .iter()
            .copied()
            .map(PageDocument::of)
            .collect();
        output::json(&pages)?;
        return Ok(ExitCode::SUCCESS);
    }
    for code in ReasonCode::ALL {
        output::line(format_args!("{:<31} {}", code.as_str(), code.meaning()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the error for an unknown code, with the nearest code.
fn unknown(asked: &str, name: &str) -> WrongUse {
    let near = ReasonCode::ALL
        .iter()
        .map(|code| (strsim::levenshtein(name, code.as_str()), code))
        .min_by_key(|(apart, _)| *apart);
    let near = near.map_or(String::new(), |(_, code)| {
        format!("; the nearest is {code}")
    });
    WrongUse(format!(
        "{asked} is not a reason code{near}; `epwatch explain` lists them"
    ))
}

/// Returns a code's page for a terminal.
fn text(code: ReasonCode) -> String {
    let mut text = format!(
        "{code}\n{}\n\n{}\n\nfix: {}",
        code.meaning(),
        code.about(),
        code.fix()
    );
    if !code.causes().is_empty() {
        text.push_str("\n\ncauses, the likeliest first:");
        for cause in code.causes() {
            text.push_str(&format!(
                "\n  {cause}: {}\n    fix: {}",
                cause.meaning(),
                cause.fix()
            ));
        }
    }
    let signs: Vec<_> = signs_of(code).collect();
    if !signs.is_empty() {
        text.push_str("\n\nlines that show it:");
        for sign in signs {
            text.push_str(&format!("\n  {}\n    seen in {}", sign.line, sign.source));
        }
    }
    text + &format!("\n\nsource: {}", code.source())
}
