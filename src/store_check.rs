//! `epwatch store check`: checks a store and the WAL next to it.

use std::io::{IsTerminal, Write, stderr};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail};
use epwatch_collector::check::{CheckReport, Repair, RepairLock, RepairState, check, repair};
use epwatch_collector::schema::{self, retention};
use serde::Serialize;

use crate::backup::{OpenStore, embedded_data_dir, move_wal};
use crate::output::{self, No, WrongUse};
use crate::server_config::ServerConfig;
use crate::store_args::StoreArgs;

/// Checks that each report in the store counts once and that summaries agree with their reports.
///
/// Reads only, while a `serve` runs or not. Exit code 0: all holds; 1: something is broken, and what; 3: the store or
/// the WAL could not be read. With --repair, exit code 0 says that nothing is left to repair, except by the next start.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Repair what can be repaired without losing anything, while no collector of this WAL runs. Make a backup first.
    #[arg(long)]
    repair: bool,
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
    report: &'a CheckReport,
    /// A repair for each check that found something; `null` without --repair.
    repairs: Option<&'a [Repair]>,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let mut config = args.store.load()?;
    // The lock is taken before the store is opened, because an engine that this command starts would delay a running
    // collector.
    let lock = args.repair.then(|| lock_of(&mut config)).transpose()?;
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
        let client = epwatch_store::client(target);
        let report = check(&client, days.raw_days, wal, say).await;
        let report = report.with_context(|| format!("failed to check the store {target}"))?;
        let repairs = match &lock {
            Some(lock) => {
                say("repairs");
                let repairs = repair(&client, days.raw_days, lock, &report).await;
                Some(repairs.with_context(|| format!("failed to repair the store {target}"))?)
            }
            None => None,
        };
        anyhow::Ok((report, repairs))
    };
    let checked = checked.await;
    let store = open.target.to_string();
    open.close().await;
    let (report, repairs) = checked?;
    let is_left = |repair: &Repair| repair.state == RepairState::Left;
    let document = CheckDocument {
        ok: match &repairs {
            Some(repairs) => !repairs.iter().any(is_left),
            None => report.is_whole(),
        },
        store,
        seconds: started.elapsed().as_secs_f64(),
        report: &report,
        repairs: repairs.as_deref(),
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

/// Takes the lock of the WAL next to the store.
fn lock_of(config: &mut ServerConfig) -> anyhow::Result<RepairLock> {
    // The config names the WAL of a collector with a ClickHouse server; an embedded store has it in its data folder.
    if let Ok(data_dir) = embedded_data_dir(config) {
        move_wal(config, &data_dir);
    }
    let wal = &config.collector.wal.dir;
    if !wal.exists() {
        bail!(WrongUse(format!(
            "{} holds no WAL; run --repair where the collector runs, with its --data-dir or --config",
            wal.display()
        )));
    }
    RepairLock::take(wal).context("failed to repair: stop the collector first")
}

/// Prints progress for a person.
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
        repairs,
        ..
    } = document;
    let (copies, days) = (report.copies, report.days);
    output::line(format_args!(
        "{store}: {copies} copies of reports, days: {days}, seconds: {seconds:.1}"
    ))?;
    for repair in repairs.unwrap_or_default() {
        let state = match repair.state {
            RepairState::Done => "repaired    ",
            RepairState::NextStart => "next start  ",
            RepairState::Left => "LEFT        ",
        };
        output::line(format_args!("{state} {}: {}", repair.check, repair.what))?;
    }
    if repairs.is_some() {
        output::line("Start the collector, and check again once it has caught up.")?;
    } else if !document.ok {
        output::line(
            "Nothing was changed. Keep a backup (`epwatch store backup`) as evidence; docs/repair.md, \
             \"Is the store whole\", says what each finding means, and what --repair does.",
        )?;
    }
    Ok(())
}
