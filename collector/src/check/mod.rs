//! Checks the invariants of the rows of a store, and of a collector's log. A check only reads, so a collector may run
//! meanwhile. [`repair()`] repairs some of the findings while no collector runs.
//!
//! A collector may write between two reads. So a row that breaks an invariant counts only if a second check finds it
//! again.

mod finding;
mod invariants;
mod limits;
mod log;
mod repair;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use clickhouse::{Client, Row};
use serde::Deserialize;

pub use self::finding::{CheckError, CheckReport, Checked};
use self::invariants::{INVARIANTS, Invariant, Repeat, SCREENS};
use self::limits::{Limits, limits, unread_days};
pub use self::repair::{Repair, RepairLock, RepairState, repair};

/// The most rows of one invariant that a check looks at.
const MAX_FOUND: usize = 1_000;
/// Number of rows whose positions or keys are compared at once: about half a gigabyte of the store's memory.
const SLICE_ROWS: u64 = 4_000_000;
/// Pause before the second check. It is long enough for a batch whose first table is written to reach its second one.
const SECOND_LOOK: Duration = Duration::from_secs(10);

/// The number of rows of one day.
#[derive(Debug, Row, Deserialize)]
struct DayToCheck {
    day: String,
    copies: u64,
    reports: u64,
}

/// Checks a store at this program's schema that keeps reports for `raw_days`, and the log at `wal_dir` if one is given.
/// `say` is called with one line for each step.
///
/// # Errors
/// [`CheckError`] if the store or the log cannot be read. What breaks an invariant is in the report, not an error.
pub async fn check(
    client: &Client,
    raw_days: u16,
    wal_dir: Option<&Path>,
    mut say: impl FnMut(&str),
) -> Result<CheckReport, CheckError> {
    let limits = limits(client, raw_days).await?;
    let sql = format!(
        "SELECT toString(toDate(received_at)) AS day, countIf(is_copy) AS copies, countIf(NOT is_copy) AS reports \
         FROM (SELECT received_at, true AS is_copy FROM report_copies \
               UNION ALL SELECT received_at, false AS is_copy FROM reports) \
         WHERE day >= '{}' GROUP BY day ORDER BY day",
        limits.horizon
    );
    let days = client.query(&sql).fetch_all::<DayToCheck>().await;
    let days = days.map_err(unread_days)?;
    let store = StoreToCheck {
        client,
        limits,
        days,
    };

    let mut checks = Vec::new();
    let mut suspects = Vec::new();
    let held = store.screened(&mut say).await?;
    for invariant in INVARIANTS {
        if held.contains(invariant.name) {
            checks.push(Checked::of(invariant, &BTreeSet::new()));
            continue;
        }
        if invariant.needs_deletions_done && store.limits.n_deletions_under_way > 0 {
            checks.push(Checked {
                found: None,
                not_checked: Some(
                    "deletions are under way; check again once they are done".to_owned(),
                ),
                ..Checked::of(invariant, &BTreeSet::new())
            });
            continue;
        }
        say(invariant.holds);
        let found = store.broken(invariant).await?;
        checks.push(Checked::of(invariant, &found));
        if !found.is_empty() {
            suspects.push((checks.len() - 1, invariant, found));
        }
    }
    if !suspects.is_empty() {
        say("once more what was found");
        tokio::time::sleep(SECOND_LOOK).await;
    }
    for (at, invariant, first) in suspects {
        let mut found = store.broken(invariant).await?;
        // If the list was cut, a second query may return other rows first.
        if found.len() < MAX_FOUND {
            found.retain(|row| first.len() == MAX_FOUND || first.contains(row));
        }
        checks[at] = Checked::of(invariant, &found);
    }
    if let Some(dir) = wal_dir {
        say("the log");
        checks.extend(log::check(client, dir, u64::from(store.limits.from) * 1_000_000).await?);
    }
    Ok(CheckReport {
        days: store.days.len(),
        copies: store.days.iter().map(|day| day.copies).sum(),
        checks,
    })
}

struct StoreToCheck<'a> {
    client: &'a Client,
    limits: Limits,
    days: Vec<DayToCheck>,
}

impl StoreToCheck<'_> {
    /// Returns the names of the invariants that hold according to a screen's answer.
    async fn screened(
        &self,
        say: &mut impl FnMut(&str),
    ) -> Result<BTreeSet<&'static str>, CheckError> {
        let mut held = BTreeSet::new();
        for screen in SCREENS {
            if screen.needs_deletions_done && self.limits.n_deletions_under_way > 0 {
                continue;
            }
            say(screen.holds);
            let mut found = 0;
            for sql in self.queries(screen.sql, screen.repeat) {
                let rows = self.client.query(&sql).fetch_one::<u64>().await;
                found += rows.map_err(|source| CheckError::Store {
                    what: screen.invariants[0],
                    source,
                })?;
                if found > 0 {
                    break;
                }
            }
            if found == 0 {
                held.extend(screen.invariants);
            }
        }
        Ok(held)
    }

    /// Returns the rows that break an invariant, as text.
    async fn broken(&self, invariant: &Invariant) -> Result<BTreeSet<String>, CheckError> {
        let mut found = BTreeSet::new();
        for sql in self.queries(invariant.sql, invariant.repeat) {
            let rows = self.client.query(&sql).fetch_all::<String>().await;
            found.extend(rows.map_err(|source| CheckError::Store {
                what: invariant.name,
                source,
            })?);
            if found.len() >= MAX_FOUND {
                break;
            }
        }
        Ok(found)
    }

    /// The texts of a query, one after the other so that none is large.
    fn queries(&self, sql: &str, repeat: Repeat) -> impl Iterator<Item = String> {
        let Limits {
            horizon,
            from,
            until,
            ..
        } = &self.limits;
        let final_buckets = format!(
            "bucket >= fromUnixTimestamp({from}) AND bucket < fromUnixTimestamp({until}) \
                 AND bucket NOT IN (SELECT bucket FROM open_rebuilds_v1)"
        );
        let sql = sql
            .replace("{horizon}", horizon)
            .replace("{until}", &until.to_string())
            .replace("{is_final}", &final_buckets);
        let slices = |rows: u64| rows / SLICE_ROWS + 1;
        let days = match repeat {
            Repeat::Store => vec![(String::new(), 1)],
            Repeat::Stream => {
                let copies = self.days.iter().map(|day| day.copies).sum();
                vec![(String::new(), slices(copies))]
            }
            Repeat::Day => self.days.iter().map(|day| (day.day.clone(), 1)).collect(),
            Repeat::Slice => {
                let days = self.days.iter();
                days.map(|day| (day.day.clone(), slices(day.copies.max(day.reports))))
                    .collect()
            }
        };
        let sliced_by = match repeat {
            Repeat::Stream => "stream_id",
            Repeat::Store | Repeat::Day | Repeat::Slice => "wal_offset",
        };
        days.into_iter().flat_map(move |(day, n_slices)| {
            let of_day = sql.replace("{day}", &day);
            (0..n_slices).map(move |slice| {
                let in_slice = match n_slices {
                    1 => "true".to_owned(),
                    _ => format!("intHash64({sliced_by}) % {n_slices} = {slice}"),
                };
                of_day.replace("{in_slice}", &in_slice)
            })
        })
    }
}
