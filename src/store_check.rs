//! `epwatch store check`: whether a store and the WAL beside it hold what they should.

use std::io::{IsTerminal, Write, stderr};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail};
use epwatch_collector::check::{Report, check};
use epwatch_collector::schema::{self, retention};
use serde::Serialize;

use crate::backup::OpenStore;
use crate::output::{self, No};
use crate::store_args::StoreArgs;

/// Checks that each report in the store counts once and that summaries are those of their reports.
///
/// Reads only, while a `serve` runs or not. Exit code 0: all holds; 1: something is broken, and what; 3: the store or
/// the WAL could not be read.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// The document of `--json`.
#[derive(Debug, Serialize)]
struct CheckDocument<'a> {
    ok: bool,
    store: String,
    seconds: f64,
    #[serde(flatten)]
    report: &'a Report,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let mut config = args.store.load()?;
    let open = OpenStore::of(&mut config).await?;
    let checked = async {
        let target = &open.target;
        let values = |retention| config.store.schema(retention);
        let days = retention::kept(target, values)
            .await?
            .over(config.store.days());
        let values = values(days);
        let pending = epwatch_store::pending(target, schema::MIGRATIONS, &values).await?;
        if !pending.is_empty() {
            bail!(No(format!(
                "{target} lacks {} migrations of this program: start `epwatch serve` on it, or run `epwatch migrate`",
                pending.len()
            )));
        }
        let wal = &config.collector.wal.dir;
        let wal = wal.exists().then_some(wal.as_path());
        let report = check(&epwatch_store::client(target), days.raw_days, wal, say).await;
        report.with_context(|| format!("failed to check the store {target}"))
    };
    let checked = checked.await;
    let store = open.target.to_string();
    open.close().await;
    let report = checked?;
    let document = CheckDocument {
        ok: report.is_whole(),
        store,
        seconds: started.elapsed().as_secs_f64(),
        report: &report,
    };
    if args.json {
        output::json(&document)?;
    } else {
        print(&document)?;
    }
    Ok(match document.ok {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(output::NO),
    })
}

/// Progress, for a person.
fn say(step: &str) {
    if stderr().is_terminal() {
        let _ = writeln!(stderr(), "checking: {step}");
    }
}

fn print(document: &CheckDocument<'_>) -> anyhow::Result<()> {
    for check in &document.report.checks {
        match (check.found, &check.not_checked) {
            (Some(0), _) => output::line(format_args!("ok           {}", check.holds))?,
            (Some(n), _) => {
                output::line(format_args!("BROKEN       {}", check.holds))?;
                output::line(format_args!("             {n} found: {}", check.broken_by))?;
                for example in &check.examples {
                    output::line(format_args!("             {}", example.escape_debug()))?;
                }
            }
            (None, why) => {
                let why = why.as_deref().unwrap_or_default();
                output::line(format_args!("not checked  {}: {why}", check.holds))?;
            }
        }
    }
    let CheckDocument {
        store,
        seconds,
        report,
        ..
    } = document;
    let (copies, days) = (report.copies, report.days);
    output::line(format_args!(
        "{store}: {copies} copies of reports, days: {days}, seconds: {seconds:.1}"
    ))?;
    if !document.ok {
        output::line(
            "Nothing was changed. Keep a backup (`epwatch store backup`) as evidence; docs/operations.md, \
             \"Is the store whole\", says what each finding means.",
        )?;
    }
    Ok(())
}
