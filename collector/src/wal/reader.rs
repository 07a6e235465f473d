//! Reads records in order and skips damage. A record with a wrong checksum is skipped by its length. Other damage is
//! skipped by a search for the next valid header. Every step moves forward, so damage costs counted bytes and never
//! causes an endless loop.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::direct_io::{self, AlignedBlocks, BLOCK_BYTES};
use super::frame::{self, FrameKey, HEADER_BYTES, Parsed, WalOffset};
use super::segment;
use super::storage::SegmentFile;

/// A batch takes few reads of this size, and several reads fit in memory.
const CHUNK_BYTES: u64 = 1 << 20;
/// `EIO`: the disk cannot read this position.
const UNREADABLE: i32 = 5;

/// One durable record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The offset, which together with the collector's id identifies the record.
    pub offset: WalOffset,
    /// Receive time, in microseconds since 1970; it never falls from record to record.
    pub received_at_us: u64,
    pub payload: Bytes,
    pub(super) frame_bytes: u64,
}

impl Record {
    #[cfg(any(test, feature = "fuzzing", feature = "samples"))]
    pub(crate) fn of(offset: WalOffset, received_at_us: u64, payload: Bytes) -> Self {
        Self {
            offset,
            received_at_us,
            frame_bytes: super::frame::frame_bytes(payload.len()) as u64,
            payload,
        }
    }

    pub(crate) fn end(&self) -> u64 {
        self.offset.0 + self.frame_bytes
    }
}

/// Records in order, and the bytes skipped between them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chunk {
    pub records: Vec<Record>,
    /// Start of the next read.
    pub next: WalOffset,
    /// Bytes that belong to no whole record.
    pub skipped_bytes: u64,
}

/// Reads the records of a range of one segment.
#[derive(Debug)]
pub(crate) struct Reader {
    file: Arc<dyn SegmentFile>,
    key: FrameKey,
    base: u64,
    pub(super) next: u64,
    end: u64,
    /// Bytes of the WAL from `buffer_at` on.
    buffer: Bytes,
    buffer_at: u64,
    pub(super) skipped_bytes: u64,
    /// Skipped bytes before the last record. Bytes after it are left out, because a segment has free space there.
    pub(super) skipped_before_last: u64,
}

impl Reader {
    /// Reads from the segment's `base` to `end`.
    pub(crate) fn over(file: Arc<dyn SegmentFile>, key: FrameKey, base: u64, end: u64) -> Self {
        Self {
            file,
            key,
            base,
            next: base,
            end,
            buffer: Bytes::new(),
            buffer_at: base,
            skipped_bytes: 0,
            skipped_before_last: 0,
        }
    }

    /// Returns the next whole record; `None` at the end.
    pub(crate) fn next_record(&mut self) -> io::Result<Option<Record>> {
        while self.next < self.end {
            let window = self.window();
            let missing = match frame::parse(self.key, &window, self.next) {
                Parsed::Record {
                    received_at_us,
                    payload,
                    frame_bytes,
                } => {
                    let record = Record {
                        offset: WalOffset(self.next),
                        received_at_us,
                        payload: window.slice(payload),
                        frame_bytes: frame_bytes as u64,
                    };
                    self.next += frame_bytes as u64;
                    self.skipped_before_last = self.skipped_bytes;
                    return Ok(Some(record));
                }
                Parsed::BadPayload { frame_bytes } => {
                    self.skip(frame_bytes);
                    continue;
                }
                Parsed::NeedMore { frame_bytes } => frame_bytes,
                Parsed::NoHeader if window.len() < HEADER_BYTES => HEADER_BYTES,
                Parsed::NoHeader => 0,
            };
            let fits = self.next + missing as u64 <= self.end;
            if missing == 0 || !fits {
                let found = frame::find_header(self.key, &window, self.next, 8);
                self.skip(found.unwrap_or_else(|searched| searched));
            } else if !self.fill(missing)? {
                // The file is shorter than the segment was.
                self.skip(usize::MAX);
            }
        }
        Ok(None)
    }

    fn window(&self) -> Bytes {
        let from = usize::try_from(self.next - self.buffer_at).unwrap_or(usize::MAX);
        if from >= self.buffer.len() {
            Bytes::new()
        } else {
            self.buffer.slice(from..)
        }
    }

    /// Fills the buffer from `next`; false if the file has fewer than `needed` bytes there.
    fn fill(&mut self, needed: usize) -> io::Result<bool> {
        let wanted = (self.end - self.next).min(CHUNK_BYTES.max(needed as u64));
        let wanted = usize::try_from(wanted).expect("a frame or a chunk");
        let position = segment::file_position(self.base, self.next);
        let lead = direct_io::lead_of(position);
        let mut blocks = AlignedBlocks::for_bytes(lead + wanted);
        let n_read = read_past_damage(&*self.file, position - lead as u64, blocks.bytes())?;
        // The writer may be writing the bytes after the end.
        let n_read = n_read.saturating_sub(lead).min(wanted);
        self.buffer = blocks.into_bytes(lead, lead + n_read);
        self.buffer_at = self.next;
        Ok(n_read >= needed)
    }

    fn skip(&mut self, n_bytes: usize) {
        let next = self.end.min(self.next.saturating_add(n_bytes as u64));
        self.skipped_bytes += next - self.next;
        self.next = next;
    }
}

/// Reads, and puts zeros in place of unreadable blocks. Zeros contain no record, so they are skipped and counted like
/// other damage.
fn read_past_damage(file: &dyn SegmentFile, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
    match file.read_at(position, buffer) {
        Err(error) if error.raw_os_error() == Some(UNREADABLE) => {}
        other => return other,
    }
    let mut n_read = 0;
    for page in buffer.chunks_mut(BLOCK_BYTES) {
        match file.read_at(position + n_read as u64, page) {
            Ok(n) => {
                n_read += n;
                if n < page.len() {
                    break;
                }
            }
            Err(error) if error.raw_os_error() == Some(UNREADABLE) => {
                page.fill(0);
                n_read += page.len();
            }
            Err(error) => return Err(error),
        }
    }
    Ok(n_read)
}
