//! A full disk stops acks, not the process. No acknowledged report is lost, and acks go on once there is space. The
//! disk is a small file system in memory, mounted only for this test's child process.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use epwatch_collector::{Wal, WalOffset};
use epwatch_server::ByteSize;
use epwatch_store::StoreTarget;
use epwatch_test_support::until;
use tonic::{Code, Status};

use crate::log_lines;
use crate::support::{Device, TIMEOUT, config, connect, report, request, start_at};

/// Variables that are set for the child: the small disk, and how much of it must stay free.
const CHILD_DISK: &str = "EPWATCH_DISK_FULL_DIR";
const CHILD_MIN_FREE: &str = "EPWATCH_DISK_FULL_MIN_FREE";

/// Runs the child on a small disk. Without root, the kernel must allow user namespaces.
fn on_small_disk(min_free: u64) {
    const SCRIPT: &str = r#"mount -t tmpfs -o size=16m tmpfs "$0" && exec "$@""#;
    let dir = tempfile::tempdir().unwrap();
    let ended = epwatch_runtimes::with_own_mounts()
        .args(["sh", "-c", SCRIPT])
        .arg(dir.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "disk_full::child_entry", "--nocapture"])
        .env(CHILD_DISK, dir.path())
        .env(CHILD_MIN_FREE, min_free.to_string())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{text}\n{errors}");
    assert!(text.contains("acks went on"), "{text}\n{errors}");
}

#[test]
fn a_full_disk_stops_acks_until_there_is_space() {
    on_small_disk(0);
}

#[test]
fn a_disk_that_fills_up_stops_acks_before_it_is_full() {
    on_small_disk(6 << 20);
}

/// Not a test of its own: this runs in the child, on the small disk.
#[tokio::test(flavor = "multi_thread")]
async fn child_entry() {
    let Some(disk) = std::env::var_os(CHILD_DISK).map(PathBuf::from) else {
        return;
    };
    let min_free: u64 = std::env::var(CHILD_MIN_FREE).unwrap().parse().unwrap();
    log_lines::capture();
    let ballast = disk.join("ballast");
    // Leaves 6 MiB above the space that is kept free, enough for over 100 calls of some 50 KB. The WAL fills this up to
    // at most two segments, so removing the ballast makes space again.
    std::fs::write(&ballast, vec![1; 4 << 20]).unwrap();

    let wal = disk.join("wal");
    let mut config = config(&wal);
    // Segments of 256 KiB.
    config.wal.max_bytes = ByteSize(32 << 20);
    config.wal.min_free_bytes = ByteSize(min_free);
    let nobody = epwatch_store::client(&StoreTarget::unix(&disk.join("none.sock"), "epwatch"));
    let collector = start_at(config, nobody).await;
    let mut device = connect(&collector).await;
    let (n_acked, refusal) = fill(&mut device, 1).await;
    assert_eq!(refusal.code(), Code::ResourceExhausted, "{refusal}");
    assert!(refusal.metadata().contains_key("grpc-retry-pushback-ms"));
    assert!(n_acked > 100, "{n_acked}");

    std::fs::remove_file(&ballast).unwrap();
    let deadline = Instant::now() + TIMEOUT;
    while let Err(status) = upload(&mut device, n_acked + 1).await {
        assert!(Instant::now() < deadline, "acks never went on: {status}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    if min_free > 0 {
        // The log has one line for each change, with the action for the operator.
        let path = wal.display().to_string();
        let key = "collector.wal.min_free_bytes";
        let refuses: [&str; 4] = ["ERROR", "wal refuses reports", &path, key];
        let takes: [&str; 2] = ["wal takes reports again: its volume has space", &path];
        let has_one = |words: &[&str]| log_lines::lines(words).len() == 1;
        until("a line says that it refuses", async || has_one(&refuses)).await;
        until("a line says that it takes again", async || has_one(&takes)).await;
    }
    collector.stop().await;
    // Refused calls may be in the WAL too. A device sends them again, and dedup by key decides.
    assert!(n_records(&wal) >= (n_acked + 1) * 50);
    println!("acks went on");
}

/// Sends calls of 50 reports until one is refused; returns how many were acknowledged.
async fn fill(device: &mut Device, first: u64) -> (u64, Status) {
    for call in first.. {
        if let Err(status) = upload(device, call).await {
            return (call - first, status);
        }
    }
    unreachable!("the disk is small")
}

async fn upload(device: &mut Device, call: u64) -> Result<(), Status> {
    let reports: Vec<_> = (1..=50).map(|n| report(1, call, n)).collect();
    device.upload(request(&reports)).await.map(|_| ())
}

fn n_records(wal: &Path) -> u64 {
    let opened = Wal::open(&crate::wal_crash::options(wal)).unwrap();
    let all = opened
        .wal
        .read(WalOffset(0), WalOffset(u64::MAX), usize::MAX, usize::MAX);
    all.unwrap().records.len() as u64
}
