//! Entries made by tiny local fetches, and the ways in which `ensure` can fail.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::{
    EngineError,
    cache::Say,
    entry::{self, EntryRecord, EntryState, Staging},
    lock,
    pins::{Pin, Plan, Source},
    transfer,
};

/// sha256 of `hello\n`, from sha256sum.
const HELLO: &str = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";

fn plan() -> Plan {
    Plan {
        name: "tiny-1".to_owned(),
        version: "1",
        source: Source::Npm { package: "tiny" },
        pins: vec![Pin {
            path: "lib/a.so",
            sha256: Some(HELLO),
        }],
        purpose: "a test",
        download_bytes: 6,
        is_unpinned_allowed: false,
    }
}

fn put(path: PathBuf, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn good_fetch(staging: &Staging<'_>, _: &mut Say<'_>) -> Result<(), EngineError> {
    put(staging.out.join("lib/a.so"), b"hello\n");
    put(staging.out.join("LICENSE"), b"do as you like");
    Ok(())
}

fn no_fetch(_: &Staging<'_>, _: &mut Say<'_>) -> Result<(), EngineError> {
    panic!("the entry is whole, nothing may be fetched");
}

fn ensure(cache: &Path, fetch: &mut entry::Fetch<'_>) -> Result<EntryRecord, EngineError> {
    entry::ensure(cache, &plan(), fetch, &mut |_| ())
}

/// Entries of the cache without the lock file.
fn entries(cache: &Path) -> Vec<String> {
    let names = fs::read_dir(cache).unwrap().map(|e| e.unwrap().file_name());
    names
        .map(|n| n.into_string().unwrap())
        .filter(|n| !n.ends_with(".lock"))
        .collect()
}

#[test]
fn fetched_entry_is_used_again_without_fetching() {
    let cache = tempfile::tempdir().unwrap();
    // The folder itself may be missing too.
    let cache = cache.path().join("deep/er");
    let mut lines = Vec::new();
    let mut say = |line: &str| lines.push(line.to_owned());
    let first = entry::ensure(&cache, &plan(), &mut good_fetch, &mut say).unwrap();
    assert_eq!(first.files["lib/a.so"].bytes, 6);
    assert_eq!((first.files.len(), first.bytes()), (2, 20));
    let ready = format!("ready tiny-1: {}", cache.join("tiny-1").display());
    let expected = ["verified tiny-1: 2 files, 1 MB", &ready];
    assert_eq!(lines, expected);

    assert_eq!(ensure(&cache, &mut no_fetch).unwrap(), first);
    entry::verify(&cache, &plan()).unwrap();
    assert_eq!(entries(&cache), ["tiny-1"]);
}

#[test]
fn wrong_hash_never_becomes_an_entry() {
    let cache = tempfile::tempdir().unwrap();
    let mut evil = |staging: &Staging<'_>, _: &mut Say<'_>| {
        put(staging.out.join("lib/a.so"), b"hellO\n");
        Ok(())
    };
    let error = ensure(cache.path(), &mut evil).unwrap_err();
    assert!(matches!(&error, EngineError::HashMismatch { expected, .. } if expected == HELLO));
    assert_eq!(entries(cache.path()), [""; 0]);
    ensure(cache.path(), &mut good_fetch).unwrap();
}

/// An unpinned library would be loaded next to the pinned one.
#[test]
fn a_library_without_a_pin_never_becomes_an_entry() {
    let cache = tempfile::tempdir().unwrap();
    let mut evil = |staging: &Staging<'_>, say: &mut Say<'_>| {
        put(staging.out.join("lib/libb.so.1"), b"evil");
        good_fetch(staging, say)
    };
    let error = ensure(cache.path(), &mut evil).unwrap_err();
    assert!(matches!(&error, EngineError::UnknownLibrary { file, .. } if file == "lib/libb.so.1"));
    assert_eq!(entries(cache.path()), [""; 0]);
}

#[test]
fn an_engine_without_a_pin_is_taken_only_when_the_user_says_so() {
    let cache = tempfile::tempdir().unwrap();
    let mut plan = plan();
    plan.pins[0].sha256 = None;
    let take = |plan: &Plan, fetch: &mut entry::Fetch<'_>| {
        entry::ensure(cache.path(), plan, fetch, &mut |_| ())
    };
    let error = take(&plan, &mut no_fetch).unwrap_err();
    assert!(matches!(error, EngineError::NotPinned { .. }), "{error}");
    assert!(error.to_string().contains("--unpinned"), "{error}");
    plan.is_unpinned_allowed = true;
    assert!(take(&plan, &mut good_fetch).unwrap().unpinned);
    // The choice is recorded: later uses accept the entry and report it as unpinned.
    plan.is_unpinned_allowed = false;
    assert!(take(&plan, &mut no_fetch).unwrap().unpinned);
    match entry::entry_state(cache.path(), &plan) {
        EntryState::Good(record) => assert!(record.unpinned),
        other => panic!("{other:?}"),
    }
}

#[test]
fn package_without_the_library_is_refused() {
    let cache = tempfile::tempdir().unwrap();
    let mut empty = |_: &Staging<'_>, _: &mut Say<'_>| Ok(());
    let error = ensure(cache.path(), &mut empty).unwrap_err();
    assert!(matches!(&error, EngineError::FileMissing { file, .. } if file == "lib/a.so"));
    assert_eq!(entries(cache.path()), [""; 0]);
}

#[test]
fn failed_fetch_leaves_nothing_behind() {
    let cache = tempfile::tempdir().unwrap();
    let mut offline = |staging: &Staging<'_>, _: &mut Say<'_>| {
        put(staging.out.join("lib/a.so"), b"hel");
        Err(EngineError::NoCacheFolder)
    };
    ensure(cache.path(), &mut offline).unwrap_err();
    assert_eq!(entries(cache.path()), [""; 0]);
    assert_eq!(
        entry::entry_state(cache.path(), &plan()),
        EntryState::Missing
    );
}

/// Damages a whole entry with `damage`; a use must see it and fetch again.
#[track_caller]
fn check_refetched(damage: impl FnOnce(&Path), expected_reason: &str) {
    let cache = tempfile::tempdir().unwrap();
    ensure(cache.path(), &mut good_fetch).unwrap();
    damage(&cache.path().join("tiny-1"));
    match entry::entry_state(cache.path(), &plan()) {
        EntryState::Damaged(reason) => assert!(reason.contains(expected_reason), "{reason}"),
        other => panic!("{other:?}"),
    }
    ensure(cache.path(), &mut good_fetch).unwrap();
    entry::verify(cache.path(), &plan()).unwrap();
    assert_eq!(entries(cache.path()), ["tiny-1"]);
}

#[test]
fn torn_library_is_fetched_again() {
    check_refetched(
        |dir| fs::write(dir.join("lib/a.so"), "hel").unwrap(),
        "has 3 bytes, not 6",
    );
}

#[test]
fn deleted_library_is_fetched_again() {
    check_refetched(
        |dir| fs::remove_file(dir.join("lib/a.so")).unwrap(),
        "lib/a.so",
    );
}

#[test]
fn entry_without_its_record_is_fetched_again() {
    check_refetched(
        |dir| fs::remove_file(dir.join("engine.json")).unwrap(),
        "engine.json",
    );
}

#[test]
fn record_of_another_build_is_fetched_again() {
    let other = |dir: &Path| {
        let record = fs::read_to_string(dir.join("engine.json")).unwrap();
        fs::write(
            dir.join("engine.json"),
            record.replace(HELLO, &"0".repeat(64)),
        )
        .unwrap();
    };
    check_refetched(other, "lib/a.so is another build");
}

#[test]
fn record_that_points_outside_its_entry_is_not_followed() {
    let outside = |dir: &Path| {
        let record = fs::read_to_string(dir.join("engine.json")).unwrap();
        fs::write(
            dir.join("engine.json"),
            record.replace("LICENSE", "../../LICENSE"),
        )
        .unwrap();
    };
    check_refetched(outside, "leaves the entry");
}

/// Sizes do not reveal this change; only `verify` finds it.
#[test]
fn verify_finds_a_change_that_keeps_the_size() {
    let cache = tempfile::tempdir().unwrap();
    ensure(cache.path(), &mut good_fetch).unwrap();
    fs::write(cache.path().join("tiny-1/lib/a.so"), "hellO\n").unwrap();
    let error = entry::verify(cache.path(), &plan()).unwrap_err();
    assert!(matches!(&error, EngineError::HashMismatch { file, .. } if file == "lib/a.so"));
}

#[test]
fn staging_folder_of_a_killed_fetch_is_cleared() {
    let cache = tempfile::tempdir().unwrap();
    put(
        cache.path().join(".tiny-1.staging-dead/out/lib/a.so"),
        b"hel",
    );
    put(
        cache.path().join(".tiny-12.staging-live/out/lib/a.so"),
        b"hel",
    );
    ensure(cache.path(), &mut good_fetch).unwrap();
    let mut left = entries(cache.path());
    left.sort();
    assert_eq!(left, [".tiny-12.staging-live", "tiny-1"]);
}

#[test]
fn many_at_once_fetch_once() {
    const N: usize = 8;
    let cache = tempfile::tempdir().unwrap();
    let (fetches, start) = (AtomicUsize::new(0), Barrier::new(N));
    std::thread::scope(|scope| {
        for _ in 0..N {
            scope.spawn(|| {
                let mut fetch = |staging: &Staging<'_>, say: &mut Say<'_>| {
                    fetches.fetch_add(1, Ordering::Relaxed);
                    good_fetch(staging, say)
                };
                start.wait();
                ensure(cache.path(), &mut fetch).unwrap();
            });
        }
    });
    assert_eq!(fetches.load(Ordering::Relaxed), 1);
}

#[test]
fn wait_for_a_stuck_holder_ends_with_the_way_out() {
    let cache = tempfile::tempdir().unwrap();
    let _held = lock::lock(cache.path(), "tiny-1", Duration::ZERO, &mut |_| ()).unwrap();
    let error = lock::lock(cache.path(), "tiny-1", Duration::ZERO, &mut |_| ()).unwrap_err();
    assert!(
        matches!(error, EngineError::LockTimeout { .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("EPWATCH_CACHE"), "{error}");
}

/// The lock works across processes. The holder is util-linux's `flock`, which is killed.
#[cfg(target_os = "linux")]
#[test]
fn waiter_says_so_and_goes_on_when_the_holder_is_killed() {
    use std::{
        io::{BufRead, BufReader},
        process::{Command, Stdio},
    };
    let cache = tempfile::tempdir().unwrap();
    let mut holder = Command::new("flock")
        .arg("--no-fork")
        .arg(cache.path().join(".tiny-1.lock"))
        .args(["sh", "-c", "echo held; exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "held\n");

    let mut waited = 0;
    let lock = cache.path().join(".tiny-1.lock");
    entry::ensure(cache.path(), &plan(), &mut good_fetch, &mut |line| {
        if line.contains("waiting") {
            assert!(
                line.ends_with(&format!("waiting ({})", lock.display())),
                "{line}"
            );
            waited += 1;
            holder.kill().unwrap();
        }
    })
    .unwrap();
    holder.wait().unwrap();
    assert_eq!(waited, 1);
}

/// A machine without internet imports an engine that another machine fetched, and verifies it itself.
#[test]
fn an_exported_engine_is_imported_as_it_was() {
    let (there, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = there.path().join("engines.tar.gz");
    let export = || transfer::export(there.path(), &[plan()], &file);
    let mut lines = Vec::new();
    let mut say = |line: &str| lines.push(line.to_owned());
    let error = export().unwrap_err().to_string();
    assert!(error.contains("engines fetch"), "{error}");
    let fetched = ensure(there.path(), &mut good_fetch).unwrap();
    export().unwrap();
    let imported = transfer::import(here.path(), &[plan()], &file, &mut say);
    assert_eq!(imported.unwrap(), ["tiny-1"]);
    let first = format!("importing tiny-1 from {}", file.display());
    assert_eq!(lines[0], first, "{lines:?}");
    assert_eq!(ensure(here.path(), &mut no_fetch).unwrap(), fetched);
    assert_eq!(entries(here.path()), ["tiny-1"]);
}

#[test]
fn an_archive_with_another_build_or_without_one_is_refused() {
    let (there, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = there.path().join("engines.tar");
    ensure(there.path(), &mut good_fetch).unwrap();
    transfer::export(there.path(), &[plan()], &file).unwrap();
    let import = |plan: Plan| transfer::import(here.path(), &[plan], &file, &mut |_| ());
    let other_name = Plan {
        name: "tiny-2".to_owned(),
        ..plan()
    };
    let error = import(other_name).unwrap_err().to_string();
    assert!(error.contains("none of tiny-2"), "{error}");
    let mut other_build = plan();
    other_build.pins[0].sha256 = Some("0");
    let error = import(other_build).unwrap_err();
    assert!(matches!(error, EngineError::HashMismatch { .. }), "{error}");
    fs::write(&file, "no archive").unwrap();
    let error = import(plan()).unwrap_err().to_string();
    assert!(error.contains("archive is whole"), "{error}");
    assert_eq!(entries(here.path()), [""; 0]);
}
