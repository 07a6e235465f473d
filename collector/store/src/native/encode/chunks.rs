//! Where an encoded body lies: in pieces, whose memory is used again.

use bytes::Bytes;

/// Large enough that a chunk costs nothing, small enough to be sent while the next is taken.
pub const CHUNK_BYTES: usize = 1 << 20;

/// Memory of a chunk.
pub trait ChunkBuffer: AsRef<[u8]> + AsMut<[u8]> + Send + 'static {}

impl<B: AsRef<[u8]> + AsMut<[u8]> + Send + 'static> ChunkBuffer for B {}

/// A body, while it is put together.
pub(super) struct Pieces<B, F> {
    new_buffer: F,
    full: Vec<Bytes>,
    /// The last one, and how much of it is filled.
    open: Option<(B, usize)>,
}

impl<B: ChunkBuffer, F: Fn() -> B> Pieces<B, F> {
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

    /// The low bytes of each number.
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

    /// What is free of the open piece, at least so much of it.
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

pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_len(out, text.len());
    out.extend_from_slice(text.as_bytes());
}

#[inline]
pub(super) fn put_len(out: &mut Vec<u8>, len: usize) {
    // Nearly all texts are short.
    if let Ok(len @ ..0x80) = u8::try_from(len) {
        return out.push(len);
    }
    prost::encoding::encode_varint(len as u64, out);
}
