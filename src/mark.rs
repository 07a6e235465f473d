//! `epwatch mark`: a change that no device reports, on the time axis of pages.

use std::process::ExitCode;

use epwatch_page::{NewMark, OrderError};
use jiff::Timestamp;

use crate::{
    incident_order::own_name,
    output::{self, WrongUse},
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
    /// What changed, in one line.
    text: String,
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
    let new = NewMark {
        text: args.text,
        who,
        app: args.app.map(|app| (app, args.environment)),
        model: args.model,
        chipset: args.chipset,
        at: args.at,
    };
    let client = epwatch_store::client(&args.store.target().await?);
    let placed = match epwatch_page::mark(client, new).await {
        Ok(placed) => placed,
        Err(OrderError::Field(bad)) if bad.field == "text" => {
            return Err(WrongUse(format!("TEXT {}", bad.problem)).into());
        }
        Err(error @ OrderError::Field(_)) => return Err(WrongUse(format!("--{error}")).into()),
        Err(error) => return Err(error.into()),
    };
    match args.json {
        true => output::json(&placed)?,
        false => output::line(placed.text())?,
    }
    Ok(ExitCode::SUCCESS)
}
