//! The WAL against a model: storage in memory that fails, tears and forgets, driven by proptest;
//! then the threads over a real directory and over a disk that fills up.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::checkpoint::{self, Checkpoint};
use super::dir::{WalDir, load_or_make_id};
use super::direct_io::{BLOCK_BYTES, lead_of};
use super::frame;
use super::log::Log;
use super::storage::{SegmentFile, Storage};
use super::*;
use epwatch_server::{ManualClock, SystemClock};

const SECTOR: usize = 64;

/// Files as the program sees them and as a power loss would leave them.
#[derive(Debug, Default)]
struct Disk {
    files: BTreeMap<String, Arc<Mutex<Content>>>,
    /// How many more writes, syncs and renames go well; then one fails.
    until_failure: Option<u32>,
    /// Bytes of the failing write that arrive.
    partial_bytes: usize,
    free_bytes: u64,
    is_full: bool,
    /// The process has no file descriptor left.
    opens_nothing: bool,
}

#[derive(Debug, Default, Clone)]
struct Content {
    cached: Vec<u8>,
    durable: Vec<u8>,
    unreadable_at: Option<usize>,
}

#[derive(Debug, Clone, Default)]
struct FaultyStorage(Arc<Mutex<Disk>>);

#[derive(Debug)]
struct FaultyFile {
    disk: Arc<Mutex<Disk>>,
    content: Arc<Mutex<Content>>,
}

impl FaultyStorage {
    fn disk(&self) -> std::sync::MutexGuard<'_, Disk> {
        self.0.lock().unwrap()
    }

    fn fail_after(&self, n_operations: u32, partial_bytes: usize) {
        let mut disk = self.disk();
        disk.until_failure = Some(n_operations);
        disk.partial_bytes = partial_bytes;
    }

    /// The power goes: of what was not synced, each sector arrived or did not.
    fn lose_power(&self, mut arrives: impl FnMut() -> bool) {
        let mut disk = self.disk();
        disk.until_failure = None;
        for content in disk.files.values_mut() {
            let mut after = content.lock().unwrap().clone();
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
            // Handles of the dead process keep the old content.
            *content = Arc::new(Mutex::new(after));
        }
    }

    fn corrupt(&self, name: &str, at: usize) {
        let disk = self.disk();
        let mut content = disk.files[name].lock().unwrap();
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

fn broken() -> io::Error {
    io::Error::other("the disk says no")
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
        // A failed rename may have happened; which, is as good as random here.
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
        let mut disk = self.disk.lock().unwrap();
        let fails = disk.fails();
        let mut content = self.content.lock().unwrap();
        let position = usize::try_from(position).unwrap();
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

    /// As a direct write is: whole blocks, with what was there before.
    fn append_at(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        let lead = lead_of(position);
        let mut blocks = vec![0; lead];
        self.read_at(position - lead as u64, &mut blocks)?;
        blocks.extend_from_slice(bytes);
        blocks.resize(blocks.len().next_multiple_of(BLOCK_BYTES), 0);
        self.write_at(position - lead as u64, &blocks)
    }

    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let content = self.content.lock().unwrap();
        let position = usize::try_from(position).unwrap().min(content.cached.len());
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
        if self.disk.lock().unwrap().fails() {
            return Err(broken());
        }
        let mut content = self.content.lock().unwrap();
        content.durable = content.cached.clone();
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.content.lock().unwrap().cached.len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.content
            .lock()
            .unwrap()
            .cached
            .resize(usize::try_from(len).unwrap(), 0);
        Ok(())
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        self.write_at(0, &vec![0; usize::try_from(len).unwrap()])
    }
}

const SEGMENT_BYTES: u64 = 512;

fn open_log(storage: &FaultyStorage) -> (Log, Recovery, Checkpoint) {
    let id = load_or_make_id(storage).unwrap();
    let checkpoint = checkpoint::load(storage, &id.0)
        .unwrap()
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

/// Reads everything from `from`, a few records at a time.
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

#[derive(Debug, Clone)]
enum Step {
    Append {
        sizes: Vec<usize>,
    },
    FailSoon {
        n_operations: u32,
        partial_bytes: usize,
    },
    Checkpoint {
        share: u8,
    },
    PrepareSpare,
    LosePower {
        seed: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => prop::collection::vec(1..150_usize, 1..6).prop_map(|sizes| Step::Append { sizes }),
        3 => (0..5_u32, 0..300_usize).prop_map(|(n_operations, partial_bytes)| Step::FailSoon {
            n_operations,
            partial_bytes
        }),
        2 => (0..=4_u8).prop_map(|share| Step::Checkpoint { share }),
        1 => Just(Step::PrepareSpare),
        3 => any::<u64>().prop_map(|seed| Step::LosePower { seed }),
    ];
    prop::collection::vec(step, 1..40)
}

/// What must and what may be in the WAL.
#[derive(Debug, Default)]
struct Model {
    /// In order; true for those that were acknowledged.
    appended: Vec<(Vec<u8>, bool)>,
    checkpoint: WalOffset,
    /// Records below the checkpoint.
    n_done: usize,
}

impl Model {
    fn check(&self, log: &Log) {
        let found = payloads(log, self.checkpoint);
        let mut expected = self.appended[self.n_done..].iter();
        for payload in &found {
            loop {
                let (next, is_acknowledged) = expected
                    .next()
                    .expect("only what was appended, and once, in order");
                if next == payload {
                    break;
                }
                assert!(!is_acknowledged, "an acknowledged record is missing");
            }
        }
        assert!(
            expected.all(|(_, is_acknowledged)| !is_acknowledged),
            "the end is missing"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// Acknowledged records come back in order whatever fails; others whole or not at all.
    #[test]
    fn log_agrees_with_its_model(steps in steps()) {
        let storage = FaultyStorage::default();
        // Something must hold the id from the start.
        let id = load_or_make_id(&storage).unwrap();
        checkpoint::save(&storage, &id.0, &Checkpoint::default()).unwrap();
        let (mut log, _, _) = open_log(&storage);
        let mut model = Model::default();
        let mut n_appended = 0_u32;
        for step in steps {
            match step {
                Step::Append { sizes } => {
                    let batch: Vec<Vec<u8>> = sizes
                        .iter()
                        .map(|size| {
                            n_appended += 1;
                            let mut payload = n_appended.to_le_bytes().to_vec();
                            payload.resize(4 + size, u8::try_from(n_appended % 251).unwrap());
                            payload
                        })
                        .collect();
                    let outcome = log.append_group(&mut group(&batch), u64::from(n_appended));
                    model.appended.extend(batch.into_iter().map(|b| (b, outcome.is_ok())));
                }
                Step::FailSoon { n_operations, partial_bytes } => {
                    storage.fail_after(n_operations, partial_bytes);
                }
                Step::Checkpoint { share } => {
                    let (records, _) = read_all(&log, model.checkpoint);
                    let n = records.len() * usize::from(share) / 4;
                    let offset = n.checked_sub(1).map_or(model.checkpoint, |last| WalOffset(records[last].end()));
                    let new = Checkpoint { offset, time_us: 0, batch_end: None };
                    if checkpoint::save(&storage, &id.0, &new).is_ok() {
                        // Records that were never acknowledged may lie between.
                        if let Some(last) = n.checked_sub(1).map(|last| &records[last].payload) {
                            let undone = &model.appended[model.n_done..];
                            let at = undone.iter().position(|(payload, _)| payload[..] == last[..]);
                            model.n_done += at.expect("it was appended") + 1;
                        }
                        model.checkpoint = offset;
                        let _ = log.remove_below(offset.0);
                    } else {
                        let found = checkpoint::load(&storage, &id.0).unwrap().unwrap_or_default();
                        prop_assert!(found.offset == model.checkpoint || found == new);
                        // As the writer does: it goes on trying.
                        storage.disk().until_failure = None;
                        checkpoint::save(&storage, &id.0, &Checkpoint { offset: model.checkpoint, ..new }).unwrap();
                    }
                }
                Step::PrepareSpare => {
                    let _ = log.prepare_spare();
                }
                Step::LosePower { seed } => {
                    let mut state = seed | 1;
                    storage.lose_power(|| {
                        state ^= state << 13;
                        state ^= state >> 7;
                        state ^= state << 17;
                        state & 8 != 0
                    });
                    let end = log.end();
                    let (reopened, _, checkpoint) = open_log(&storage);
                    prop_assert_eq!(checkpoint.offset, model.checkpoint);
                    prop_assert!(reopened.end() >= end, "no offset is given out twice");
                    log = reopened;
                    // What was torn stays torn: it is not waited for any more.
                    let found = payloads(&log, model.checkpoint);
                    let n_done = model.n_done;
                    let mut at = 0;
                    model.appended.retain(|(payload, is_acknowledged)| {
                        at += 1;
                        at <= n_done || *is_acknowledged || found.contains(payload)
                    });
                }
            }
            model.check(&log);
        }
    }

    /// One damaged byte costs at most the record it lies in, and nothing loops.
    #[test]
    fn damage_in_the_middle_costs_what_it_hits(
        sizes in prop::collection::vec(1..150_usize, 2..40),
        place in any::<prop::sample::Index>(),
        reopens in any::<bool>(),
    ) {
        let storage = FaultyStorage::default();
        let (mut log, _, _) = open_log(&storage);
        let all: Vec<Vec<u8>> = sizes.iter().enumerate().map(|(i, &n)| vec![u8::try_from(i).unwrap(); n]).collect();
        for payload in &all {
            log.append_group(&mut group(std::slice::from_ref(payload)), 1).unwrap();
        }
        let names: Vec<String> = storage.list().unwrap().into_iter().filter(|n| segment::base_of(n).is_some()).collect();
        let name = place.get(&names);
        let len = storage.disk().files[name].lock().unwrap().cached.len();
        storage.corrupt(name, place.index(len));
        if reopens {
            (log, _, _) = open_log(&storage);
        }
        let found = payloads(&log, WalOffset(0));
        prop_assert!(found.len() + 1 >= all.len());
        let mut rest = all.iter();
        for payload in &found {
            prop_assert!(rest.any(|expected| expected == payload), "in order and untouched");
        }
    }
}

/// A write that was torn, cut or turned anywhere in the last record, by a bit or a byte: the records
/// before it stay, nothing else is taken for it, and the WAL goes on behind them.
#[test]
fn the_last_record_damaged_anywhere_costs_only_itself() {
    let whole = [vec![1; 40], vec![2; 70], vec![3; 45]];
    let start: usize = whole[..2]
        .iter()
        .map(|payload| frame::frame_bytes(payload.len()))
        .sum();
    let end = start + frame::HEADER_BYTES + whole[2].len();
    let name = segment::file_name(0);
    let damage: [fn(&mut Vec<u8>, usize); 4] = [
        |bytes, at| bytes.truncate(at),
        |bytes, at| bytes[at..].fill(0),
        |bytes, at| bytes[at] ^= 1,
        |bytes, at| bytes[at] ^= 0xff,
    ];
    for at in start..end {
        for (kind, damage) in damage.iter().enumerate() {
            let storage = FaultyStorage::default();
            let (log, _, _) = open_log(&storage);
            log.append_group(&mut group(&whole), 1).unwrap();
            let content = storage.disk().files[&name].clone();
            {
                let mut content = content.lock().unwrap();
                let place = usize::try_from(segment::file_position(0, at as u64)).unwrap();
                damage(&mut content.cached, place);
                content.durable = content.cached.clone();
            }
            drop(log);
            let (log, _, _) = open_log(&storage);
            assert_eq!(
                payloads(&log, WalOffset(0)),
                whole[..2],
                "damage {kind} at {at}"
            );
            log.append_group(&mut group(&[vec![4; 20]]), 2).unwrap();
            drop(log);
            let (log, _, _) = open_log(&storage);
            let expected = [whole[0].clone(), whole[1].clone(), vec![4; 20]];
            assert_eq!(
                payloads(&log, WalOffset(0)),
                expected,
                "damage {kind} at {at}"
            );
        }
    }
}

#[test]
fn a_page_that_cannot_be_read_is_skipped_and_counted() {
    let storage = FaultyStorage::default();
    let (log, _, _) = open_log(&storage);
    let records: Vec<Vec<u8>> = (0..200_u8).map(|i| vec![i; 100]).collect();
    log.append_group(&mut group(&records), 1).unwrap();
    let name = segment::file_name(0);
    storage.disk().files[&name].lock().unwrap().unreadable_at = Some(10_000);
    let (found, skipped) = read_all(&log, WalOffset(0));
    assert!((150..200).contains(&found.len()), "{} records", found.len());
    assert_eq!(
        skipped,
        (200 - found.len() as u64) * frame::frame_bytes(100) as u64
    );
}

#[test]
fn a_lost_segment_is_counted_and_the_rest_is_read() {
    let storage = FaultyStorage::default();
    let (log, _, _) = open_log(&storage);
    for i in 0..12_u8 {
        log.append_group(&mut group(&[vec![i; 100]]), 1).unwrap();
    }
    let lost: Vec<String> = storage
        .list()
        .unwrap()
        .into_iter()
        .filter(|n| segment::base_of(n).is_some())
        .take(2)
        .collect();
    // The first, so that there is no segment where reading begins, and the second.
    for name in &lost {
        storage.remove(name).unwrap();
    }
    let (log, _, _) = open_log(&storage);
    let (found, skipped) = read_all(&log, WalOffset(0));
    assert_eq!(found.len(), 4);
    assert_eq!(skipped, 8 * frame::frame_bytes(100) as u64);
}

#[test]
fn segments_below_the_checkpoint_are_removed_and_used_again() {
    let storage = FaultyStorage::default();
    let (log, _, _) = open_log(&storage);
    log.prepare_spare().unwrap();
    for i in 0..40_u8 {
        log.append_group(&mut group(&[vec![i; 100]]), 1).unwrap();
    }
    let n_before = storage.list().unwrap().len();
    assert!(log.remove_below(log.end()).unwrap() >= 8);
    assert!(storage.list().unwrap().len() < n_before);
    assert!(!log.wants_spare(), "a removed segment is the next spare");
    let start = WalOffset(log.end());
    for i in 0..40_u8 {
        log.append_group(&mut group(&[vec![i; 100]]), 1).unwrap();
    }
    assert_eq!(
        payloads(&log, start).len(),
        40,
        "what a spare held before is not read"
    );
}

/// A rename that failed may have happened (even) or not (odd).
#[test]
fn a_segment_that_could_not_be_removed_is_held_and_tried_again() {
    for partial_bytes in [0, 1] {
        let storage = FaultyStorage::default();
        let (log, _, _) = open_log(&storage);
        for i in 0..40_u8 {
            log.append_group(&mut group(&[vec![i; 100]]), 1).unwrap();
        }
        let held = log.held_bytes();
        storage.fail_after(0, partial_bytes);
        log.remove_below(log.end()).unwrap_err();
        assert_eq!(log.held_bytes(), held);
        assert!(log.remove_below(log.end()).unwrap() >= 8);
        assert!(log.held_bytes() <= SEGMENT_BYTES);
        assert_eq!(n_segments(&storage), 1);
    }
}

#[test]
fn segments_are_removed_while_no_file_can_be_opened() {
    let storage = FaultyStorage::default();
    let (log, _, _) = open_log(&storage);
    for i in 0..40_u8 {
        log.append_group(&mut group(&[vec![i; 100]]), 1).unwrap();
    }
    storage.disk().opens_nothing = true;
    assert!(log.remove_below(log.end()).unwrap() >= 8);
    assert_eq!(n_segments(&storage), 1);
}

fn n_segments(storage: &FaultyStorage) -> usize {
    let names = storage.list().unwrap();
    let is_segment = |name: &&String| segment::base_of(name).is_some();
    names.iter().filter(is_segment).count()
}

#[test]
fn a_log_without_segments_and_checkpoint_gets_a_new_id() {
    let storage = FaultyStorage::default();
    let first = load_or_make_id(&storage).unwrap();
    let second = load_or_make_id(&storage).unwrap();
    assert_ne!(first, second, "nothing says which offsets were used");
    let checkpoint = Checkpoint {
        offset: WalOffset(800),
        ..Checkpoint::default()
    };
    checkpoint::save(&storage, &second.0, &checkpoint).unwrap();
    assert_eq!(load_or_make_id(&storage).unwrap(), second);
    assert_eq!(
        open_log(&storage).0.end(),
        800,
        "offsets go on where they were"
    );
}

fn options(dir: &std::path::Path) -> WalOptions {
    WalOptions {
        gather: Duration::ZERO,
        min_free_bytes: 0,
        dir: dir.to_owned(),
        segment_bytes: 64 << 10,
        max_bytes: 1 << 20,
        max_in_flight_bytes: 1 << 20,
        clock: Arc::new(SystemClock),
    }
}

fn batch(payload: &[u8]) -> Batch {
    let mut batch = Batch::default();
    batch.push(&[payload]).unwrap();
    batch
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_appends_share_groups_and_all_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let opened = Wal::open(&options(dir.path())).unwrap();
    let wal = opened.wal;
    let tasks: Vec<_> = (0..200_u32)
        .map(|i| {
            let wal = wal.clone();
            tokio::spawn(async move {
                for j in 0..5_u32 {
                    let payload = [i.to_le_bytes(), j.to_le_bytes()].concat();
                    wal.append(batch(&payload)).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let stats = wal.stats();
    assert_eq!(stats.records, 1000);
    assert!(stats.groups < 1000, "{} groups", stats.groups);
    assert_eq!(stats.in_flight_bytes, 0);
    assert_eq!(wal.durable().borrow().0, stats.end);
    drop(wal);

    let reopened = Wal::open(&options(dir.path())).unwrap();
    let chunk = reopened
        .wal
        .read(WalOffset(0), WalOffset(u64::MAX), 2000, 1 << 20)
        .unwrap();
    assert_eq!(chunk.records.len(), 1000);
    let mut last_of = BTreeMap::new();
    for record in &chunk.records {
        let (task, j) = record.payload.split_at(4);
        let j = u32::from_le_bytes(j.try_into().unwrap());
        let previous = last_of.insert(task.to_vec(), j);
        assert!(
            previous.is_none_or(|previous| previous < j),
            "in order of appending"
        );
    }
    assert!(
        chunk
            .records
            .is_sorted_by_key(|record| record.received_at_us)
    );
}

/// Who stops waits for what is under way, and nothing comes behind it: what is said of the end holds.
#[tokio::test]
async fn a_log_that_finished_its_appends_is_read_and_takes_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    options.gather = Duration::from_millis(50);
    let wal = Wal::open(&options).unwrap().wal;
    let (done, outcome) = oneshot::channel();
    wal.submit(batch(b"under way"), move |end| drop(done.send(end)))
        .unwrap();
    wal.finish_appends().await;
    let end = outcome.await.unwrap().unwrap();
    assert_eq!(*wal.durable().borrow(), end);
    let error = wal.append(batch(b"too late")).await.unwrap_err();
    assert!(matches!(error, WalError::Closed), "{error}");
    let chunk = wal.read(WalOffset(0), end, 10, 1 << 20).unwrap();
    assert_eq!(chunk.records.len(), 1);
    let offset = end;
    wal.save_checkpoint(&Checkpoint {
        offset,
        ..Checkpoint::default()
    })
    .unwrap();
}

#[tokio::test]
async fn a_second_collector_cannot_open_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let first = Wal::open(&options(dir.path())).unwrap();
    let error = Wal::open(&options(dir.path())).unwrap_err();
    assert!(matches!(error, WalError::Locked { .. }), "{error}");
    drop(first);
    Wal::open(&options(dir.path())).unwrap();
}

#[tokio::test]
async fn a_full_wal_refuses_until_the_checkpoint_moves() {
    let dir = tempfile::tempdir().unwrap();
    let wal = Wal::open(&options(dir.path())).unwrap().wal;
    let payload = vec![1; 16 << 10];
    let error = loop {
        if let Err(error) = wal.append(batch(&payload)).await {
            break error;
        }
    };
    assert!(matches!(error, WalError::Full { .. }), "{error}");
    assert!(matches!(error.retry(), Retry::After(_)));
    assert!(wal.stats().held_bytes <= 1 << 20);

    let end = *wal.durable().borrow();
    let checkpoint = Checkpoint {
        offset: end,
        ..Checkpoint::default()
    };
    wal.save_checkpoint(&checkpoint).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while let Err(error) = wal.append(batch(&payload)).await {
        assert!(
            std::time::Instant::now() < deadline,
            "still refuses: {error}"
        );
        tokio::task::yield_now().await;
    }
}

/// The process before ended between its checkpoint and the removal, and nothing waits for the store:
/// no checkpoint will come.
#[tokio::test]
async fn a_drained_log_is_not_full_after_a_restart() {
    let storage = FaultyStorage::default();
    let (log, _, _) = open_log(&storage);
    for i in 0..40_u8 {
        log.append_group(&mut group(&[vec![i; 100]]), 1).unwrap();
    }
    let held = log.held_bytes();
    let collector_id = load_or_make_id(&storage).unwrap();
    let drained = Checkpoint {
        offset: WalOffset(log.end()),
        ..Checkpoint::default()
    };
    checkpoint::save(&storage, &collector_id.0, &drained).unwrap();
    drop(log);
    let dir = WalDir {
        storage: Arc::new(storage.clone()),
        collector_id,
        _lock: None,
    };
    let mut options = options(std::path::Path::new("in memory"));
    (options.segment_bytes, options.max_bytes) = (SEGMENT_BYTES, held);
    // After the tail's sync: the first removal fails, too.
    storage.fail_after(1, 1);
    let wal = Wal::open_in(dir, &options).unwrap().wal;
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while let Err(error) = wal.append(batch(b"report")).await {
        assert!(
            std::time::Instant::now() < deadline,
            "still refuses: {error}"
        );
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert!(wal.stats().held_bytes <= 2 * SEGMENT_BYTES);
}

#[tokio::test]
async fn a_full_disk_stops_acks_and_not_the_log() {
    let storage = FaultyStorage::default();
    let collector_id = load_or_make_id(&storage).unwrap();
    let dir = WalDir {
        storage: Arc::new(storage.clone()),
        collector_id,
        _lock: None,
    };
    let mut options = options(std::path::Path::new("in memory"));
    // Larger than the zeros of a spare, so that there is none to take from.
    options.segment_bytes = 1 << 10;
    let wal = Wal::open_in(dir, &options).unwrap().wal;
    wal.append(batch(b"before")).await.unwrap();

    storage.disk().is_full = true;
    let mut n_acknowledged = 1;
    let error = loop {
        match wal.append(batch(&[7; 600])).await {
            Ok(_) => n_acknowledged += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, WalError::DiskFull(_)), "{error}");
    assert!(!wal.is_writable());

    storage.disk().is_full = false;
    // Without traffic the WAL finds out by itself.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !wal.is_writable() {
        assert!(std::time::Instant::now() < deadline, "never came back");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    wal.append(batch(b"after")).await.unwrap();
    let chunk = wal
        .read(WalOffset(0), WalOffset(u64::MAX), 100, 1 << 20)
        .unwrap();
    assert_eq!(chunk.records.len(), n_acknowledged + 1);
    assert_eq!(chunk.records.last().unwrap().payload, &b"after"[..]);
    assert_eq!(chunk.skipped_bytes, 0);
}

#[tokio::test]
async fn a_disk_that_fills_up_stops_acks_before_it_is_full() {
    let storage = FaultyStorage::default();
    let collector_id = load_or_make_id(&storage).unwrap();
    let dir = WalDir {
        storage: Arc::new(storage.clone()),
        collector_id,
        _lock: None,
    };
    let mut options = options(std::path::Path::new("in memory"));
    options.min_free_bytes = 1_000;
    storage.disk().free_bytes = 999;
    let wal = Wal::open_in(dir, &options).unwrap().wal;
    let error = wal.append(batch(b"report")).await.unwrap_err();
    assert!(
        matches!(
            error,
            WalError::DiskLow {
                free: 999,
                least: 1_000
            }
        ),
        "{error}"
    );
    assert!(matches!(error.retry(), Retry::After(_)));
    assert!(!wal.is_writable());
    storage.disk().free_bytes = 1_000;
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !wal.is_writable() {
        assert!(std::time::Instant::now() < deadline, "never came back");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    wal.append(batch(b"report")).await.unwrap();
}

#[tokio::test]
async fn receive_times_never_fall_and_the_watermark_holds() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::at_us(1_000));
    let mut options = options(dir.path());
    options.clock = clock.clone();
    let wal = Wal::open(&options).unwrap().wal;
    wal.append(batch(b"one")).await.unwrap();
    clock.set_us(2_000);
    let (time, offset) = wal.watermark();
    assert_eq!((time, offset), (2_000, *wal.durable().borrow()));
    clock.set_us(500);
    wal.append(batch(b"two")).await.unwrap();
    let chunk = wal
        .read(WalOffset(0), WalOffset(u64::MAX), 10, 1000)
        .unwrap();
    let times: Vec<u64> = chunk
        .records
        .iter()
        .map(|record| record.received_at_us)
        .collect();
    assert_eq!(
        times,
        [1_000, 2_000],
        "not before what the watermark promised"
    );
    assert_eq!(wal.stats().ahead_us, 1_500);
    drop(wal);

    // Nor after a restart on a clock that is still behind.
    let wal = Wal::open(&options).unwrap().wal;
    assert_eq!(wal.watermark().0, 2_000);
    assert_eq!(wal.stats().ahead_us, 1_500);
    clock.set_us(2_001);
    assert_eq!(wal.stats().ahead_us, 0);
}

/// What `docs/operations.md` tells to do after a clock that was wrong.
#[tokio::test]
async fn a_drained_log_whose_segments_and_checkpoint_were_removed_goes_by_the_clock_again() {
    let (right, wrong) = (1_800_000_000_000_000, 4_070_908_800_000_000);
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::at_us(wrong));
    let mut options = options(dir.path());
    options.clock = clock.clone();
    let wal = Wal::open(&options).unwrap().wal;
    wal.append(batch(b"one")).await.unwrap();
    clock.set_us(right);
    let drained = Checkpoint {
        offset: *wal.durable().borrow(),
        time_us: wrong,
        batch_end: None,
    };
    wal.save_checkpoint(&drained).unwrap();
    assert_eq!(wal.stats().ahead_us, wrong - right);
    let id = wal.collector_id();
    wal.close();
    drop(wal);

    for file in std::fs::read_dir(dir.path()).unwrap() {
        let path = file.unwrap().path();
        if path.ends_with("checkpoint") || path.extension().is_some_and(|e| e == "wal") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let wal = Wal::open(&options).unwrap().wal;
    assert_eq!(wal.stats().ahead_us, 0);
    wal.append(batch(b"two")).await.unwrap();
    let chunk = wal
        .read(WalOffset(0), WalOffset(u64::MAX), 10, 1000)
        .unwrap();
    assert_eq!(chunk.records.len(), 1);
    assert_eq!(chunk.records[0].received_at_us, right);
    assert_ne!(
        wal.collector_id(),
        id,
        "offsets begin anew, under another name"
    );
}

#[test]
fn payloads_that_fit_no_record_are_refused() {
    let error = Batch::default().push(&[b"", b""]).unwrap_err();
    assert!(matches!(error, WalError::PayloadSize { len: 0 }), "{error}");
    assert_eq!(error.retry(), Retry::Never);
}
