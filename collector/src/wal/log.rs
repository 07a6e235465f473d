//! The segments in order and the durable end: append, recovery, removal, reads. It starts no threads;
//! [`super::group_commit`] does.
//!
//! A group of frames takes one write and one sync. If either fails, the group does not count: the segment ends at its
//! durable end, and the next group opens a new segment. After a failed sync the kernel may have dropped the pages and
//! report the next sync as a success. So after a failure the file gets no more writes.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::error::WalError;
use super::frame::{self, FrameKey, HEADER_BYTES, WalOffset};
use super::reader::{Chunk, Reader};
use super::segment::{self, SEGMENT_HEADER_BYTES, SegmentHeader};
use super::storage::{SegmentFile, Storage};

/// One spare to use next, and one that is made or recycled meanwhile.
const MAX_SPARES: usize = 2;
const SPARE_SUFFIX: &str = ".spare";
const STRAY_SUFFIX: &str = ".stray";
const TEMPORARY_SUFFIX: &str = ".tmp";

/// Findings of opening an existing WAL.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WalRecovery {
    /// Segment files found.
    pub segments: u64,
    pub bytes: u64,
    /// An unfinished group was cut off; none of its records was acknowledged.
    pub is_tail_torn: bool,
    /// Segments with a damaged header. Their records are still read.
    pub damaged_headers: u64,
    /// Files with a segment's name that contain neither its header nor a record; they were renamed.
    pub stray_files: u64,
    /// The checkpoint is damaged or missing, so any record in the WAL may be stored already.
    pub is_checkpoint_lost: bool,
    /// No kept record was received after this time, in microseconds since 1970.
    pub newest_us: u64,
}

#[derive(Debug)]
pub(crate) struct Log {
    storage: Arc<dyn Storage>,
    wal_id: [u8; 16],
    segment_bytes: u64,
    /// Offsets of the segments' first frames, ascending. A segment ends where the next begins.
    bases: Mutex<Vec<u64>>,
    active: Mutex<Option<Active>>,
    spares: Mutex<Spares>,
    end: AtomicU64,
}

#[derive(Debug)]
struct Active {
    file: Arc<dyn SegmentFile>,
    base: u64,
}

/// The durable part of one segment.
#[derive(Debug)]
struct Span {
    file: Arc<dyn SegmentFile>,
    /// Offset of its first frame.
    base: u64,
    /// Offset after its last.
    end: u64,
}

#[derive(Debug, Default)]
struct Spares {
    ready: Vec<String>,
    n_named: u64,
}

impl Log {
    /// Opens the WAL in `storage`. Its end is never below `floor`, the highest offset in the checkpoint. Offsets
    /// identify batches in the store, so no offset may be used twice.
    pub(crate) fn open(
        storage: Arc<dyn Storage>,
        wal_id: [u8; 16],
        segment_bytes: u64,
        floor: u64,
    ) -> Result<(Self, WalRecovery), WalError> {
        let mut bases = Vec::new();
        let mut spares = Spares::default();
        for name in storage.list().map_err(WalError::io("list wal directory"))? {
            if let Some(base) = segment::base_of(&name) {
                bases.push(base);
            } else if name.ends_with(SPARE_SUFFIX) {
                spares.n_named = spares.n_named.max(spare_number(&name) + 1);
                spares.ready.push(name);
            } else if name.ends_with(TEMPORARY_SUFFIX) {
                storage
                    .remove(&name)
                    .map_err(WalError::io("remove unfinished wal file"))?;
            }
        }
        bases.sort_unstable();
        let log = Self {
            storage,
            wal_id,
            segment_bytes,
            bases: Mutex::new(bases),
            active: Mutex::new(None),
            spares: Mutex::new(spares),
            end: AtomicU64::new(0),
        };
        let recovery = log.recover(floor)?;
        Ok((log, recovery))
    }

    fn recover(&self, floor: u64) -> Result<WalRecovery, WalError> {
        let mut recovery = WalRecovery::default();
        let mut bases = self.bases.lock();
        recovery.segments = bases.len() as u64;
        let mut own = Vec::with_capacity(bases.len());
        for base in bases.drain(..) {
            let file = segment::file_name(base);
            match self.read_header(base)? {
                Some(header) if header.wal_id != self.wal_id => {
                    return Err(WalError::Foreign { file });
                }
                Some(header) if header.base == base => {
                    recovery.newest_us = recovery.newest_us.max(header.not_before_us);
                    own.push(base);
                }
                _ if self.has_record(base)? => {
                    recovery.damaged_headers += 1;
                    own.push(base);
                }
                // If the file counted as a segment, its name would move the WAL's end.
                _ => {
                    recovery.stray_files += 1;
                    tracing::error!(file, "no segment of this WAL: renamed to .stray");
                    self.storage
                        .rename(&file, &format!("{file}{STRAY_SUFFIX}"))
                        .map_err(WalError::io("rename stray wal file"))?;
                }
            }
        }
        *bases = own;
        let mut end = 0;
        if let Some(&base) = bases.last() {
            end = self.recover_tail(base, &mut recovery)?;
            if end == base {
                // The segment was opened and never written. Its name may be used again.
                self.storage
                    .remove(&segment::file_name(base))
                    .map_err(WalError::io("remove empty wal segment"))?;
                bases.pop();
            }
        }
        if let Some(&first) = bases.first() {
            recovery.bytes = end - first;
        }
        self.end.store(end.max(floor), Ordering::Release);
        Ok(recovery)
    }

    fn read_header(&self, base: u64) -> Result<Option<SegmentHeader>, WalError> {
        let name = segment::file_name(base);
        let mut bytes = [0; 64];
        let file = self
            .storage
            .open(&name)
            .map_err(WalError::io("open wal segment"))?;
        // An unreadable header counts as damaged; the frames decide.
        let n_read = file.read_at(0, &mut bytes).unwrap_or(0);
        SegmentHeader::decode(&name, &bytes[..n_read])
    }

    fn has_record(&self, base: u64) -> Result<bool, WalError> {
        let failed = WalError::io("read wal segment");
        let file = self.storage.open(&segment::file_name(base));
        let file = file.map_err(&failed)?;
        let len = file.len().map_err(&failed)?;
        let end = base + len.saturating_sub(SEGMENT_HEADER_BYTES);
        let mut reader = Reader::over(file, self.key(), base, end);
        Ok(reader.next_record().map_err(&failed)?.is_some())
    }

    /// Finds the end of the last record and cuts off the rest of its segment.
    fn recover_tail(&self, base: u64, recovery: &mut WalRecovery) -> Result<u64, WalError> {
        let failed = WalError::io("read last wal segment");
        let file = self
            .storage
            .open(&segment::file_name(base))
            .map_err(&failed)?;
        let file_end = base
            + file
                .len()
                .map_err(&failed)?
                .saturating_sub(SEGMENT_HEADER_BYTES);
        let mut reader = Reader::over(file.clone(), self.key(), base, file_end);
        let mut end = base;
        while let Some(record) = reader.next_record().map_err(&failed)? {
            end = record.end();
            recovery.newest_us = recovery.newest_us.max(record.received_at_us);
        }
        // Zeros follow a finished group, so a file without them was cut.
        let position = segment::file_position(base, end);
        let mut next_header = [1; HEADER_BYTES];
        file.read_at(position, &mut next_header).map_err(&failed)?;
        recovery.is_tail_torn = next_header != [0; HEADER_BYTES];
        let failed = WalError::io("cut torn tail of wal segment");
        file.set_len(position)
            .and_then(|()| file.set_len(position + HEADER_BYTES as u64))
            .and_then(|()| file.sync())
            .map_err(&failed)?;
        Ok(end)
    }

    #[cfg(test)]
    pub(crate) fn wal_id(&self) -> [u8; 16] {
        self.wal_id
    }

    pub(crate) fn key(&self) -> FrameKey {
        FrameKey::new(&self.wal_id)
    }

    pub(crate) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Offset of the oldest kept segment; 0 if there is none.
    pub(crate) fn start(&self) -> u64 {
        self.bases.lock().first().copied().unwrap_or(0)
    }

    /// Bytes from the oldest kept segment to the end.
    pub(crate) fn held_bytes(&self) -> u64 {
        let first = self.bases.lock().first().copied();
        first.map_or(0, |base| self.end().saturating_sub(base))
    }

    /// Makes `frames` (see [`frame::push_unsealed`]) durable and returns the new end.
    ///
    /// # Errors
    /// The disk's error. Then the group does not count, and the next group opens a new segment.
    pub(crate) fn append_group(
        &self,
        frames: &mut Vec<u8>,
        received_at_us: u64,
    ) -> io::Result<u64> {
        let mut active = self.active.lock();
        let start = self.end();
        let n_bytes = frames.len();
        let has_room = |active: &Active| start - active.base + n_bytes as u64 <= self.segment_bytes;
        if !active.as_ref().is_some_and(has_room) {
            *active = None;
            *active = Some(self.roll(start, received_at_us)?);
        }
        let Some(Active { file, base }) = active.as_ref() else {
            unreachable!("just opened")
        };
        frame::seal(self.key(), frames, start, received_at_us);
        // A zeroed header after the group distinguishes a finished tail from a torn one.
        frames.resize(n_bytes + HEADER_BYTES, 0);
        let position = segment::file_position(*base, start);
        let written = file.append_at(position, frames).and_then(|()| file.sync());
        frames.truncate(n_bytes);
        if let Err(error) = written {
            // Truncating frees the unused space; the segment's end is the base of the next segment.
            let _ = file.set_len(position);
            *active = None;
            return Err(error);
        }
        let end = start + n_bytes as u64;
        self.end.store(end, Ordering::Release);
        Ok(end)
    }

    /// Opens the segment with its first frame at `base`, on a spare file if there is one.
    fn roll(&self, base: u64, not_before_us: u64) -> io::Result<Active> {
        let spare = self.spares.lock().ready.pop();
        let (name, file) = match spare {
            Some(name) => (name.clone(), self.storage.open(&name)?),
            None => {
                let name = format!("next{TEMPORARY_SUFFIX}");
                (name.clone(), self.storage.create(&name)?)
            }
        };
        let header = SegmentHeader {
            wal_id: self.wal_id,
            base,
            not_before_us,
        };
        // Zeros follow the header, as after a finished group without frames.
        let mut first = header.encode().to_vec();
        first.resize(first.len() + HEADER_BYTES, 0);
        let named = file
            .append_at(0, &first)
            .and_then(|()| file.sync())
            .and_then(|()| self.storage.rename(&name, &segment::file_name(base)));
        if let Err(error) = named {
            let _ = self.storage.remove(&name);
            return Err(error);
        }
        let mut bases = self.bases.lock();
        // This segment replaces a segment of the same name whose first group failed.
        if bases.last() != Some(&base) {
            bases.push(base);
        }
        Ok(Active { file, base })
    }

    /// True if there is no spare for the next segment.
    pub(crate) fn wants_spare(&self) -> bool {
        self.spares.lock().ready.is_empty()
    }

    /// Makes a file for the next segment with allocated space, so that the disk cannot become full in the middle of it.
    /// (Writing zeros would save the first syncs a metadata change, but write every byte twice. Recycled segments avoid
    /// both costs.) Runs in parallel with the writer.
    pub(crate) fn prepare_spare(&self) -> io::Result<()> {
        let number = {
            let mut spares = self.spares.lock();
            spares.n_named += 1;
            spares.n_named
        };
        let temporary = format!("{number:016x}{TEMPORARY_SUFFIX}");
        let file = self.storage.create(&temporary)?;
        let made = file
            .reserve(SEGMENT_HEADER_BYTES + self.segment_bytes)
            .and_then(|()| file.sync())
            .and_then(|()| {
                let name = format!("{number:016x}{SPARE_SUFFIX}");
                self.storage.rename(&temporary, &name)?;
                self.spares.lock().ready.push(name);
                Ok(())
            });
        if made.is_err() {
            let _ = self.storage.remove(&temporary);
        }
        made
    }

    /// Removes whole segments that end at or below `checkpoint`, or recycles their files as spares. Returns their number.
    ///
    /// # Errors
    /// The disk's error. This segment and later ones are then kept for a retry.
    pub(crate) fn remove_below(&self, checkpoint: u64) -> io::Result<u64> {
        let mut n_removed = 0;
        loop {
            let base = {
                let mut bases = self.bases.lock();
                match bases[..] {
                    [first, next, ..] if next <= checkpoint => {
                        bases.remove(0);
                        first
                    }
                    _ => return Ok(n_removed),
                }
            };
            match self.recycle(&segment::file_name(base)) {
                Ok(()) => n_removed += 1,
                // The file is already gone, because an earlier try failed after its rename.
                Err(error) if error.kind() == io::ErrorKind::NotFound => n_removed += 1,
                Err(error) => {
                    // Otherwise the file would stay until the next start.
                    self.bases.lock().insert(0, base);
                    return Err(error);
                }
            }
        }
    }

    fn recycle(&self, name: &str) -> io::Result<()> {
        // A file that cannot be opened is removed, which takes no file descriptor.
        let len = self.storage.open(name).and_then(|file| file.len());
        let is_whole =
            len.is_ok_and(|len| len >= self.segment_bytes && len <= self.segment_bytes + (1 << 20));
        let mut spares = self.spares.lock();
        if !is_whole || spares.ready.len() >= MAX_SPARES {
            drop(spares);
            return self.storage.remove(name);
        }
        spares.n_named += 1;
        let spare = format!("{:016x}{SPARE_SUFFIX}", spares.n_named);
        self.storage.rename(name, &spare)?;
        spares.ready.push(spare);
        Ok(())
    }

    /// Checks that the disk takes a small file.
    pub(crate) fn probe(&self) -> io::Result<()> {
        let name = format!("probe{TEMPORARY_SUFFIX}");
        let file = self.storage.create(&name)?;
        let written = file.write_at(0, &[1; 4096]).and_then(|()| file.sync());
        self.storage.remove(&name)?;
        written
    }

    /// Reads durable records from `from` to `end` or the durable end, until their payloads reach `max_bytes` or
    /// `max_records`. Returns at least one record if there is one.
    pub(crate) fn read(
        &self,
        from: WalOffset,
        end: WalOffset,
        max_records: usize,
        max_bytes: usize,
    ) -> io::Result<Chunk> {
        let mut chunk = Chunk {
            next: from,
            ..Chunk::default()
        };
        let mut n_bytes = 0;
        while let Some(span) = self.segment_at(chunk.next.0)? {
            let span_end = span.end.min(end.0);
            if span.base > chunk.next.0 {
                // Whole segments are missing before this one.
                let resume = span.base.min(end.0.max(chunk.next.0));
                chunk.skipped_bytes += resume - chunk.next.0;
                chunk.next = WalOffset(resume);
            }
            if chunk.next.0 >= span_end {
                break;
            }
            let mut reader = Reader::over(span.file, self.key(), span.base, span_end);
            reader.next = chunk.next.0;
            while chunk.records.len() < max_records && n_bytes < max_bytes {
                let Some(record) = reader.next_record()? else {
                    break;
                };
                n_bytes += record.payload.len();
                chunk.records.push(record);
            }
            chunk.next = WalOffset(reader.next);
            chunk.skipped_bytes += reader.skipped_bytes;
            if chunk.records.len() >= max_records || n_bytes >= max_bytes {
                break;
            }
        }
        Ok(chunk)
    }

    /// Opens the first segment that ends above `offset`; `None` if there is none.
    fn segment_at(&self, offset: u64) -> io::Result<Option<Span>> {
        let durable_end = self.end();
        let bases = self.bases.lock();
        // Takes the last segment that begins at or before the offset, otherwise the first segment.
        let index = bases
            .partition_point(|&base| base <= offset)
            .saturating_sub(1);
        let Some(&base) = bases.get(index) else {
            return Ok(None);
        };
        let end = bases
            .get(index + 1)
            .copied()
            .unwrap_or(durable_end)
            .min(durable_end);
        if offset >= end {
            return Ok(None);
        }
        Ok(Some(Span {
            file: self.storage.open(&segment::file_name(base))?,
            base,
            end,
        }))
    }
}

fn spare_number(name: &str) -> u64 {
    name.strip_suffix(SPARE_SUFFIX)
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .unwrap_or(0)
}
