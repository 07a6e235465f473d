//! An app that is killed at random moments, repeatedly in one folder, with uploads under way.
//!
//! Reports on disk arrive once, and only runs that were not sealed are lost. A sequence is missing only if the kill
//! came between taking the sequence and writing the report.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader},
    path::Path,
    process::Stdio,
    sync::mpsc,
    thread,
    time::Duration,
};

use bytes::Bytes;
use epwatch_proto::{DropReason, Report, ReportKey};
use epwatch_sdk::simulation::random_u64;

use crate::support::{
    self, KEY, TIMEOUT, collector::Collector, command, config, emit, emitted_line, role, run,
    session,
};

/// Number of kills in a nightly run; other runs make fewer, but enough to hit every step.
const N_KILLS: usize = 200;
const N_KILLS_BY_DAY: usize = 60;
/// The interval is short, so that kills hit every step of sealing and sending.
const INTERVAL: Duration = Duration::from_millis(3);

/// The child process: an app that runs its model until it is killed. After every few runs it emits the number of runs,
/// and how many of them are certainly on disk.
fn run_until_killed(dir: &Path, endpoint: &str) {
    let config = config(dir, endpoint)
        .with_report_interval(INTERVAL)
        .with_upload_interval(INTERVAL);
    let watch = support::start(config);
    let session = session(&watch);
    emit(format_args!("stream {}", watch.stream()));
    for runs in 1_u64.. {
        run(&session, 1);
        if runs % 16 == 0 {
            let sealed = watch.health().runs_recorded;
            // Waits until a running seal is done, so that runs counted before are then on disk.
            watch.explain();
            emit(format_args!("{runs} {sealed}"));
        }
        thread::yield_now();
    }
}

struct Killed {
    stream: String,
    /// Runs made, as last emitted; up to 16 more may follow.
    made: u64,
    /// How many of these runs were in reports on disk.
    kept: u64,
}

/// Starts an app and kills it within its first 40 ms, including its start. Or kills it within 20 ms after it printed
/// that runs are on disk.
fn kill_an_app(dir: &Path, endpoint: &str, is_early: bool) -> Option<Killed> {
    let role = format!("{endpoint} {}", dir.display());
    let mut child = command(
        an_app_killed_over_and_over_loses_only_what_was_not_sealed,
        &role,
    )
    .stdout(Stdio::piped())
    .stderr(Stdio::null())
    .spawn()
    .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let (has_kept, kept) = mpsc::channel();
    let reader = thread::spawn(move || {
        let mut killed = None;
        for line in out.lines() {
            take_line(&line.unwrap(), &mut killed);
            if killed.as_ref().is_some_and(|k| k.kept > 0) {
                let _ = has_kept.send(());
            }
        }
        killed
    });
    // These sleeps choose the moment of the kill, and wait for no event.
    if is_early {
        thread::sleep(Duration::from_micros(random_u64() % 40_000));
    } else {
        kept.recv_timeout(Duration::from_secs(300)).unwrap();
        thread::sleep(Duration::from_micros(random_u64() % 20_000));
    }
    // This sends SIGKILL. Lines written before it are read too.
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap()
}

fn take_line(line: &str, killed: &mut Option<Killed>) {
    let Some(emitted) = emitted_line(line) else {
        return;
    };
    if let Some(stream) = emitted.strip_prefix("stream ") {
        *killed = Some(Killed {
            stream: stream.to_owned(),
            made: 0,
            kept: 0,
        });
        return;
    }
    // The last line may be cut, which makes its number smaller.
    let numbers = emitted.split_once(' ');
    let numbers = numbers.and_then(|(made, kept)| Some((made.parse().ok()?, kept.parse().ok()?)));
    if let (Some((made, kept)), Some(killed)) = (numbers, killed)
        && kept >= killed.kept
    {
        (killed.made, killed.kept) = (made, kept);
    }
}

/// Sends the rest and returns the reports by key. A report may come several times, always with the same bytes.
fn drain(dir: &Path, collector: &Collector) -> BTreeMap<ReportKey, Report> {
    let watch = support::start(config(dir, &collector.endpoint()));
    watch.flush(TIMEOUT).unwrap();
    // The next seal takes the streams that did not fit into the first list.
    watch.flush(TIMEOUT).unwrap();
    assert_eq!(watch.explain().internal_errors, 0);
    watch.stop(TIMEOUT).unwrap();
    let mut by_key: BTreeMap<ReportKey, Bytes> = BTreeMap::new();
    for bytes in collector.calls().into_iter().flatten() {
        let key = ReportKey::peek(&bytes).unwrap();
        let first = by_key.entry(key).or_insert_with(|| bytes.clone());
        assert_eq!(*first, bytes, "{key:?}: the same key with other bytes");
    }
    let reports = by_key.into_iter();
    reports
        .map(|(key, bytes)| (key, Report::parse(&bytes).unwrap()))
        .collect()
}

#[test]
fn an_app_killed_over_and_over_loses_only_what_was_not_sealed() {
    if let Some(role) = role() {
        let (endpoint, dir) = role.split_once(' ').unwrap();
        return run_until_killed(Path::new(dir), endpoint);
    }
    let n_kills = match epwatch_runtimes::is_nightly("140 of 200 kills of an app") {
        true => N_KILLS,
        false => N_KILLS_BY_DAY,
    };
    let dir = tempfile::tempdir().unwrap();
    let collector = Collector::start(KEY);
    let endpoint = collector.endpoint();
    let killed: Vec<_> = (0..n_kills)
        .filter_map(|n| kill_an_app(dir.path(), &endpoint, n % 3 == 0))
        .collect();
    // If this fails, each app was killed before it began, and the test shows nothing.
    let n_with_reports = killed.iter().filter(|k| k.kept > 0).count();
    assert!(
        n_with_reports >= 20,
        "{n_with_reports} of {} had sealed",
        killed.len()
    );

    let reports = drain(dir.path(), &collector);
    let installations: BTreeSet<_> = reports.keys().map(|key| key.installation).collect();
    assert_eq!(installations.len(), 1, "one folder, one installation");
    let ended: BTreeMap<_, _> = reports
        .values()
        .flat_map(|report| &report.ended_streams)
        .map(|ended| (ended.stream.to_string(), *ended))
        .collect();
    for killed in &killed {
        let of_stream = reports
            .iter()
            .filter(|(key, _)| key.stream.to_string() == killed.stream);
        let (mut numbers, mut runs) = (BTreeSet::new(), 0_u64);
        for (key, report) in of_stream {
            numbers.insert(key.sequence.get());
            runs += report.series.iter().map(|s| s.n).sum::<u64>();
            let dropped = &report.health.dropped;
            let unexpected: Vec<_> = dropped
                .keys()
                .filter(|reason| {
                    !matches!(reason, DropReason::SpoolCorrupt | DropReason::Contended)
                })
                .collect();
            assert!(unexpected.is_empty(), "{unexpected:?}");
        }
        assert!(
            runs >= killed.kept,
            "{runs} runs arrived, {} were on disk",
            killed.kept
        );
        assert!(
            runs <= killed.made + 16 + 16,
            "{runs} of {} runs",
            killed.made
        );
        let last = numbers.last().copied().unwrap_or(0);
        assert_eq!(numbers, (1..=last).collect(), "a gap inside a stream");
        match ended.get(&killed.stream) {
            Some(ended) => {
                // The sequence is taken before the bytes are on disk.
                let named = ended.last_sequence.unwrap();
                assert!(named == last || named == last + 1, "{named} {last}");
                assert_eq!(ended.unsealed_runs, None);
            }
            // The app was killed before it had a folder.
            None => assert_eq!(last, 0, "a stream that ended and is not named"),
        }
    }
}
