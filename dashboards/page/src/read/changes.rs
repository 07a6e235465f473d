//! What changed before and while a model got slower: what devices reported first, and what people did. Pages draw it on the
//! time axis of their charts.

use clickhouse::Row;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::progress::time;
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

    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "mark" => Self::Mark,
            "version" => Self::Version,
            "app_version" => Self::AppVersion,
            "firmware" => Self::Firmware,
            "runtime" => Self::Runtime,
            "directive" => Self::Directive,
            "order" => Self::Order,
            _ => return None,
        })
    }
}

/// The cohort and the time whose changes are read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChangesAsked<'a> {
    pub(crate) app: &'a str,
    pub(crate) environment: &'a str,
    pub(crate) model: &'a str,
    pub(crate) chipset: &'a str,
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
}

/// A name that was not reported for so long before is new again.
const FORGOTTEN_DAYS: i64 = 14;

/// Names of each kind that are listed; a fleet of phones has many firmwares.
const MOST_OF_A_KIND: u64 = 12;

#[derive(Debug, Row, Deserialize)]
struct FirstSeenRow {
    kind: String,
    name: String,
    at: i64,
    sessions: u64,
    /// New names of the kind.
    of_kind: u64,
}

/// Names that the chipset's sessions of the model first had in the time, the commonest of each kind. What was there in the
/// first bucket that is stored need not be new.
const FIRST_SEEN: &str = "
SELECT kind, name, toInt64(toUnixTimestamp(first)) AS at, n AS sessions, count() OVER (PARTITION BY kind) AS of_kind
FROM (
    SELECT seen.1 AS kind, seen.2 AS name, min(b) AS first, sum(s) AS n, min(min(b)) OVER () AS begin
    FROM (
        SELECT b, s, arrayJoin([('version', version), ('app_version', app), ('firmware', firmware), ('runtime', runtime)]) AS seen
        FROM (
            SELECT min(c.bucket) AS b, sum(c.sessions) AS s, toString(c.model_version) AS version,
                toString(c.app_version) AS app, toString(c.firmware) AS firmware, toString(c.runtime) AS runtime
            FROM cohort_sessions_closed_v1 AS c
            WHERE c.app_id = ? AND c.environment = ? AND c.model_id = ? AND c.chipset = ?
              AND c.bucket >= fromUnixTimestamp64Milli(?) AND c.bucket < fromUnixTimestamp64Milli(?)
            GROUP BY version, app, firmware, runtime
        )
    )
    GROUP BY seen
)
WHERE first > begin AND first >= toDateTime(fromUnixTimestamp64Milli(?)) AND name NOT IN ('', '/')
ORDER BY kind, n DESC, name
LIMIT 12 BY kind";

#[derive(Debug, Row, Deserialize)]
struct ActRow {
    kind: String,
    at: i64,
    what: String,
    who: String,
    why: String,
    version: String,
}

/// What people did: marks, orders that count, and directives that fit the cohort.
const ACTS: &str = "
SELECT kind, at, what, who, why, version
FROM (
    SELECT 'mark' AS kind, toInt64(toUnixTimestamp64Milli(m.effective_at)) AS at, m.text AS what, m.who AS who, '' AS why,
        '' AS version
    FROM marks_v1 AS m
    WHERE m.app_id IN ('', ?) AND m.environment IN ('', ?) AND m.model_id IN ('', ?) AND m.chipset IN ('', ?)
    UNION ALL
    SELECT 'order' AS kind, toInt64(toUnixTimestamp64Milli(o.ordered_at)) AS at, toString(o.order_kind) AS what, o.who AS who,
        o.why AS why, toString(o.model_version) AS version
    FROM incident_orders_v1 AS o
    WHERE o.is_counted AND o.app_id = ? AND o.environment = ? AND o.model_id = ?
    UNION ALL
    SELECT 'directive' AS kind, toInt64(toUnixTimestamp64Milli(d.published_at)) AS at,
        if(d.revokes = '', toString(d.action), 'revoke') AS what, '' AS who, if(d.revokes = '', d.id, d.revokes) AS why,
        d.model_version AS version
    FROM directives_v1 AS d
    WHERE d.app_id IN ('', ?) AND d.model_id IN ('', ?) AND d.chipset IN ('', ?)
)
WHERE at >= ? AND at <= ?
ORDER BY at DESC, kind, what
LIMIT 100";

/// How long before the first window that shows something its cause may lie. A server is deployed before devices report.
/// A version is reported before its first window ends.
const BEFORE: SignedDuration = SignedDuration::from_hours(1);

/// Returns the time from which changes are listed next to a chart that begins at `from`.
pub(crate) fn since(from: Timestamp, incident: Option<Timestamp>) -> Timestamp {
    let first = incident.map_or(from, |began| began.min(from));
    first
        .saturating_sub(BEFORE)
        .unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Returns the changes of a cohort in a time, the first first.
pub(crate) async fn read(
    store: &StoreReader,
    asked: ChangesAsked<'_>,
) -> Result<Vec<Change>, ReadError> {
    let ChangesAsked {
        app,
        environment,
        model,
        chipset,
        from,
        to,
    } = asked;
    let since = SignedDuration::from_hours(24 * FORGOTTEN_DAYS);
    let since = from.saturating_sub(since).unwrap_or(Timestamp::UNIX_EPOCH);
    let (from, to) = (from.as_millisecond(), to.as_millisecond());
    let seen = store.rows::<FirstSeenRow>(FIRST_SEEN, |query| {
        let query = query.bind(app).bind(environment).bind(model).bind(chipset);
        query.bind(since.as_millisecond()).bind(to).bind(from)
    });
    let acts = store.rows::<ActRow>(ACTS, |query| {
        let query = query.bind(app).bind(environment).bind(model).bind(chipset);
        let query = query.bind(app).bind(environment).bind(model);
        let query = query.bind(app).bind(model).bind(chipset);
        query.bind(from).bind(to)
    });
    let (seen, acts) = tokio::join!(seen, acts);
    let mut changes = first_seen(&seen?);
    changes.extend(acts?.iter().filter_map(act));
    changes.sort_by(|a, b| (a.at, a.kind, &a.text).cmp(&(b.at, b.kind, &b.text)));
    Ok(changes)
}

/// Returns the first sight of each name, and one line on the names that are not listed.
fn first_seen(rows: &[FirstSeenRow]) -> Vec<Change> {
    let mut changes = Vec::new();
    for row in rows {
        let (Some(kind), Some(at)) = (ChangeKind::named(&row.kind), time(row.at * 1000)) else {
            continue;
        };
        let name = visible(&row.name);
        let text = match kind {
            ChangeKind::Version => format!("Version {name} first seen"),
            ChangeKind::AppVersion => format!("App version {name} first seen"),
            ChangeKind::Firmware => format!("Firmware {name} first seen"),
            _ => format!("Runtime {name} first seen"),
        };
        let sessions = number::of_them(row.sessions, "session");
        changes.push(Change {
            at,
            kind,
            text: format!("{text}; {sessions} since"),
        });
        let last_listed = changes.iter().filter(|of| of.kind == kind).count() as u64;
        let more = row.of_kind.saturating_sub(MOST_OF_A_KIND);
        if last_listed == MOST_OF_A_KIND && more > 0 {
            let them = number::of_them(more, "name");
            changes.push(Change {
                at,
                kind,
                text: format!("{them} of this kind with fewer sessions are left out"),
            });
        }
    }
    changes
}

fn act(row: &ActRow) -> Option<Change> {
    let kind = ChangeKind::named(&row.kind)?;
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

    fn seen(kind: &str, name: &str, of_kind: u64) -> FirstSeenRow {
        FirstSeenRow {
            kind: kind.to_owned(),
            name: name.to_owned(),
            at: 1_800_000_000,
            sessions: 7,
            of_kind,
        }
    }

    #[test]
    fn firmwares_that_are_left_out_are_counted() {
        let names: Vec<String> = (0..12).map(|n| format!("f{n}")).collect();
        let mut rows: Vec<_> = names
            .iter()
            .map(|name| seen("firmware", name, 40))
            .collect();
        rows.push(seen("version", "2.0.0", 1));
        let texts: Vec<String> = first_seen(&rows).into_iter().map(|of| of.text).collect();
        assert_eq!(texts.len(), 14);
        assert_eq!(texts[0], "Firmware f0 first seen; 7 sessions since");
        assert_eq!(
            texts[12],
            "28 names of this kind with fewer sessions are left out"
        );
        assert_eq!(texts[13], "Version 2.0.0 first seen; 7 sessions since");
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
