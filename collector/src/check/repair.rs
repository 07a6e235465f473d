//! Repairs the findings of a check where nothing can be lost: equal copies, and rows that are made from other rows.
//! Reports that the store lacks are still in the WAL or gone. The WAL's checkpoint goes back, and the next writer
//! queries the store for each of them. Holds the WAL's lock, so no collector of this WAL runs.

use std::path::Path;

use clickhouse::{Client, Row};
use epwatch_proto::InstallationId;
use serde::{Deserialize, Serialize};

use super::finding::{CheckError, CheckReport, Checked};
use super::limits::{Limits, limits};
use crate::deletions::{Tombstone, add_tombstones, records_of};
use crate::store::{Sink, SinkError};
use crate::wal::{LockedWal, Rewound, WalError};

/// The outcome for one broken invariant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RepairState {
    /// It holds again.
    Done,
    /// The next collector on this WAL repairs it.
    NextStart,
    /// It is left as it is.
    Left,
}

/// A repair, or the reason why there is none.
#[derive(Debug, Serialize)]
pub struct Repair {
    /// The [`Checked::name`] of the broken invariant.
    pub check: &'static str,
    /// Whether it is repaired.
    pub state: RepairState,
    /// The step that was done, or that remains to be done.
    pub what: String,
}

/// A WAL that no collector has open, and none opens until this is dropped.
#[derive(Debug)]
pub struct RepairLock(LockedWal);

impl RepairLock {
    /// Takes the lock of the WAL at `dir`.
    ///
    /// # Errors
    /// Another process has the lock, or the directory has no readable WAL.
    pub fn take(dir: &Path) -> Result<Self, CheckError> {
        Ok(Self(LockedWal::open(dir)?))
    }
}

#[derive(Debug, Row, Deserialize)]
struct Forgotten {
    installation: [u8; 16],
    at_ms: i64,
}

/// The first copies of reports that are listed as surplus. `{horizon}` has the same meaning as in the invariant
/// `counted_at_all`.
const LISTED_BUT_FIRST: &str = "(collector_id, wal_offset) IN (
    SELECT tupleElement(first, 2), tupleElement(first, 3) FROM (
        SELECT min((received_at, collector_id, wal_offset)) AS first FROM report_copies
        WHERE toDate(received_at) >= '{horizon}'
        GROUP BY app_id, installation, stream_id, sequence
        HAVING toDate(min(received_at)) >= addDays(toDate('{horizon}'), 3)
          AND countIf((collector_id, wal_offset) NOT IN (SELECT collector_id, wal_offset FROM surplus_copies)) = 0))";

/// Deleted installations with reports, which no collector remembers.
const FORGOTTEN: &str = "
    SELECT installation, toInt64(toUnixTimestamp64Milli(min(tombstoned_at))) AS at_ms FROM tombstones
    WHERE installation IN (SELECT installation FROM reports)
      AND (installation NOT IN (SELECT installation FROM deletion_log WHERE step = 'hidden')
        OR installation NOT IN (SELECT installation FROM hidden_installations))
    GROUP BY installation";

/// Repairs the broken invariants in `report`, as far as this cannot lose anything.
///
/// # Errors
/// The store did not answer, or the WAL cannot be written. A repair may be repeated.
pub async fn repair(
    client: &Client,
    raw_days: u16,
    lock: &RepairLock,
    report: &CheckReport,
) -> Result<Vec<Repair>, CheckError> {
    let is_broken = |check: &&Checked| check.found.is_some_and(|n| n > 0);
    let broken: Vec<&'static str> = (report.checks.iter())
        .filter(is_broken)
        .map(|check| check.name)
        .collect();
    // The summaries of these buckets, and the ledger, count the rows that change now.
    let changes = [
        "copies_once",
        "reports_once",
        "counted_once",
        "counted_at_all",
    ];
    let has_any = |names: &[&str]| names.iter().any(|name| broken.contains(name));
    let changes_summaries = has_any(&changes);
    let work = RepairWork {
        sink: Sink::new(client.clone()),
        limits: limits(client, raw_days).await?,
        wal: &lock.0,
        changes_summaries,
    };
    let mut repairs = Vec::new();
    let mut rewound = None;
    for check in broken.iter().copied() {
        let (state, what) = work.repair(check, &mut rewound).await?;
        repairs.push(Repair { check, state, what });
    }
    if changes_summaries || has_any(&["run_summaries", "session_summaries"]) {
        work.build_summaries_again().await?;
    }
    Ok(repairs)
}

fn failed_to_repair(check: &'static str, source: SinkError) -> CheckError {
    CheckError::Repair {
        check,
        source: Box::new(source),
    }
}

struct RepairWork<'a> {
    sink: Sink,
    limits: Limits,
    wal: &'a LockedWal,
    changes_summaries: bool,
}

impl RepairWork<'_> {
    async fn repair(
        &self,
        check: &'static str,
        rewound: &mut Option<Rewound>,
    ) -> Result<(RepairState, String), CheckError> {
        let failed = |source| failed_to_repair(check, source);
        Ok(match check {
            "copies_once" => self
                .merge_equal_rows("report_copies")
                .await
                .map_err(failed)?,
            "reports_once" => self.merge_equal_rows("reports").await.map_err(failed)?,
            "copies_have_reports" | "reports_have_copies" | "log_is_stored" => {
                let rewound = match rewound {
                    Some(rewound) => *rewound,
                    None => *rewound.insert(self.wal.rewind()?),
                };
                match rewound {
                    Rewound::To { offset, records } => (
                        RepairState::NextStart,
                        format!(
                            "the WAL's checkpoint went back to {offset}: the next collector asks the store for each of \
                             its {records} records and inserts those that it lacks; older ones are gone"
                        ),
                    ),
                    Rewound::HoldsNothing => (
                        RepairState::Left,
                        "the WAL holds no record: only a backup may have the reports".to_owned(),
                    ),
                    Rewound::EndIsLost => (
                        RepairState::Left,
                        "the WAL's end is damaged, so its checkpoint stays: else positions were used twice".to_owned(),
                    ),
                }
            }
            "counted_once" | "run_summaries" | "session_summaries" => (
                RepairState::NextStart,
                "the next collector names surplus copies again and builds the summaries of all closed buckets again"
                    .to_owned(),
            ),
            "counted_at_all" => {
                let first = LISTED_BUT_FIRST.replace("{horizon}", &self.limits.horizon);
                self.sink
                    .delete("surplus_copies", &first)
                    .await
                    .map_err(failed)?;
                (
                    RepairState::Done,
                    "the first copy of each such report is no longer listed as surplus".to_owned(),
                )
            }
            "deletions" => self.promise_again().await?,
            "clock" => (
                RepairState::Left,
                "set the clock, then wait until that time has passed".to_owned(),
            ),
            "log_is_whole" => (
                RepairState::Left,
                "bytes of the WAL are lost: look at the disk".to_owned(),
            ),
            "ledger" if self.changes_summaries => (
                RepairState::NextStart,
                "it follows from the other findings: check again after the next start".to_owned(),
            ),
            _ => (RepairState::Left, "no other finding explains it".to_owned()),
        })
    }

    /// Merges rows that are equal in every column, day by day.
    async fn merge_equal_rows(
        &self,
        table: &'static str,
    ) -> Result<(RepairState, String), SinkError> {
        let days = format!(
            "SELECT DISTINCT toString(toDate(received_at)) FROM {table} WHERE toDate(received_at) >= '{}' \
             GROUP BY toDate(received_at), collector_id, wal_offset HAVING count() > 1",
            self.limits.horizon
        );
        let days = self.sink.fetch::<String>(table, &days).await?;
        let name = self.sink.stored_name(table).await?;
        for day in &days {
            let sql = format!("OPTIMIZE TABLE {name} PARTITION '{day}' FINAL DEDUPLICATE");
            self.sink.execute(table, &sql).await?;
        }
        let left = format!(
            "SELECT count() FROM (SELECT 1 FROM {table} WHERE toDate(received_at) >= '{}' \
             GROUP BY toDate(received_at), collector_id, wal_offset HAVING count() > 1)",
            self.limits.horizon
        );
        let left = self.sink.first::<u64>(table, &left).await?.unwrap_or(0);
        let n_days = days.len();
        Ok(match left {
            0 => (
                RepairState::Done,
                format!("equal rows of {table} were merged, on {n_days} days"),
            ),
            n => (
                RepairState::Left,
                format!("equal rows of {table} were merged; rows of {n} positions differ and stay"),
            ),
        })
    }

    /// Makes the next collector build every closed bucket again whose reports are all there.
    async fn build_summaries_again(&self) -> Result<(), CheckError> {
        let failed = |source| failed_to_repair("run_summaries", source);
        let from = self.limits.from;
        // One row must be left: if the table is empty, closed buckets count as checked.
        let sql = format!(
            "INSERT INTO rollup_checks (checked_until, checked_at) SELECT toDateTime({from}, 'UTC'), now64(3, 'UTC')"
        );
        self.sink
            .execute("rollup_checks", &sql)
            .await
            .map_err(failed)?;
        let later = format!("checked_until > toDateTime({from}, 'UTC')");
        self.sink
            .delete("rollup_checks", &later)
            .await
            .map_err(failed)
    }

    async fn promise_again(&self) -> Result<(RepairState, String), CheckError> {
        let rows = self.sink.fetch::<Forgotten>("tombstones", FORGOTTEN).await;
        let rows = rows.map_err(|source| failed_to_repair("deletions", source))?;
        if rows.is_empty() {
            let what = "the next collector erases them: leave it running";
            return Ok((RepairState::NextStart, what.to_owned()));
        }
        let tombstones = rows.iter().map(|row| Tombstone {
            installation: InstallationId::from_bytes(row.installation),
            at_ms: row.at_ms,
        });
        add_tombstones(self.wal.dir(), &records_of(tombstones))
            .map_err(WalError::io("write the file of deletions"))?;
        let what = format!(
            "{} deletions were promised again, and the next collector carries them out",
            rows.len()
        );
        Ok((RepairState::NextStart, what))
    }
}
