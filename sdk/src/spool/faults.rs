//! Tests on real files: every file call of a spool fails once in each way, and every byte of its files is damaged once.

use std::{cell::RefCell, collections::BTreeSet};

use epwatch_io_faults::{dir_in_memory, each_damage, each_fault};

use super::tests::{WALL, key, limits, now, sealed};
use super::*;

/// Two processes; the second takes over the stream of the first.
#[derive(Debug, Default)]
struct Life {
    kept: BTreeSet<(u64, u64)>,
    /// Reports that the collector has acknowledged; they may come again, as duplicates.
    finished: BTreeSet<(u64, u64)>,
}

impl Life {
    fn go_on(&mut self, dir: &Path, stream: u64) {
        let Ok((mut spool, _)) = Spool::open(dir, StreamId(stream), limits(1 << 20, 400)) else {
            return;
        };
        for sequence in 1..=5 {
            let is_noted = spool.note_sealed(sequence).is_ok();
            let report = sealed(StreamId(stream), sequence, 100);
            if is_noted && spool.append(&report, now(WALL)).is_ok() {
                self.kept.insert((stream, sequence));
            }
        }
        spool.finish(&key(StreamId(stream), 1));
        self.finished.insert((stream, 1));
        spool.retire_ended(|_| true);
        if stream == 2 {
            spool.end(5);
        }
    }
}

/// Returns the reports that a process without faults sends, with the streams that it names and its losses.
fn found_in(dir: &Path) -> (Vec<(u64, u64)>, Found) {
    let (mut spool, mut found) = Spool::open(dir, StreamId(99), Limits::default()).unwrap();
    let pending = spool.pending(u64::MAX);
    assert!(pending.error.is_none(), "{:?}", pending.error);
    found.losses.extend(pending.losses);
    let reports = pending.reports.into_iter().map(|(key, bytes)| {
        let (stream, sequence) = (key.stream, key.sequence.get());
        assert_eq!(
            bytes,
            sealed(stream, sequence, 100).bytes,
            "as it was sealed"
        );
        (stream.0, sequence)
    });
    (reports.collect(), found)
}

#[test]
fn no_failing_call_loses_or_doubles_a_report_that_was_kept() {
    let n_faults = each_fault(
        1,
        || tempfile::tempdir().unwrap(),
        |dir| {
            let mut life = Life::default();
            life.go_on(dir.path(), 1);
            life.go_on(dir.path(), 2);
            (dir, life)
        },
        |(dir, life), fault, nth| {
            let (reports, found) = found_in(dir.path());
            let at = format!("after {fault:?} at call {nth}");
            let once: BTreeSet<_> = reports.iter().copied().collect();
            assert_eq!(once.len(), reports.len(), "one comes twice {at}");
            for kept in life.kept.difference(&life.finished) {
                assert!(
                    once.contains(kept),
                    "{kept:?} is lost {at}: {:?}",
                    found.losses
                );
                // A torn `state` leaves the last sequence unknown.
                let is_named = |ended: &EndedStream| {
                    ended.stream.0 == kept.0
                        && ended.last_sequence.is_none_or(|last| last >= kept.1)
                };
                assert!(
                    found.ended.iter().any(is_named),
                    "{kept:?} is not named {at}"
                );
            }
        },
    );
    println!("{n_faults} failing calls of the spool");
    assert!(n_faults > 100, "{n_faults}");
}

/// If damage destroys a report, it is counted as lost, or its sequence is named and shows as missing.
#[test]
fn no_flipped_or_cut_byte_loses_a_report_silently() {
    let whole = dir_in_memory();
    Life::default().go_on(whole.path(), 1);
    let stream = whole.path().join("streams").join(StreamId(1).to_string());
    let before = found_in_copy(whole.path()).0;
    assert_eq!(before.len(), 5);
    let n_silent = RefCell::new(0);
    let mut n_damages = 0;
    let is_nightly = epwatch_runtimes::is_nightly("four of five damages of a spool's segments");
    for file in fs::read_dir(&stream).unwrap() {
        let path = file.unwrap().path();
        let is_segment = path.extension().is_some();
        let step = if is_segment && !is_nightly { 5 } else { 1 };
        n_damages += each_damage(&path, step, |place, damage| {
            let (reports, found) = found_in_copy(whole.path());
            let n_lost = 5 - reports.len() as u64;
            let n_counted: u64 = found.losses.iter().map(|loss| loss.reports).sum();
            let named = found.ended.iter().find_map(|ended| ended.last_sequence);
            let at = format!("{}: {damage} at {place:?}", path.display());
            let is_told = n_lost == 0 || n_counted > 0 || named.is_some_and(|last| last >= 5);
            assert!(is_told, "{n_lost} lost, {at}: {found:?}");
            *n_silent.borrow_mut() += u64::from(n_lost == 0);
        });
    }
    println!(
        "{n_damages} damages of the spool, {} without a loss",
        n_silent.borrow()
    );
    assert!(n_damages > 400, "{n_damages}");
}

/// Runs a process on a copy of the folder, because a process changes the files that it finds.
fn found_in_copy(dir: &Path) -> (Vec<(u64, u64)>, Found) {
    let copy = dir_in_memory();
    let stream = Path::new("streams").join(StreamId(1).to_string());
    fs::create_dir_all(copy.path().join(&stream)).unwrap();
    for file in fs::read_dir(dir.join(&stream)).unwrap() {
        let file = file.unwrap();
        fs::copy(
            file.path(),
            copy.path().join(&stream).join(file.file_name()),
        )
        .unwrap();
    }
    found_in(copy.path())
}
