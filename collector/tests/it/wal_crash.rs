//! A process is killed while it appends, repeatedly, on one directory.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use epwatch_collector::{Batch, Wal, WalOffset, WalOptions};
use epwatch_server::{SystemClock, TaskSet};

/// Variables that are set for the child: the WAL's directory and the first number to append.
const CHILD_DIR: &str = "EPWATCH_WAL_CRASH_DIR";
const CHILD_FIRST: &str = "EPWATCH_WAL_CRASH_FIRST";
const LINE: &str = "acknowledged ";
const N_TASKS: u64 = 8;
const N_KILLS: u64 = 12;

/// Options without a limit on free disk space.
pub(crate) fn options(dir: &Path) -> WalOptions {
    WalOptions {
        gather: std::time::Duration::ZERO,
        min_free_bytes: 0,
        dir: dir.to_owned(),
        segment_bytes: 256 << 10,
        max_bytes: 1 << 30,
        max_in_flight_bytes: 1 << 20,
        clock: Arc::new(SystemClock),
        tasks: TaskSet::default(),
    }
}

/// A payload with the record's number, so that a torn record is noticed.
fn payload(number: u64) -> Vec<u8> {
    let len = 40 + usize::try_from(number * 7919 % 2000).unwrap();
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend((8..len).map(|at| u8::try_from((number + at as u64) % 251).unwrap()));
    bytes
}

/// Appends for ever. Each task counts up its own residue class and prints each acknowledged number.
async fn append_until_killed(dir: &Path, first: u64) {
    let wal = Wal::open(&options(dir)).unwrap().wal;
    let tasks = (0..N_TASKS).map(|task| {
        let wal = wal.clone();
        tokio::spawn(async move {
            for number in (first..).filter(|number| number % N_TASKS == task) {
                let mut batch = Batch::default();
                batch.push(&[&payload(number)]).unwrap();
                wal.append(batch).await.unwrap();
                println!("{LINE}{number}");
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

fn kill_in_the_middle(dir: &Path, first: u64, n_lines: usize) -> Vec<u64> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "wal_crash::acknowledged_records_survive_kills",
            "--nocapture",
        ])
        .env(CHILD_DIR, dir)
        .env(CHILD_FIRST, first.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut acknowledged = Vec::new();
    while acknowledged.len() < n_lines {
        let line = lines
            .next()
            .expect("the child runs until it is killed")
            .unwrap();
        acknowledged.extend(line.strip_prefix(LINE).map(|n| n.parse::<u64>().unwrap()));
    }
    child.kill().unwrap();
    // Numbers in lines printed before the kill are acknowledged too; the last line may be cut.
    for line in lines.map_while(Result::ok) {
        let number = line
            .strip_prefix(LINE)
            .and_then(|number| number.parse::<u64>().ok());
        acknowledged.extend(number.filter(|&n| line.len() == format!("{LINE}{n}").len()));
    }
    child.wait().unwrap();
    acknowledged
}

/// Every acknowledged record is in the WAL, complete, in the order in which its task appended it.
#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_records_survive_kills() {
    if let Some(dir) = std::env::var_os(CHILD_DIR) {
        let first = std::env::var(CHILD_FIRST).unwrap().parse().unwrap();
        return append_until_killed(Path::new(&dir), first).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = Vec::new();
    for round in 0..N_KILLS {
        // Rounds use different numbers, because a line may be lost with the process while its record is not.
        let first = round * 1_000_000;
        let n_lines = 50 + usize::try_from(round).unwrap() * 37;
        acknowledged.extend(kill_in_the_middle(dir.path(), first, n_lines));
    }

    let opened = Wal::open(&options(dir.path())).unwrap();
    let end = WalOffset(u64::MAX);
    let chunk = opened
        .wal
        .read(WalOffset(0), end, usize::MAX, usize::MAX)
        .unwrap();
    assert_eq!(chunk.skipped_bytes, 0);
    let mut numbers = Vec::new();
    for record in &chunk.records {
        let number = u64::from_le_bytes(record.payload[..8].try_into().unwrap());
        assert_eq!(
            record.payload[..],
            payload(number)[..],
            "record {number} is whole"
        );
        numbers.push(number);
    }
    for task in 0..N_TASKS {
        let of_task = numbers.iter().filter(|number| *number % N_TASKS == task);
        assert!(of_task.is_sorted(), "task {task} in order, nothing twice");
    }
    let found: std::collections::HashSet<u64> = numbers.iter().copied().collect();
    assert_eq!(found.len(), numbers.len(), "nothing twice");
    let lost: Vec<u64> = acknowledged
        .into_iter()
        .filter(|n| !found.contains(n))
        .collect();
    assert!(lost.is_empty(), "lost {lost:?}");
    assert!(numbers.len() >= 1000, "{} records", numbers.len());
}
