//! Large buffers that are used again. What the WAL is read into, and what rows are sent from, comes and
//! goes by the megabyte; given back and taken anew, each of its pages would be cleared by the kernel
//! first, which on a virtual machine costs more than everything that is then done with it.

use std::ops::{Deref, DerefMut};

use parking_lot::Mutex;

/// Of each buffer that is kept: a chunk of a mebibyte, with room to begin and end at a disk's blocks.
pub(crate) const BUFFER_BYTES: usize = (1 << 20) + (16 << 10);
/// Most buffers that wait to be used: two full batches of the writer under load need about as many.
const MOST_SPARE: usize = 64;

static SPARE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// A buffer of at least [`BUFFER_BYTES`], which goes back to the spare ones when dropped.
#[derive(Debug)]
pub(crate) struct Buffer(Vec<u8>);

impl Buffer {
    /// A buffer of `len` bytes or more, which hold whatever they held before.
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

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_and_large_ones_go() {
        // Other tests of this process take and return buffers meanwhile: never more than that wait.
        let buffers: Vec<Buffer> = (0..2 * MOST_SPARE).map(|_| Buffer::of(1)).collect();
        assert!(buffers.iter().all(|buffer| buffer.len() == BUFFER_BYTES));
        drop(buffers);
        assert!(SPARE.lock().len() <= MOST_SPARE);
        let large = Buffer::of(BUFFER_BYTES + 1);
        assert_eq!(large.len(), BUFFER_BYTES + 1);
        drop(large);
        assert!(SPARE.lock().iter().all(|spare| spare.len() == BUFFER_BYTES));
    }
}
