//! Tests commands that get a signal, and servers whose log has no reader any more.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use epwatch_test_support::{DEADLINE, until};
use tempfile::TempDir;

use crate::support::{Running, Store, epwatch, get, server};

fn serve(dir: &Path, drain: &str) -> Command {
    let mut command = server("serve", dir);
    command.env("EPWATCH_COLLECTOR__BATCH__DRAIN_TIMEOUT", drain);
    command
}

fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill")
        .args(["-s", name, &pid.to_string()])
        .status();
    assert!(sent.unwrap().success(), "{name} to {pid}");
}

/// Waits for the end of a process, which must come within `limit`.
#[track_caller]
pub(crate) fn ended_within(running: &mut Running, limit: Duration) -> ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = running.0.try_wait().unwrap() {
            return status;
        }
        assert!(started.elapsed() < limit, "runs on after {limit:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the pid of the embedded engine of a server.
fn engine_of(server: u32) -> u32 {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_child = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        after_name.split(' ').nth(1) == Some(&server.to_string())
    };
    pids.find(is_child).expect("the engine runs")
}

/// Reads the log of a process until a line has `text`; then the log has no reader.
#[track_caller]
fn wait_for_log(running: &mut Running, text: &str) {
    let log = BufReader::new(running.0.stderr.take().unwrap());
    let mut lines = log.lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains(text)), "no {text:?}");
}

/// If the log's reader ends, for example a log shipper, the server must go on.
#[tokio::test]
async fn a_server_goes_on_when_the_reader_of_its_log_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = serve(dir.path(), "1s");
    command.stderr(Stdio::piped());
    // Standard output is closed after the document, standard error before the first line of log.
    let (mut running, addresses) = Running::start(&mut command);
    drop(running.0.stderr.take());
    let page = format!("http://{}/metrics", addresses["http"].as_str().unwrap());
    let has_dropped = async || {
        let text = get(&page).await.unwrap().text;
        let lines = text.lines();
        let mut counts =
            lines.filter_map(|line| line.strip_prefix("epwatch_log_lines_dropped_total "));
        counts.next().expect("it is on the page") != "0"
    };
    assert!(!has_dropped().await);
    signal(running.0.id(), "HUP");
    until("a line of log is dropped and counted", has_dropped).await;
    signal(running.0.id(), "TERM");
    assert_eq!(ended_within(&mut running, DEADLINE).code(), Some(0));
}

/// `| head` reads some lines and ends. A command whose reader has ended must still end with its own exit code, on
/// either stream.
#[test]
fn a_command_whose_reader_is_gone_ends_with_its_own_code() {
    for (words, code) in [
        ("config show", 0),
        ("config show --json", 0),
        ("collector key --app a --kind app --environment e", 0),
        ("config check no-such-file.toml", 2),
        ("directive publish no-such-file", 3),
    ] {
        let closed = || {
            let (_reader, writer) = std::io::pipe().unwrap();
            writer
        };
        let mut command = epwatch(words);
        let status = command.stdout(closed()).stderr(closed()).status().unwrap();
        assert_eq!(status.code(), Some(code), "{words}");
    }
}

/// For example `epwatch status --watch | head` must end, also while nothing changes.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_whose_reader_is_gone_ends() {
    let store = Store::start().await;
    let (mut reader, writer) = std::io::pipe().unwrap();
    let address = store.address();
    let mut watch = epwatch(&format!("orders --watch --clickhouse {address}"));
    watch.stdout(writer).stderr(Stdio::null());
    let mut running = Running(watch.spawn().unwrap());
    // The parent's copy is dropped, so that only the command has the writing end.
    drop(watch);
    assert!(reader.read(&mut [0; 1]).unwrap() > 0);
    assert_eq!(running.0.try_wait().unwrap(), None);
    drop(reader);
    assert_eq!(ended_within(&mut running, DEADLINE).code(), Some(0));
    store.engine.stop().await;
}

#[tokio::test]
async fn a_hangup_does_not_end_a_server_without_files_to_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = serve(dir.path(), "1s");
    let (mut running, addresses) = Running::start(server.stderr(Stdio::piped()));
    let mut detector = epwatch("detector");
    detector
        .args(["--clickhouse", addresses["store"].as_str().unwrap()])
        .env("EPWATCH_DETECTOR__HTTP_LISTEN", "127.0.0.1:0")
        .current_dir(dir.path());
    detector.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut detector = Running(detector.spawn().unwrap());
    let mut stdout = BufReader::new(detector.0.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert!(line.starts_with("metrics and health"), "{line}");
    for server in [&mut running, &mut detector] {
        signal(server.0.id(), "HUP");
        wait_for_log(server, "SIGHUP");
        assert_eq!(server.0.try_wait().unwrap(), None);
    }
    for server in [&mut detector, &mut running] {
        signal(server.0.id(), "TERM");
        assert_eq!(ended_within(server, DEADLINE).code(), Some(0));
    }
}

/// The service manager kills what is left after 45 s, in the middle of anything.
#[test]
fn a_stop_with_an_engine_that_hangs_ends_at_its_deadline_or_at_a_second_signal() {
    for (drain, n_signals, limit) in [("1s", 1, 40), ("30s", 2, 25)] {
        let dir = tempfile::tempdir().unwrap();
        let mut server = serve(dir.path(), drain);
        let (mut running, _) = Running::start(server.stderr(Stdio::piped()));
        let engine = engine_of(running.0.id());
        signal(engine, "STOP");
        signal(running.0.id(), "INT");
        // Two signals at the same moment would count as one, so the second one waits.
        wait_for_log(&mut running, "stopping");
        if n_signals == 2 {
            signal(running.0.id(), "INT");
        }
        let status = ended_within(&mut running, Duration::from_secs(limit));
        assert_eq!(status.code(), Some(0), "{drain}");
        let is_gone = !Path::new(&format!("/proc/{engine}")).exists();
        assert!(is_gone, "the engine is left behind");
    }
}

/// Starts a command, and sends it a signal once a name that begins with `made` is in the folder. Checks that it ends as
/// interrupted and leaves only files that end with `kept`.
#[track_caller]
fn check_leaves_nothing(command: &mut Command, dir: &TempDir, made: &str, name: &str, kept: &str) {
    let names = || -> Vec<String> {
        let entries = fs::read_dir(dir.path()).unwrap().flatten();
        entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect()
    };
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut running = Running(command.spawn().unwrap());
    let started = Instant::now();
    while !names().iter().any(|name| name.starts_with(made)) {
        assert!(started.elapsed() < DEADLINE, "{command:?} made no {made}");
        thread::sleep(Duration::from_millis(5));
    }
    signal(running.0.id(), name);
    let status = ended_within(&mut running, DEADLINE);
    assert_eq!(status.code(), Some(130), "{command:?} at {name}");
    let left: Vec<String> = names()
        .into_iter()
        .filter(|name| !name.ends_with(kept))
        .collect();
    assert_eq!(left, [""; 0], "{command:?} at {name}");
}

#[test]
fn a_signal_at_any_moment_leaves_no_folder_behind() {
    let model = "tests/fixtures/models/mixed_v1.int8.onnx";
    let inspect = format!("inspect {model} --soc SM8650");
    for (args, made, name) in [
        ("demo --no-runtimes", "epwatch-demo-", "HUP"),
        ("demo --no-runtimes", "epwatch-demo-", "INT"),
        ("load", "epwatch-load-", "INT"),
        (&inspect, "epwatch-inspect-", "TERM"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut command = epwatch(args);
        command.env("TMPDIR", dir.path());
        check_leaves_nothing(&mut command, &dir, made, name, "-");
    }
}

#[test]
fn an_interrupted_fetch_leaves_only_its_lock() {
    let (cache, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let npm = programs.path().join("npm");
    fs::write(&npm, "#!/bin/sh\nexec sleep 1000\n").unwrap();
    fs::set_permissions(&npm, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!(
        "{}:{}",
        programs.path().display(),
        std::env::var("PATH").unwrap()
    );
    let mut command = epwatch("engines fetch libchdb");
    command.env("EPWATCH_CACHE", cache.path()).env("PATH", path);
    check_leaves_nothing(&mut command, &cache, ".libchdb", "TERM", ".lock");
}

/// Closing the terminal ends the demo like Ctrl-C, with its summary and without its folder.
#[test]
fn a_hangup_ends_a_running_demo() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = epwatch("demo --no-runtimes --devices 20 --json");
    command.env("TMPDIR", dir.path());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running(command.spawn().unwrap());
    wait_for_log(&mut running, "reports acknowledged");
    signal(running.0.id(), "HUP");
    let status = ended_within(&mut running, DEADLINE);
    assert_eq!(status.code(), Some(0));
    let summary = std::io::read_to_string(running.0.stdout.take().unwrap()).unwrap();
    assert!(summary.contains("\"ledger\""), "{summary}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
