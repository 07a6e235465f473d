//! The real command after one of its tasks ended by itself. `/readyz` reports that, and a line of level ERROR names the
//! task. The exit code is not 0 if the process cannot continue without the task. The command of a debug build panics in
//! the task that a file names.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::Mutex,
    time::{Duration, Instant},
};

use epwatch_test_support::{DEADLINE, until};
use serde_json::Value;

use crate::support::{Running, Store, epwatch, get, server};

/// The file that names a task, and the log of the command that reads it.
struct Faults {
    file: PathBuf,
}

impl Faults {
    fn of<'a>(dir: &Path, command: &'a mut Command) -> (Self, &'a mut Command) {
        let file = dir.join("task");
        let log = file.with_extension("log");
        let log = fs::OpenOptions::new().append(true).create(true).open(log);
        let command = command
            .env("EPWATCH_TEST_PANIC_IN", &file)
            .env_remove("EPWATCH_LOG");
        (Self { file }, command.stderr(Stdio::from(log.unwrap())))
    }

    /// Returns the log, for a command that also writes standard output to it.
    fn stdout(&self) -> Stdio {
        let mut log = fs::OpenOptions::new();
        Stdio::from(
            log.append(true)
                .open(self.file.with_extension("log"))
                .unwrap(),
        )
    }

    /// Renames the file into its place, so that it is always read whole.
    fn panic_in(&self, task: &str) {
        let whole = self.file.with_extension("whole");
        fs::write(&whole, task).unwrap();
        fs::rename(whole, &self.file).unwrap();
    }

    fn log(&self) -> String {
        fs::read_to_string(self.file.with_extension("log")).unwrap()
    }

    #[track_caller]
    fn check_log(&self, task: &str) {
        let log = self.log();
        let is_named = |line: &str| {
            line.contains("ERROR") && line.contains("ended by itself") && line.contains(task)
        };
        assert!(log.lines().any(is_named), "{task}: {log}");
    }
}

async fn until_not_ready(http: &str, task: &str) {
    until_readyz_has(http, &format!("the task {task} ended by itself")).await;
}

async fn until_readyz_has(http: &str, text: &str) {
    until(&format!("/readyz has: {text}"), async || {
        let page = get(&format!("http://{http}/readyz")).await;
        page.is_ok_and(|page| page.status == 503 && page.text.contains(text))
    })
    .await;
}

async fn ended(running: &mut Running) -> ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = running.0.try_wait().unwrap() {
            return status;
        }
        assert!(started.elapsed() < DEADLINE, "the process goes on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Ends a task of a command that prints its addresses.
async fn check_ends_with_a_code(command: &mut Command, dir: &Path, task: &str) {
    let (faults, command) = Faults::of(dir, command);
    let (mut running, addresses): (Running, Value) = Running::start(command);
    let http = addresses["http"].as_str().unwrap().to_owned();
    faults.panic_in(task);
    until_not_ready(&http, task).await;
    assert_eq!(running.0.try_wait().unwrap(), None, "{task}");
    fs::remove_file(&faults.file).unwrap();
    let code = ended(&mut running).await.code();
    assert!(code.is_some_and(|code| code != 0), "{task}: {code:?}");
    faults.check_log(task);
}

/// Otherwise reports would be accepted, but never stored or never summed up.
#[tokio::test(flavor = "multi_thread")]
async fn serve_ends_with_a_code_after_the_end_of_a_task_that_it_needs() {
    for task in ["writer", "roll-up"] {
        let dir = tempfile::tempdir().unwrap();
        let mut command = server("serve", &dir.path().join("data"));
        check_ends_with_a_code(&mut command, dir.path(), task).await;
    }
}

/// Reports are taken and judged without these tasks, so the process goes on.
#[tokio::test(flavor = "multi_thread")]
async fn serve_starts_its_page_and_a_watchdog_again() {
    for task in ["page", "watchdog:alertmanager"] {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("epwatch.toml");
        let channel = "[[detector.alertmanager]]\nurl = \"http://127.0.0.1:9\"\n";
        fs::write(&config, channel).unwrap();
        let mut command = server("serve", &dir.path().join("data"));
        command.arg("--config").arg(&config);
        let (faults, command) = Faults::of(dir.path(), &mut command);
        let (mut running, addresses): (Running, Value) = Running::start(command);
        let http = addresses["http"].as_str().unwrap();
        faults.panic_in(task);
        until_not_ready(http, task).await;
        let again = format!("the task {task} ended by itself and runs again");
        until_readyz_has(http, &again).await;
        let page = format!("http://{}/health", addresses["page"].as_str().unwrap());
        until("the page answers", async || {
            get(&page).await.is_ok_and(|page| page.status == 200)
        })
        .await;
        assert_eq!(running.0.try_wait().unwrap(), None, "{task}");
        faults.check_log(task);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_ends_with_a_code_after_the_end_of_a_task_that_it_needs() {
    let store = Store::start().await;
    for task in ["writer", "deletions"] {
        let dir = tempfile::tempdir().unwrap();
        let words = format!("collector --clickhouse {}", store.address());
        let mut command = server(&words, &dir.path().join("data"));
        check_ends_with_a_code(&mut command, dir.path(), task).await;
    }
    store.engine.stop().await;
}

/// Each task of a detector is started again, so the process goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_detector_whose_judging_ends_is_started_again() {
    const NOTICE: &str = "metrics and health on  http://";
    let store = Store::start().await;
    let mut command = epwatch("detector --clickhouse");
    command
        .arg(store.address())
        .env("EPWATCH_DETECTOR__HTTP_LISTEN", "127.0.0.1:0");
    let (faults, command) = Faults::of(store.dir.path(), &mut command);
    let mut running = Running(command.stdout(faults.stdout()).spawn().unwrap());
    let http = Mutex::new(String::new());
    until("the detector says where it listens", async || {
        let log = faults.log();
        let address = log.lines().find_map(|line| line.split_once(NOTICE));
        let Some((_, address)) = address else {
            return false;
        };
        address.trim().clone_into(&mut http.lock().unwrap());
        log.ends_with('\n')
    })
    .await;
    let http = http.into_inner().unwrap();
    let holders = "SELECT uniqExact(holder) FROM detector_beats WHERE leads";
    until("it leads", async || store.count(holders).await == 1).await;
    faults.panic_in("detector");
    until_not_ready(&http, "detector").await;
    until("it leads again", async || store.count(holders).await == 2).await;
    assert_eq!(running.0.try_wait().unwrap(), None);
    faults.check_log("detector");
    store.engine.stop().await;
}
