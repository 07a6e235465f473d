//! Every file call of a small WAL fails once, in each way, and every byte of its files is damaged once. The files are
//! real, and the store is a map of positions. The writer's steps are the same as in `writer/`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use epwatch_io_faults::{Fault, dir_in_memory, each_damage, each_fault};

use super::super::storage::DirStorage;
use super::*;

/// The content of the store: payloads by position.
type ModelStore = BTreeMap<u64, Vec<u8>>;

/// An event that concerns reports and a collector's WAL.
#[derive(Debug, Default)]
struct Life {
    acknowledged: BTreeSet<Vec<u8>>,
    stored: ModelStore,
    /// The number of reads that reported damage. After a simulated kill they do not count, because an ended process
    /// reads nothing.
    n_skips: usize,
}

impl Life {
    /// Inserts the records of a range. Positions that the store has are left out, as the writer does if records may be
    /// stored already.
    fn insert(&mut self, records: &[Record]) {
        for record in records {
            let before = self.stored.insert(record.offset.0, record.payload.to_vec());
            assert!(
                before.is_none_or(|before| before == record.payload[..]),
                "position {} was given out twice",
                record.offset
            );
        }
    }

    /// Opens the WAL and appends `n` payloads from `first` on. After every third payload it stores half of the records
    /// that wait.
    fn go_on(&mut self, dir: &Path, (first, n): (u8, u8)) -> Result<(), WalError> {
        let opened = WalDir::open(dir)?;
        let id = opened.collector_id.0;
        let found = checkpoint::load_or_make(&*opened.storage, &id);
        let found = found.map_err(WalError::io("read wal checkpoint"))?;
        let floor = found.known().unwrap_or_default().highest();
        let (log, mut recovery) = Log::open(opened.storage.clone(), id, SEGMENT_BYTES, floor)?;
        let mut checkpoint = group_commit::writers_start(&found, &log, &mut recovery);
        // A failure here is harmless, because the next segment can be made without a spare.
        let _ = log.prepare_spare();
        for n in first..first + n {
            let payload = vec![n; 100];
            if log
                .append_group(&mut group(std::slice::from_ref(&payload)), n.into())
                .is_ok()
            {
                self.acknowledged.insert(payload);
            }
            if n % 3 == 2 {
                self.store_half(&*opened.storage, &log, &mut checkpoint)?;
            }
        }
        Ok(())
    }

    fn store_half(
        &mut self,
        storage: &dyn Storage,
        log: &Log,
        checkpoint: &mut Checkpoint,
    ) -> Result<(), WalError> {
        let save = |checkpoint: &Checkpoint| {
            // The writer retries without end. Here a second try is enough, because the call fails once.
            let saved = checkpoint::save(storage, &log.wal_id(), checkpoint);
            let saved = saved.or_else(|_| checkpoint::save(storage, &log.wal_id(), checkpoint));
            saved.map_err(WalError::io("save wal checkpoint"))
        };
        let read = |from, n| log.read(from, WalOffset(u64::MAX), n, usize::MAX);
        let waiting = read(checkpoint.offset, usize::MAX).map_err(WalError::io("read wal"))?;
        let n = waiting.records.len().div_ceil(2);
        let chunk = read(checkpoint.offset, n).map_err(WalError::io("read wal"))?;
        if chunk.skipped_bytes > 0 {
            self.n_skips += 1;
            return Err(WalError::Closed);
        }
        save(&Checkpoint {
            batch_end: Some(chunk.next),
            ..*checkpoint
        })?;
        self.insert(&chunk.records);
        checkpoint.offset = chunk.next;
        save(checkpoint)?;
        let _ = log.remove_below(checkpoint.offset.0);
        Ok(())
    }

    /// Runs a process without faults, which stores all records that wait and takes one more report.
    fn end(mut self, dir: &Path) -> (Self, WalRecovery, u64) {
        let (wal, skipped) = self.drain(dir);
        self.go_on(dir, (200, 1)).expect("it goes on");
        let (_, skipped_again) = self.drain(dir);
        assert!(skipped_again <= skipped);
        assert!(
            self.stored.values().any(|payload| *payload == [200; 100]),
            "what is sent later is stored too"
        );
        (self, wal, skipped)
    }

    fn drain(&mut self, dir: &Path) -> (WalRecovery, u64) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let _in_runtime = runtime.enter();
        let small = WalOptions {
            segment_bytes: SEGMENT_BYTES,
            ..options(dir)
        };
        let opened = Wal::open(&small).expect("the process starts");
        let (mut from, mut skipped) = (opened.checkpoint.offset, 0);
        loop {
            let chunk = opened
                .wal
                .read(from, WalOffset(u64::MAX), 3, 1 << 20)
                .unwrap();
            if chunk.next == from {
                break;
            }
            self.insert(&chunk.records);
            (from, skipped) = (chunk.next, skipped + chunk.skipped_bytes);
        }
        // The checkpoint is saved, so that the next process does not see damage that this one has passed.
        let offset = from.max(opened.checkpoint.offset);
        let checkpoint = Checkpoint {
            offset,
            ..Checkpoint::default()
        };
        opened.wal.save_checkpoint(&checkpoint).unwrap();
        opened.wal.close();
        (opened.recovery, skipped)
    }

    fn n_lost(&self) -> usize {
        let stored: BTreeSet<_> = self.stored.values().collect();
        assert_eq!(
            stored.len(),
            self.stored.len(),
            "a record is stored at two positions"
        );
        let lost = self
            .acknowledged
            .iter()
            .filter(|payload| !stored.contains(payload));
        lost.count()
    }
}

#[test]
fn no_failing_call_loses_or_doubles_an_acknowledged_report() {
    let is_nightly = epwatch_runtimes::is_nightly("four of five failing calls of the WAL");
    let step = if is_nightly { 1 } else { 5 };
    let n_faults = each_fault(
        step,
        || tempfile::tempdir().unwrap(),
        |dir| {
            let mut life = Life::default();
            // The second process recovers from the state that the first left.
            let _ = life
                .go_on(dir.path(), (0, 12))
                .and_then(|()| life.go_on(dir.path(), (50, 7)));
            (dir, life)
        },
        |(dir, life), fault, nth| {
            let has_ended = matches!(fault, Fault::Killed | Fault::Torn);
            assert!(
                life.n_skips == 0 || has_ended,
                "after {fault:?} at call {nth}"
            );
            let (life, recovery, skipped) = life.end(dir.path());
            let found = (
                life.n_lost(),
                skipped,
                recovery.is_checkpoint_lost,
                recovery.stray_files,
            );
            assert_eq!(found, (0, 0, false, 0), "after {fault:?} at call {nth}");
        },
    );
    println!("{n_faults} failing calls of the WAL");
    assert!(n_faults > 100, "{n_faults}");
}

/// Damage to a segment costs the records hit, and is reported. Damage to any other file costs nothing.
#[test]
fn no_flipped_or_cut_byte_loses_or_doubles_a_report_silently() {
    let whole = dir_in_memory();
    let mut life = Life::default();
    life.go_on(whole.path(), (0, 13)).unwrap();
    let names = DirStorage::new(whole.path()).list().unwrap();
    let is_nightly = epwatch_runtimes::is_nightly("most damages of the WAL's segments");
    let mut n_damages = 0;
    for name in &names {
        let is_segment = segment::base_of(name).is_some();
        let step = match (is_segment, is_nightly) {
            (true, false) => 29,
            (true, true) => 5,
            (false, _) => 1,
        };
        if name.ends_with(".spare") {
            continue;
        }
        let (mut n_silent, mut n_told) = (0, 0);
        n_damages += each_damage(&whole.path().join(name), step, |place, damage| {
            let dir = dir_in_memory();
            for name in &names {
                fs::copy(whole.path().join(name), dir.path().join(name)).unwrap();
            }
            let life = Life {
                acknowledged: life.acknowledged.clone(),
                stored: life.stored.clone(),
                n_skips: 0,
            };
            let (life, recovery, skipped) = life.end(dir.path());
            let is_told = skipped > 0
                || recovery.is_tail_torn
                || recovery.is_checkpoint_lost
                || recovery.damaged_headers > 0
                || recovery.stray_files > 0;
            let n_lost = life.n_lost();
            assert!(
                n_lost == 0 || is_segment,
                "{name}, {damage} at {place:?}: {n_lost} lost"
            );
            assert!(
                n_lost == 0 || is_told,
                "{name}, {damage} at {place:?}: {n_lost} lost silently"
            );
            *(if n_lost > 0 {
                &mut n_told
            } else {
                &mut n_silent
            }) += 1;
        });
        println!("{name}: {n_silent} damages without a loss, {n_told} with one that is told");
    }
    println!("{n_damages} damages of the WAL's files");
    assert!(n_damages > 500, "{n_damages}");
}
