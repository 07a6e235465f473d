//! `epwatch status`, `incident` and `show`: the built-in page's structs at a shell.

use std::process::ExitCode;

use epwatch_page::{ShellError, ShellPage};

use crate::{
    output::{self, No},
    store_args::StoreArgs,
};

/// Options of each of these commands.
#[derive(Debug, clap::Args)]
pub(crate) struct Shared {
    #[command(flatten)]
    store: StoreArgs,
    /// Print one JSON document, the same as the page's `.json`.
    #[arg(long)]
    json: bool,
}

/// Prints what is open, and each model by chipset with its verdict and why.
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    shared: Shared,
    /// The app [default: the one with an open page, or the most devices].
    #[arg(long)]
    app: Option<String>,
    /// The environment, for example production.
    #[arg(long)]
    environment: Option<String>,
}

/// Lists incidents, or prints one: what to do, why, which devices, since when.
#[derive(Debug, clap::Args)]
pub(crate) struct IncidentArgs {
    #[command(flatten)]
    shared: Shared,
    /// The incident's id; without it all open ones and those of the last 30 days are listed.
    id: Option<String>,
    /// List only those of this app.
    #[arg(long, conflicts_with = "id")]
    app: Option<String>,
}

/// Prints where a model runs: its chipsets, or the latency and placement of one version on one chipset.
#[derive(Debug, clap::Args)]
pub(crate) struct ModelArgs {
    #[command(flatten)]
    shared: Shared,
    app: String,
    model: String,
    #[arg(value_name = "VERSION", requires = "chipset")]
    model_version: Option<String>,
    chipset: Option<String>,
    #[arg(long, default_value = "production")]
    environment: String,
}

pub(crate) async fn status(args: StatusArgs) -> anyhow::Result<ExitCode> {
    let question = ShellPage::Fleet {
        app: args.app,
        environment: args.environment,
        search: String::new(),
    };
    answer(&args.shared, question).await
}

pub(crate) async fn incident(args: IncidentArgs) -> anyhow::Result<ExitCode> {
    let question = match args.id {
        Some(id) => ShellPage::Incident { id },
        None => ShellPage::Incidents { app: args.app },
    };
    answer(&args.shared, question).await
}

pub(crate) async fn show(args: ModelArgs) -> anyhow::Result<ExitCode> {
    let question = match args.model_version.zip(args.chipset) {
        Some((version, chipset)) => ShellPage::Cohort {
            app: args.app,
            environment: args.environment,
            model: args.model,
            version,
            chipset,
        },
        None => ShellPage::Fleet {
            app: Some(args.app),
            environment: Some(args.environment),
            search: args.model,
        },
    };
    answer(&args.shared, question).await
}

async fn answer(shared: &Shared, question: ShellPage) -> anyhow::Result<ExitCode> {
    let client = epwatch_store::client(&shared.store.target()?);
    let answer = match epwatch_page::ask(client, question).await {
        Ok(answer) => answer,
        Err(error @ ShellError::Unknown) => return Err(No(error.to_string()).into()),
        Err(error) => return Err(error.into()),
    };
    match shared.json {
        true => output::json(&serde_json::from_slice::<serde_json::Value>(&answer.json)?)?,
        false => output::line(answer.text)?,
    }
    Ok(ExitCode::SUCCESS)
}
