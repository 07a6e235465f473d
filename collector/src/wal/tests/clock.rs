//! Receive times while the clock is wrong, and after.

use std::sync::atomic::{AtomicU64, Ordering};

use epwatch_server::{Clock, ManualClock};

use super::*;

/// A wall clock and the time since the boot.
#[derive(Debug, Default)]
struct BothClocks {
    wall_us: AtomicU64,
    steady_us: AtomicU64,
}

impl BothClocks {
    fn set_hours(&self, wall: u64, steady: u64) {
        const HOUR_US: u64 = 3_600_000_000;
        self.wall_us.store(wall * HOUR_US, Ordering::SeqCst);
        self.steady_us.store(steady * HOUR_US, Ordering::SeqCst);
    }
}

impl Clock for BothClocks {
    fn now_us(&self) -> u64 {
        self.wall_us.load(Ordering::SeqCst)
    }

    fn steady_us(&self) -> Option<u64> {
        Some(self.steady_us.load(Ordering::SeqCst))
    }
}

#[tokio::test]
async fn nothing_is_stamped_after_the_clock_jumped_ahead() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(BothClocks::default());
    clock.set_hours(1_000, 1);
    let mut options = options(dir.path());
    options.clock = clock.clone();
    let wal = Wal::open(&options).unwrap().wal;
    wal.append(batch(b"one")).await.unwrap();
    let (before_us, _) = wal.watermark();

    clock.set_hours(9_000, 1);
    let error = wal.append(batch(b"two")).await.unwrap_err();
    assert!(matches!(error, WalError::ClockJumped { .. }), "{error}");
    assert_eq!(wal.watermark().0, before_us);
    assert!(
        wal.downgrade()
            .stats()
            .unwrap()
            .1
            .unwrap()
            .contains("clock jumped")
    );

    clock.set_hours(1_002, 3);
    wal.append(batch(b"three")).await.unwrap();
    assert_eq!(wal.downgrade().stats().unwrap().1, None);
    assert_eq!(wal.watermark().0, 1_002 * 3_600_000_000);
    wal.close();
    drop(wal);

    // A restart trusts the clock.
    clock.set_hours(9_000, 3);
    let wal = Wal::open(&options).unwrap().wal;
    wal.append(batch(b"four")).await.unwrap();
    assert_eq!(wal.watermark().0, 9_000 * 3_600_000_000);
    wal.close();
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

    // The same after a restart, while the clock is still behind.
    let wal = Wal::open(&options).unwrap().wal;
    assert_eq!(wal.watermark().0, 2_000);
    assert_eq!(wal.stats().ahead_us, 1_500);
    clock.set_us(2_001);
    assert_eq!(wal.stats().ahead_us, 0);
}

/// The procedure of `docs/repair.md` after a wrong clock.
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
        "offsets start over under another id"
    );
}
