//! One test of this executable as a process of its own.

use std::{
    env,
    fmt::Display,
    process::{Command, Stdio},
};

const ROLE: &str = "EPWATCH_TEST_ROLE";
const MARKER: &str = "told: ";

/// The role that this process was started in; `None` in the one that runs all tests.
pub(crate) fn role() -> Option<String> {
    env::var(ROLE).ok()
}

/// This executable, with `test` alone, in a role.
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

/// Runs a child to its end, and returns the lines that it [told](tell).
pub(crate) fn told_by(mut child: Command) -> Vec<String> {
    let child = child.output().unwrap();
    let out = String::from_utf8_lossy(&child.stdout).into_owned();
    let err = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{out}\n{err}");
    out.lines()
        .filter_map(line_told)
        .map(str::to_owned)
        .collect()
}

/// Prints a line for the parent.
pub(crate) fn tell(line: impl Display) {
    println!("{MARKER}{line}");
}

/// The text of a line that a child [told](tell); the harness prints others.
pub(crate) fn line_told(line: &str) -> Option<&str> {
    line.split_once(MARKER).map(|(_, told)| told)
}

/// For tests that change their process for good: runs the test again in a child, where the answer
/// is `true` and the test goes on.
pub(crate) fn is_alone(test: impl Fn()) -> bool {
    if role().is_some() {
        return true;
    }
    told_by(command(test, "alone"));
    false
}
