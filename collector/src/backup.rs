//! The collector's part of a backup: copies the WAL, and cuts a restored store back to that copy. The commands
//! `store backup` and `store restore` call it; the engine makes the archive of the store.
//!
//! The WAL is copied before the store's archive is made. The archive holds all reports below the copied checkpoint, and
//! some later ones, since the writer goes on. So a restored store is cut back to the checkpoint, and the WAL replays
//! the rest: each report acknowledged before the copy is stored once.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use clickhouse::Client;
use futures::future::BoxFuture;

use crate::deletions::{PROMISE_BYTES, add_tombstones, tombstones_of};
use crate::store::{Sink, SinkError};
use crate::wal::{self, WalError, WalFiles};

/// The number of tries of a copy. A try fails if the writer frees a segment while it is copied.
const MAX_TRIES: u32 = 20;

/// Files without records, which a copy leaves out.
const LEFT_OUT: &[&str] = &["lock"];
const LEFT_OUT_SUFFIXES: &[&str] = &[".spare", ".tmp"];

/// The reason why a WAL was not copied.
#[derive(Debug, thiserror::Error)]
pub enum WalCopyError {
    /// The directory holds no readable WAL.
    #[error("failed to read wal {dir}")]
    Wal {
        /// The WAL's directory.
        dir: PathBuf,
        /// The missing or damaged part.
        #[source]
        source: WalError,
    },
    /// A file cannot be copied.
    #[error("failed to copy {file}")]
    Copy {
        /// The file of the WAL.
        file: PathBuf,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// Segments were freed faster than they could be copied.
    #[error(
        "failed to copy wal {dir}: the writer freed segments faster than they were copied; try \
         again at a quieter time, or stop the collector"
    )]
    TooBusy {
        /// The WAL's directory.
        dir: PathBuf,
    },
}

/// A copied WAL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalCopy {
    /// The collector's id in the store.
    pub collector_id: u64,
    /// Records below this offset are in the store.
    pub checkpoint: u64,
    /// Names of the files that were copied.
    pub files: Vec<String>,
}

/// The deletions in a copy of the WAL's file `deletions` that was made after a backup.
#[derive(Debug)]
pub struct SavedDeletions(Vec<u8>);

impl SavedDeletions {
    /// Reads the copy.
    ///
    /// # Errors
    /// The file cannot be read, or holds no deletion though it is not empty.
    pub fn read(file: &Path) -> io::Result<Self> {
        let bytes = fs::read(file)?;
        let records = tombstones_of(&bytes);
        if records.is_empty() && !bytes.is_empty() {
            let text =
                "it holds no deletion; expected a copy of `deletions` in a collector's WAL folder";
            return Err(io::Error::other(text));
        }
        Ok(Self(records))
    }

    /// Returns the number of deletions.
    #[must_use]
    pub fn n_deletions(&self) -> usize {
        self.0.len() / PROMISE_BYTES
    }

    /// Adds the deletions to the WAL in `dir`, durably. The next collector on it refuses and deletes those
    /// installations.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add_to(&self, dir: &Path) -> io::Result<()> {
        add_tombstones(dir, &self.0)
    }
}

/// Copies the WAL in `dir` to the empty directory `to`, durably, whether or not a collector runs. Blocks while it reads
/// and writes the disk.
///
/// # Errors
/// [`WalCopyError`]; `to` may hold some files then.
pub fn copy_wal(dir: &Path, to: &Path) -> Result<WalCopy, WalCopyError> {
    for _ in 0..MAX_TRIES {
        let log = wal_files(dir)?;
        let mut copied = Vec::new();
        for name in needed(&log) {
            let (from, target) = (dir.join(name), to.join(name));
            match copy_file(&from, &target) {
                Ok(()) => copied.push(name.clone()),
                // The segment was freed since it was listed; the check below decides whether that matters.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(WalCopyError::Copy { file: from, source }),
            }
        }
        // A segment is renamed before it is recycled, so one that still has its name held its own records during the
        // copy. A segment below the checkpoint is not needed.
        let held = wal_files(to)?;
        let is_sound = |name: &String| copied.contains(name) && dir.join(name).exists();
        let is_enough = |name: &String| is_sound(name) || held.done_segments.contains(name);
        if needed(&log).all(is_enough) {
            for name in &held.done_segments {
                let _ = fs::remove_file(to.join(name));
            }
            copied.retain(|name| !held.done_segments.contains(name));
            wal::forget_begun_batch(to).map_err(|source| WalCopyError::Wal {
                dir: to.to_owned(),
                source,
            })?;
            return Ok(WalCopy {
                collector_id: held.collector_id.short(),
                checkpoint: held.checkpoint,
                files: copied,
            });
        }
        for name in copied {
            let _ = fs::remove_file(to.join(name));
        }
    }
    Err(WalCopyError::TooBusy {
        dir: dir.to_owned(),
    })
}

fn wal_files(dir: &Path) -> Result<WalFiles, WalCopyError> {
    wal::wal_files(dir).map_err(|source| WalCopyError::Wal {
        dir: dir.to_owned(),
        source,
    })
}

fn needed(log: &WalFiles) -> impl Iterator<Item = &String> {
    let is_needed = |name: &&String| {
        !LEFT_OUT.contains(&name.as_str())
            && !LEFT_OUT_SUFFIXES
                .iter()
                .any(|suffix| name.ends_with(suffix))
            && !log.done_segments.contains(name)
    };
    log.names.iter().filter(is_needed)
}

fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    fs::copy(from, to)?;
    File::open(to)?.sync_all()
}

/// Cuts a restored store back to the copy of a WAL. Deletes that collector's reports from the checkpoint on, which the
/// WAL replays. Also deletes summaries of buckets closed after `taken_at_ms` (milliseconds since 1970), which are
/// rebuilt. Returns the number of deleted reports.
///
/// # Errors
/// The store refused a query or did not answer. The call may be repeated.
pub fn cut_back(
    client: Client,
    copy: &WalCopy,
    taken_at_ms: u64,
) -> BoxFuture<'_, Result<u64, CutError>> {
    Box::pin(async move {
        let sink = Sink::new(client);
        let WalCopy {
            collector_id,
            checkpoint,
            ..
        } = copy;
        let beyond = format!("collector_id = {collector_id} AND wal_offset >= {checkpoint}");
        let taken_at = format!("fromUnixTimestamp64Milli(toInt64({taken_at_ms}), 'UTC')");
        let mut n_deleted = 0;
        for (table, what) in [
            ("report_copies", beyond.clone()),
            ("surplus_copies", beyond.clone()),
            ("repeated_rows", beyond.clone()),
            ("reports", beyond),
            ("rollup_watermark", format!("closed_at > {taken_at}")),
            ("rollup_checks", format!("checked_at > {taken_at}")),
            // A rebuild done after the copy is undone below, so its request is open again.
            ("rebuild_requests", format!("written_at > {taken_at}")),
            ("rollup_builds", format!("built_at > {taken_at}")),
            // Revisions that came from deletions stay, because earlier revisions count deleted installations.
            (
                "bucket_revisions",
                format!("built_at > {taken_at} AND reason != 'deletion'"),
            ),
            ("collector_checkpoints", format!("updated_at > {taken_at}")),
        ] {
            let sql = format!("SELECT count() AS n FROM {table} WHERE {what}");
            let n = sink.first::<u64>(table, &sql).await?.unwrap_or(0);
            if n > 0 {
                let sql =
                    format!("ALTER TABLE {table} DELETE WHERE {what} SETTINGS mutations_sync = 2");
                sink.execute(table, &sql).await?;
            }
            if table == "reports" {
                n_deleted = n;
            }
        }
        Ok(n_deleted)
    })
}

/// The store could not be cut back.
#[derive(Debug, thiserror::Error)]
#[error("failed to cut the restored store back to its WAL")]
pub struct CutError(#[source] Box<dyn std::error::Error + Send + Sync>);

impl From<SinkError> for CutError {
    fn from(error: SinkError) -> Self {
        Self(Box::new(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::{Batch, Checkpoint, Wal, WalOptions, WalRecords};

    fn options(dir: &Path) -> WalOptions {
        WalOptions {
            max_bytes: 64 << 20,
            ..wal::tests::options(dir)
        }
    }

    async fn append(wal: &Wal, payload: &[u8]) {
        let mut batch = Batch::default();
        batch.push(&[payload]).unwrap();
        wal.append(batch).await.unwrap();
    }

    fn payloads(dir: &Path) -> Vec<Vec<u8>> {
        let mut records = WalRecords::open(dir).unwrap();
        let mut found = Vec::new();
        while let Some(record) = records.next_record().unwrap() {
            found.push(record.payload.to_vec());
        }
        found
    }

    /// The WAL is written, freed and recycled during the copies.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_copy_of_a_busy_wal_holds_all_records_acknowledged_before() {
        let dir = tempfile::tempdir().unwrap();
        let opened = Wal::open(&options(&dir.path().join("wal"))).unwrap();
        let wal = opened.wal;
        let payload = |n: u32| [&n.to_be_bytes()[..], &[7; 4_000]].concat();
        let mut next = 0;
        for round in 0..8 {
            for _ in 0..40 {
                append(&wal, &payload(next)).await;
                next += 1;
            }
            let acknowledged = next;
            let to = dir.path().join(format!("copy-{round}"));
            fs::create_dir(&to).unwrap();
            let from = dir.path().join("wal");
            let (copied, ()) = tokio::join!(
                async {
                    tokio::task::spawn_blocking(move || copy_wal(&from, &to))
                        .await
                        .unwrap()
                        .unwrap()
                },
                async {
                    for _ in 0..30 {
                        append(&wal, &payload(next)).await;
                        next += 1;
                        let (time_us, offset) = wal.watermark();
                        let offset = offset.min(crate::wal::WalOffset(wal.stats().end));
                        wal.save_checkpoint(&Checkpoint {
                            offset,
                            time_us,
                            batch_end: None,
                        })
                        .unwrap();
                    }
                }
            );
            let to = dir.path().join(format!("copy-{round}"));
            let reopened = Wal::open(&options(&to)).unwrap();
            assert_eq!(reopened.wal.collector_id().short(), copied.collector_id);
            assert_eq!(reopened.checkpoint.offset.0, copied.checkpoint);
            let end = reopened.wal.stats().end;
            reopened.wal.close();
            let held = payloads(&to);
            let newest = held
                .last()
                .map(|p| u32::from_be_bytes(*p.first_chunk().unwrap()));
            // Either the WAL has the record, or the checkpoint says that the store has it.
            let is_there = newest.is_some_and(|n| n + 1 >= acknowledged);
            assert!(
                is_there || copied.checkpoint >= end,
                "{newest:?} of {acknowledged}"
            );
        }
        wal.close();
    }

    /// Each file call fails in each way, and a copy that still succeeds has every record.
    #[tokio::test]
    async fn no_failing_call_makes_half_a_copy() {
        let dir = tempfile::tempdir().unwrap();
        let wal = Wal::open(&options(dir.path())).unwrap().wal;
        for n in 0..20 {
            append(&wal, &[n; 300]).await;
        }
        wal.save_checkpoint(&Checkpoint::default()).unwrap();
        wal.close();
        let whole = payloads(dir.path());
        let n_faults = epwatch_io_faults::each_fault(
            1,
            || tempfile::tempdir().unwrap(),
            |to| {
                let copied = copy_wal(dir.path(), to.path());
                (to, copied)
            },
            |(to, copied), fault, nth| match copied {
                Ok(_) => assert_eq!(payloads(to.path()), whole, "after {fault:?} at call {nth}"),
                Err(error) => assert!(!error.to_string().is_empty()),
            },
        );
        assert!(n_faults > 40, "{n_faults}");
    }

    #[test]
    fn a_directory_without_a_wal_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let error = copy_wal(dir.path(), dir.path()).unwrap_err();
        assert!(matches!(error, WalCopyError::Wal { .. }), "{error}");
    }
}
