//! `epwatch incident ack|mute|resolve|accept|false|reopen`: orders of people to incidents.

use std::process::ExitCode;

use epwatch_model::OrderKind;
use epwatch_page::{NewOrder, OrderError};
use epwatch_server::Period;

use crate::{
    account::own_name,
    output::{self, No, WrongUse},
    store_args::StoreArgs,
};

/// An order to an incident; the detector that runs obeys it.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum OrderCommand {
    /// Somebody works on it: PagerDuty is told, and the alert names who.
    Ack(OrderArgs),
    /// Silences it for a time: Alertmanager gets a silence, and other channels get nothing.
    Mute(MuteArgs),
    /// It is over: alerts end, and the same fault stays quiet until it has been gone once or grows by half.
    Resolve(OrderArgs),
    /// It is meant so: what this version does now becomes its reference until the next version.
    Accept(OrderArgs),
    /// It was a false alarm, also of an incident that is over: it ends as with resolve, and `epwatch replay` and
    /// `epwatch detector calibrate` count it.
    False(OrderArgs),
    /// Takes back the orders that are in force.
    Reopen(OrderArgs),
}

/// Options of each order.
#[derive(Debug, clap::Args)]
pub(crate) struct OrderArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
    /// The incident's id.
    id: String,
    /// The reason, for whoever is on call next.
    #[arg(long, value_name = "TEXT")]
    why: String,
    /// Your name [default: from SUDO_USER, USER, LOGNAME or your account].
    #[arg(long, value_name = "NAME")]
    who: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct MuteArgs {
    #[command(flatten)]
    order: OrderArgs,
    /// How long, for example 8h or 7d; 30d at most.
    #[arg(long = "for", value_name = "LENGTH")]
    length: Period,
}

pub(crate) async fn run(order: OrderCommand) -> anyhow::Result<ExitCode> {
    let (kind, args, mute_for) = match order {
        OrderCommand::Ack(args) => (OrderKind::Ack, args, None),
        OrderCommand::Mute(args) => (OrderKind::Mute, args.order, Some(args.length.0)),
        OrderCommand::Resolve(args) => (OrderKind::Resolve, args, None),
        OrderCommand::Accept(args) => (OrderKind::Accept, args, None),
        OrderCommand::False(args) => (OrderKind::False, args, None),
        OrderCommand::Reopen(args) => (OrderKind::Reopen, args, None),
    };
    let who = args.who.or_else(own_name);
    let who = who.ok_or_else(|| WrongUse("who are you? add --who NAME".to_owned()))?;
    let new = NewOrder {
        incident: args.id,
        kind,
        who,
        why: args.why,
        mute_for,
        seen: None,
        source: "command",
    };
    let client = epwatch_store::client(&args.store.target().await?);
    let placed = match epwatch_page::order(client, new).await {
        Ok(placed) => placed,
        Err(error @ OrderError::Field(_)) => return Err(WrongUse(format!("--{error}")).into()),
        Err(error @ (OrderError::Store(_) | OrderError::Hidden)) => return Err(error.into()),
        Err(error) => return Err(No(error.to_string()).into()),
    };
    if args.json {
        output::json(&placed)?;
    } else {
        output::line(placed.text())?;
    }
    Ok(ExitCode::SUCCESS)
}
