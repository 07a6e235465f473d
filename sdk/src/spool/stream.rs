//! Folder of one stream: its segments, its state file, and the lock of its owner.
//!
//! `state` is 24 bytes, little-endian: u64 sequence, u64 1 if the process ended without unsealed runs, u32 crc32c of
//! these 16 bytes, u32 0. It is written before its report, so no sequence that ever left the device is above the one in
//! `state`.

use std::{
    collections::VecDeque,
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    ops::Range,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use epwatch_proto::{DropReason, EndedStream, ReportKey, StreamId};

use super::{
    quota::Loss,
    segment::{self, MAGIC, RECORD_HEADER_BYTES, RecordMeta},
};
use crate::{
    core::SealedReport,
    folder::{
        crc32c::crc32c,
        files::{self, FileLock},
    },
    time::Now,
};

const STATE_BYTES: usize = 24;

/// 2020. If the wall clock shows an earlier time, it was not set since boot.
const FIRST_PLAUSIBLE_UNIX_MS: i64 = 1_577_836_800_000;

/// The stream that a folder's name contains.
pub(super) fn stream_of(name: &OsStr) -> Option<StreamId> {
    let name = name.to_str().filter(|n| n.len() == 16)?;
    u64::from_str_radix(name, 16).ok().map(StreamId)
}

/// Extension of a folder that is being deleted.
const GONE: &str = "gone";

/// Finishes interrupted deletions of folders. The caller holds the spool's lock.
pub(super) fn clear_gone(streams: &Path) {
    let entries = fs::read_dir(streams).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    for path in paths.filter(|path| path.extension().is_some_and(|e| e == GONE)) {
        let _ = fs::remove_dir_all(path);
    }
}

/// Segment files of a stream's folder in order.
pub(super) fn segment_paths(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "seg") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Bytes of a stream's segments, whoever owns it.
pub(super) fn bytes_of(dir: &Path) -> u64 {
    let sizes = segment_paths(dir).unwrap_or_default().into_iter();
    sizes
        .filter_map(|path| Some(path.metadata().ok()?.len()))
        .sum()
}

#[derive(Debug)]
pub(super) struct Segment {
    path: PathBuf,
    records: Vec<Record>,
    pub(super) bytes: u64,
    /// When the segment's youngest report was sealed, on this process's monotonic clock.
    sealed_at: Option<Duration>,
}

#[derive(Debug)]
struct Record {
    meta: RecordMeta,
    is_done: bool,
}

impl Record {
    fn open(meta: RecordMeta) -> Self {
        Self {
            meta,
            is_done: false,
        }
    }
}

impl Segment {
    /// Time since the segment's youngest report was sealed. For reports of this process the monotonic clock measures
    /// it, so a jump of the wall clock drops nothing. For other reports the wall clock measures it. The time is zero if
    /// the wall clock was set back since then, or not yet set at the seal.
    pub(super) fn age(&self, now: Now) -> Duration {
        if let Some(at) = self.sealed_at {
            return now.mono.saturating_sub(at);
        }
        let sealed = self.records.iter().map(|r| r.meta.sealed_unix_ms).max();
        match sealed {
            Some(sealed) if sealed >= FIRST_PLAUSIBLE_UNIX_MS => age(sealed, now.wall_unix_ms),
            _ => Duration::ZERO,
        }
    }

    fn open(&self) -> impl Iterator<Item = &RecordMeta> {
        self.records.iter().filter(|r| !r.is_done).map(|r| &r.meta)
    }
}

fn age(sealed_unix_ms: i64, wall_unix_ms: i64) -> Duration {
    let ms = wall_unix_ms.saturating_sub(sealed_unix_ms).max(0);
    Duration::from_millis(ms.unsigned_abs())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    sequence: u64,
    is_clean: bool,
}

/// A stream's folder that this process owns.
#[derive(Debug)]
pub(super) struct StreamDir {
    stream: StreamId,
    dir: PathBuf,
    segments: VecDeque<Segment>,
    /// The last segment while it is written.
    active: Option<File>,
    state_file: File,
    state: Option<State>,
    /// The highest sequence in its segments at takeover. After a power cut the state file may be older, because only
    /// segments are synced.
    highest_found: u64,
    /// Torn or corrupt records.
    pub(super) lost: Option<Loss>,
    _lock: FileLock,
}

impl StreamDir {
    /// Begins a stream of this process. The caller holds the spool's lock.
    pub(super) fn begin(streams: &Path, stream: StreamId) -> io::Result<Self> {
        let dir = streams.join(stream.to_string());
        files::create_private_dir(&dir)?;
        let lock = FileLock::try_take(&dir.join("lock"))?;
        // Two equal random numbers of 64 bits do not occur, so another fault must have caused this.
        let lock = lock.ok_or(io::ErrorKind::AlreadyExists)?;
        let mut own = Self::of(stream, dir, lock)?;
        own.note_sealed(0, false)?;
        Ok(own)
    }

    /// Takes over an ended stream; `None` if its process is still alive. The caller holds the spool's lock.
    pub(super) fn take_over(dir: &Path) -> io::Result<Option<Self>> {
        let Some(stream) = dir.file_name().and_then(stream_of) else {
            return Ok(None);
        };
        let Some(lock) = FileLock::try_take(&dir.join("lock"))? else {
            return Ok(None);
        };
        let mut ended = Self::of(stream, dir.to_owned(), lock)?;
        ended.state = read_state(&mut ended.state_file);
        ended.scan()?;
        Ok(Some(ended))
    }

    fn of(stream: StreamId, dir: PathBuf, lock: FileLock) -> io::Result<Self> {
        Ok(Self {
            stream,
            state_file: files::open_private(&dir.join("state"))?,
            dir,
            segments: VecDeque::new(),
            active: None,
            state: None,
            highest_found: 0,
            lost: None,
            _lock: lock,
        })
    }

    pub(super) fn is_at(&self, dir: &Path) -> bool {
        self.dir == dir
    }

    pub(super) fn stream(&self) -> StreamId {
        self.stream
    }

    pub(super) fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter()
    }

    pub(super) fn ended_stream(&self) -> EndedStream {
        EndedStream {
            stream: self.stream,
            last_sequence: self.state.map(|s| s.sequence.max(self.highest_found)),
            // For a killed process the number is not known.
            unsealed_runs: self.state.filter(|s| s.is_clean).map(|_| 0),
        }
    }

    pub(super) fn oldest(&self, wall_unix_ms: i64) -> Option<Duration> {
        let mut open = self.segments.iter().flat_map(Segment::open);
        let first = open.next()?;
        Some(age(first.sealed_unix_ms, wall_unix_ms))
    }

    pub(super) fn n_open(&self) -> usize {
        self.segments.iter().map(|s| s.open().count()).sum()
    }

    pub(super) fn n_open_runs(&self) -> u64 {
        let open = self.segments.iter().flat_map(Segment::open);
        open.fold(0, |runs, meta| meta.runs.saturating_add(runs))
    }

    /// Key and length of every waiting report, the oldest first.
    pub(super) fn open_records(&self) -> Vec<(ReportKey, u64)> {
        let open = self.segments.iter().flat_map(Segment::open);
        open.map(|meta| (meta.key, meta.bytes.end - meta.bytes.start))
            .collect()
    }

    pub(super) fn note_sealed(&mut self, sequence: u64, is_clean: bool) -> io::Result<()> {
        let state = State { sequence, is_clean };
        self.state_file.seek(SeekFrom::Start(0))?;
        self.state_file.write_all(&encode_state(state))?;
        self.state = Some(state);
        Ok(())
    }

    pub(super) fn append(
        &mut self,
        report: &SealedReport,
        now: Now,
        segment_bytes: u64,
    ) -> io::Result<()> {
        let is_full = |s: &Segment| s.bytes >= segment_bytes;
        if self.active.is_none() || self.segments.back().is_none_or(is_full) {
            self.begin_segment(report.key.sequence.get())?;
        }
        let (Some(file), Some(segment)) = (&mut self.active, self.segments.back_mut()) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let record = segment::encode_record(&report.bytes);
        // The collector may only receive reports that survive a power cut.
        let written = file.write_all(&record).and_then(|()| file.sync_data());
        if let Err(error) = written {
            // An incomplete record would hide the records after it.
            let is_cut = file
                .set_len(segment.bytes)
                .and_then(|()| file.seek(SeekFrom::Start(segment.bytes)));
            if is_cut.is_err() {
                self.active = None;
            }
            return Err(error);
        }
        let start = segment.bytes + RECORD_HEADER_BYTES;
        segment.bytes += record.len() as u64;
        segment.sealed_at = Some(now.mono);
        segment.records.push(Record::open(RecordMeta {
            key: report.key,
            runs: report.runs,
            sealed_unix_ms: segment::describe(&report.bytes).map_or(0, |m| m.sealed_unix_ms),
            bytes: start..segment.bytes,
            crc: crc32c(&report.bytes),
        }));
        Ok(())
    }

    fn begin_segment(&mut self, first_sequence: u64) -> io::Result<()> {
        self.active = None;
        let path = self.dir.join(format!("{first_sequence:016}.seg"));
        let mut file = files::open_private(&path)?;
        file.set_len(0)?;
        file.write_all(MAGIC)?;
        files::sync_dir(&self.dir)?;
        self.segments.push_back(Segment {
            path,
            records: Vec::new(),
            bytes: MAGIC.len() as u64,
            sealed_at: None,
        });
        self.active = Some(file);
        Ok(())
    }

    /// Returns a report's bytes as they were sealed; `None` if the disk has lost them.
    ///
    /// # Errors
    /// Fails if they cannot be read now, for example because the app has too many open files.
    pub(super) fn read(&self, key: &ReportKey) -> io::Result<Option<Bytes>> {
        let mut segments = self.segments.iter();
        let found = segments.find_map(|s| s.open().find(|m| m.key == *key).map(|m| (s, m)));
        let Some((segment, meta)) = found else {
            return Ok(None);
        };
        match read_range(&segment.path, &meta.bytes) {
            Ok(report) => Ok((crc32c(&report) == meta.crc).then(|| report.into())),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// Drops a report that the disk has lost.
    pub(super) fn give_up(&mut self, key: &ReportKey) -> Loss {
        Loss {
            reason: DropReason::SpoolCorrupt,
            reports: 1,
            runs: self.finish(key),
        }
    }

    /// Marks a report as done, and deletes its segment with the last one. Returns its runs.
    pub(super) fn finish(&mut self, key: &ReportKey) -> u64 {
        for at in 0..self.segments.len() {
            let segment = &mut self.segments[at];
            let record = segment.records.iter_mut().find(|r| r.meta.key == *key);
            let Some(record) = record.filter(|r| !r.is_done) else {
                continue;
            };
            record.is_done = true;
            let runs = record.meta.runs;
            if segment.open().next().is_none() {
                self.delete(at);
            }
            return runs;
        }
        0
    }

    /// Deletes the oldest segment; returns its waiting reports and their runs.
    pub(super) fn drop_oldest(&mut self, reason: DropReason) -> Loss {
        let mut loss = Loss {
            reason,
            reports: 0,
            runs: 0,
        };
        for meta in self.segments.front().into_iter().flat_map(Segment::open) {
            loss.reports += 1;
            loss.runs = loss.runs.saturating_add(meta.runs);
        }
        self.delete(0);
        loss
    }

    fn delete(&mut self, at: usize) {
        if at + 1 == self.segments.len() {
            self.active = None;
        }
        if let Some(segment) = self.segments.remove(at) {
            // If the file stays, the next start finds it and sends its reports as duplicates.
            let _ = fs::remove_file(segment.path);
        }
    }

    /// Deletes the folder. The caller holds the spool's lock.
    pub(super) fn remove(self) {
        let _ = fs::remove_dir_all(self.set_aside());
    }

    /// Renames a folder before its deletion; returns its new path. Otherwise a kill during the deletion would leave a
    /// folder without state, which looks like a stream without reports.
    pub(super) fn set_aside(self) -> PathBuf {
        let gone = self.dir.with_extension(GONE);
        let is_renamed = fs::rename(&self.dir, &gone).is_ok();
        if is_renamed { gone } else { self.dir }
    }

    fn scan(&mut self) -> io::Result<()> {
        for path in segment_paths(&self.dir)? {
            let scan = segment::scan(&path)?;
            if scan.lost_bytes > 0 && self.was_sealed(&path, &scan.records) {
                // At least one report is lost. If there were more, their sequences show as missing.
                let lost = self.lost.get_or_insert(Loss {
                    reason: DropReason::SpoolCorrupt,
                    reports: 0,
                    runs: 0,
                });
                lost.reports += 1;
            }
            let own = |r: &RecordMeta| r.key.stream == self.stream;
            let records: Vec<_> = scan.records.into_iter().filter(own).collect();
            let highest = records.iter().map(|r| r.key.sequence.get()).max();
            self.highest_found = self.highest_found.max(highest.unwrap_or(0));
            if records.is_empty() {
                fs::remove_file(&path)?;
                continue;
            }
            self.segments.push_back(Segment {
                path,
                bytes: scan.whole_bytes + scan.lost_bytes,
                sealed_at: None,
                records: records.into_iter().map(Record::open).collect(),
            });
        }
        Ok(())
    }

    /// Whether the broken bytes at a segment's end belong to a report that had a sequence.
    fn was_sealed(&self, path: &Path, records: &[RecordMeta]) -> bool {
        let first: Option<u64> = path
            .file_stem()
            .and_then(OsStr::to_str)
            .and_then(|stem| stem.parse().ok());
        let next = match records.last() {
            Some(last) => Some(last.key.sequence.get() + 1),
            None => first,
        };
        match (next, self.state) {
            (Some(next), Some(state)) => next <= state.sequence,
            _ => true,
        }
    }
}

fn read_range(path: &Path, range: &Range<u64>) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(range.start))?;
    let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    let mut bytes = vec![0; length];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn encode_state(state: State) -> [u8; STATE_BYTES] {
    let mut bytes = [0; STATE_BYTES];
    bytes[..8].copy_from_slice(&state.sequence.to_le_bytes());
    bytes[8..16].copy_from_slice(&u64::from(state.is_clean).to_le_bytes());
    let crc = crc32c(&bytes[..16]);
    bytes[16..20].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn read_state(file: &mut File) -> Option<State> {
    if file.metadata().is_ok_and(|m| m.len() == 0) {
        // The process was killed between creating the file and writing the first zero.
        return Some(State {
            sequence: 0,
            is_clean: false,
        });
    }
    let mut bytes = [0; STATE_BYTES];
    file.read_exact(&mut bytes).ok()?;
    let sequence = u64::from_le_bytes(bytes[..8].try_into().ok()?);
    let is_clean = u64::from_le_bytes(bytes[8..16].try_into().ok()?) == 1;
    let state = State { sequence, is_clean };
    (encode_state(state) == bytes).then_some(state)
}
