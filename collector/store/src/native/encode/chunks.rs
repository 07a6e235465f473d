//! The bytes of an encoded block, in chunks of one size. The caller provides the memory, so that it can reuse it.

use bytes::Bytes;

/// Large enough that the cost of a chunk is negligible, small enough to be sent while the next chunk is filled.
pub const CHUNK_BYTES: usize = 1 << 20;

/// Memory of a chunk.
pub trait ChunkBuffer: AsRef<[u8]> + AsMut<[u8]> + Send + 'static {}

impl<B: AsRef<[u8]> + AsMut<[u8]> + Send + 'static> ChunkBuffer for B {}

/// Fills chunks one after the other.
pub(super) struct ChunkWriter<B, F> {
    new_buffer: F,
    full: Vec<Bytes>,
    /// The last chunk, and its number of bytes.
    open: Option<(B, usize)>,
}

impl<B: ChunkBuffer, F: Fn() -> B> ChunkWriter<B, F> {
    pub(super) fn new(new_buffer: F) -> Self {
        Self {
            new_buffer,
            full: Vec::new(),
            open: None,
        }
    }

    pub(super) fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.room(1);
            let n = room.len().min(bytes.len());
            let (now, later) = bytes.split_at(n);
            room[..n].copy_from_slice(now);
            self.filled(n);
            bytes = later;
        }
    }

    pub(super) fn number(&mut self, number: u64) {
        self.add(&number.to_le_bytes());
    }

    /// Adds the `N` low bytes of each number.
    pub(super) fn low_bytes<const N: usize>(&mut self, mut numbers: &[u32]) {
        while !numbers.is_empty() {
            let room = self.room(N);
            let n = (room.len() / N).min(numbers.len());
            let (now, later) = numbers.split_at(n);
            for (bytes, number) in room.chunks_exact_mut(N).zip(now) {
                bytes.copy_from_slice(&number.to_le_bytes()[..N]);
            }
            self.filled(N * n);
            numbers = later;
        }
    }

    /// Returns the free bytes of the open chunk, at least `least`.
    fn room(&mut self, least: usize) -> &mut [u8] {
        if self
            .open
            .as_ref()
            .is_some_and(|(_, filled)| CHUNK_BYTES - filled < least)
        {
            self.close();
        }
        let (buffer, filled) = self.open.get_or_insert_with(|| ((self.new_buffer)(), 0));
        &mut buffer.as_mut()[*filled..CHUNK_BYTES]
    }

    fn filled(&mut self, n: usize) {
        if let Some((_, filled)) = &mut self.open {
            *filled += n;
        }
    }

    fn close(&mut self) {
        if let Some((buffer, filled)) = self.open.take() {
            self.full.push(Bytes::from_owner(buffer).slice(..filled));
        }
    }

    pub(super) fn finish(mut self) -> Vec<Bytes> {
        self.close();
        self.full
    }
}
