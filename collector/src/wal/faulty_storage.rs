//! Storage in memory for tests: operations fail on demand, writes tear, and a power loss drops what was not synced.
#![cfg_attr(not(test), expect(dead_code, reason = "fuzz targets use a part"))]

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::direct_io::{BLOCK_BYTES, lead_of};
use super::storage::{SegmentFile, Storage};

const SECTOR: usize = 64;

/// Files with their content in the page cache and on the medium.
#[derive(Debug, Default)]
pub(super) struct Disk {
    pub(super) files: BTreeMap<String, Arc<Mutex<Content>>>,
    /// Writes, syncs and renames that succeed before one fails.
    pub(super) until_failure: Option<u32>,
    /// Bytes of the failing write that reach the file.
    partial_bytes: usize,
    pub(super) free_bytes: u64,
    pub(super) is_full: bool,
    /// True if the process has no file descriptor left.
    pub(super) opens_nothing: bool,
}

#[derive(Debug, Default, Clone)]
pub(super) struct Content {
    pub(super) cached: Vec<u8>,
    pub(super) durable: Vec<u8>,
    pub(super) unreadable_at: Option<usize>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct FaultyStorage(Arc<Mutex<Disk>>);

#[derive(Debug)]
struct FaultyFile {
    disk: Arc<Mutex<Disk>>,
    content: Arc<Mutex<Content>>,
}

impl FaultyStorage {
    pub(super) fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock()
    }

    pub(super) fn fail_after(&self, n_operations: u32, partial_bytes: usize) {
        let mut disk = self.disk();
        disk.until_failure = Some(n_operations);
        disk.partial_bytes = partial_bytes;
    }

    /// Simulates a power loss: each sector that was not synced is kept or lost.
    pub(super) fn lose_power(&self, mut arrives: impl FnMut() -> bool) {
        let mut disk = self.disk();
        disk.until_failure = None;
        for content in disk.files.values_mut() {
            let mut after = content.lock().clone();
            let len = if arrives() {
                after.cached.len()
            } else {
                after.durable.len()
            };
            after.durable.resize(len, 0);
            after.cached.resize(len, 0);
            for (durable, cached) in after
                .durable
                .chunks_mut(SECTOR)
                .zip(after.cached.chunks(SECTOR))
            {
                if arrives() {
                    durable.copy_from_slice(cached);
                }
            }
            after.cached.clone_from(&after.durable);
            // Handles of the ended process keep the old content.
            *content = Arc::new(Mutex::new(after));
        }
    }

    pub(super) fn corrupt(&self, name: &str, at: usize) {
        let disk = self.disk();
        let mut content = disk.files[name].lock();
        content.cached[at] ^= 0x55;
        content.durable[at] ^= 0x55;
    }
}

impl Disk {
    fn fails(&mut self) -> bool {
        match self.until_failure {
            Some(0) => {
                self.until_failure = None;
                true
            }
            Some(n) => {
                self.until_failure = Some(n - 1);
                false
            }
            None => false,
        }
    }
}

/// Converts a position or a length for use in memory.
fn at(n: u64) -> usize {
    usize::try_from(n).expect("fits memory")
}

fn broken() -> io::Error {
    io::Error::other("injected failure")
}

impl Storage for FaultyStorage {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.disk().files.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn SegmentFile>> {
        let content = Arc::new(Mutex::new(Content::default()));
        self.disk().files.insert(name.to_owned(), content.clone());
        Ok(Arc::new(FaultyFile {
            disk: self.0.clone(),
            content,
        }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn SegmentFile>> {
        if self.disk().opens_nothing {
            return Err(io::Error::from_raw_os_error(24));
        }
        let content = self.disk().files.get(name).cloned();
        let content = content.ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(FaultyFile {
            disk: self.0.clone(),
            content,
        }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut disk = self.disk();
        let fails = disk.fails();
        // A rename that failed may still have happened; the parity of `partial_bytes` decides.
        if !fails || disk.partial_bytes.is_multiple_of(2) {
            let content = disk.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
            disk.files.insert(to.to_owned(), content);
        }
        if fails { Err(broken()) } else { Ok(()) }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk()
            .files
            .remove(name)
            .map(|_| ())
            .ok_or(io::ErrorKind::NotFound.into())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(self.disk().free_bytes)
    }
}

impl SegmentFile for FaultyFile {
    fn write_at(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        let mut disk = self.disk.lock();
        let fails = disk.fails();
        let mut content = self.content.lock();
        let position = at(position);
        let grows = position + bytes.len() > content.cached.len();
        let is_full = disk.is_full && grows;
        let arrives = if fails || is_full {
            disk.partial_bytes.min(bytes.len())
        } else {
            bytes.len()
        };
        let end = position + arrives;
        if end > content.cached.len() {
            content.cached.resize(end, 0);
        }
        content.cached[position..end].copy_from_slice(&bytes[..arrives]);
        match (is_full, fails) {
            (true, _) => Err(io::ErrorKind::StorageFull.into()),
            (_, true) => Err(broken()),
            _ => Ok(()),
        }
    }

    /// Behaves like a direct write: it writes whole blocks, and the first contains the content before `position`.
    fn append_at(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        let lead = lead_of(position);
        let mut blocks = vec![0; lead];
        self.read_at(position - lead as u64, &mut blocks)?;
        blocks.extend_from_slice(bytes);
        blocks.resize(blocks.len().next_multiple_of(BLOCK_BYTES), 0);
        self.write_at(position - lead as u64, &blocks)
    }

    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let content = self.content.lock();
        let position = at(position).min(content.cached.len());
        let n = buffer.len().min(content.cached.len() - position);
        if content
            .unreadable_at
            .is_some_and(|at| (position..position + n).contains(&at))
        {
            return Err(io::Error::from_raw_os_error(5));
        }
        buffer[..n].copy_from_slice(&content.cached[position..position + n]);
        Ok(n)
    }

    fn sync(&self) -> io::Result<()> {
        if self.disk.lock().fails() {
            return Err(broken());
        }
        let mut content = self.content.lock();
        content.durable = content.cached.clone();
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.content.lock().cached.len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.content.lock().cached.resize(at(len), 0);
        Ok(())
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        self.write_at(0, &vec![0; at(len)])
    }
}
