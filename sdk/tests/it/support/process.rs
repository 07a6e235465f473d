//! One test of this executable in a process of its own.

use std::{
    env,
    fmt::Display,
    process::{Command, Stdio},
};

const ROLE: &str = "EPWATCH_TEST_ROLE";
const MARKER: &str = "emitted: ";

/// Returns the role of a child; `None` in the process that runs all tests.
pub(crate) fn role() -> Option<String> {
    env::var(ROLE).ok()
}

/// Returns the command that runs only `test`, in a role.
pub(crate) fn command<T: Fn()>(_test: T, role: &str) -> Command {
    let path = std::any::type_name::<T>();
    let (_crate, test) = path.split_once("::").unwrap();
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .stdin(Stdio::null());
    command
}

/// Runs a child to its end, and returns the lines that it [emitted](emit).
pub(crate) fn emitted_by(mut child: Command) -> Vec<String> {
    let child = child.output().unwrap();
    let out = String::from_utf8_lossy(&child.stdout).into_owned();
    let err = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{out}\n{err}");
    out.lines()
        .filter_map(emitted_line)
        .map(str::to_owned)
        .collect()
}

/// Prints a line for the parent.
pub(crate) fn emit(line: impl Display) {
    println!("{MARKER}{line}");
}

/// Returns the text of a line that a child [emitted](emit). The test harness prints other lines.
pub(crate) fn emitted_line(line: &str) -> Option<&str> {
    line.split_once(MARKER).map(|(_, text)| text)
}

/// Runs the test in a child process unless this already is one; returns whether this is the child. It is for tests that
/// change their process for good.
pub(crate) fn is_alone(test: impl Fn()) -> bool {
    if role().is_some() {
        return true;
    }
    emitted_by(command(test, "alone"));
    false
}
