//! The table `directives`. Publishing needs write access to the store, which no app key has. Rows are parsed and checked
//! like any input from outside.

use clickhouse::{Client, Row};
use epwatch_proto::{Directive, DirectiveAction, SignedDirective, hex, unhex};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::store::{Sink, SinkError};

/// Limit of live directives that are not revoked, and of revocations without a live target. A revocation of a live
/// directive is always accepted, so there are at most twice as many.
pub const MAX_LIVE: usize = 4_096;
/// The number of rows that a collector keeps in memory: all directives and revocations that [`publish`] accepts.
const MAX_HELD: usize = 3 * MAX_LIVE;

/// A directive of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedDirective {
    /// The content of `signed`, decoded.
    pub directive: Directive,
    /// The signed bytes as published, for devices to verify.
    pub signed: SignedDirective,
    /// Time of publication, in milliseconds since 1970.
    pub published_at_unix_ms: i64,
    /// True if another directive revokes it.
    pub is_revoked: bool,
}

/// The reason why a directive was not published, or why the list could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectiveError {
    /// The bytes are no valid directive.
    #[error("failed to publish: the file is not a sound directive")]
    Unsound(#[source] epwatch_proto::ParseError),
    /// Ids are unique for ever.
    #[error(
        "failed to publish: another directive was published as {id:?}; ids are unique for ever, \
         make it again under another one"
    )]
    IdTaken {
        /// Id in the directive.
        id: String,
    },
    /// It has expired already.
    #[error("failed to publish: {id:?} has expired already")]
    Expired {
        /// Id in the directive.
        id: String,
    },
    /// The limit of live directives or revocations is reached.
    #[error(
        "failed to publish: {MAX_LIVE} directives, or as many revocations, are live already; revoke \
         directives, or wait until revocations are over"
    )]
    TooMany,
    /// The store did not carry out the query.
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

/// Name of an action, as in the table.
#[must_use]
pub fn action_name(action: &DirectiveAction) -> &'static str {
    match action {
        DirectiveAction::Sampling(_) => "sampling",
        DirectiveAction::ReportIntervalMs(_) => "report_interval",
        DirectiveAction::NpuOff => "npu_off",
        DirectiveAction::RecordingOff => "recording_off",
        DirectiveAction::PreferredVariant(_) => "preferred_variant",
        DirectiveAction::Revoke(_) => "revoke",
    }
}

/// Publishes a signed directive, which collectors then offer. A repetition with the same bytes changes nothing. Returns
/// the parsed directive.
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

/// True if the limits admit a new directive.
fn has_room(all: &[PublishedDirective], new: &Directive, now_unix_ms: i64) -> bool {
    let is_live = |known: &PublishedDirective| known.directive.expires_unix_ms > now_unix_ms;
    let is_revocation = |known: &PublishedDirective| revoked_by(&known.directive).is_some();
    let left = all
        .iter()
        .filter(|known| is_live(known) && !known.is_revoked);
    let (revocations, directives): (Vec<_>, Vec<_>) = left.partition(|known| is_revocation(known));
    match revoked_by(new) {
        // A revocation of a live directive is never refused.
        Some(of) if directives.iter().any(|known| known.directive.id == of) => true,
        Some(_) => revocations.len() < MAX_LIVE,
        None => directives.len() < MAX_LIVE && revocations.len() < MAX_LIVE,
    }
}

/// Returns the id that a revocation revokes.
fn revoked_by(directive: &Directive) -> Option<&str> {
    match &directive.action {
        DirectiveAction::Revoke(id) => Some(id),
        _ => None,
    }
}

/// Returns all directives ever published, the latest first.
///
/// # Errors
/// [`DirectiveError::Store`].
pub fn list(client: &Client) -> BoxFuture<'_, Result<Vec<PublishedDirective>, DirectiveError>> {
    Box::pin(async move {
        let sink = Sink::new(client.clone());
        Ok(fetch(&sink, "1").await?)
    })
}

/// Returns unexpired directives and their revocations. `DirectiveBook` chooses from them for a device.
pub(super) async fn live(sink: &Sink, now_ms: i64) -> Result<Vec<PublishedDirective>, SinkError> {
    let is_live = format!("expires > fromUnixTimestamp64Milli(toInt64({now_ms}), 'UTC')");
    let condition = format!("{is_live} OR revokes IN (SELECT id FROM directives WHERE {is_live})");
    let mut live = fetch(sink, &condition).await?;
    // Puts the oldest first, because answers follow the order of publication.
    live.reverse();
    // The cut drops revoked directives first, and never a revocation before its target.
    live.sort_by_key(|known| (revoked_by(&known.directive).is_none(), known.is_revoked));
    live.truncate(MAX_HELD);
    Ok(live)
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
