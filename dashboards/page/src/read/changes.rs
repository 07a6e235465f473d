//! Changes before and while a model got slower: names that devices reported for the first time, and people's actions.
//! Pages draw it on the time axis of their charts.

use std::collections::BTreeMap;

use clickhouse::Row;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::progress::time;
use super::sessions::{self, CommonPlacements, NameKind, NewName, SessionsAsked};
use super::store::{ReadError, StoreReader};
use crate::text::name::{visible, visible_sentence};
use crate::text::number;

/// A change, at the time from which it can have had an effect.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Change {
    pub(crate) at: Timestamp,
    pub(crate) kind: ChangeKind,
    /// A sentence without its time.
    pub(crate) text: String,
}

/// Kinds of changes, in the order in which changes of one time are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ChangeKind {
    /// A person's text.
    Mark,
    /// A version of the model was first reported on the chipset.
    Version,
    AppVersion,
    Firmware,
    /// ONNX Runtime with the execution provider.
    Runtime,
    Directive,
    /// A person's order to an incident of the model.
    Order,
}

impl ChangeKind {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Mark => "mark",
            Self::Version => "version",
            Self::AppVersion => "app",
            Self::Firmware => "firmware",
            Self::Runtime => "runtime",
            Self::Directive => "directive",
            Self::Order => "order",
        }
    }

    /// Returns the kind of an act.
    fn of_act(name: &str) -> Option<Self> {
        Some(match name {
            "mark" => Self::Mark,
            "directive" => Self::Directive,
            "order" => Self::Order,
            _ => return None,
        })
    }
}

/// Number of names of each kind that are listed; a fleet of phones has many firmwares.
const MOST_OF_A_KIND: usize = 12;

/// Number of acts that are listed, the last ones.
const MOST_ACTS: usize = 100;

#[derive(Debug, Row, Deserialize)]
struct ActRow {
    kind: String,
    at: i64,
    what: String,
    who: String,
    why: String,
    version: String,
}

/// Actions of people: marks, orders that count, and directives that fit the cohort, the last ones of each.
const ACTS: &str = "
SELECT 'mark' AS kind, m.effective_at AS at, m.text AS what, m.who AS who, '' AS why, '' AS version
FROM marks_v1 AS m
WHERE m.app_id IN ('', ?) AND m.environment IN ('', ?) AND m.model_id IN ('', ?) AND m.chipset IN ('', ?)
  AND m.effective_at >= fromUnixTimestamp64Milli(?) AND m.effective_at <= fromUnixTimestamp64Milli(?)
ORDER BY at DESC, what
LIMIT 100
UNION ALL
SELECT 'order' AS kind, o.ordered_at AS at, toString(o.order_kind) AS what, o.who AS who, o.why AS why,
    toString(o.model_version) AS version
FROM incident_orders_v1 AS o
WHERE o.is_counted AND o.app_id = ? AND o.environment = ? AND o.model_id = ?
  AND o.ordered_at >= fromUnixTimestamp64Milli(?) AND o.ordered_at <= fromUnixTimestamp64Milli(?)
ORDER BY at DESC, what
LIMIT 100
UNION ALL
SELECT 'directive' AS kind, d.published_at AS at, if(d.revokes = '', toString(d.action), 'revoke') AS what, '' AS who,
    if(d.revokes = '', d.id, d.revokes) AS why, d.model_version AS version
FROM directives_v1 AS d
WHERE d.app_id IN ('', ?) AND d.model_id IN ('', ?) AND d.chipset IN ('', ?)
  AND d.published_at >= fromUnixTimestamp64Milli(?) AND d.published_at <= fromUnixTimestamp64Milli(?)
ORDER BY at DESC, what
LIMIT 100";

/// The cause may be this much older than the first window that shows its effect. A server is deployed before devices
/// report. A version is reported before its first window ends.
const BEFORE: SignedDuration = SignedDuration::from_hours(1);

/// Returns the time from which changes are listed next to a chart that begins at `from`.
pub(crate) fn since(from: Timestamp, incident: Option<Timestamp>) -> Timestamp {
    let first = incident.map_or(from, |began| began.min(from));
    first
        .saturating_sub(BEFORE)
        .unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Changes and placements of a cohort. Each part can fail without the other.
#[derive(Debug)]
pub(crate) struct ReadChanges {
    /// Changes from the oldest to the newest.
    pub(crate) changes: Result<Vec<Change>, ReadError>,
    pub(crate) placements: Result<CommonPlacements, ReadError>,
}

/// Returns the changes of a cohort in a time, and the placements of its versions, which come from the same sessions.
pub(crate) async fn read(store: &StoreReader, asked: SessionsAsked<'_>) -> ReadChanges {
    let (sessions, acts) = tokio::join!(sessions::read(store, asked), acts(store, asked));
    match sessions {
        Ok(sessions) => ReadChanges {
            changes: acts.map(|acts| in_order(first_seen(&sessions.new_names), &acts)),
            placements: Ok(sessions.placements),
        },
        Err(error) => ReadChanges {
            changes: Err(error.clone()),
            placements: Err(error),
        },
    }
}

async fn acts(store: &StoreReader, asked: SessionsAsked<'_>) -> Result<Vec<ActRow>, ReadError> {
    let SessionsAsked {
        app,
        environment,
        model,
        chipset,
        ..
    } = asked;
    let (from, to) = (asked.from.as_millisecond(), asked.to.as_millisecond());
    let acts = store.rows::<ActRow>(ACTS, |query| {
        let query = query.bind(app).bind(environment).bind(model).bind(chipset);
        let query = query.bind(from).bind(to);
        let query = query.bind(app).bind(environment).bind(model);
        let query = query.bind(from).bind(to);
        let query = query.bind(app).bind(model).bind(chipset);
        query.bind(from).bind(to)
    });
    let mut acts = acts.await?;
    acts.sort_by_key(|act| std::cmp::Reverse(act.at));
    acts.truncate(MOST_ACTS);
    Ok(acts)
}

fn in_order(mut changes: Vec<Change>, acts: &[ActRow]) -> Vec<Change> {
    changes.extend(acts.iter().filter_map(act));
    changes.sort_by(|a, b| (a.at, a.kind, &a.text).cmp(&(b.at, b.kind, &b.text)));
    changes
}

/// Returns the first sight of the commonest names of each kind, and one line on the names that are not listed.
fn first_seen(names: &[NewName]) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut listed: BTreeMap<ChangeKind, usize> = BTreeMap::new();
    for of in names {
        let name = visible(&of.name);
        let (kind, text) = match of.kind {
            NameKind::Version => (ChangeKind::Version, format!("Version {name}")),
            NameKind::AppVersion => (ChangeKind::AppVersion, format!("App version {name}")),
            NameKind::Firmware => (ChangeKind::Firmware, format!("Firmware {name}")),
            NameKind::Runtime => (ChangeKind::Runtime, format!("Runtime {name}")),
        };
        let n = listed.entry(kind).or_default();
        *n += 1;
        if *n <= MOST_OF_A_KIND {
            // `of.sessions` only orders the names: it counts a session once in each bucket.
            let (at, text) = (of.at, format!("{text} first seen"));
            changes.push(Change { at, kind, text });
        }
    }
    for (kind, n) in listed {
        let more = n.saturating_sub(MOST_OF_A_KIND);
        let last = changes.iter().rfind(|change| change.kind == kind);
        if let Some(at) = last.map(|last| last.at).filter(|_| more > 0) {
            let them = number::of_them(more as u64, "name");
            let text = format!("{them} of this kind with fewer sessions are left out");
            changes.push(Change { at, kind, text });
        }
    }
    changes
}

fn act(row: &ActRow) -> Option<Change> {
    let kind = ChangeKind::of_act(&row.kind)?;
    let (what, why) = (visible_sentence(&row.what), visible_sentence(&row.why));
    let (who, version) = (visible(&row.who), visible(&row.version));
    let text = match kind {
        ChangeKind::Mark => format!("{what} ({who})"),
        ChangeKind::Order => format!("{who} ordered {what} for {version}: {why}"),
        ChangeKind::Directive if row.what == "revoke" => format!("Directive {why} revoked"),
        _ => {
            let version = match version.is_empty() {
                true => String::new(),
                false => format!(" for {version}"),
            };
            format!("Directive {why} published: {what}{version}")
        }
    };
    Some(Change {
        at: time(row.at)?,
        kind,
        text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn firmwares_that_are_left_out_are_counted() {
        let new = |kind, name: String| NewName {
            kind,
            name,
            at: Timestamp::from_second(1_800_000_000).unwrap(),
            sessions: 7,
        };
        let names = (0..40).map(|n| new(NameKind::Firmware, format!("f{n}")));
        let mut names: Vec<_> = names.collect();
        names.push(new(NameKind::Version, "2.0.0".to_owned()));
        let texts: Vec<String> = first_seen(&names).into_iter().map(|of| of.text).collect();
        assert_eq!(texts.len(), 14);
        assert_eq!(texts[0], "Firmware f0 first seen");
        assert_eq!(texts[12], "Version 2.0.0 first seen");
        assert_eq!(
            texts[13],
            "28 names of this kind with fewer sessions are left out"
        );
    }

    #[test]
    fn acts_are_sentences_and_hostile_names_are_visible() {
        let text = |kind: &str, what: &str, who: &str, why: &str| {
            let row = ActRow {
                kind: kind.to_owned(),
                at: 1_800_000_000_000,
                what: what.to_owned(),
                who: who.to_owned(),
                why: why.to_owned(),
                version: "2".to_owned(),
            };
            act(&row).map(|change| change.text)
        };
        for (row, expected) in [
            (
                text("mark", "server 7 deployed", "Ada", ""),
                "server 7 deployed (Ada)",
            ),
            (
                text("order", "ack", "Ad\u{202e}a", "on it"),
                "Ad[U+202E]a ordered ack for 2: on it",
            ),
            (
                text("directive", "npu_off", "", "d-1"),
                "Directive d-1 published: npu_off for 2",
            ),
            (
                text("directive", "revoke", "", "d-1"),
                "Directive d-1 revoked",
            ),
        ] {
            assert_eq!(row.as_deref(), Some(expected));
        }
        assert_eq!(text("rumour", "x", "y", "z"), None);
    }
}
