//! A runner that a program on another machine started, over ssh or adb.
//!
//! Files go to standard output as they are made, so that a broken connection loses none. If the other program or the
//! connection is gone, standard input ends or becomes silent. Then the runner ends with its launch: nobody would stop it.

use std::{
    io::{self, Write as _},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::document::RunDocument;

/// Longest silence on standard input. The other program writes every few seconds.
const SILENCE: Timespec = Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};

/// Sets `gone` when standard input ends, or is silent for a minute.
pub(crate) fn watch_standard_input(gone: Arc<AtomicBool>) {
    thread::spawn(move || {
        while is_there() {}
        gone.store(true, Relaxed);
    });
}

/// Waits for the other program to write; `false` if it is gone.
fn is_there() -> bool {
    let stdin = io::stdin();
    let mut waited = [PollFd::new(&stdin, PollFlags::IN)];
    match poll(&mut waited, Some(&SILENCE)) {
        Err(rustix::io::Errno::INTR) => true,
        Ok(1..) => {
            // Unbuffered: bytes in a buffer would not wake the next poll.
            rustix::io::read(&stdin, &mut [0; 64]).is_ok_and(|n| n > 0)
        }
        _ => false,
    }
}

/// Writes a launch to standard output: its file's name, a space, and the document, on one line.
pub(crate) fn send(document: &RunDocument, file: &Path) -> anyhow::Result<()> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let json = serde_json::to_string(document)?;
    send_line(&format!("{name} {json}"))
}

/// Says that all launches were made. adb's exit code is 0 as well where a cable was pulled out.
pub(crate) fn send_end() -> anyhow::Result<()> {
    send_line("end")
}

fn send_line(line: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")
        .and_then(|()| stdout.flush())
        .context("failed to send a launch to the program that started this")
}
