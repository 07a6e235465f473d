//! Bytes of recorded reports: the first ones in memory, and bytes beyond a limit in a file without a name. A recording
//! of millions of reports does not fit into memory, and a replay reads it front to back.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;

/// Maximum number of bytes of reports that are held in memory. A million reports take about three times as much.
pub(super) const MAX_HELD_BYTES: usize = 96 << 20;

/// Memory is taken in pieces, because a growing buffer is copied.
const PIECE_BYTES: usize = 1 << 20;

/// Offsets from here on are in the file.
const IN_FILE: u64 = 1 << 63;

/// The position and length of some bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Extent {
    at: u64,
    len: u32,
}

/// A store of bytes that are written once and read often.
#[derive(Debug)]
pub(super) struct Spill {
    pieces: Vec<Vec<u8>>,
    held: usize,
    limit: usize,
    file: Option<BufWriter<File>>,
    written: u64,
}

impl Spill {
    /// Holds up to `limit` bytes in memory.
    pub(super) fn holding(limit: usize) -> Self {
        Self {
            pieces: Vec::new(),
            held: 0,
            limit,
            file: None,
            written: 0,
        }
    }

    /// Adds some bytes.
    ///
    /// # Errors
    /// The temporary file cannot be made or written.
    pub(super) fn push(&mut self, bytes: &[u8]) -> io::Result<Extent> {
        let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        if self.held + bytes.len() <= self.limit {
            return Ok(self.hold(bytes, len));
        }
        // Once one byte is in the file, all later bytes go there too.
        self.held = self.limit;
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(BufWriter::with_capacity(1 << 18, tempfile::tempfile()?)),
        };
        file.write_all(bytes)?;
        let at = IN_FILE | self.written;
        self.written += u64::from(len);
        Ok(Extent { at, len })
    }

    fn hold(&mut self, bytes: &[u8], len: u32) -> Extent {
        let has_room = |piece: &Vec<u8>| piece.capacity() - piece.len() >= bytes.len();
        if !self.pieces.last().is_some_and(has_room) {
            let capacity = PIECE_BYTES.max(bytes.len());
            self.pieces.push(Vec::with_capacity(capacity));
        }
        let number = self.pieces.len() as u64 - 1;
        let piece = self
            .pieces
            .last_mut()
            .expect("one was added if there was none");
        let at = (number << 32) | piece.len() as u64;
        piece.extend_from_slice(bytes);
        self.held += bytes.len();
        Extent { at, len }
    }

    /// Ends writing.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), BufWriter::flush)
    }

    /// Returns bytes that were added and flushed.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn read(&self, Extent { at, len }: Extent) -> io::Result<Cow<'_, [u8]>> {
        let len = len as usize;
        if at & IN_FILE == 0 {
            let (number, from) = ((at >> 32) as usize, (at & 0xffff_ffff) as usize);
            let piece = self.pieces.get(number);
            let held = piece.and_then(|piece| piece.get(from..from + len));
            return Ok(Cow::Borrowed(held.unwrap_or_default()));
        }
        let mut bytes = vec![0; len];
        if let Some(file) = &self.file {
            file.get_ref().read_exact_at(&mut bytes, at & !IN_FILE)?;
        }
        Ok(Cow::Owned(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_from_memory_and_from_the_file() {
        let mut spill = Spill::holding(3 << 20);
        let parts: Vec<Vec<u8>> = (0..40_u8)
            .map(|at| vec![at; usize::from(at) * 10_000])
            .collect();
        let extents: Vec<Extent> = parts.iter().map(|part| spill.push(part).unwrap()).collect();
        spill.flush().unwrap();
        assert!(spill.written > 1 << 20, "{}", spill.written);
        for (extent, part) in extents.iter().zip(&parts) {
            assert_eq!(*spill.read(*extent).unwrap(), **part);
        }
    }
}
