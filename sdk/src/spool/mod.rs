//! Stores sealed reports on disk until the collector has them.
//!
//! ```text
//! DIR/lock                       held while streams begin, change their owner or are removed
//! DIR/streams/<stream>/lock      held by the process that writes there; if it is free the process has ended
//! DIR/streams/<stream>/state     the highest sealed sequence, and whether the process ended cleanly
//! DIR/streams/<stream>/<n>.seg   reports (`segment.rs`), named by the first one's sequence
//! DIR/streams/unnamed            ended streams without a folder (`unnamed.rs`)
//! ```
//!
//! Several processes share DIR; each writes in a folder of its own. At its start and at each seal a process takes over
//! ended streams. It uploads their reports, and names the streams in its own reports until one of these reports is
//! acknowledged. A report is deleted only after its ack, and a segment is deleted with its last report. A full or old
//! spool loses whole segments, the oldest first, and every loss is counted.
//!
//! If more streams ended than a report can name, the others wait. If very many ended, the oldest lose their reports,
//! which are counted, and their folders; a list keeps their names. Beyond the list's limit only their runs are counted.

#[cfg(test)]
mod faults;
mod quota;
mod segment;
mod stream;
#[cfg(test)]
mod tests;
mod unnamed;

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
        self, FolderError,
        files::{self, FileLock},
    },
    policy,
    time::Now,
};
use quota::SegmentUse;

pub(crate) use quota::Limits;
pub(crate) use quota::Loss;

use stream::StreamDir;

/// Reports for the next request.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    pub(crate) reports: Vec<(ReportKey, Bytes)>,
    pub(crate) losses: Vec<Loss>,
    /// A waiting report cannot be read, for example because the app has too many open files. It stays.
    pub(crate) error: Option<FolderError>,
}

/// Streams found when the spool was opened.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) ended: Vec<EndedStream>,
    pub(crate) losses: Vec<Loss>,
}

/// The spool as one process uses it.
#[derive(Debug)]
pub(crate) struct Spool {
    dir: PathBuf,
    limits: Limits,
    /// Ended streams, the oldest first.
    ended: Vec<StreamDir>,
    /// Ended streams without a folder that this process names.
    without_folder: Vec<EndedStream>,
    own: StreamDir,
    /// The highest sequence of our stream that the collector has answered.
    answered: u64,
}

impl Spool {
    /// Opens the folder, begins a stream, and takes over ended ones.
    pub(crate) fn open(
        dir: &Path,
        stream: StreamId,
        limits: Limits,
    ) -> Result<(Self, Found), FolderError> {
        Self::try_open(dir, stream, limits).map_err(|source| {
            let action = format!("open the spool in {}", dir.display());
            FolderError::new(action, source)
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
            without_folder: Vec::new(),
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

    /// Takes over streams that ended since, or for which there was no space before.
    pub(crate) fn adopt(&mut self) -> io::Result<Found> {
        let _lock = FileLock::wait(&self.dir.join(folder::LOCK))?;
        self.take_ended()
    }

    /// The caller holds the folder's lock.
    fn take_ended(&mut self) -> io::Result<Found> {
        let mut found = Found::default();
        let (own_bytes, _) = self.usage(0);
        let mut left_bytes = self.limits.max_spool_bytes.saturating_sub(own_bytes);
        // Folders that no report can name yet. If not all of them fit, the newest are kept and the oldest lose their
        // reports.
        let mut untaken = Vec::new();
        let streams = self.dir.join(folder::STREAMS);
        stream::clear_gone(&streams);
        for path in stream_dirs(&streams)? {
            let is_ours = |s: &StreamDir| s.is_at(&path);
            if self.streams().any(is_ours) {
                continue;
            }
            if self.n_to_name() >= MAX_ENDED_STREAMS {
                // A report cannot name more streams. These are taken over when others are done.
                untaken.push(path);
                continue;
            }
            // One unreadable folder must not keep the others from being sent.
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
                losses.push(stream.drop_oldest(DropReason::SpoolFull));
            }
            // A stream without reports can still be named, but each folder takes space.
            if !is_kept {
                let is_listed = unnamed::add(&streams, stream.ended_stream());
                stream.remove();
                if !is_listed {
                    // No report will name this stream, so its reports are not in the ledger. If they counted as
                    // dropped, there would be more dropped reports than recorded ones.
                    for loss in &mut losses {
                        loss.reports = 0;
                    }
                }
            }
            found.losses.extend(losses);
        }
        self.take_unnamed(&streams, &mut found);
        Ok(found)
    }

    /// Takes as many streams without a folder as a report can still name. They stay in the list until they are named.
    fn take_unnamed(&mut self, streams: &Path, found: &mut Found) {
        let room = MAX_ENDED_STREAMS.saturating_sub(self.n_to_name());
        // The other streams wait. If the file cannot be read now, all of them wait.
        let listed = unnamed::read(streams).unwrap_or_default().into_iter();
        let is_new = |ended: &EndedStream| {
            self.without_folder.iter().all(|s| s.stream != ended.stream)
                && self.ended.iter().all(|s| s.stream() != ended.stream)
        };
        let new: Vec<_> = listed.filter(is_new).take(room).collect();
        found.ended.extend(&new);
        self.without_folder.extend(new);
    }

    fn n_to_name(&self) -> usize {
        self.ended.len() + self.without_folder.len()
    }

    /// Stores a report; it is on disk afterwards.
    ///
    /// # Errors
    /// Fails if the report cannot be written, for example because the disk is full.
    pub(crate) fn append(&mut self, report: &SealedReport, now: Now) -> Result<(), FolderError> {
        let appended = self.own.append(report, now, self.limits.segment_bytes);
        appended.map_err(|source| {
            let action = format!("write report {} to the spool", report.key.sequence);
            FolderError::new(action, source)
        })
    }

    /// Records a sealed sequence, whether or not its report can be stored.
    pub(crate) fn note_sealed(&mut self, sequence: u64) -> io::Result<()> {
        self.own.note_sealed(sequence, false)
    }

    /// Drops segments that are too many or too old.
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
                losses.push(stream.drop_oldest(reason));
            }
        }
        losses
    }

    /// Returns the oldest reports that fit, at most as many as a request may have. The first report is returned even if
    /// it does not fit. A corrupt report is dropped, an unreadable one stays.
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
                    Ok(None) => pending.losses.push(stream.give_up(&key)),
                    Err(source) => {
                        let action = format!("read report {} from the spool", key.sequence);
                        pending.error = Some(FolderError::new(action, source));
                    }
                }
            }
        }
        pending
    }

    /// Deletes a report that the collector has or will never accept; returns its runs.
    pub(crate) fn finish(&mut self, key: &ReportKey) -> u64 {
        if key.stream == self.own.stream() {
            self.answered = self.answered.max(key.sequence.get());
        }
        let mut streams = self.ended.iter_mut().chain([&mut self.own]);
        let stream = streams.find(|s| s.stream() == key.stream);
        stream.map_or(0, |stream| stream.finish(key))
    }

    /// Removes ended streams that have no reports and no longer need to be named.
    pub(crate) fn retire_ended(&mut self, is_to_be_named: impl Fn(StreamId) -> bool) {
        let is_over = |s: &StreamDir| s.segments().next().is_none() && !is_to_be_named(s.stream());
        let is_named = |s: &EndedStream| !is_to_be_named(s.stream);
        let any_named = self.without_folder.iter().any(is_named);
        if !any_named && !self.ended.iter().any(is_over) {
            return;
        }
        let Ok(_lock) = FileLock::wait(&self.dir.join(folder::LOCK)) else {
            return;
        };
        if any_named {
            let is_gone = |s: &EndedStream| is_named(s) && self.without_folder.contains(s);
            if unnamed::remove(&self.dir.join(folder::STREAMS), is_gone).is_ok() {
                self.without_folder.retain(|s| !is_named(s));
            }
        }
        let ended = std::mem::take(&mut self.ended);
        for stream in ended {
            if is_over(&stream) {
                stream.remove();
            } else {
                self.ended.push(stream);
            }
        }
    }

    /// Ends the stream. Its last sequence is final.
    pub(crate) fn end(mut self, last_sequence: u64) {
        let noted = self.own.note_sealed(last_sequence, true);
        if noted.is_err() || self.own.segments().next().is_some() {
            return;
        }
        // If reports after the last acknowledged one are lost, this shows only if a later process names the stream.
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

    pub(crate) fn n_pending(&self) -> usize {
        self.streams().map(StreamDir::n_open).sum()
    }

    pub(crate) fn n_runs_pending(&self) -> u64 {
        let runs = self.streams().map(StreamDir::n_open_runs);
        runs.fold(0, u64::saturating_add)
    }

    /// Whether the report's stream is here.
    pub(crate) fn has(&self, key: &ReportKey) -> bool {
        self.streams().any(|stream| stream.stream() == key.stream)
    }

    fn streams(&self) -> impl Iterator<Item = &StreamDir> {
        self.ended.iter().chain([&self.own])
    }
}

/// Reads a segment of any content, for fuzz targets.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn scan_any(bytes: &[u8]) {
    let scan = segment::scan_bytes(bytes);
    assert_eq!(scan.whole_bytes + scan.lost_bytes, bytes.len() as u64);
    let mut end = 0;
    for record in &scan.records {
        assert!(record.bytes.start >= end + segment::RECORD_HEADER_BYTES);
        end = record.bytes.end;
    }
    assert!(end <= scan.whole_bytes);
    assert!(unnamed::parse(bytes).len() <= unnamed::MAX_UNNAMED);
}

/// Counts the runs in all whole reports of a folder, before a wipe.
pub(crate) fn runs_left(dir: &Path) -> u64 {
    let dirs = stream_dirs(&dir.join(folder::STREAMS)).unwrap_or_default();
    let segments = dirs
        .iter()
        .filter_map(|dir| stream::segment_paths(dir).ok());
    let segments = segments.flatten();
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
