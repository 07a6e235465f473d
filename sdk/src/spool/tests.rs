use std::{collections::BTreeSet, process::Command};

use epwatch_proto::{InstallationId, Sequence};
use proptest::prelude::*;

use super::{segment::tests::report, *};
use crate::random_stream;

pub(super) fn sealed(stream: StreamId, sequence: u64, ballast: usize) -> SealedReport {
    SealedReport {
        key: key(stream, sequence),
        bytes: report(stream, sequence, 10, ballast).into(),
        runs: 10,
    }
}

pub(super) fn key(stream: StreamId, sequence: u64) -> ReportKey {
    ReportKey {
        installation: InstallationId::from_secret(b"x"),
        stream,
        sequence: Sequence::new(sequence).unwrap(),
    }
}

pub(super) fn limits(max_spool_bytes: u64, segment_bytes: u64) -> Limits {
    Limits {
        max_spool_bytes,
        segment_bytes,
        ..Limits::default()
    }
}

pub(super) const WALL: i64 = 1_800_000_000_000;

pub(super) fn now(wall_unix_ms: i64) -> Now {
    Now::simulated(Duration::from_secs(1), wall_unix_ms)
}

/// A spool in a folder of its own.
fn opened(limits: Limits) -> (tempfile::TempDir, StreamId, Spool) {
    let dir = tempfile::tempdir().unwrap();
    let stream = random_stream();
    let (spool, _) = Spool::open(dir.path(), stream, limits).unwrap();
    (dir, stream, spool)
}

/// The spool of another process on a folder, and what it found there.
fn next_process(dir: &Path) -> (Spool, Found) {
    Spool::open(dir, random_stream(), Limits::default()).unwrap()
}

fn sequences(spool: &mut Spool) -> Vec<u64> {
    let pending = spool.pending(u64::MAX);
    assert!(pending.losses.is_empty() && pending.error.is_none());
    pending
        .reports
        .iter()
        .map(|(key, _)| key.sequence.get())
        .collect()
}

fn append(spool: &mut Spool, stream: StreamId, sequences: impl IntoIterator<Item = u64>) {
    for sequence in sequences {
        spool.note_sealed(sequence).unwrap();
        spool
            .append(&sealed(stream, sequence, 100), now(WALL))
            .unwrap();
    }
}

#[test]
fn what_a_dead_process_left_is_taken_over_once_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let first = random_stream();
    let (mut spool, found) = Spool::open(dir.path(), first, Limits::default()).unwrap();
    assert!(found.ended.is_empty());
    append(&mut spool, first, 1..=3);
    spool.finish(&key(first, 1));

    // While the process lives, no other process takes over its stream.
    let (mut other, found) = next_process(dir.path());
    assert!(found.ended.is_empty());
    assert_eq!(other.n_pending(), 0);

    drop(spool);
    let (mut next, found) = next_process(dir.path());
    let expected = EndedStream {
        stream: first,
        last_sequence: Some(3),
        unsealed_runs: None,
    };
    assert_eq!(found.ended, [expected]);
    // The ack of 1 was not stored, so it is sent again as a duplicate.
    assert_eq!(sequences(&mut next), [1, 2, 3]);
    let pending = next.pending(u64::MAX).reports;
    assert_eq!(pending[2].1, sealed(first, 3, 100).bytes);

    for sequence in 1..=3 {
        assert_eq!(next.finish(&key(first, sequence)), 10);
    }
    next.retire_ended(|_| true);
    assert_eq!(next.ended.len(), 1);
    next.retire_ended(|_| false);
    assert!(!dir.path().join("streams").join(first.to_string()).exists());
    assert_eq!(sequences(&mut other), [] as [u64; 0]);
}

#[test]
fn a_stream_that_ended_well_is_marked_or_removed() {
    let (dir, stream, mut spool) = opened(Limits::default());
    append(&mut spool, stream, 1..=1);
    spool.end(1);
    let (mut spool, found) = next_process(dir.path());
    assert_eq!(found.ended[0].unsealed_runs, Some(0));
    spool.finish(&key(stream, 1));
    spool.retire_ended(|_| false);
    spool.end(0);
    let (_, found) = next_process(dir.path());
    assert!(found.ended.is_empty());
}

/// The disk was full when the last report was sealed: its sequence is used, but no file has the report.
#[test]
fn the_next_process_names_a_last_report_that_could_not_be_kept() {
    for n_acked in [0, 1] {
        let dir = tempfile::tempdir().unwrap();
        let stream = random_stream();
        let (mut spool, _) = Spool::open(dir.path(), stream, Limits::default()).unwrap();
        append(&mut spool, stream, 1..=n_acked);
        for sequence in 1..=n_acked {
            spool.finish(&key(stream, sequence));
        }
        spool.note_sealed(n_acked + 1).unwrap();
        spool.end(n_acked + 1);
        let (mut spool, found) = next_process(dir.path());
        let expected = EndedStream {
            stream,
            last_sequence: Some(n_acked + 1),
            unsealed_runs: Some(0),
        };
        assert_eq!(found.ended, [expected]);
        // The stream was named, so it can be removed.
        spool.retire_ended(|_| false);
        assert!(spool.ended.is_empty());
    }
}

/// The collector has everything that was sealed.
#[test]
fn a_stream_that_ended_acked_leaves_no_folder() {
    let (dir, stream, mut spool) = opened(Limits::default());
    append(&mut spool, stream, 1..=2);
    spool.finish(&key(stream, 2));
    spool.finish(&key(stream, 1));
    spool.end(2);
    assert_eq!(
        stream_dirs(&dir.path().join(folder::STREAMS))
            .unwrap()
            .len(),
        0
    );
}

#[test]
fn a_full_spool_loses_the_oldest_segments_and_counts_them() {
    let (_dir, stream, mut spool) = opened(limits(1_000, 300));
    append(&mut spool, stream, 1..=20);
    spool.finish(&key(stream, 2));
    let losses = spool.enforce(now(WALL));
    let (bytes, _) = spool.usage(WALL);
    assert!(bytes <= 1_000, "{bytes}");
    let lost: u64 = losses.iter().map(|l| l.reports).sum();
    let runs: u64 = losses.iter().map(|l| l.runs).sum();
    assert!(losses.iter().all(|l| l.reason == DropReason::SpoolFull));
    let left = sequences(&mut spool);
    assert_eq!(left, (21 - left.len() as u64..=20).collect::<Vec<_>>());
    // The collector has report 2, so it is not lost.
    assert_eq!((lost, runs), (19 - left.len() as u64, 10 * lost));
}

#[test]
fn old_reports_go_and_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (random_stream(), random_stream());
    let (mut spool, _) = Spool::open(dir.path(), first, Limits::default()).unwrap();
    append(&mut spool, first, 1..=2);
    drop(spool);
    let (mut spool, _) = Spool::open(dir.path(), second, Limits::default()).unwrap();
    let age = 13 * 24 * 3_600_000;
    assert!(spool.enforce(now(WALL - age)).is_empty());
    let losses = spool.enforce(now(WALL + age));
    assert_eq!(
        (losses[0].reason, losses[0].reports),
        (DropReason::SpoolAge, 2)
    );
    // The spool still takes reports.
    append(&mut spool, second, 1..=1);
    assert_eq!(sequences(&mut spool), [1]);
}

/// The wall clock jumps a month ahead, or was never set: nothing of this process is lost.
#[test]
fn a_jump_of_the_wall_clock_costs_no_report() {
    let (_dir, stream, mut spool) = opened(Limits::default());
    append(&mut spool, stream, 1..=2);
    let month = 30 * 24 * 3_600_000;
    assert!(spool.enforce(now(WALL + month)).is_empty());
    assert!(spool.enforce(now(WALL - month)).is_empty());
    let later = Now::simulated(Duration::from_secs(13 * 24 * 3600), WALL - month);
    assert_eq!(spool.enforce(later)[0].reason, DropReason::SpoolAge);
}

/// More processes crashed than a report can name. All their reports are sent, a few at a time, and without a network
/// they stay within the limit.
#[test]
fn many_crashed_processes_are_all_taken_over_and_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let n = MAX_ENDED_STREAMS + 10;
    // Ended streams of processes that did not take over each other's streams, as if all had run at once.
    let alive: Vec<_> = (0..n)
        .map(|_| {
            let stream = random_stream();
            let (mut spool, _) = Spool::open(dir.path(), stream, Limits::default()).unwrap();
            append(&mut spool, stream, 1..=1);
            spool
        })
        .collect();
    drop(alive);
    let (mut spool, found) = next_process(dir.path());
    assert_eq!(found.ended.len(), MAX_ENDED_STREAMS);
    for (key, _) in spool.pending(u64::MAX).reports {
        spool.finish(&key);
    }
    spool.retire_ended(|_| false);
    assert_eq!(spool.adopt().unwrap().ended.len(), 10);
    assert_eq!(spool.n_pending(), 10);
    assert!(spool.adopt().unwrap().ended.is_empty());
    drop(spool);

    let one = segment::encode_record(&sealed(StreamId(1), 1, 100).bytes).len() as u64 + 8;
    let alive: Vec<_> = (0..n)
        .map(|_| {
            let stream = random_stream();
            let opened = Spool::open(dir.path(), stream, Limits::default());
            let mut spool = opened.unwrap().0;
            append(&mut spool, stream, 1..=1);
            spool
        })
        .collect();
    drop(alive);
    let few = limits((MAX_ENDED_STREAMS as u64 + 2) * one, 400);
    let (mut spool, found) = Spool::open(dir.path(), random_stream(), few).unwrap();
    let mut lost: u64 = found.losses.iter().map(|l| l.reports).sum();
    lost += spool
        .enforce(now(WALL))
        .iter()
        .map(|l| l.reports)
        .sum::<u64>();
    let left: u64 = stream_dirs(&dir.path().join(folder::STREAMS))
        .unwrap()
        .iter()
        .map(|d| stream::bytes_of(d))
        .sum();
    assert!(left <= few.max_spool_bytes, "{left}");
    assert_eq!(lost + left / one, n as u64 + 10);
}

/// An app crashed at each start without a network. The latest folders are kept, and the losses of the others are
/// counted. All of them are named, so that the ledger has no more dropped reports than recorded ones.
#[test]
fn folders_of_a_crash_loop_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let streams = dir.path().join(folder::STREAMS);
    files::create_private_dir(&streams).unwrap();
    let most = MAX_ENDED_STREAMS + policy::MAX_UNTAKEN_STREAMS;
    let first = std::time::SystemTime::now() - Duration::from_secs(3600);
    let starts: Vec<_> = (0..most + 20).map(|_| random_stream()).collect();
    for (seconds, stream) in (0..).zip(&starts) {
        let mut own = StreamDir::begin(&streams, *stream).unwrap();
        for sequence in 1..=2 {
            let report = sealed(*stream, sequence, 100);
            own.append(&report, now(WALL), 400).unwrap();
        }
        let folder = fs::File::open(streams.join(stream.to_string())).unwrap();
        let at = first + Duration::from_secs(seconds);
        folder.set_modified(at).unwrap();
    }
    let (mut spool, found) = next_process(dir.path());
    assert_eq!(spool.ended.len(), MAX_ENDED_STREAMS);
    assert_eq!(stream_dirs(&streams).unwrap().len(), most + 1);
    // The oldest streams can be named in the next report, and the latest are the most useful.
    let gone = &starts[MAX_ENDED_STREAMS..MAX_ENDED_STREAMS + 20];
    let is_there = |stream: &StreamId| streams.join(stream.to_string()).exists();
    assert!(!gone.iter().any(is_there));
    let losses = found.losses.iter();
    let lost = losses.fold((0, 0), |(reports, runs), loss| {
        (reports + loss.reports, runs + loss.runs)
    });
    assert_eq!(lost, (40, 400));

    let mut named = found.ended;
    loop {
        assert!(spool.n_to_name() <= MAX_ENDED_STREAMS);
        // The streams are named, but not acknowledged yet.
        spool.retire_ended(|_| true);
        assert!(spool.adopt().unwrap().ended.is_empty());
        while spool.n_pending() > 0 {
            for (key, _) in spool.pending(u64::MAX).reports {
                spool.finish(&key);
            }
        }
        spool.retire_ended(|_| false);
        let found = spool.adopt().unwrap();
        if found.ended.is_empty() {
            break;
        }
        named.extend(found.ended);
    }
    assert!(named.iter().all(|ended| ended.last_sequence == Some(2)));
    let mut named: Vec<StreamId> = named.iter().map(|ended| ended.stream).collect();
    named.sort_unstable();
    let mut starts = starts;
    starts.sort_unstable();
    assert_eq!(named, starts);
    assert!(!streams.join("unnamed").exists());
}

/// A report of either of two processes that names a stream without a folder is acknowledged first. Both forget the
/// stream. Otherwise the other process would name it in its reports for as long as it lives.
#[test]
fn a_lost_folder_that_two_processes_name_is_forgotten_by_both() {
    let dir = tempfile::tempdir().unwrap();
    let streams = dir.path().join(folder::STREAMS);
    files::create_private_dir(&streams).unwrap();
    let lost = StreamDir::begin(&streams, random_stream()).unwrap();
    let ended = lost.ended_stream();
    assert!(unnamed::add(&streams, ended));
    // This is the state after a kill before the folder's removal.
    drop(lost);
    let open = || next_process(dir.path());
    let (mut both, found) = open();
    assert_eq!(found.ended, [ended], "named once");
    both.retire_ended(|_| false);
    assert_eq!(both.n_to_name(), 0);
    assert!(unnamed::add(&streams, ended));
    let processes = [open(), open()];
    for (mut spool, found) in processes {
        assert_eq!((found.ended, spool.n_to_name()), (vec![ended], 1));
        spool.retire_ended(|_| false);
        assert_eq!(spool.n_to_name(), 0);
    }
    assert!(!streams.join("unnamed").exists());
}

#[test]
fn after_a_power_cut_the_last_sequence_is_no_older_than_the_reports() {
    let (dir, stream, mut spool) = opened(Limits::default());
    let state = dir
        .path()
        .join(folder::STREAMS)
        .join(stream.to_string())
        .join("state");
    let old = fs::read(&state).unwrap();
    append(&mut spool, stream, 1..=3);
    drop(spool);
    fs::write(&state, old).unwrap();
    let (_, found) = next_process(dir.path());
    assert_eq!(found.ended[0].last_sequence, Some(3));
}

/// A kill during the deletion of a stream's folder must not bring the stream back without reports.
#[test]
fn a_folder_that_was_being_deleted_is_no_stream() {
    let (dir, stream, mut spool) = opened(Limits::default());
    append(&mut spool, stream, 1..=2);
    let half = spool.own.set_aside();
    fs::remove_file(half.join("state")).unwrap();

    // A reader deletes nothing, because it may not hold the lock.
    assert_eq!(runs_left(dir.path()), 0);
    assert!(half.exists());
    let (_, found) = next_process(dir.path());
    assert_eq!(found.ended, []);
    assert!(!half.exists());
}

#[test]
fn a_request_takes_the_reports_that_fit_and_at_least_one() {
    let (_dir, stream, mut spool) = opened(Limits::default());
    append(&mut spool, stream, 1..=10);
    let length = sealed(stream, 1, 100).bytes.len() as u64;
    assert_eq!(spool.pending(3 * length).reports.len(), 3);
    assert_eq!(spool.pending(1).reports.len(), 1);
}

#[test]
fn a_report_that_rots_on_disk_is_given_up_and_counted() {
    let (dir, stream, mut spool) = opened(Limits::default());
    append(&mut spool, stream, 1..=2);
    let segment = dir
        .path()
        .join("streams")
        .join(stream.to_string())
        .join("0000000000000001.seg");
    let mut bytes = fs::read(&segment).unwrap();
    bytes[30] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let pending = spool.pending(u64::MAX);
    assert_eq!(pending.reports.len(), 1);
    let expected = Loss {
        reason: DropReason::SpoolCorrupt,
        reports: 1,
        runs: 10,
    };
    assert_eq!(pending.losses, [expected]);
}

/// Acts as if the app had too many open files: a file that cannot be opened is neither lost nor corrupt.
#[test]
fn a_report_that_cannot_be_read_now_waits() {
    let (dir, stream, mut spool) = opened(limits(1 << 20, 100));
    append(&mut spool, stream, 1..=3);
    let own = dir.path().join(folder::STREAMS).join(stream.to_string());
    let segment = own.join("0000000000000002.seg");
    let away = own.join("away");
    fs::rename(&segment, &away).unwrap();
    // A folder in place of the file can be opened, but not read.
    fs::create_dir(&segment).unwrap();
    let pending = spool.pending(u64::MAX);
    let got: Vec<_> = pending.reports.iter().map(|(key, _)| *key).collect();
    assert_eq!(got, [key(stream, 1), key(stream, 3)]);
    assert_eq!(pending.losses, []);
    let error = pending.error.unwrap().to_string();
    assert!(error.contains("read report 2"), "{error}");

    fs::remove_dir(&segment).unwrap();
    fs::rename(&away, &segment).unwrap();
    assert_eq!(sequences(&mut spool), [1, 2, 3]);
}

/// On a full disk or in a missing folder the error names the report, and earlier ones stay readable.
#[test]
fn a_folder_that_vanishes_is_an_error_and_not_a_panic() {
    let (dir, stream, mut spool) = opened(Limits::default());
    fs::remove_dir_all(dir.path().join("streams")).unwrap();
    let error = spool.append(&sealed(stream, 1, 10), now(WALL)).unwrap_err();
    assert!(error.to_string().contains("report 1"), "{error}");
    assert!(spool.pending(u64::MAX).reports.is_empty());
    assert!(spool.enforce(now(WALL)).is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    /// Compares the spool with a set as its model, after appends, acks, kills and torn tails in any order. Exactly the
    /// stored and not acknowledged reports are returned, in order and with their bytes.
    #[test]
    fn every_kept_report_comes_back_until_it_is_acked(
        steps in prop::collection::vec((0_u8..4, any::<prop::sample::Index>()), 1..40),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut stream = random_stream();
        let (mut spool, _) = Spool::open(dir.path(), stream, limits(1 << 20, 400)).unwrap();
        let mut next = 1;
        let mut kept: Vec<ReportKey> = Vec::new();
        let mut acked: BTreeSet<ReportKey> = BTreeSet::new();
        for (step, at) in steps {
            match step {
                0 | 1 => {
                    append(&mut spool, stream, next..=next);
                    kept.push(key(stream, next));
                    next += 1;
                }
                2 if !kept.is_empty() => {
                    let key = kept.remove(at.index(kept.len()));
                    spool.finish(&key);
                    acked.insert(key);
                }
                _ => {
                    drop(spool);
                    let own = dir.path().join("streams").join(stream.to_string());
                    let torn = own.join(format!("{next:016}.seg"));
                    fs::write(torn, &b"EPWSPL1\n\x40\0\0\0rest of a torn record"[..8 + at.index(9)])
                        .unwrap();
                    stream = random_stream();
                    let opened = Spool::open(dir.path(), stream, limits(1 << 20, 400)).unwrap();
                    spool = opened.0;
                    next = 1;
                }
            }
            let Pending { reports, losses, .. } = spool.pending(u64::MAX);
            prop_assert!(losses.is_empty());
            // Only a report whose ack was lost by a kill may come again.
            let got: Vec<_> = reports.iter().map(|(key, _)| *key).collect();
            prop_assert!(got.iter().all(|k| kept.contains(k) || acked.contains(k)));
            prop_assert!(kept.iter().all(|k| got.contains(k)));
            for (key, bytes) in reports {
                let expected = sealed(key.stream, key.sequence.get(), 100);
                prop_assert_eq!(bytes, expected.bytes);
            }
        }
    }
}

/// Role of the child below: writes reports until it is killed, and prints which reports are on disk.
fn write_until_killed(dir: &Path) {
    use std::io::Write;
    let stream = random_stream();
    let (mut spool, _) = Spool::open(dir, stream, limits(1 << 30, 4_000)).unwrap();
    let mut out = std::io::stdout();
    for sequence in 1.. {
        append(&mut spool, stream, [sequence]);
        writeln!(out, "kept {stream} {sequence}").unwrap();
        out.flush().unwrap();
    }
}

const CHILD_DIR: &str = "EPWATCH_TEST_SPOOL_DIR";

#[test]
fn a_killed_process_loses_nothing_it_had_kept() {
    if let Some(dir) = std::env::var_os(CHILD_DIR) {
        return write_until_killed(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let mut kept = BTreeSet::new();
    for round in 0..10 {
        kept.extend(kill_a_writer(dir.path(), 20 + 7 * round));
    }
    let (mut spool, found) = next_process(dir.path());
    assert_eq!(found.ended.len(), 10);
    // A kill during a write tears at most that record.
    assert!(
        found.losses.iter().all(|l| l.reports == 1),
        "{:?}",
        found.losses
    );
    let pending = spool.pending(u64::MAX);
    assert!(pending.losses.is_empty());
    let got: BTreeSet<_> = pending
        .reports
        .iter()
        .map(|(key, _)| (key.stream, key.sequence.get()))
        .collect();
    let missing: Vec<_> = kept.difference(&got).collect();
    assert!(missing.is_empty(), "{missing:?}");
    for ended in found.ended {
        let last = got
            .iter()
            .filter(|(stream, _)| *stream == ended.stream)
            .count();
        let named = usize::try_from(ended.last_sequence.unwrap()).unwrap();
        assert!(named == last || named == last + 1, "{named} {last}");
    }
}

/// Kills a child after it has stored this many reports; returns the reports that it printed.
fn kill_a_writer(dir: &Path, n_kept: usize) -> Vec<(StreamId, u64)> {
    use std::io::{BufRead, BufReader};
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "spool::tests::a_killed_process_loses_nothing_it_had_kept",
        ])
        .arg("--nocapture")
        .env(CHILD_DIR, dir)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let mut kept = Vec::new();
    for line in out.lines() {
        let line = line.unwrap();
        // The test harness prints other lines first.
        let Some((_, report)) = line.split_once("kept ") else {
            continue;
        };
        let (stream, sequence) = report.split_once(' ').unwrap();
        let stream = StreamId(u64::from_str_radix(stream, 16).unwrap());
        kept.push((stream, sequence.parse().unwrap()));
        if kept.len() == n_kept {
            // This sends SIGKILL. Lines that the child printed before are still read.
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    assert!(kept.len() >= n_kept);
    kept
}
