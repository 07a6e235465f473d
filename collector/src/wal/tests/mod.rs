//! Tests of the WAL over storage in memory that fails, and over a real directory.

mod appends;
mod checkpoints;
mod clock;
mod damage;
mod disk;
mod faults;
mod model;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use epwatch_server::{SystemClock, TaskSet};
use parking_lot::Mutex;

use super::checkpoint::{self, Checkpoint};
use super::dir::{WalDir, load_or_make_id};
use super::faulty_storage::FaultyStorage;
use super::frame;
use super::log::Log;
use super::storage::Storage;
use super::*;

const SEGMENT_BYTES: u64 = 512;

fn open_log(storage: &FaultyStorage) -> (Log, WalRecovery, Checkpoint) {
    let id = load_or_make_id(storage).unwrap();
    let checkpoint = checkpoint::load(storage, &id.0)
        .unwrap()
        .known()
        .unwrap_or_default();
    let storage = Arc::new(storage.clone());
    let (log, recovery) = Log::open(storage, id.0, SEGMENT_BYTES, checkpoint.highest()).unwrap();
    (log, recovery, checkpoint)
}

fn group(payloads: &[Vec<u8>]) -> Vec<u8> {
    let mut frames = Vec::new();
    for payload in payloads {
        frame::push_unsealed(&mut frames, &[payload]);
    }
    frames
}

/// Reads all records from `from`, a few at a time.
fn read_all(log: &Log, from: WalOffset) -> (Vec<Record>, u64) {
    let (mut records, mut skipped, mut next) = (Vec::new(), 0, from);
    loop {
        let chunk = log.read(next, WalOffset(u64::MAX), 3, 200).unwrap();
        skipped += chunk.skipped_bytes;
        if chunk.next == next {
            return (records, skipped);
        }
        assert!(chunk.next > next, "reading moves forward");
        next = chunk.next;
        records.extend(chunk.records);
    }
}

fn payloads(log: &Log, from: WalOffset) -> Vec<Vec<u8>> {
    read_all(log, from)
        .0
        .into_iter()
        .map(|record| record.payload.to_vec())
        .collect()
}

/// Options for a small WAL without a limit on free disk space.
pub(crate) fn options(dir: &Path) -> WalOptions {
    WalOptions {
        gather: Duration::ZERO,
        min_free_bytes: 0,
        dir: dir.to_owned(),
        segment_bytes: 64 << 10,
        max_bytes: 1 << 20,
        max_in_flight_bytes: 1 << 20,
        clock: Arc::new(SystemClock),
        tasks: TaskSet::default(),
    }
}

pub(crate) fn batch(payload: &[u8]) -> Batch {
    let mut batch = Batch::default();
    batch.push(&[payload]).unwrap();
    batch
}

/// Appends `n` records of 100 bytes, each in a group of its own.
fn append_each(log: &Log, n: u8) {
    for i in 0..n {
        log.append_group(&mut group(&[vec![i; 100]]), 1).unwrap();
    }
}

fn n_segments(storage: &FaultyStorage) -> usize {
    let names = storage.list().unwrap();
    let is_segment = |name: &&String| segment::base_of(name).is_some();
    names.iter().filter(is_segment).count()
}

/// Options for a WAL in memory.
fn in_memory() -> WalOptions {
    options(Path::new("in memory"))
}

fn open_in_memory(storage: &FaultyStorage, options: &WalOptions) -> Wal {
    let dir = WalDir {
        storage: Arc::new(storage.clone()),
        collector_id: load_or_make_id(storage).unwrap(),
        lock: Mutex::default(),
    };
    Wal::open_in(dir, options).unwrap().wal
}

const TIMEOUT: Duration = Duration::from_secs(300);

async fn append_once_accepted(wal: &Wal, payload: &[u8]) {
    let deadline = Instant::now() + TIMEOUT;
    while let Err(error) = wal.append(batch(payload)).await {
        assert!(Instant::now() < deadline, "still refuses: {error}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn is_writable(wal: &Wal) -> bool {
    wal.downgrade().stats().unwrap().1.is_none()
}

async fn wait_until_writable(wal: &Wal) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_writable(wal) {
        assert!(Instant::now() < deadline, "never came back");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
