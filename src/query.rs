//! `epwatch status`, `incident`, `show`, `devices`, `certificates`, `health`, `ledger` and `orders`: the built-in
//! page's read model in a terminal.

use std::{
    io::{self, IsTerminal},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use epwatch_detector::notify::page_of;
use epwatch_page::{DevicesQuery, PartStatus, TerminalAnswer, TerminalError, TerminalPage};
use epwatch_server::SystemClock;

use crate::{
    address_file,
    incident_order::{self, OrderCommand},
    output::{self, No, WrongUse},
    part_status,
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
    /// Print again whenever something has changed, until Ctrl-C or the reader's end.
    #[arg(long, visible_alias = "follow")]
    watch: bool,
}

/// Prints what is open, each model by chipset with its verdict and why, and whether store, WAL and detector work.
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

/// Lists incidents, prints one (what to do, why, which devices, since when), or orders something of one.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct IncidentArgs {
    #[command(subcommand)]
    order: Option<OrderCommand>,
    #[command(flatten)]
    shared: Shared,
    /// The incident's id. Without it, all open incidents and all incidents of the last 30 days are listed.
    id: Option<String>,
    /// List only this app's incidents.
    #[arg(long, conflicts_with = "id")]
    app: Option<String>,
    /// Print it as Markdown for a ticket: times without their age, and nothing else.
    #[arg(long, requires = "id", conflicts_with_all = ["json", "watch"])]
    markdown: bool,
}

/// Prints whether reports arrive, are stored and are judged, and whether notifications are delivered.
#[derive(Debug, clap::Args)]
pub(crate) struct HealthArgs {
    #[command(flatten)]
    shared: Shared,
}

/// Prints what became of every report: stored, dropped, refused or missing, and whether the sum closes.
#[derive(Debug, clap::Args)]
pub(crate) struct LedgerArgs {
    #[command(flatten)]
    shared: Shared,
    /// Only reports of this app.
    #[arg(long)]
    app: Option<String>,
    /// Only reports of this environment.
    #[arg(long)]
    environment: Option<String>,
    /// Days, today included.
    #[arg(long, value_name = "N", default_value_t = 14, value_parser = clap::value_parser!(u32).range(1..=14))]
    days: u32,
}

/// Prints who ordered what of which incident, and why.
#[derive(Debug, clap::Args)]
pub(crate) struct OrdersArgs {
    #[command(flatten)]
    shared: Shared,
    /// Only orders to incidents of this app.
    #[arg(long)]
    app: Option<String>,
}

/// Prints where a model runs: its chipsets, or the latency and placement of one version on one chipset.
#[derive(Debug, clap::Args)]
pub(crate) struct ModelArgs {
    #[command(flatten)]
    shared: Shared,
    /// The app's id, as in its key.
    app: String,
    /// The model's id, as the app reports it.
    model: String,
    /// A version, with a chipset: its latency and placement there.
    #[arg(value_name = "VERSION", requires = "chipset")]
    model_version: Option<String>,
    /// The version's chipset, for example SM8635.
    chipset: Option<String>,
    /// The app's environment.
    #[arg(long, default_value = "production")]
    environment: String,
}

/// Lists devices that reported in the last day, or prints what one of them sent: "did my device arrive?"
#[derive(Debug, clap::Args)]
pub(crate) struct DevicesArgs {
    #[command(flatten)]
    shared: Shared,
    /// The installation's id, as the SDK's `explain()` prints it; its first 8 digits are enough.
    #[arg(conflicts_with_all = ["latest", "app"])]
    id: Option<String>,
    /// Print what the device that reported last sent.
    #[arg(long)]
    latest: bool,
    /// Only devices of this app.
    #[arg(long)]
    app: Option<String>,
}

/// Lists the placements that models were certified with (`epwatch gate --certify`): version, chipset, runtime, model file
/// and certifier.
#[derive(Debug, clap::Args)]
pub(crate) struct CertificatesArgs {
    #[command(flatten)]
    shared: Shared,
    /// Only certificates of this app.
    #[arg(long)]
    app: Option<String>,
}

/// Time between two reads of `--watch`.
const WATCH_EVERY: Duration = Duration::from_secs(2);
/// Clears a terminal, and puts the cursor into its first line.
const CLEAR: &str = "\x1b[2J\x1b[H";

pub(crate) async fn status(args: StatusArgs) -> anyhow::Result<ExitCode> {
    let question = TerminalPage::Fleet {
        app: args.app,
        environment: args.environment,
        search: String::new(),
    };
    let facts = Here::of(&args.shared)?;
    answer_with(&args.shared, question, async || facts.read().await).await
}

pub(crate) async fn health(args: HealthArgs) -> anyhow::Result<ExitCode> {
    let facts = Here::of(&args.shared)?;
    let ask = async || facts.read().await;
    answer_with(&args.shared, TerminalPage::Health, ask).await
}

pub(crate) async fn ledger(args: LedgerArgs) -> anyhow::Result<ExitCode> {
    let question = TerminalPage::Ledger {
        app: args.app,
        environment: args.environment,
        days: args.days,
    };
    answer(&args.shared, question).await
}

pub(crate) async fn orders(args: OrdersArgs) -> anyhow::Result<ExitCode> {
    answer(&args.shared, TerminalPage::Orders { app: args.app }).await
}

pub(crate) async fn incident(args: IncidentArgs) -> anyhow::Result<ExitCode> {
    if let Some(order) = args.order {
        return incident_order::run(order).await;
    }
    let Some(id) = args.id else {
        return answer(&args.shared, TerminalPage::Incidents { app: args.app }).await;
    };
    let config = args.shared.store.load()?;
    let address = config.detector.dashboard_url.as_deref();
    let question = TerminalPage::Incident {
        link: address.and_then(|address| page_of(address, &id)),
        is_ticket: args.markdown,
        id,
    };
    answer(&args.shared, question).await
}

pub(crate) async fn show(args: ModelArgs) -> anyhow::Result<ExitCode> {
    let question = match args.model_version.zip(args.chipset) {
        Some((version, chipset)) => TerminalPage::Cohort {
            app: args.app,
            environment: args.environment,
            model: args.model,
            version,
            chipset,
        },
        None => TerminalPage::Fleet {
            app: Some(args.app),
            environment: Some(args.environment),
            search: args.model,
        },
    };
    answer(&args.shared, question).await
}

pub(crate) async fn devices(args: DevicesArgs) -> anyhow::Result<ExitCode> {
    let client = epwatch_store::client(&args.shared.store.target().await?);
    let query = match (args.id, args.latest) {
        (Some(id), _) => DevicesQuery::One { id },
        (None, true) => DevicesQuery::Latest { app: args.app },
        (None, false) => DevicesQuery::List { app: args.app },
    };
    let ask = async || epwatch_page::devices(client.clone(), &query).await;
    answered(&args.shared, ask).await
}

pub(crate) async fn certificates(args: CertificatesArgs) -> anyhow::Result<ExitCode> {
    let client = epwatch_store::client(&args.shared.store.target().await?);
    let app = args.app.as_deref();
    let ask = async || epwatch_page::certificates(client.clone(), app).await;
    answered(&args.shared, ask).await
}

/// Prints the answer; with `--watch`, each answer that has changed.
async fn answered(
    shared: &Shared,
    ask: impl AsyncFn() -> Result<TerminalAnswer, TerminalError>,
) -> anyhow::Result<ExitCode> {
    let mut shown = None;
    loop {
        match ask().await {
            Ok(answer) if shown.as_ref() == Some(&answer.state) => {}
            Ok(answer) => {
                print(shared, &answer)?;
                shown = Some(answer.state);
            }
            // The device's first report may be under way.
            Err(TerminalError::NoDevice | TerminalError::NoneYet) if shared.watch => {}
            // The store may answer again later.
            Err(error) if shown.is_some() => tracing::warn!(%error, "the last answer stands"),
            Err(
                error @ (TerminalError::NoDevice
                | TerminalError::NoneYet
                | TerminalError::NoSuch { .. }
                | TerminalError::Several(_)
                | TerminalError::Unknown),
            ) => return Err(No(error.to_string()).into()),
            Err(error @ TerminalError::Id(_)) => return Err(WrongUse(error.to_string()).into()),
            Err(error) => return Err(error.into()),
        }
        if !shared.watch {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::time::sleep(WATCH_EVERY).await;
        if output::is_reader_gone() {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn print(shared: &Shared, answer: &TerminalAnswer) -> anyhow::Result<()> {
    if shared.json {
        return output::json(&serde_json::from_slice::<serde_json::Value>(&answer.json)?);
    }
    let clear = if shared.watch && io::stdout().is_terminal() {
        CLEAR
    } else {
        ""
    };
    Ok(output::line(format_args!("{clear}{}", answer.text))?)
}

async fn answer(shared: &Shared, question: TerminalPage) -> anyhow::Result<ExitCode> {
    answer_with(shared, question, async || Vec::new()).await
}

async fn answer_with(
    shared: &Shared,
    question: TerminalPage,
    facts: impl AsyncFn() -> Vec<PartStatus>,
) -> anyhow::Result<ExitCode> {
    let client = epwatch_store::client(&shared.store.target().await?);
    let ask = async || {
        let facts = Box::pin(facts());
        let clock = Arc::new(SystemClock);
        epwatch_page::ask(client.clone(), question.clone(), facts, clock).await
    };
    answered(shared, ask).await
}

/// Where the statuses of the store's servers can be read.
enum Here {
    /// A store elsewhere, by its address.
    Elsewhere(String),
    /// A `serve` on this folder, whose store has this name.
    Folder(PathBuf, String),
}

impl Here {
    fn of(shared: &Shared) -> anyhow::Result<Self> {
        if let Some(address) = shared.store.elsewhere() {
            return Ok(Self::Elsewhere(address.to_owned()));
        }
        let config = shared.store.load()?;
        // With a ClickHouse server, this may be the config of a collector on another machine.
        Ok(match config.store.server()? {
            None => Self::Folder(config.data_dir, "The store".to_owned()),
            Some(server) if address_file::exists(&config.data_dir) => {
                Self::Folder(config.data_dir, server.to_string())
            }
            Some(server) => Self::Elsewhere(server.to_string()),
        })
    }

    async fn read(&self) -> Vec<PartStatus> {
        match self {
            Self::Elsewhere(address) => {
                let text =
                    format!("{address} answers. Each collector has its WAL on its own /metrics.");
                vec![part_status::fine("Store", text)]
            }
            Self::Folder(dir, store) => part_status::of_folder(dir, store).await,
        }
    }
}
