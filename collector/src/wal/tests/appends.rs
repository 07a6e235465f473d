//! Appends over a real directory: groups, the lock, and the end of a WAL.

use std::collections::BTreeMap;

use super::*;

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

/// A call that a stop cut may hold the WAL for longer; the next collector starts meanwhile.
#[tokio::test]
async fn a_closed_log_is_free_for_the_next_process_while_handles_are_left() {
    let dir = tempfile::tempdir().unwrap();
    let wal = Wal::open(&options(dir.path())).unwrap().wal;
    wal.append(batch(b"kept")).await.unwrap();
    let left = wal.clone();
    let is_locked = || {
        matches!(
            Wal::open(&options(dir.path())),
            Err(WalError::Locked { .. })
        )
    };
    assert!(is_locked());
    wal.close();

    let next = Wal::open(&options(dir.path())).unwrap().wal;
    let refused = left.append(batch(b"late")).await;
    assert!(matches!(refused, Err(WalError::Closed)), "{refused:?}");
    let refused = left.save_checkpoint(&Checkpoint::default());
    assert!(matches!(refused, Err(WalError::Closed)), "{refused:?}");
    drop((wal, left));
    assert!(is_locked(), "the lock is the next one's");
    next.append(batch(b"next")).await.unwrap();
    let found = next.read(WalOffset(0), WalOffset(u64::MAX), 10, 1 << 20);
    let payloads = found.unwrap().records.into_iter().map(|one| one.payload);
    let expected: [&[u8]; 2] = [b"kept", b"next"];
    assert!(payloads.eq(expected));
}

/// A stop waits for appends under way and refuses later ones, so the end that it reports stays the end.
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

#[test]
fn payloads_that_fit_no_record_are_refused() {
    let error = Batch::default().push(&[b"", b""]).unwrap_err();
    assert!(matches!(error, WalError::PayloadSize { len: 0 }), "{error}");
    assert_eq!(error.retry(), Retry::Never);
}
