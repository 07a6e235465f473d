use std::time::Duration;

use epwatch_proto::event_time::{self, EndClock};
use epwatch_proto::{Report, SendClock};

use super::*;
use crate::encode::Encoder;
use crate::encode::tests::{FULL, logged};

const AT: (&str, &str) = ("app", "production");

const LIMITS: [usize; 4] = [2, 3, 0, 1];

/// A sender with a key, of whom nothing else is known.
fn on(day: i64) -> Sender {
    Sender {
        day,
        offset: 7,
        device: [0; 16],
        mark: SenderMark::default(),
    }
}

/// A device with a public key. Each network lies in a wide network of its own.
fn public(day: i64, device: u8, network: u32) -> Sender {
    Sender {
        device: [device; 16],
        mark: SenderMark {
            network: [network, network],
            ..SenderMark::default()
        },
        ..on(day)
    }
}

#[test]
fn names_beyond_the_limit_stay_out_by_app_and_fourteen_days() {
    let dir = tempfile::tempdir().unwrap();
    let mut guard = CardinalityLimiter::open(dir.path(), LIMITS).unwrap();
    let mut keeps = |day, at, of, name: &str| guard.keeps(&on(day), at, of, name);
    assert!(keeps(1, AT, Dimension::Model, "a"));
    assert!(keeps(1, AT, Dimension::Model, "b"));
    assert!(!keeps(1, AT, Dimension::Model, "c"));
    assert!(keeps(1, AT, Dimension::Model, "a"), "known ones go on");
    assert!(keeps(1, AT, Dimension::Model, OTHER));
    assert!(keeps(1, ("app", "staging"), Dimension::Model, "c"));
    assert!(keeps(1, ("other", "production"), Dimension::Model, "c"));
    assert!(
        !keeps(2, AT, Dimension::Model, "c"),
        "a new day has no new places"
    );
    assert!(keeps(10, AT, Dimension::Model, "b"));
    guard.begin_batch(7);
    let mut keeps = |day, at, of, name: &str| guard.keeps(&on(day), at, of, name);
    assert!(
        keeps(16, AT, Dimension::Model, "c"),
        "`a` was not heard of in 14 days"
    );
    assert!(!keeps(16, AT, Dimension::Model, "a"));
    assert!(keeps(16, AT, Dimension::Model, "b"));
    assert!((0..1_000).all(|n| keeps(1, AT, Dimension::Chipset, &n.to_string())));
}

/// After a crash a new limiter reads the file and decides the batch again, from its start.
#[test]
fn a_batch_that_is_looked_at_again_is_decided_as_before() {
    let dir = tempfile::tempdir().unwrap();
    let names = ["a", "b", "c", "d", "b", "c", "line\nbreak", "a"];
    let decide = |guard: &mut CardinalityLimiter| {
        let decided = names.map(|name| guard.keeps(&on(7), AT, Dimension::Version, name));
        guard.save().unwrap();
        decided
    };
    let mut guard = CardinalityLimiter::open(dir.path(), LIMITS).unwrap();
    let first = decide(&mut guard);
    assert_eq!(first, [true, true, true, false, true, true, false, true]);
    drop(guard);
    // A torn line at the end.
    let mut file = OpenOptions::new()
        .append(true)
        .open(dir.path().join(FILE))
        .unwrap();
    file.write_all(b"[7,\"app\",\"prod").unwrap();
    let mut again = CardinalityLimiter::open(dir.path(), LIMITS).unwrap();
    assert_eq!(decide(&mut again), first);
    let mut once_more = CardinalityLimiter::open(dir.path(), LIMITS).unwrap();
    assert_eq!(decide(&mut once_more), first);
}

/// Votes of a day are counted in memory only, so the process after a crash has all of them again. It may not spend them
/// on the batch that the process before it decided and may have inserted.
#[test]
fn a_batch_that_is_inserted_again_after_a_crash_admits_no_further_name() {
    let dir = tempfile::tempdir().unwrap();
    let mut guard = CardinalityLimiter::open(dir.path(), [1_000; 4]).unwrap();
    let of = Dimension::Version;
    let sender = |offset, narrow| Sender {
        offset,
        mark: SenderMark {
            network: [narrow, 1],
            ..SenderMark::default()
        },
        ..on(7)
    };
    // One wide network spends its votes of the day in an earlier batch.
    guard.begin_batch(10);
    for n in 0..u32::from(VOTES_OF_NETWORK) {
        let name = format!("spent {n}");
        assert!(guard.keeps(&sender(10 + u64::from(n), 100 + n), AT, of, &name));
    }
    guard.end_batch(30);
    guard.save().unwrap();
    let batch = |guard: &mut CardinalityLimiter| {
        guard.begin_batch(30);
        let named = (30..33).map(|offset| guard.keeps(&sender(offset, 7), AT, of, "late"));
        let named: Vec<bool> = named.collect();
        guard.end_batch(33);
        guard.save().unwrap();
        named
    };
    let first = batch(&mut guard);
    assert_eq!(first, [false; 3]);
    drop(guard);

    let mut again = CardinalityLimiter::open(dir.path(), [1_000; 4]).unwrap();
    again.begin_wal(33, 33);
    assert_eq!(batch(&mut again), first);
    again.begin_batch(33);
    assert!(again.keeps(&sender(33, 7), AT, of, "late"));
}

/// The writer reads the next batch while a batch is inserted, and may have to insert the latter again.
#[test]
fn a_name_counts_for_no_record_that_was_decided_without_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut guard = CardinalityLimiter::open(dir.path(), [100; 4]).unwrap();
    let of = Dimension::Version;
    let sender = |offset, is_own| Sender {
        offset,
        mark: SenderMark {
            is_own,
            is_unproven: !is_own,
            network: [1, 1],
        },
        ..on(7)
    };
    // The records are in the order of the rows, which differs from their order in the WAL.
    let batches: [&[(u64, bool)]; 3] = [
        &[(3, false)],
        &[(12, false), (11, true), (10, true)],
        &[(20, true), (21, false)],
    ];
    let decide = |guard: &mut CardinalityLimiter| {
        let mut named = Vec::new();
        for (n, batch) in (0..).zip(batches) {
            guard.begin_batch(n * 10);
            let keeps = |(offset, is_own): &(u64, bool)| {
                guard.keeps(&sender(*offset, *is_own), AT, of, "new")
            };
            named.extend(batch.iter().map(keeps).collect::<Vec<bool>>());
            guard.end_batch(n * 10 + 10);
            guard.save().unwrap();
        }
        named
    };
    let first = decide(&mut guard);
    assert_eq!(first, [false, false, false, false, true, true]);
    assert_eq!(decide(&mut guard), first, "in the same process");
    let mut again = CardinalityLimiter::open(dir.path(), [100; 4]).unwrap();
    again.begin_wal(30, 30);
    assert_eq!(decide(&mut again), first, "after a crash");
    // The folder has a new WAL, whose offsets start at 0.
    let mut other = CardinalityLimiter::open(dir.path(), [100; 4]).unwrap();
    other.begin_wal(0, 0);
    assert!(other.keeps(&sender(0, false), AT, of, "new"));
}

fn admit(guard: &mut CardinalityLimiter, name: &str) -> io::Result<()> {
    guard.keeps(&on(7), AT, Dimension::Version, name);
    guard.save()
}

fn knows(guard: &CardinalityLimiter, name: &str) -> bool {
    guard.known(AT, Dimension::Version, name).is_some()
}

/// Each file call fails in each way, and the next process still knows each name whose batch may be stored.
#[test]
fn no_failing_call_loses_a_name_that_was_saved() {
    let n_faults = epwatch_io_faults::each_fault(
        1,
        || tempfile::tempdir().unwrap(),
        |dir| {
            let mut saved = Vec::new();
            for names in [["a", "b"], ["c", "d"]] {
                let Ok(mut guard) = CardinalityLimiter::open(dir.path(), [100; 4]) else {
                    break;
                };
                for name in names {
                    // The writer tries again before it goes on.
                    let is_saved = admit(&mut guard, name).is_ok() || guard.save().is_ok();
                    saved.extend(is_saved.then_some(name));
                }
            }
            (dir, saved)
        },
        |(dir, saved), fault, nth| {
            let guard = CardinalityLimiter::open(dir.path(), [100; 4]).unwrap();
            for name in saved {
                assert!(knows(&guard, name), "{name} after {fault:?} at call {nth}");
            }
        },
    );
    assert!(n_faults > 40, "{n_faults}");
}

#[test]
fn damage_of_the_file_costs_the_names_of_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let mut guard = CardinalityLimiter::open(dir.path(), [100; 4]).unwrap();
    let names = ["a", "b", "c"];
    let mut ends = Vec::new();
    for name in names {
        admit(&mut guard, name).unwrap();
        ends.push(fs::metadata(dir.path().join(FILE)).unwrap().len());
    }
    let path = dir.path().join(FILE);
    epwatch_io_faults::each_damage(&path, 1, |place, damage| {
        let guard = CardinalityLimiter::open(dir.path(), [100; 4]).unwrap();
        let mut start = 0;
        for (name, end) in names.iter().zip(&ends) {
            let end = usize::try_from(*end).unwrap();
            // A newline that is gone joins two lines.
            let is_hit = place.start < end && place.end + 1 > start;
            assert!(
                knows(&guard, name) || is_hit,
                "{name}, {damage} at {place:?}"
            );
            assert!(!is_hit || guard.n_names <= names.len());
            start = end;
        }
    });
}

#[test]
fn strangers_who_make_up_apps_and_days_find_no_end_of_room() {
    let dir = tempfile::tempdir().unwrap();
    let mut guard = CardinalityLimiter::open(dir.path(), LIMITS).unwrap();
    let n_in = (0..MAX_NAMES + 1_000)
        .filter(|n| guard.keeps(&on(1), (&n.to_string(), "x"), Dimension::Model, "m"))
        .count();
    assert_eq!(n_in, MAX_NAMES);
    for day in 0..100 {
        guard.keeps(&on(day), AT, Dimension::Model, "m");
    }
    assert_eq!((guard.n_names, guard.apps.len()), (1, 1));
}

/// One request floods names right after midnight; the names of earlier days stay.
#[test]
fn one_network_takes_no_names_away_and_brings_a_handful() {
    let dir = tempfile::tempdir().unwrap();
    let mut guard = CardinalityLimiter::open(dir.path(), [100; 4]).unwrap();
    let of = Dimension::Version;
    for n in 0..20 {
        assert!(guard.keeps(&on(1), AT, of, &format!("real {n}")));
    }
    let flood = |guard: &mut CardinalityLimiter, (day, network): (i64, u8), tag: &str| {
        let names = (0..600).map(|n| format!("made up {tag} {n}"));
        let sender = public(day, network, network.into());
        names
            .filter(|name| guard.keeps(&sender, AT, of, name))
            .count()
    };
    assert_eq!(flood(&mut guard, (2, 1), "one"), 5);
    assert!((0..20).all(|n| guard.keeps(&public(2, 9, 9), AT, of, &format!("real {n}"))));
    assert!(guard.keeps(&public(2, 10, 10), AT, of, "first phone on a desk"));
    // A restart forgets nothing.
    guard.save().unwrap();
    let mut guard = CardinalityLimiter::open(dir.path(), [100; 4]).unwrap();
    assert_eq!(flood(&mut guard, (2, 1), "two"), 0);
    // Twenty networks that agree on their names, for a week.
    for day in 3..10 {
        for network in 1..=20 {
            flood(&mut guard, (day, network), &day.to_string());
            guard.end_batch(7);
        }
    }
    let (release, mut named) = ("2.0.0", Vec::new());
    for device in 0..60 {
        let sender = public(9, 100 + device, 1_000 + u32::from(device));
        named.push(guard.keeps(&sender, AT, of, release));
        guard.end_batch(7);
    }
    assert!(named.iter().any(|named| *named), "{named:?}");
    assert!((0..20).all(|n| guard.keeps(&on(9), AT, of, &format!("real {n}"))));
    // A device of the operator's own adds a name at once; an unproven device adds none.
    let with = |is_own| Sender {
        mark: SenderMark {
            is_own,
            is_unproven: !is_own,
            network: [1, 1],
        },
        ..on(9)
    };
    assert!(guard.keeps(&with(true), AT, of, "of a robot"));
    assert!(!guard.keeps(&with(false), AT, of, "of nobody"));
}

/// One proven installation may report in any number of environments, if its key allows them.
#[test]
fn made_up_environments_take_no_room_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let mut guard = CardinalityLimiter::open(dir.path(), [100; 4]).unwrap();
    let of = Dimension::Version;
    for environment in (0..10_000).map(|n| format!("made up {n}")) {
        for network in 1..=20 {
            let sender = public(1, network, network.into());
            let name = format!("{environment} of {network}");
            guard.keeps(&sender, ("app", &environment), of, &name);
        }
    }
    assert!(guard.n_names <= 20 * 5, "{}", guard.n_names);
    assert!(guard.keeps(&public(1, 50, 50), AT, of, "2.0.0"));
    assert!(guard.keeps(&public(1, 51, 51), ("other", "x"), of, "1"));
}

/// A WAL in a new folder knows the names of the store, and so does the next process on it. This also holds if the file
/// could not be written at the first try.
#[test]
fn names_of_the_store_are_in_where_the_folder_has_none() {
    let dir = tempfile::tempdir().unwrap();
    let mut guard = CardinalityLimiter::open(dir.path(), LIMITS).unwrap();
    assert!(guard.is_empty());
    let names: Vec<StoredName> = ["most", "fewer", "fewest", "least"]
        .map(|name| (AT.0.to_owned(), AT.1.to_owned(), 1, name.to_owned(), 7))
        .into();
    guard
        .admit_stored(&dir.path().join("gone"), &names)
        .unwrap_err();
    assert!(guard.is_empty());
    guard.admit_stored(dir.path(), &names).unwrap();
    for mut guard in [guard, CardinalityLimiter::open(dir.path(), LIMITS).unwrap()] {
        assert!(!guard.is_empty());
        let mut keeps = |name| guard.keeps(&on(8), AT, Dimension::Version, name);
        assert!(keeps("most") && keeps("fewer") && keeps("fewest"));
        assert!(!keeps("least") && !keeps("new"), "the limit is 3");
    }
}

/// The records of the batch with the last vote that was needed keep `__other__`, also when the batch is inserted again.
#[test]
fn a_supported_name_counts_from_the_next_batch_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut guard = CardinalityLimiter::open(dir.path(), [4; 4]).unwrap();
    let of = Dimension::Model;
    for name in ["one", "two"] {
        assert!(guard.keeps(&public(1, 1, 1), AT, of, name));
    }
    let offset = |offset, device: u8| Sender {
        offset,
        ..public(1, device, device.into())
    };
    let batch = |guard: &mut CardinalityLimiter| {
        let named = (2..6)
            .map(|device| guard.keeps(&offset(10 + u64::from(device), device), AT, of, "new"));
        let named: Vec<bool> = named.collect();
        guard.end_batch(16);
        guard.save().unwrap();
        named
    };
    assert_eq!(batch(&mut guard), [false; 4]);
    let mut again = CardinalityLimiter::open(dir.path(), [4; 4]).unwrap();
    assert_eq!(batch(&mut again), [false; 4]);
    assert!(again.keeps(&offset(16, 7), AT, of, "new"));
}

/// The disk refuses the names once: the batch is encoded again, with its placements.
#[tokio::test]
async fn placements_of_a_batch_whose_names_were_not_saved_are_still_new() {
    let dir = tempfile::tempdir().unwrap();
    let records = logged(dir.path(), &[FULL.to_vec()]).await;
    let guard = CardinalityLimiter::open(dir.path(), LIMITS).unwrap();
    let mut encoder = Encoder::new(7, Duration::from_secs(3600), guard);
    // A file opened for reading refuses writes.
    let read_only = File::open(dir.path().join(FILE)).unwrap();
    let writable = encoder.names.file.replace(read_only);
    encoder.encode_and_persist_names(&records).unwrap_err();
    encoder.names.file = writable;
    for n_new in [1, 0] {
        let rows = encoder.encode_and_persist_names(&records).unwrap();
        assert_eq!(rows.placements.n_rows, n_new);
    }
}

/// A report with this name in every field that is limited.
fn named(name: &str) -> Stored {
    let mut report = Report::parse(FULL).unwrap();
    let sessions = report.sessions.iter_mut().map(|s| &mut s.model);
    let failures = report.start_failures.iter_mut().map(|f| &mut f.model);
    for model in sessions.chain(failures) {
        name.clone_into(&mut model.id);
        name.clone_into(&mut model.version);
    }
    for series in &mut report.series {
        name.clone_into(&mut series.stratum.shape_key);
    }
    let end = EndClock {
        wall_unix_ms: report.interval_end_unix_ms,
        uptime_ms: report.uptime_at_end_ms,
        boot_id: &report.boot_id,
    };
    Stored {
        collector_id: 7,
        wal_offset: 0,
        received_ms: 0,
        bucket: 0,
        occurred: event_time::estimate(0, &SendClock::default(), end),
        app_id: AT.0.to_owned(),
        environment: AT.1.to_owned(),
        mark: SenderMark::default(),
        chipset: name.to_owned(),
        session_chipsets: vec![name.to_owned(); report.sessions.len()],
        start_failure_chipsets: vec![name.to_owned(); report.start_failures.len()],
        content: 0,
        report,
    }
}

/// The names of a report in all its limited fields, by dimension.
fn names_of(stored: &Stored) -> [Vec<&str>; 4] {
    let report = &stored.report;
    let sessions = report.sessions.iter().map(|s| &s.model);
    let failures = report.start_failures.iter().map(|f| &f.model);
    let models: Vec<_> = sessions.chain(failures).collect();
    let shape_keys = report.series.iter().map(|s| s.stratum.shape_key.as_str());
    let of_cohorts = stored
        .session_chipsets
        .iter()
        .chain(&stored.start_failure_chipsets);
    let chipsets = std::iter::once(&stored.chipset).chain(of_cohorts);
    [
        models.iter().map(|model| model.id.as_str()).collect(),
        models.iter().map(|model| model.version.as_str()).collect(),
        chipsets.map(String::as_str).collect(),
        shape_keys.collect(),
    ]
}

/// Checks that a second report has the `expected` names if only `of` is limited, to one name.
#[track_caller]
fn check_replaced(of: Dimension, expected: [&str; 4]) {
    let mut guard = CardinalityLimiter::default();
    guard.limits[of as usize] = 1;
    let mut limited = Limited::default();
    let mut apply = |name| {
        let mut stored = named(name);
        guard.apply(&mut stored, &mut limited);
        stored
    };
    let first = apply("first");
    let then = apply("then");
    for names in names_of(&first) {
        assert!(!names.is_empty());
        assert!(names.iter().all(|name| *name == "first"), "{names:?}");
    }
    for (names, expected) in names_of(&then).iter().zip(expected) {
        assert!(
            names.iter().all(|name| name == &expected),
            "{of:?}: {names:?}"
        );
    }
    for other in Dimension::ALL {
        assert_eq!(
            limited[other as usize] > 0,
            other == of,
            "{of:?}: {other:?}"
        );
    }
}

#[test]
fn a_name_beyond_the_limit_is_replaced_wherever_it_stands() {
    check_replaced(Dimension::Model, [OTHER, OTHER, "then", "then"]);
    check_replaced(Dimension::Version, ["then", OTHER, "then", "then"]);
    check_replaced(Dimension::Chipset, ["then", "then", OTHER, "then"]);
    check_replaced(Dimension::ShapeKey, ["then", "then", "then", OTHER]);
}
