//! The real command after one of its tasks ended by itself: `/readyz` says so, a line of level ERROR names the task, and the
//! exit code is not 0 where the process cannot go on without it. The command of a debug build panics in the task that a
//! file names.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::support::{DEADLINE, Running, get, server, until};

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

    /// Moves the file into place, so that it is read whole.
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
    let text = format!("the task {task} ended by itself");
    until(&format!("/readyz names {task}"), async || {
        let page = get(&format!("http://{http}/readyz")).await;
        page.is_ok_and(|page| page.status == 503 && page.text.contains(&text))
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

/// Reports would be taken and never stored, or never summed up.
#[tokio::test(flavor = "multi_thread")]
async fn serve_ends_with_a_code_after_the_end_of_a_task_that_it_needs() {
    for task in ["writer", "roll-up"] {
        let dir = tempfile::tempdir().unwrap();
        let mut command = server("serve", &dir.path().join("data"));
        check_ends_with_a_code(&mut command, dir.path(), task).await;
    }
}
