//! Checks a collector's log: whether it can be read, and whether the store has all reports below the log's checkpoint.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use clickhouse::Client;
use epwatch_proto::{ReportKey, hex};

use super::finding::{CheckError, Checked};
use crate::join_task::join_task;
use crate::wal::{WalError, WalRecords, wal_files};
use crate::wal_record::ReportRecord;

/// Number of records whose positions are looked up at once.
const CHUNK: usize = 10_000;

/// Checks the log at `dir`, without its lock.
pub(super) async fn check(
    client: &Client,
    dir: &Path,
    since_us: u64,
) -> Result<[Checked; 2], CheckError> {
    let files = wal_files(dir)?;
    let (collector, checkpoint) = (files.collector_id.short(), files.checkpoint);
    let mut records = WalRecords::open(dir)?;
    let mut missing = Vec::new();
    let mut n_unreadable = 0;
    loop {
        let mut reading = tokio::task::spawn_blocking(move || {
            let chunk = chunk(&mut records, checkpoint, since_us)?;
            Ok::<_, WalError>((records, chunk))
        });
        let chunk;
        (records, chunk) = join_task(&mut reading).await?;
        n_unreadable += chunk.n_unreadable;
        missing.extend(missing_of(client, collector, &chunk.installations).await?);
        if chunk.is_last {
            break;
        }
    }
    let skipped = records.skipped_bytes();
    let mut damage = Vec::new();
    if n_unreadable > 0 {
        damage.push(format!(
            "{n_unreadable} records that this version cannot read"
        ));
    }
    if skipped > 0 {
        damage.push(format!("{skipped} bytes that are not a record"));
    }
    Ok([
        Checked {
            name: "log_is_whole",
            holds: "the log can be read",
            broken_by: "damage; a collector that ran during the check may have freed a segment",
            found: Some(damage.len()),
            examples: damage,
            not_checked: None,
        },
        Checked {
            name: "log_is_stored",
            holds: "what the log's checkpoint has passed is in the store",
            broken_by: "acknowledged report that is not in the store",
            found: Some(missing.len()),
            examples: missing.into_iter().take(10).collect(),
            not_checked: None,
        },
    ])
}

/// Some records below the checkpoint.
#[derive(Debug, Default)]
struct LogChunk {
    /// The installations, by the offset of their report.
    installations: HashMap<u64, String>,
    n_unreadable: u64,
    is_last: bool,
}

/// Reads the next records. Records received before `since_us` may have expired in the store.
fn chunk(records: &mut WalRecords, checkpoint: u64, since_us: u64) -> Result<LogChunk, WalError> {
    let mut chunk = LogChunk::default();
    while chunk.installations.len() < CHUNK {
        let record = match records.next_record()? {
            Some(record) if record.offset.0 < checkpoint && record.received_at_us >= since_us => {
                record
            }
            // Records from the checkpoint on wait for the writer.
            Some(_) => continue,
            None => {
                chunk.is_last = true;
                break;
            }
        };
        let report = ReportRecord::parse(&record.payload).ok();
        match report.and_then(|record| ReportKey::peek(record.report)) {
            Some(key) => {
                let installation = hex(key.installation.as_bytes());
                chunk.installations.insert(record.offset.0, installation);
            }
            None => chunk.n_unreadable += 1,
        }
    }
    Ok(chunk)
}

/// Returns the positions that the store lacks. Reports of deleted installations may be gone.
async fn missing_of(
    client: &Client,
    collector: u64,
    installations: &HashMap<u64, String>,
) -> Result<Vec<String>, CheckError> {
    if installations.is_empty() {
        return Ok(Vec::new());
    }
    let failed = |source| CheckError::Store {
        what: "log_is_stored",
        source,
    };
    let offsets: Vec<String> = installations.keys().map(ToString::to_string).collect();
    let sql = format!(
        "SELECT wal_offset FROM report_copies WHERE collector_id = {collector} AND wal_offset IN ({})",
        offsets.join(", ")
    );
    let stored: Vec<u64> = client.query(&sql).fetch_all().await.map_err(failed)?;
    let stored: HashSet<u64> = stored.into_iter().collect();
    let mut missing = installations.clone();
    missing.retain(|offset, _| !stored.contains(offset));
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<String> = missing
        .values()
        .map(|id| format!("unhex('{id}')"))
        .collect();
    let sql = format!(
        "SELECT lower(hex(installation)) FROM tombstones WHERE installation IN ({})",
        ids.join(", ")
    );
    let deleted: Vec<String> = client.query(&sql).fetch_all().await.map_err(failed)?;
    missing.retain(|_, installation| !deleted.contains(installation));
    let named = missing.keys().map(|offset| format!("offset {offset}"));
    Ok(named.collect())
}
