//! Messages of the runner.

use std::io::{self, Write as _};

/// Tells of progress on standard error.
pub fn say(text: impl std::fmt::Display) {
    // If stderr is closed, there is nothing left to do.
    let _ = writeln!(io::stderr(), "epwatch-run: {text}");
}
