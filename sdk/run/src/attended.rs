//! Watches the program that started this runner: over ssh or adb from another machine, or on this one.
//!
//! If the other program is on another machine, files go to standard output as they are made. So a broken connection
//! loses none of them. If the other program or the connection is gone, standard input ends or becomes silent. Then the
//! runner ends together with its launch, because nobody else would stop them. On this machine standard input ends with
//! the program, even if the program was killed.

use std::{
    fs,
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

/// Longest silence on standard input; the other program writes every few seconds.
const SILENCE: Timespec = Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};

/// Longest file of a profiler that is sent. The gate takes lines of 64 MiB.
const MOST_FILE_BYTES: u64 = 16 << 20;

/// The program that started the runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartedBy {
    /// A program on another machine, which writes every few seconds.
    OtherMachine,
    /// A program on this machine, which only keeps its end of the pipe open.
    ThisMachine,
}

/// Sets `gone` when standard input ends; with a program on another machine also when it is silent for a minute.
pub(crate) fn watch_standard_input(by: StartedBy, gone: Arc<AtomicBool>) {
    thread::spawn(move || {
        while is_there(by) {}
        gone.store(true, Relaxed);
    });
}

/// Waits for the other program to write; `false` if it is gone.
fn is_there(by: StartedBy) -> bool {
    let stdin = io::stdin();
    let mut waited = [PollFd::new(&stdin, PollFlags::IN)];
    let silence = (by == StartedBy::OtherMachine).then_some(&SILENCE);
    match poll(&mut waited, silence) {
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

/// Writes a profiler's own file to standard output: its name, a space, and its content as a string of JSON. Returns whether it
/// is short enough for that.
pub(crate) fn send_file(file: &Path) -> anyhow::Result<bool> {
    let read = |file: &Path| -> io::Result<Option<Vec<u8>>> {
        let is_short = file.metadata()?.len() <= MOST_FILE_BYTES;
        is_short.then(|| fs::read(file)).transpose()
    };
    let bytes = read(file).with_context(|| format!("failed to read {}", file.display()))?;
    let Some(bytes) = bytes else { return Ok(false) };
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let json = serde_json::to_string(&String::from_utf8_lossy(&bytes))?;
    send_line(&format!("{name} {json}")).map(|()| true)
}

/// Writes a line that says that all launches were made. adb's exit code does not show it: the code is 0 even if the
/// cable was pulled out.
pub(crate) fn send_end() -> anyhow::Result<()> {
    send_line("end")
}

fn send_line(line: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")
        .and_then(|()| stdout.flush())
        .context("failed to send a launch to the program that started this")
}
