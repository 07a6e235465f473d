//! Sealed reports on disk until the collector has them.
//!
//! ```text
//! DIR/lock                       held while the layout of DIR changes: streams begin, are taken
//!                                over, vanish
//! DIR/streams/<stream>/lock      held by the one process that writes there; free: it ended
//! DIR/streams/<stream>/state     the highest sequence sealed, and whether the process ended well
//! DIR/streams/<stream>/<n>.seg   reports (`segment.rs`), named by the first one's sequence
//! ```
//!
//! One writer per process, in a folder of its own; several processes share DIR. At its start and at
//! each seal a process takes over the streams that ended: it uploads what they left, and names them
//! in its reports until one of those is acked. Reports are deleted on ack only, a segment when its
//! last one is; full or old spools lose whole segments, oldest first, and every loss is counted.
//! Where more streams ended than reports can name, those beyond wait, and the oldest of very many go
//! unnamed: their runs are counted, their reports have no place in the ledger.

mod quota;
mod segment;
mod stream;
#[cfg(test)]
mod tests;

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use epwatch_proto::{
    DropReason, EndedStream, ReportKey, StreamId, report::MAX_ENDED_STREAMS, upload::MAX_REPORTS,
};

use crate::{
    core::SealedReport,
    folder::{
        self,
        files::{self, FileLock},
    },
    policy,
    time::Now,
};
use quota::SegmentUse;

pub use quota::Limits;
pub(crate) use quota::Loss;

use stream::StreamDir;

/// Why the spool cannot keep something.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpoolError {
    /// The folder cannot be made, read or locked.
    #[error("failed to open the spool in {dir}")]
    Open {
        /// The SDK's folder.
        dir: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// A report that waits cannot be read, for example because the app has too many files open. It
    /// stays.
    #[error("failed to read report {sequence} from the spool")]
    Read {
        /// Its number.
        sequence: u64,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// A report cannot be written, for example because the disk is full.
    #[error("failed to write report {sequence} to the spool")]
    Write {
        /// Its number.
        sequence: u64,
        /// What the system says.
        #[source]
        source: io::Error,
    },
}

/// What is to be sent next.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    pub(crate) reports: Vec<(ReportKey, Bytes)>,
    pub(crate) losses: Vec<Loss>,
    /// Why some wait on that were to be among them.
    pub(crate) error: Option<SpoolError>,
}

/// What was found when the spool was opened.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) ended: Vec<EndedStream>,
    pub(crate) losses: Vec<Loss>,
}

/// One process's view of the spool.
#[derive(Debug)]
pub(crate) struct Spool {
    dir: PathBuf,
    limits: Limits,
    /// Streams that ended, oldest first, then our own.
    ended: Vec<StreamDir>,
    own: StreamDir,
    /// The highest sequence of our own that the collector has answered for.
    answered: u64,
}

impl Spool {
    /// Opens the folder, begins a stream, and takes over those that ended.
    pub(crate) fn open(
        dir: &Path,
        stream: StreamId,
        limits: Limits,
    ) -> Result<(Self, Found), SpoolError> {
        Self::try_open(dir, stream, limits).map_err(|source| SpoolError::Open {
            dir: dir.display().to_string(),
            source,
        })
    }

    fn try_open(dir: &Path, stream: StreamId, limits: Limits) -> io::Result<(Self, Found)> {
        let streams = dir.join(folder::STREAMS);
        files::create_private_dir(&streams)?;
        let _lock = FileLock::wait(&dir.join(folder::LOCK))?;
        let mut spool = Self {
            dir: dir.to_owned(),
            limits,
            ended: Vec::new(),
            own: StreamDir::begin(&streams, stream)?,
            answered: 0,
        };
        let found = spool.take_ended()?;
        Ok((spool, found))
    }

    /// The stream of this process.
    pub(crate) fn stream(&self) -> StreamId {
        self.own.stream()
    }

    /// Takes over streams that ended since: of other processes, or more than there was room for.
    pub(crate) fn adopt(&mut self) -> io::Result<Found> {
        let _lock = FileLock::wait(&self.dir.join(folder::LOCK))?;
        self.take_ended()
    }

    /// The caller holds the folder's lock.
    fn take_ended(&mut self) -> io::Result<Found> {
        let mut found = Found::default();
        let (own_bytes, _) = self.usage(0);
        let mut left_bytes = self.limits.max_spool_bytes.saturating_sub(own_bytes);
        // Newest first where there is no room for all: what goes then is the oldest.
        let mut untaken = Vec::new();
        let streams = self.dir.join(folder::STREAMS);
        stream::clear_gone(&streams);
        for path in stream_dirs(&streams)? {
            let is_ours = |s: &StreamDir| s.is_at(&path);
            if self.streams().any(is_ours) {
                continue;
            }
            if self.ended.len() == MAX_ENDED_STREAMS {
                // More would not fit into a report; they are taken when others are done.
                untaken.push(path);
                continue;
            }
            // One folder that cannot be read must not keep the others from being sent.
            let Ok(Some(mut taken)) = StreamDir::take_over(&path) else {
                continue;
            };
            found.losses.extend(taken.lost.take());
            found.ended.push(taken.ended_stream());
            let bytes: u64 = taken.segments().map(|s| s.bytes).sum();
            left_bytes = left_bytes.saturating_sub(bytes);
            self.ended.push(taken);
        }
        let n_kept = untaken.len().min(policy::MAX_UNTAKEN_STREAMS);
        left_bytes = left_bytes.saturating_sub(n_kept as u64 * policy::STREAM_DIR_BYTES);
        for (nth, path) in untaken.into_iter().rev().enumerate() {
            let bytes = stream::bytes_of(&path);
            let is_kept = nth < n_kept;
            if is_kept && bytes <= left_bytes {
                left_bytes -= bytes;
                continue;
            }
            // An app that crashes over and over without a network must not fill the disk.
            let Ok(Some(mut stream)) = StreamDir::take_over(&path) else {
                continue;
            };
            let mut losses: Vec<_> = stream.lost.take().into_iter().collect();
            while stream.segments().next().is_some() {
                let (reports, runs) = stream.drop_oldest();
                losses.push(Loss {
                    reason: DropReason::SpoolFull,
                    reports,
                    runs,
                });
            }
            // Empty it can still be named; each folder takes room, though.
            if !is_kept {
                stream.remove();
                // Nobody will ever name it, so its numbers are recorded nowhere: told as dropped
                // they would be more than there were.
                for loss in &mut losses {
                    loss.reports = 0;
                }
            }
            found.losses.extend(losses);
        }
        Ok(found)
    }

    /// Keeps a report; it is on disk when this returns.
    pub(crate) fn append(&mut self, report: &SealedReport, now: Now) -> Result<(), SpoolError> {
        let appended = self.own.append(report, now, self.limits.segment_bytes);
        appended.map_err(|source| SpoolError::Write {
            sequence: report.key.sequence.get(),
            source,
        })
    }

    /// Notes that this sequence was sealed, whether or not it can be kept.
    pub(crate) fn note_sealed(&mut self, sequence: u64) -> io::Result<()> {
        self.own.note_sealed(sequence, false)
    }

    /// Drops what is too much or too old.
    pub(crate) fn enforce(&mut self, now: Now) -> Vec<Loss> {
        let uses: Vec<_> = self
            .streams()
            .flat_map(|s| s.segments())
            .map(|segment| SegmentUse {
                bytes: segment.bytes,
                age: segment.age(now),
            })
            .collect();
        let limits = self.limits;
        let reasons = quota::to_drop(&uses, limits.max_spool_bytes, limits.max_spool_age);
        let mut reasons = reasons.into_iter().peekable();
        let mut losses = Vec::new();
        for stream in self.ended.iter_mut().chain([&mut self.own]) {
            while stream.segments().next().is_some() {
                let Some(reason) = reasons.next() else {
                    return losses;
                };
                let (reports, runs) = stream.drop_oldest();
                losses.push(Loss {
                    reason,
                    reports,
                    runs,
                });
            }
        }
        losses
    }

    /// The oldest reports that fit, at most a request's number of them; what turns out to be
    /// corrupt is dropped, what cannot be read now stays. One report is given even if it does not
    /// fit.
    pub(crate) fn pending(&mut self, max_bytes: u64) -> Pending {
        let mut pending = Pending::default();
        let mut total = 0;
        for stream in self.ended.iter_mut().chain([&mut self.own]) {
            for (key, length) in stream.open_records() {
                let n_reports = pending.reports.len();
                if n_reports == MAX_REPORTS || (n_reports > 0 && total + length > max_bytes) {
                    return pending;
                }
                match stream.read(&key) {
                    Ok(Some(report)) => {
                        total += length;
                        pending.reports.push((key, report));
                    }
                    Ok(None) => pending.losses.extend(stream.give_up(&key)),
                    Err(source) => {
                        let sequence = key.sequence.get();
                        pending.error = Some(SpoolError::Read { sequence, source });
                    }
                }
            }
        }
        pending
    }

    /// Deletes a report, because the collector has it or never will.
    ///
    /// Gives back the runs that were in it.
    pub(crate) fn finish(&mut self, key: &ReportKey) -> u64 {
        if key.stream == self.own.stream() {
            self.answered = self.answered.max(key.sequence.get());
        }
        let mut streams = self.ended.iter_mut().chain([&mut self.own]);
        let stream = streams.find(|s| s.stream() == key.stream);
        stream.map_or(0, |stream| stream.finish(key))
    }

    /// Forgets ended streams that left nothing and need not be named any more.
    pub(crate) fn retire_ended(&mut self, is_to_be_named: impl Fn(StreamId) -> bool) {
        let is_over = |s: &StreamDir| s.segments().next().is_none() && !is_to_be_named(s.stream());
        if !self.ended.iter().any(is_over) {
            return;
        }
        let Ok(_lock) = FileLock::wait(&self.dir.join(folder::LOCK)) else {
            return;
        };
        let ended = std::mem::take(&mut self.ended);
        for stream in ended {
            if is_over(&stream) {
                stream.remove();
            } else {
                self.ended.push(stream);
            }
        }
    }

    /// The process ends with nothing left to seal: its last sequence is final.
    pub(crate) fn end(mut self, last_sequence: u64) {
        let noted = self.own.note_sealed(last_sequence, true);
        if noted.is_err() || self.own.segments().next().is_some() {
            return;
        }
        // What could not be kept, or was dropped, after the last one that the collector has seen
        // shows only once a later process names the stream.
        if last_sequence > self.answered {
            return;
        }
        if let Ok(_lock) = FileLock::wait(&self.dir.join(folder::LOCK)) {
            self.own.remove();
        }
    }

    /// Bytes on disk, and the age of the oldest report.
    pub(crate) fn usage(&self, wall_unix_ms: i64) -> (u64, Option<Duration>) {
        let bytes = self.streams().flat_map(|s| s.segments()).map(|s| s.bytes);
        let ages = self.streams().filter_map(|s| s.oldest(wall_unix_ms));
        (bytes.sum(), ages.max())
    }

    /// Reports that wait.
    pub(crate) fn n_pending(&self) -> usize {
        self.streams().map(StreamDir::n_open).sum()
    }

    /// Runs in reports that wait.
    pub(crate) fn n_runs_pending(&self) -> u64 {
        let runs = self.streams().map(StreamDir::n_open_runs);
        runs.fold(0, u64::saturating_add)
    }

    /// Whether a report waits here.
    pub(crate) fn has(&self, key: &ReportKey) -> bool {
        self.streams().any(|stream| stream.stream() == key.stream)
    }

    fn streams(&self) -> impl Iterator<Item = &StreamDir> {
        self.ended.iter().chain([&self.own])
    }
}

/// Runs in whole reports under a folder, whoever they belong to: for counting before a wipe.
pub(crate) fn runs_left(dir: &Path) -> u64 {
    let dirs = stream_dirs(&dir.join(folder::STREAMS)).unwrap_or_default();
    let segments = dirs.iter().flat_map(|dir| stream::segment_paths(dir));
    let scans = segments.filter_map(|path| segment::scan(&path).ok());
    let records = scans.flat_map(|scan| scan.records);
    records.fold(0, |runs, record| record.runs.saturating_add(runs))
}

/// Folders of streams, the one changed longest ago first.
fn stream_dirs(streams: &Path) -> io::Result<Vec<PathBuf>> {
    let mut dirs = Vec::new();
    for entry in fs::read_dir(streams)? {
        let entry = entry?;
        if stream::stream_of(&entry.file_name()).is_some() {
            let changed = entry.metadata().and_then(|m| m.modified()).ok();
            dirs.push((changed, entry.path()));
        }
    }
    dirs.sort();
    Ok(dirs.into_iter().map(|(_, path)| path).collect())
}
