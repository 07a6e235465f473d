//! Space freed by a checkpoint: segments are removed or used again, and a full WAL accepts appends.

use super::*;

#[test]
fn segments_below_the_checkpoint_are_removed_and_used_again() {
    let storage = FaultyStorage::default();
    let (log, _, _) = open_log(&storage);
    log.prepare_spare().unwrap();
    append_each(&log, 40);
    let n_before = storage.list().unwrap().len();
    assert!(log.remove_below(log.end()).unwrap() >= 8);
    assert!(storage.list().unwrap().len() < n_before);
    assert!(!log.wants_spare(), "a removed segment is the next spare");
    let start = WalOffset(log.end());
    append_each(&log, 40);
    assert_eq!(
        payloads(&log, start).len(),
        40,
        "what a spare held before is not read"
    );
}

/// A rename that failed may have taken effect (even) or not (odd).
#[test]
fn a_segment_that_could_not_be_removed_is_held_and_tried_again() {
    for partial_bytes in [0, 1] {
        let storage = FaultyStorage::default();
        let (log, _, _) = open_log(&storage);
        append_each(&log, 40);
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
    append_each(&log, 40);
    storage.disk().opens_nothing = true;
    assert!(log.remove_below(log.end()).unwrap() >= 8);
    assert_eq!(n_segments(&storage), 1);
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
    append_once_accepted(&wal, &payload).await;
}

/// The previous process ended between its checkpoint and the removal. Nothing waits for the store, so
/// no checkpoint follows.
#[tokio::test]
async fn a_drained_log_is_not_full_after_a_restart() {
    let storage = FaultyStorage::default();
    let (log, _, _) = open_log(&storage);
    append_each(&log, 40);
    let held = log.held_bytes();
    let collector_id = load_or_make_id(&storage).unwrap();
    let drained = Checkpoint {
        offset: WalOffset(log.end()),
        ..Checkpoint::default()
    };
    checkpoint::save(&storage, &collector_id.0, &drained).unwrap();
    drop(log);
    let mut options = in_memory();
    (options.segment_bytes, options.max_bytes) = (SEGMENT_BYTES, held);
    // The first operation is the tail's sync; the first removal fails too.
    storage.fail_after(1, 1);
    let wal = open_in_memory(&storage, &options);
    append_once_accepted(&wal, b"report").await;
    assert!(wal.stats().held_bytes <= 2 * SEGMENT_BYTES);
}
