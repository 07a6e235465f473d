//! Programs that the machine may lack. Debian's package of each is in `.ci/packages`, which `./test` installs from.

use std::{env, process::Command};

const PACKAGES: &str = include_str!("../../../.ci/packages");

/// Returns a command of a program of the machine.
///
/// # Panics
/// Panics if the program is not installed. The text names its package. `.ci/tests` reads this text, so that
/// `./test --only-what-is-here` leaves the test out.
#[track_caller]
pub fn tool(name: &str) -> Command {
    assert!(is_installed(name), "{}", not_installed(name));
    Command::new(name)
}

/// Returns whether the machine has a program.
pub fn is_installed(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

/// Returns the text that a program is missing, and how to install it.
pub fn not_installed(name: &str) -> String {
    let rows = PACKAGES.lines().filter(|row| !row.starts_with('#'));
    let package = rows.map(str::split_whitespace).find_map(|mut row| {
        row.nth(1)?
            .split(',')
            .any(|check| check == name)
            .then(|| row.next())?
    });
    match package {
        Some(package) => format!("`{name}` is not installed: apt-get install {package}"),
        None => format!("`{name}` is not installed"),
    }
}
