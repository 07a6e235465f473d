//! `publish`, `list` and `revoke`, which work on the store. They need write access to it, which an app key does not
//! give.

use std::{path::PathBuf, process::ExitCode};

use anyhow::bail;
use epwatch_collector::directives::store::{self, PublishedDirective};
use epwatch_proto::{Directive, DirectiveAction};
use serde::Serialize;

use super::{
    file,
    key::SigningKey,
    make::{DirectiveDocument, checked, latest_end, made_up_id, now_unix_ms},
};
use crate::{
    output::{self, No},
    store_args::StoreArgs,
};

/// Publishes signed directives; collectors hand them out within seconds.
///
/// Publishing the same file again changes nothing. Exit code 1: the store does not take it, because its
/// id is taken, it has expired, or there are too many.
#[derive(Debug, clap::Args)]
pub(super) struct PublishArgs {
    /// Signed directives, as `make --key` or `sign` wrote them.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    store: StoreArgs,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Lists published directives, the latest first.
#[derive(Debug, clap::Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Also those that are over or revoked.
    #[arg(long)]
    all: bool,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Takes a published directive back: makes, signs and publishes a directive that revokes it.
///
/// It has the same scope and lasts as long. Devices that hold the earlier one forget it when they next
/// upload; collectors no longer hand it out.
#[derive(Debug, clap::Args)]
pub(super) struct RevokeArgs {
    /// Id of the directive to take back.
    id: String,
    /// The private key.
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    #[command(flatten)]
    store: StoreArgs,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct PublishDocument {
    published: Vec<DirectiveDocument>,
}

#[derive(Debug, Serialize)]
struct ListDocument {
    directives: Vec<ListedDocument>,
}

#[derive(Debug, Serialize)]
struct ListedDocument {
    #[serde(flatten)]
    document: DirectiveDocument,
    /// `waiting`, `live`, `over` or `revoked`.
    state: &'static str,
    published_at: String,
}

fn client(args: &StoreArgs) -> anyhow::Result<epwatch_collector::Client> {
    Ok(epwatch_store::client(&args.target()?))
}

pub(super) async fn publish(args: &PublishArgs) -> anyhow::Result<ExitCode> {
    // Reads all files before it publishes the first directive.
    let signed = args.files.iter().map(|path| file::read_signed(path));
    let signed = signed.collect::<anyhow::Result<Vec<_>>>()?;
    let client = client(&args.store)?;
    let mut documents = Vec::with_capacity(signed.len());
    for signed in &signed {
        let directive = store::publish(&client, signed, now_unix_ms()).await?;
        documents.push(DirectiveDocument::of(&directive, Some(signed)));
    }
    say(args.json, documents)
}

fn say(json: bool, published: Vec<DirectiveDocument>) -> anyhow::Result<ExitCode> {
    if json {
        output::json(&PublishDocument { published })?;
    } else {
        for document in &published {
            output::line(format_args!("published  {}", document.line()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn state(published: &PublishedDirective, now_ms: i64) -> &'static str {
    let directive = &published.directive;
    if published.is_revoked {
        "revoked"
    } else if directive.expires_unix_ms <= now_ms {
        "over"
    } else if directive.not_before_unix_ms > now_ms {
        "waiting"
    } else {
        "live"
    }
}

pub(super) async fn list(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let client = client(&args.store)?;
    let now_ms = now_unix_ms();
    let published = store::list(&client).await?;
    let documents = published.iter().map(|published| ListedDocument {
        document: DirectiveDocument::of(&published.directive, Some(&published.signed)),
        state: state(published, now_ms),
        published_at: jiff::Timestamp::from_millisecond(published.published_at_unix_ms)
            .map_or_else(|_| String::new(), |at| at.to_string()),
    });
    let directives: Vec<ListedDocument> = documents
        .filter(|listed| args.all || matches!(listed.state, "live" | "waiting"))
        .collect();
    if args.json {
        output::json(&ListDocument { directives })?;
        return Ok(ExitCode::SUCCESS);
    }
    if directives.is_empty() {
        output::line("no directive is live")?;
    }
    for listed in &directives {
        output::line(format_args!(
            "{:8} {}",
            listed.state,
            listed.document.line()
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn revoke(args: &RevokeArgs) -> anyhow::Result<ExitCode> {
    let key = SigningKey::read(&args.key)?;
    let client = client(&args.store)?;
    let all = store::list(&client).await?;
    let known = all.iter().find(|known| known.directive.id == args.id);
    let Some(known) = known else {
        bail!(No(format!("no directive was published as {:?}", args.id)));
    };
    if let DirectiveAction::Revoke(of) = &known.directive.action {
        bail!(No(format!(
            "{:?} is itself a revocation, of {of:?}, and stays; publish a new directive instead",
            args.id
        )));
    }
    let now_ms = now_unix_ms();
    let action = DirectiveAction::Revoke(args.id.clone());
    let revocation = checked(Directive {
        id: made_up_id(&action)?,
        scope: known.directive.scope.clone(),
        action,
        not_before_unix_ms: now_ms,
        // Lasts at least as long as the directive that it revokes, as far as the contract allows. Devices and
        // collectors keep it until both are over.
        expires_unix_ms: known
            .directive
            .expires_unix_ms
            .clamp(now_ms + 1, latest_end(now_ms)),
    })?;
    let signed = key.sign(revocation.to_bytes());
    let directive = store::publish(&client, &signed, now_ms).await?;
    say(
        args.json,
        vec![DirectiveDocument::of(&directive, Some(&signed))],
    )
}
