//! Sessions of a model on a chipset, by closed buckets: the placements of its versions, and the names that are new. One
//! query reads both, because most of it is the planning of the view.

use std::collections::HashMap;

use clickhouse::Row;
use epwatch_proto::{SelectionPolicy, asked_for};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::progress::time;
use super::store::{ReadError, StoreReader};

/// The commonest placement of a version.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub(crate) struct PlacementRow {
    pub(crate) sessions: u64,
    /// Sessions of the version with any placement.
    pub(crate) all_sessions: u64,
    pub(crate) n_nodes: u32,
    pub(crate) npu_nodes: u32,
    /// Nodes that belong on the CPU.
    pub(crate) benign_nodes: u32,
    /// The requested EPs that are in effect, without the CPU.
    pub(crate) requested_eps: Vec<String>,
    /// The app's policy for the choice of devices; empty if it set none.
    pub(crate) selection_policy: String,
    /// Devices to which ONNX Runtime gave inputs and outputs, for example `OpenVINOExecutionProvider on GPU (Intel)`.
    pub(crate) devices: Vec<String>,
    pub(crate) npu_macs_share: Option<f64>,
    pub(crate) macs_attributed: Option<f64>,
    pub(crate) fingerprint: u64,
    pub(crate) algorithm: u32,
}

impl PlacementRow {
    /// Returns what the sessions with it asked for; `None` for the CPU alone.
    pub(crate) fn asked_for(&self) -> Option<String> {
        let policy = SelectionPolicy::from_name(&self.selection_policy);
        asked_for(&self.requested_eps, policy)
    }
}

/// The commonest placement of each version.
pub(crate) type CommonPlacements = HashMap<String, PlacementRow>;

/// A model on a chipset, and the time whose sessions are read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionsAsked<'a> {
    pub(crate) app: &'a str,
    pub(crate) environment: &'a str,
    pub(crate) model: &'a str,
    pub(crate) chipset: &'a str,
    /// Names that sessions had first from then on are new.
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
    /// Start of the sessions that count for the placements of versions.
    pub(crate) placed_since: Timestamp,
}

/// The dimension of sessions that a name belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameKind {
    Version,
    AppVersion,
    Firmware,
    /// ONNX Runtime with the execution provider.
    Runtime,
}

/// A name that sessions had first in the time that was asked for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct NewName {
    pub(super) kind: NameKind,
    pub(super) name: String,
    pub(super) at: Timestamp,
    pub(super) sessions: u64,
}

/// The sessions that were read.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    pub(super) placements: CommonPlacements,
    /// The commonest of each kind first.
    pub(super) new_names: Vec<NewName>,
}

/// A name that was not reported for so long before is new again.
const FORGOTTEN: SignedDuration = SignedDuration::from_hours(24 * 14);

/// Nodes, nodes on the NPU, nodes that belong on the CPU, execution providers that were asked for, policy and devices.
type Nodes = (u32, u32, u32, Vec<String>, String, Vec<String>);

/// Sums of one name, of one placement, or of all sessions. Columns that it is not about have their default.
#[derive(Debug, Default, Row, Deserialize)]
struct SeenRow {
    version: String,
    app: String,
    firmware: String,
    runtime: String,
    fingerprint: u64,
    algorithm: u32,
    /// A bit for each of the first five columns that it is not about, the first one's the highest.
    others: u64,
    /// Seconds.
    first: u32,
    sessions: u64,
    /// Sessions in the period whose placement is asked for.
    placed: u64,
    nodes: Nodes,
    npu_macs_share: Option<f32>,
    macs_attributed: Option<f32>,
}

/// Values of [`SeenRow::others`].
const ALL_SESSIONS: u64 = 0b11111;
const PLACEMENT: u64 = 0b01110;
const NAMES: [(u64, NameKind); 4] = [
    (0b01111, NameKind::Version),
    (0b10111, NameKind::AppVersion),
    (0b11011, NameKind::Firmware),
    (0b11101, NameKind::Runtime),
];

/// The row of all sessions has the first bucket that is stored: what was there then need not be new.
const SEEN: &str = "
WITH c.requests_npu AND c.n_nodes > 0 AND c.bucket >= fromUnixTimestamp64Milli(?) AS is_placed
SELECT c.model_version AS version, c.app_version AS app, c.firmware AS firmware, c.runtime AS runtime,
    c.fingerprint_exact AS fingerprint, c.fingerprint_algorithm AS algorithm,
    grouping(version, app, firmware, runtime, fingerprint) AS others,
    min(c.bucket) AS first, sum(c.sessions) AS sessions, sumIf(c.sessions, is_placed) AS placed,
    anyIf((c.n_nodes, c.npu_nodes, c.cpu_benign_nodes, c.requested_eps, c.selection_policy, c.ep_devices), is_placed) AS nodes,
    anyIf(c.npu_macs_share, is_placed) AS npu_macs_share, anyIf(c.macs_attributed, is_placed) AS macs_attributed
FROM cohort_sessions_closed_v1 AS c
WHERE c.app_id = ? AND c.environment = ? AND c.model_id = ? AND c.chipset = ?
  AND c.bucket >= fromUnixTimestamp64Milli(?) AND c.bucket < fromUnixTimestamp64Milli(?)
GROUP BY GROUPING SETS ((), (version), (app), (firmware), (runtime), (version, fingerprint, algorithm))
HAVING others = 31 OR placed > 0 OR first >= toDateTime(fromUnixTimestamp64Milli(?))
ORDER BY sessions DESC
LIMIT 10000";

/// Returns the sessions of a cohort's model and chipset.
pub(super) async fn read(
    store: &StoreReader,
    asked: SessionsAsked<'_>,
) -> Result<Sessions, ReadError> {
    let since = asked.from.saturating_sub(FORGOTTEN);
    let since = since.unwrap_or(Timestamp::UNIX_EPOCH);
    let rows = store.rows(SEEN, |query| {
        let query = query.bind(asked.placed_since.as_millisecond());
        let query = query.bind(asked.app).bind(asked.environment);
        let query = query.bind(asked.model).bind(asked.chipset);
        let query = query.bind(since.as_millisecond());
        let query = query.bind(asked.to.as_millisecond());
        query.bind(asked.from.as_millisecond())
    });
    Ok(sessions(rows.await?, asked.from))
}

fn sessions(rows: Vec<SeenRow>, from: Timestamp) -> Sessions {
    let begin = rows.iter().find(|row| row.others == ALL_SESSIONS);
    let begin = begin.map_or(0, |row| row.first);
    let mut all = Sessions::default();
    for row in rows {
        if row.others == PLACEMENT && row.placed > 0 {
            count(&mut all.placements, row);
            continue;
        }
        let kind = NAMES.iter().find(|(others, _)| *others == row.others);
        let is_new = row.first > begin && i64::from(row.first) >= from.as_second();
        let (Some((_, kind)), true) = (kind, is_new) else {
            continue;
        };
        let name = match kind {
            NameKind::Version => row.version,
            NameKind::AppVersion => row.app,
            NameKind::Firmware => row.firmware,
            NameKind::Runtime => row.runtime,
        };
        let at = time(i64::from(row.first) * 1_000).filter(|_| !["", "/"].contains(&&*name));
        all.new_names.extend(at.map(|at| NewName {
            kind: *kind,
            name,
            at,
            sessions: row.sessions,
        }));
    }
    all
}

/// Adds a placement of a version, of which only the commonest stays. Of two with equally many sessions it is the
/// one with the smaller fingerprint.
fn count(placements: &mut CommonPlacements, row: SeenRow) {
    let known = placements.get(&row.version);
    let all_sessions = known.map_or(0, |known| known.all_sessions) + row.placed;
    let stays = known.filter(|known| {
        let rank = |sessions, fingerprint| (sessions, std::cmp::Reverse(fingerprint));
        rank(known.sessions, known.fingerprint) > rank(row.placed, row.fingerprint)
    });
    let (n_nodes, npu_nodes, benign_nodes, requested_eps, selection_policy, devices) = row.nodes;
    let commonest = stays.cloned().unwrap_or(PlacementRow {
        sessions: row.placed,
        all_sessions,
        n_nodes,
        npu_nodes,
        benign_nodes,
        requested_eps,
        selection_policy,
        devices,
        // The store holds -0 for sessions on the CPU only.
        npu_macs_share: row.npu_macs_share.map(|share| f64::from(share.abs())),
        macs_attributed: row.macs_attributed.map(f64::from),
        fingerprint: row.fingerprint,
        algorithm: row.algorithm,
    });
    let placement = PlacementRow {
        all_sessions,
        ..commonest
    };
    placements.insert(row.version, placement);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(others: u64, first: u32, sessions: u64) -> SeenRow {
        SeenRow {
            others,
            first,
            sessions,
            ..SeenRow::default()
        }
    }

    #[test]
    fn names_of_the_first_bucket_or_without_letters_are_not_new() {
        let [version, app, firmware, runtime] = NAMES.map(|(others, _)| others);
        let named = |others, first, name: &str| SeenRow {
            version: name.to_owned(),
            app: name.to_owned(),
            firmware: name.to_owned(),
            runtime: name.to_owned(),
            ..row(others, first, 9)
        };
        let rows = vec![
            row(ALL_SESSIONS, 1_000, 90),
            named(firmware, 1_000, "old"),
            named(firmware, 1_900, "earlier"),
            named(firmware, 2_000, "new"),
            named(runtime, 2_000, "/"),
            named(app, 2_000, ""),
            named(version, 2_300, "2"),
        ];
        let from = Timestamp::from_second(2_000).unwrap();
        let names = sessions(rows, from).new_names;
        let names: Vec<_> = names.iter().map(|of| (of.kind, &*of.name)).collect();
        let expected = [(NameKind::Firmware, "new"), (NameKind::Version, "2")];
        assert_eq!(names, expected);
    }

    #[test]
    fn a_version_has_its_commonest_placement_and_the_sessions_of_all() {
        let placement = |version: &str, fingerprint, placed| SeenRow {
            version: version.to_owned(),
            fingerprint,
            placed,
            npu_macs_share: Some(-0.0),
            ..row(PLACEMENT, 1_000, 99)
        };
        let rows = vec![
            placement("2", 8, 5),
            placement("2", 7, 30),
            placement("2", 6, 30),
            placement("2", 5, 1),
            placement("1", 5, 3),
            placement("0", 4, 0),
        ];
        let from = Timestamp::from_second(2_000).unwrap();
        let all = sessions(rows, from);
        assert!(all.new_names.is_empty() && !all.placements.contains_key("0"));
        let of = |version: &str| {
            let of = &all.placements[version];
            (of.fingerprint, of.sessions, of.all_sessions)
        };
        assert_eq!((of("2"), of("1")), ((6, 30, 66), (5, 3, 3)));
        let share = all.placements["2"].npu_macs_share.unwrap();
        assert!(share.is_sign_positive());
    }
}
