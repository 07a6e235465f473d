//! A pool of large buffers, for reads of the WAL and encoded rows. The kernel clears the pages of a fresh allocation of
//! a megabyte. On a virtual machine that costs more than all later work on the buffer.

use parking_lot::Mutex;

/// Size of a pooled buffer: a chunk of a mebibyte, with margins so that it can be aligned to blocks.
pub(crate) const BUFFER_BYTES: usize = (1 << 20) + (16 << 10);
/// Limit of pooled buffers: two full batches of the writer need about as many.
const MOST_SPARE: usize = 64;

static SPARE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// A buffer of at least [`BUFFER_BYTES`], which returns to the pool on drop unless it is larger.
#[derive(Debug)]
pub(crate) struct Buffer(Vec<u8>);

impl Buffer {
    /// Returns a buffer of at least `len` bytes with arbitrary content.
    pub(crate) fn of(len: usize) -> Self {
        if len > BUFFER_BYTES {
            return Self(vec![0; len]);
        }
        let spare = SPARE.lock().pop();
        Self(spare.unwrap_or_else(|| vec![0; BUFFER_BYTES]))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.0.len() != BUFFER_BYTES {
            return;
        }
        let mut spare = SPARE.lock();
        if spare.len() < MOST_SPARE {
            spare.push(std::mem::take(&mut self.0));
        }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_and_large_ones_go() {
        // Other tests use the pool at the same time, so only its limit can be checked.
        let buffers: Vec<Buffer> = (0..2 * MOST_SPARE).map(|_| Buffer::of(1)).collect();
        assert!(buffers.iter().all(|buffer| buffer.0.len() == BUFFER_BYTES));
        drop(buffers);
        assert!(SPARE.lock().len() <= MOST_SPARE);
        let large = Buffer::of(BUFFER_BYTES + 1);
        assert_eq!(large.0.len(), BUFFER_BYTES + 1);
        drop(large);
        assert!(SPARE.lock().iter().all(|spare| spare.len() == BUFFER_BYTES));
    }
}
