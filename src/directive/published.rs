//! `publish`, `list` and `revoke`, which work on the store. They need write access to it, which an app key does not
//! give.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::bail;
use epwatch_collector::directives::store::{self, DirectiveError, PublishedDirective};
use epwatch_proto::{Directive, DirectiveAction, SignedDirective};
use serde::Serialize;

use super::{
    file,
    make::{DirectiveDocument, checked, latest_end, made_up_id, now_unix_ms},
    reach,
};
use crate::{
    output::{self, No},
    signing_key::SigningKey,
    store_args::StoreArgs,
};

/// Publishes signed directives; collectors hand them out within seconds.
///
/// Publishing the same file again changes nothing. Exit code 1: the store does not take it, because its id is taken, it
/// has expired, or there are too many. It is also 1 if no device of the last day would obey it.
#[derive(Debug, clap::Args)]
pub(super) struct PublishArgs {
    /// Signed directives, as `make --key` or `sign` wrote them.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Publish also what fits no device that reported in the last day.
    #[arg(long)]
    anyway: bool,
    #[command(flatten)]
    store: StoreArgs,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Lists published directives, the latest first, with the devices that each fits and what became of it there.
///
/// It counts devices of the last day that the directive fits, and devices that collectors sent it to. It also counts
/// devices of the last day that obeyed it in a session. The last count is of devices that refused directives since it
/// was published, by reason. Devices do not report which directive they refused.
#[derive(Debug, clap::Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// List directives that are over or revoked, too.
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
    published: Vec<PublishedDocument>,
}

#[derive(Debug, Serialize)]
struct PublishedDocument {
    #[serde(flatten)]
    document: DirectiveDocument,
    /// Devices of the last day with a session in the directive's scope.
    devices: u64,
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
    /// Devices of the last day with a session in the directive's scope.
    devices: u64,
    /// Devices that a collector sent it to since it was published.
    sent: u64,
    /// Devices of the last day with a session that it changed; `null` for sampling and intervals, which change none.
    obeyed: Option<u64>,
    /// Devices of its scope that refused directives, this one or another, since it was published and in the last day.
    refused: BTreeMap<String, u64>,
}

impl ListedDocument {
    fn line(&self) -> String {
        let mut line = format!(
            "{:8} {}; fits {} devices of the last day, sent to {}",
            self.state,
            self.document.line(),
            self.devices,
            self.sent
        );
        if let Some(obeyed) = self.obeyed {
            line += &format!(", obeyed by {obeyed}");
        }
        if !self.refused.is_empty() {
            let reasons = self.refused.iter();
            let reasons: Vec<String> = reasons
                .map(|(reason, devices)| format!("{devices} {reason}"))
                .collect();
            line += &format!(
                "; devices there that refused directives since: {}",
                reasons.join(", ")
            );
        }
        line
    }
}

async fn client(args: &StoreArgs) -> anyhow::Result<epwatch_collector::Client> {
    Ok(epwatch_store::client(&args.target().await?))
}

pub(super) async fn publish(args: &PublishArgs) -> anyhow::Result<ExitCode> {
    // Reads all files before it publishes the first directive.
    let signed = args.files.iter().map(|path| file::read_signed(path));
    let signed = signed.collect::<anyhow::Result<Vec<_>>>()?;
    let client = client(&args.store).await?;
    let mut reached = Vec::with_capacity(signed.len());
    for signed in &signed {
        reached.push(refuse_useless(&client, signed, args.anyway).await?);
    }
    let mut published = Vec::with_capacity(signed.len());
    for (signed, devices) in signed.iter().zip(reached) {
        let directive = store::publish(&client, signed, now_unix_ms()).await?;
        let document = DirectiveDocument::of(&directive, Some(signed));
        published.push(PublishedDocument { document, devices });
    }
    say(args.json, published)
}

/// Returns how many devices it fits, and refuses zero: zero is mostly a typo in the scope, which nothing else would
/// reveal.
async fn refuse_useless(
    client: &epwatch_collector::Client,
    signed: &SignedDirective,
    anyway: bool,
) -> anyhow::Result<u64> {
    let directive = signed.parse_directive().map_err(DirectiveError::Unsound)?;
    let devices = reach::fitting(client, &directive.scope).await?;
    if devices == 0 && !anyway && !matches!(directive.action, DirectiveAction::Revoke(_)) {
        bail!(No(format!(
            "{:?} fits no device that reported in the last day; compare its scope with `epwatch directive \
             show`, or publish it with --anyway",
            directive.id
        )));
    }
    Ok(devices)
}

fn say(json: bool, published: Vec<PublishedDocument>) -> anyhow::Result<ExitCode> {
    if json {
        output::json(&PublishDocument { published })?;
    } else {
        for PublishedDocument { document, devices } in &published {
            let line = document.line();
            output::line(format_args!(
                "published  {line}; fits {devices} devices of the last day"
            ))?;
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
    let client = client(&args.store).await?;
    let now_ms = now_unix_ms();
    let counted = reach::Counted::fetch(&client).await?;
    let of = |counts: &HashMap<String, u64>, id: &str| counts.get(id).copied().unwrap_or(0);
    let mut directives = Vec::new();
    for published in &store::list(&client).await? {
        let (directive, state) = (&published.directive, state(published, now_ms));
        if !args.all && !matches!(state, "live" | "waiting") {
            continue;
        }
        let changes_sessions = matches!(
            directive.action,
            DirectiveAction::NpuOff | DirectiveAction::PreferredVariant(_)
        );
        directives.push(ListedDocument {
            document: DirectiveDocument::of(directive, Some(&published.signed)),
            state,
            published_at: jiff::Timestamp::from_millisecond(published.published_at_unix_ms)
                .map_or_else(|_| String::new(), |at| at.to_string()),
            devices: reach::fitting(&client, &directive.scope).await?,
            sent: of(&counted.sent, &directive.id),
            obeyed: changes_sessions.then(|| of(&counted.obeyed, &directive.id)),
            refused: reach::refused(&client, &directive.scope, published.published_at_unix_ms)
                .await?,
        });
    }
    if args.json {
        output::json(&ListDocument { directives })?;
        return Ok(ExitCode::SUCCESS);
    }
    if directives.is_empty() {
        output::line("No directive is live; `epwatch directive publish FILE` publishes one.")?;
    }
    for listed in &directives {
        output::line(listed.line())?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn revoke(args: &RevokeArgs) -> anyhow::Result<ExitCode> {
    let key = SigningKey::read_for_directives(&args.key)?;
    let client = client(&args.store).await?;
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
        // The revocation lasts at least as long as the directive that it revokes, as far as the contract allows.
        // Devices and collectors keep it until both are over.
        expires_unix_ms: known
            .directive
            .expires_unix_ms
            .clamp(now_ms + 1, latest_end(now_ms)),
    })?;
    let signed = file::signed(&key, revocation.to_bytes());
    let devices = reach::fitting(&client, &revocation.scope).await?;
    let directive = store::publish(&client, &signed, now_ms).await?;
    let document = DirectiveDocument::of(&directive, Some(&signed));
    say(args.json, vec![PublishedDocument { document, devices }])
}
