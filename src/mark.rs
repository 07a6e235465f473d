//! `epwatch mark`: a change that no device reports, on the time axis of pages.

use std::process::ExitCode;

use epwatch_page::{NewMark, OrderError};
use jiff::Timestamp;

use crate::{
    account::own_name,
    output::{self, No, WrongUse},
    store_args::StoreArgs,
};

/// Marks a change, such as the deploy of a server, for whoever looks for a cause later.
///
/// Pages of cohorts and incidents show it in "What changed", on the time axis of their charts. Versions, firmwares, runtimes,
/// directives and orders are there without a mark.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example, at the end of a pipeline that deploys:\n  \
    epwatch mark 'image server 7 deployed' --app com.example.camera --clickhouse http://store:8123")]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
    /// The change, in one line.
    #[arg(required_unless_present = "undo")]
    text: Option<String>,
    /// Take the mark with this id back, so that no page shows it.
    #[arg(long, value_name = "ID", conflicts_with_all = ["text", "app", "model", "chipset", "at"])]
    undo: Option<String>,
    /// Only on pages of this app.
    #[arg(long)]
    app: Option<String>,
    /// The app's environment.
    #[arg(long, default_value = "production", requires = "app")]
    environment: String,
    /// Only on pages of this model.
    #[arg(long, requires = "app")]
    model: Option<String>,
    /// Only on pages of this chipset, for example SM8635.
    #[arg(long)]
    chipset: Option<String>,
    /// When it changed (RFC 3339) [default: now].
    #[arg(long, value_name = "TIME")]
    at: Option<Timestamp>,
    /// Your name [default: SUDO_USER, USER, LOGNAME or your account's name].
    #[arg(long, value_name = "NAME")]
    who: Option<String>,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let who = args.who.or_else(own_name);
    let who = who.ok_or_else(|| WrongUse("who are you? add --who NAME".to_owned()))?;
    let client = epwatch_store::client(&args.store.target().await?);
    if let Some(mark) = args.undo {
        let undone = epwatch_page::unmark(client, &mark, &who).await;
        let undone = undone.map_err(refused)?;
        match args.json {
            true => output::json(&undone)?,
            false => output::line(undone.text())?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let new = NewMark {
        text: args.text.unwrap_or_default(),
        who,
        app: args.app.map(|app| (app, args.environment)),
        model: args.model,
        chipset: args.chipset,
        at: args.at,
    };
    let placed = epwatch_page::mark(client, new).await.map_err(refused)?;
    match args.json {
        true => output::json(&placed)?,
        false => output::line(placed.text())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// An error about a field names it as the command line does.
fn refused(error: OrderError) -> anyhow::Error {
    match error {
        OrderError::Field(bad) if bad.field == "text" => {
            WrongUse(format!("TEXT {}", bad.problem)).into()
        }
        OrderError::Field(_) => WrongUse(format!("--{error}")).into(),
        OrderError::State(_) => No(error.to_string()).into(),
        _ => error.into(),
    }
}
