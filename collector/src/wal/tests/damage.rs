//! Damaged, unreadable and missing bytes of segments.

use proptest::prelude::*;

use super::*;

proptest! {
    /// One damaged byte costs at most the record that contains it, and no read loops.
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
        let len = storage.disk().files[name].lock().cached.len();
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

/// A name far beyond the WAL's end would move the end there.
#[test]
fn a_stray_file_with_a_segment_s_name_changes_nothing() {
    let storage = FaultyStorage::default();
    let (log, _, _) = open_log(&storage);
    append_each(&log, 10);
    let (end, whole) = (log.end(), payloads(&log, WalOffset(0)));
    drop(log);
    let copied = storage.disk().files[&segment::file_name(0)].lock().clone();
    for (base, content) in [
        (u64::MAX, Vec::new()),
        (u64::MAX >> 2, vec![7; 300]),
        (100_000, Vec::new()),
        (end / 2 + 1, vec![0; 64]),
        (end + 40, copied.cached),
    ] {
        let name = segment::file_name(base);
        storage
            .create(&name)
            .unwrap()
            .write_at(0, &content)
            .unwrap();
        let (log, recovery, _) = open_log(&storage);
        assert_eq!(recovery.stray_files, u64::from(base != u64::MAX), "{name}");
        assert_eq!(log.end(), end, "{name}");
        assert_eq!(payloads(&log, WalOffset(0)), whole, "{name}");
    }
}

/// The last record's write is torn, cut or flipped at any byte. The records before it stay, no other record appears,
/// and the WAL goes on after them.
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
                let mut content = content.lock();
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
    storage.disk().files[&name].lock().unreadable_at = Some(10_000);
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
    append_each(&log, 12);
    let lost: Vec<String> = storage
        .list()
        .unwrap()
        .into_iter()
        .filter(|n| segment::base_of(n).is_some())
        .take(2)
        .collect();
    // The first segment is missing, so that there is none where reading begins, and the second too.
    for name in &lost {
        storage.remove(name).unwrap();
    }
    let (log, _, _) = open_log(&storage);
    let (found, skipped) = read_all(&log, WalOffset(0));
    assert_eq!(found.len(), 4);
    assert_eq!(skipped, 8 * frame::frame_bytes(100) as u64);
}
