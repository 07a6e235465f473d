//! Direct I/O: appends and reads without the page cache.
//!
//! The writer reads each record once, soon after the append. A copy in the page cache would evict pages that are used
//! again. It is also expensive: on a virtual machine whose host reclaims memory, a fresh cache page costs ten times the
//! copy.
//!
//! Direct writes need whole blocks. The last, partly filled block stays in memory and is written again with more
//! content in the next group. Its earlier content is written unchanged, so a crash in between loses nothing.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::buffer_pool::Buffer;

/// Unit of direct writes on current file systems and disks.
pub(crate) const BLOCK_BYTES: usize = 4096;
/// Bytes of one write; the largest groups take a few writes.
const PIECE_BYTES: usize = 1 << 20;

/// Memory aligned to blocks.
#[derive(Debug)]
pub(crate) struct AlignedBlocks {
    memory: Buffer,
    start: usize,
    len: usize,
}

impl AlignedBlocks {
    /// Returns as many whole blocks as `len` bytes need, with arbitrary content.
    pub(crate) fn for_bytes(len: usize) -> Self {
        let len = len.next_multiple_of(BLOCK_BYTES);
        let memory = Buffer::of(len + BLOCK_BYTES);
        let start = memory.as_ref().as_ptr().align_offset(BLOCK_BYTES);
        Self { memory, start, len }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory.as_mut()[self.start..self.start + self.len]
    }

    /// Returns the bytes from `from` to `to`, without a copy.
    pub(crate) fn into_bytes(self, from: usize, to: usize) -> Bytes {
        Bytes::from_owner(self.memory).slice(self.start + from..self.start + to)
    }
}

/// A file opened for direct reads and writes.
#[derive(Debug)]
pub(crate) struct DirectFile {
    file: File,
    /// The state of appends; made by the first append, because most files are only read.
    appended: Mutex<Option<Appended>>,
}

/// The last append.
#[derive(Debug)]
struct Appended {
    piece: AlignedBlocks,
    /// File position of the piece's first byte, and its valid length.
    at: u64,
    len: usize,
}

impl DirectFile {
    /// `None` if the file system has no direct I/O.
    pub(crate) fn open(path: &Path) -> Option<Self> {
        Some(Self {
            file: open_direct(path)?,
            appended: Mutex::new(None),
        })
    }

    /// Writes all of `bytes` and fills their last block with zeros.
    ///
    /// # Errors
    /// `EINVAL`, before anything was written, if the disk's blocks are larger than ours.
    pub(crate) fn append(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        let mut appended = self.appended.lock();
        // After an error the content at the file's end is unknown.
        let mut last = appended.take().unwrap_or_else(|| Appended {
            piece: AlignedBlocks::for_bytes(PIECE_BYTES),
            at: u64::MAX,
            len: 0,
        });
        let lead = lead_of(position);
        let mut at = position - lead as u64;
        if lead > 0 && (last.at != at || last.len < lead) {
            let block = &mut last.piece.bytes()[..BLOCK_BYTES];
            block.fill(0);
            self.read(at, block)?;
        }
        let (mut filled, mut rest) = (lead, bytes);
        loop {
            let piece = last.piece.bytes();
            let n = rest.len().min(piece.len() - filled);
            piece[filled..filled + n].copy_from_slice(&rest[..n]);
            (filled, rest) = (filled + n, &rest[n..]);
            let padded = filled.next_multiple_of(BLOCK_BYTES);
            piece[filled..padded].fill(0);
            self.file.write_all_at(&piece[..padded], at)?;
            if rest.is_empty() {
                let whole = filled - filled % BLOCK_BYTES;
                piece.copy_within(whole..filled, 0);
                (last.at, last.len) = (at + whole as u64, filled - whole);
                *appended = Some(last);
                return Ok(());
            }
            at += filled as u64;
            filled = 0;
        }
    }

    /// Reads whole blocks until `buffer` is full or the file ends; returns the number of bytes.
    pub(crate) fn read(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match (self.file).read_at(&mut buffer[filled..], position + filled as u64) {
                Ok(n) => {
                    filled += n;
                    if n % BLOCK_BYTES != 0 || n == 0 {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}

/// True if the position and the buffer are aligned to blocks.
pub(crate) fn are_blocks(position: u64, buffer: &[u8]) -> bool {
    lead_of(position) == 0
        && buffer.len().is_multiple_of(BLOCK_BYTES)
        && buffer.as_ptr().addr().is_multiple_of(BLOCK_BYTES)
}

/// Returns the number of bytes between the start of a position's block and the position.
pub(crate) fn lead_of(position: u64) -> usize {
    usize::try_from(position % BLOCK_BYTES as u64).expect("below a block")
}

#[cfg(target_os = "linux")]
fn open_direct(path: &Path) -> Option<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(flags);
    options.open(path).ok()
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_: &Path) -> Option<File> {
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    use crate::wal::storage::{DirStorage, Storage};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// Each append begins at the end of the last append's bytes, or a little before it.
        #[test]
        fn what_is_appended_is_there_and_zeros_follow(
            appends in prop::collection::vec((0_usize..40, 1_usize..9_000), 1..12),
            large in 0_usize..3 << 20,
            reopens in any::<bool>(),
        ) {
            // The file is next to the executable, because the system's temporary folder may be in memory.
            let binary = std::env::current_exe().unwrap();
            let dir = tempfile::tempdir_in(binary.parent().unwrap()).unwrap();
            let path = dir.path().join("file");
            std::fs::write(&path, vec![0xee; 2 << 20]).unwrap();
            // Without direct I/O, writes go through the page cache and need no padding.
            let is_direct = DirectFile::open(&path).is_some();
            let storage = DirStorage::new(dir.path());
            let mut file = storage.open("file").unwrap();
            let mut expected = Vec::new();
            let sizes = appends.iter().copied().chain([(0, large + 1)]);
            for (nth, (back, len)) in (1_u8..).zip(sizes) {
                expected.truncate(expected.len().saturating_sub(back));
                let bytes = vec![nth; len];
                file.append_at(expected.len() as u64, &bytes).unwrap();
                expected.extend(bytes);
                let there = std::fs::read(&path).unwrap();
                prop_assert!(there[..expected.len()] == expected[..], "append {nth}");
                if is_direct {
                    let padded = expected.len().next_multiple_of(BLOCK_BYTES);
                    prop_assert!(there[expected.len()..padded].iter().all(|b| *b == 0));
                    prop_assert!(there[padded..].iter().all(|b| *b == 0xee));
                }
                if reopens {
                    file = storage.open("file").unwrap();
                }
            }
            let mut blocks = AlignedBlocks::for_bytes(expected.len());
            prop_assert!(are_blocks(0, blocks.bytes()));
            let n = file.read_at(0, blocks.bytes()).unwrap();
            prop_assert!(n >= expected.len());
            prop_assert!(blocks.into_bytes(7, expected.len())[..] == expected[7..]);
        }
    }
}
