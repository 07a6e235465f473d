//! A disk that fills up, and a disk that is full.

use super::*;

#[tokio::test]
async fn a_full_disk_stops_acks_and_not_the_log() {
    let storage = FaultyStorage::default();
    let mut options = in_memory();
    // Larger than a spare's zeros on this disk, so that no spare can be made.
    options.segment_bytes = 1 << 10;
    let wal = open_in_memory(&storage, &options);
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
    assert!(!is_writable(&wal));

    storage.disk().is_full = false;
    // The WAL's probe finds the space even without appends.
    wait_until_writable(&wal).await;
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
    let mut options = in_memory();
    options.min_free_bytes = 1_000;
    storage.disk().free_bytes = 999;
    let wal = open_in_memory(&storage, &options);
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
    assert!(!is_writable(&wal));
    storage.disk().free_bytes = 1_000;
    wait_until_writable(&wal).await;
    wal.append(batch(b"report")).await.unwrap();
}
