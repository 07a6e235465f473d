//! The table `directives`. Whoever can write the store publishes; no app key can, since none
//! reaches the store. What comes out of it is parsed like anything from outside.

use clickhouse::{Client, Row};
use epwatch_proto::{Directive, DirectiveAction, SignedDirective, hex, unhex, v1};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::store::{Sink, SinkError};

/// Most directives that are live at once and not taken back, and most revocations that take back nothing
/// which is. Those that do are always taken, so that there are at most twice as many of them.
pub const MAX_LIVE: usize = 4_096;
/// Most that collectors hold: the directives and revocations that [`publish`] lets in.
const MAX_HELD: usize = 3 * MAX_LIVE;

/// A directive that is handed out to those it matches.
#[derive(Debug, Clone)]
pub(crate) struct Live {
    pub(crate) directive: Directive,
    pub(crate) signed: v1::SignedDirective,
}

/// A directive as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedDirective {
    /// What it says.
    pub directive: Directive,
    /// The bytes and their signature.
    pub signed: SignedDirective,
    /// When it was published, in milliseconds since 1970.
    pub published_at_unix_ms: i64,
    /// Whether another directive takes it back.
    pub is_revoked: bool,
}

/// Why a directive was not published, or none could be listed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectiveError {
    /// The bytes are no directive.
    #[error("failed to publish: the file is no sound directive")]
    Unsound(#[source] epwatch_proto::ParseError),
    /// Ids are unique for ever.
    #[error(
        "failed to publish: another directive was published as {id:?}; ids are unique for ever, \
         make it again under another one"
    )]
    IdTaken {
        /// The id.
        id: String,
    },
    /// It has expired already.
    #[error("failed to publish: {id:?} has expired already")]
    Expired {
        /// The id.
        id: String,
    },
    /// There is no room.
    #[error(
        "failed to publish: {MAX_LIVE} directives, or as many revocations, are live already; revoke \
         directives, or wait until revocations are over"
    )]
    TooMany,
    /// The store did not do it.
    #[error("failed to reach the store's directives")]
    Store(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl From<SinkError> for DirectiveError {
    fn from(error: SinkError) -> Self {
        Self::Store(Box::new(error))
    }
}

#[derive(Debug, Row, Serialize)]
struct NewRow<'a> {
    id: &'a str,
    published_at: i64,
    key_id: &'a str,
    directive_hex: String,
    signature_hex: String,
    app_id: &'a str,
    model_id: &'a str,
    model_version: &'a str,
    chipset: &'a str,
    firmware: &'a str,
    action: &'static str,
    revokes: &'a str,
    not_before: i64,
    expires: i64,
}

#[derive(Debug, Row, Deserialize)]
struct DirectiveRow {
    key_id: String,
    directive_hex: String,
    signature_hex: String,
    published_at: i64,
    is_revoked: bool,
}

/// What an action is called.
#[must_use]
pub fn action_name(action: &DirectiveAction) -> &'static str {
    match action {
        DirectiveAction::Sampling(_) => "sampling",
        DirectiveAction::ReportIntervalMs(_) => "report_interval",
        DirectiveAction::NpuOff => "npu_off",
        DirectiveAction::PreferredVariant(_) => "preferred_variant",
        DirectiveAction::Revoke(_) => "revoke",
    }
}

/// Publishes a signed directive: collectors hand it out soon after. Publishing the same bytes
/// again changes nothing. Returns what it says.
///
/// # Errors
/// [`DirectiveError`]; nothing was published then.
pub fn publish<'a>(
    client: &'a Client,
    signed: &'a SignedDirective,
    now_unix_ms: i64,
) -> BoxFuture<'a, Result<Directive, DirectiveError>> {
    Box::pin(async move {
        let directive = signed.parse_directive().map_err(DirectiveError::Unsound)?;
        let id = directive.id.clone();
        if directive.expires_unix_ms <= now_unix_ms {
            return Err(DirectiveError::Expired { id });
        }
        let all = list(client).await?;
        if let Some(known) = all.iter().find(|known| known.directive.id == id) {
            let is_same = known.signed.directive == signed.directive;
            return match is_same {
                true => Ok(directive),
                false => Err(DirectiveError::IdTaken { id }),
            };
        }
        if !has_room(&all, &directive, now_unix_ms) {
            return Err(DirectiveError::TooMany);
        }
        let scope = &directive.scope;
        let row = NewRow {
            id: &directive.id,
            published_at: now_unix_ms,
            key_id: &signed.key_id,
            directive_hex: hex(&signed.directive),
            signature_hex: hex(&signed.signature),
            app_id: &scope.app_id,
            model_id: &scope.model_id,
            model_version: &scope.model_version,
            chipset: &scope.chipset,
            firmware: &scope.vendor_fingerprint_hash,
            action: action_name(&directive.action),
            revokes: revoked_by(&directive).unwrap_or_default(),
            not_before: directive.not_before_unix_ms,
            expires: directive.expires_unix_ms,
        };
        let sink = Sink::new(client.clone());
        sink.insert::<NewRow<'static>>("directives", &[row], None)
            .await?;
        Ok(directive)
    })
}

/// Says whether a new directive may come to `all` that were published.
fn has_room(all: &[PublishedDirective], new: &Directive, now_unix_ms: i64) -> bool {
    let is_live = |known: &PublishedDirective| known.directive.expires_unix_ms > now_unix_ms;
    let is_revocation = |known: &PublishedDirective| revoked_by(&known.directive).is_some();
    let left = all
        .iter()
        .filter(|known| is_live(known) && !known.is_revoked);
    let (revocations, directives): (Vec<_>, Vec<_>) = left.partition(|known| is_revocation(known));
    match revoked_by(new) {
        // What must be stopped now is stopped, however full it is.
        Some(of) if directives.iter().any(|known| known.directive.id == of) => true,
        Some(_) => revocations.len() < MAX_LIVE,
        None => directives.len() < MAX_LIVE && revocations.len() < MAX_LIVE,
    }
}

/// Returns the id of the directive that this one takes back, if it does.
fn revoked_by(directive: &Directive) -> Option<&str> {
    match &directive.action {
        DirectiveAction::Revoke(id) => Some(id),
        _ => None,
    }
}

/// Returns every directive that was ever published, the latest first.
///
/// # Errors
/// [`DirectiveError::Store`].
pub fn list(client: &Client) -> BoxFuture<'_, Result<Vec<PublishedDirective>, DirectiveError>> {
    Box::pin(async move {
        let sink = Sink::new(client.clone());
        Ok(fetch(&sink, "1").await?)
    })
}

/// Returns those that are not over, and revocations of those; what goes to whom is decided for each
/// reporter.
pub(super) async fn live(sink: &Sink, now_ms: i64) -> Result<Vec<Live>, SinkError> {
    let is_live = format!("expires > fromUnixTimestamp64Milli(toInt64({now_ms}), 'UTC')");
    let condition = format!("{is_live} OR revokes IN (SELECT id FROM directives WHERE {is_live})");
    let mut live = fetch(sink, &condition).await?;
    // Oldest first: what was said first goes out first.
    live.reverse();
    // What is cut is what nobody misses: never a revocation before what it takes back.
    live.sort_by_key(|known| (revoked_by(&known.directive).is_none(), known.is_revoked));
    live.truncate(MAX_HELD);
    let live = live.into_iter().map(|published| Live {
        signed: v1::SignedDirective::from(&published.signed),
        directive: published.directive,
    });
    Ok(live.collect())
}

async fn fetch(sink: &Sink, condition: &str) -> Result<Vec<PublishedDirective>, SinkError> {
    let sql = format!(
        "SELECT key_id, directive_hex, signature_hex, published_at, \
         toBool(is_revoked) AS is_revoked FROM directives_v1 \
         WHERE {condition} ORDER BY published_at DESC, id DESC"
    );
    let rows = sink.fetch::<DirectiveRow>("directives", &sql).await?;
    let parsed = rows.into_iter().filter_map(|row| {
        let parsed = parse(&row);
        if parsed.is_none() {
            tracing::error!(
                key_id = row.key_id,
                "a row of directives is unsound, left out"
            );
        }
        parsed
    });
    Ok(parsed.collect())
}

fn parse(row: &DirectiveRow) -> Option<PublishedDirective> {
    let signed = SignedDirective {
        directive: unhex(&row.directive_hex)?.into(),
        key_id: row.key_id.clone(),
        signature: unhex(&row.signature_hex)?.try_into().ok()?,
    };
    Some(PublishedDirective {
        directive: signed.parse_directive().ok()?,
        signed,
        published_at_unix_ms: row.published_at,
        is_revoked: row.is_revoked,
    })
}
