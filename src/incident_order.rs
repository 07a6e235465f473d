//! `epwatch incident ack|mute|resolve|accept|false|reopen`: orders of people to incidents.

use std::{env, fs, process::ExitCode};

use epwatch_model::OrderKind;
use epwatch_page::{NewOrder, OrderError};
use epwatch_server::Period;

use crate::{
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

/// Returns the name of the person at the shell. Under `sudo` a variable names the person; in a container or a timer no
/// variable may be set.
pub(crate) fn own_name() -> Option<String> {
    let set = |name| env::var(name).ok().filter(|value| !value.is_empty());
    let named = ["SUDO_USER", "USER", "LOGNAME"].into_iter().find_map(set);
    named.or_else(|| {
        let accounts = fs::read_to_string("/etc/passwd").ok()?;
        account_of(&accounts, rustix::process::geteuid().as_raw())
    })
}

/// Returns a user's name from the lines of `/etc/passwd`, which have name, password, number and more.
pub(crate) fn account_of(accounts: &str, user: u32) -> Option<String> {
    let mut lines = accounts.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| {
        let name = fields.next()?;
        let number: u32 = fields.nth(1)?.parse().ok()?;
        (number == user).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_without_variables_has_the_name_of_the_account() {
        let accounts =
            "root:x:0:0:root:/root:/bin/bash\nbroken\nalice:x:1000:1000::/home/alice:/bin/sh\n";
        assert_eq!(account_of(accounts, 1000).as_deref(), Some("alice"));
        assert_eq!(account_of(accounts, 0).as_deref(), Some("root"));
        assert_eq!(account_of(accounts, 65534), None);
    }
}
