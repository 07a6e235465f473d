//! The way to another machine: a program on this machine that runs a shell command there, or copies a file there.

use std::{
    fmt::Debug,
    path::Path,
    process::{ExitStatus, Stdio},
};

use anyhow::{Context, bail};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::{Child, Command},
};

/// At most this many bytes of a machine's answer are kept.
const MOST_SAID: u64 = 1 << 20;

/// A way to a machine: ssh or adb.
pub(super) trait Transport: Debug + Send + Sync {
    /// Returns the machine's name on the command line.
    fn name(&self) -> &str;
    /// Returns the folder on the machine in which each session makes its own folder.
    fn parent(&self) -> &str;
    /// Returns a command that runs a line of shell on the machine.
    fn shell(&self, line: &str) -> Command;
    /// Returns a command that copies a file into an existing folder of the machine.
    fn push(&self, from: &Path, to: &str) -> std::io::Result<Command>;
    /// Returns the command with which a person runs a line of shell on the machine.
    fn by_hand(&self, line: &str) -> String;
    /// Returns the line of shell that prints the kind of machine.
    fn greeting(&self) -> &'static str;
    /// Reads the answer.
    fn machine(&self, said: &str) -> Machine;
    /// Returns the folders in which the DSP looks for its libraries, after the session's own folder.
    fn dsp_folders(&self) -> &'static str;
    /// Whether a lost connection ended a command that had this exit code and this text on standard error.
    fn is_lost(&self, code: Option<i32>, said: &str) -> bool;
    /// Returns the way out of a problem that the program's text describes; empty if it is unknown.
    fn way_out(&self, said: &str) -> &'static str;
}

/// A machine's answer to the greeting.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Machine {
    /// The machine's kind, as `uname -sm` prints it.
    pub(super) kind: String,
    /// A line about the machine for people; may be empty.
    pub(super) told: String,
    /// Conditions that may disturb the launches.
    pub(super) warnings: Vec<String>,
    /// Whether the machine lacks the library through which QNN reaches the DSP.
    pub(super) lacks_rpc_library: bool,
}

/// The result of a command on a machine.
#[derive(Debug)]
pub(super) struct CommandOutput {
    pub(super) status: ExitStatus,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// Starts a command in a process group of its own. So Ctrl-C on a terminal reaches this program alone, which then
/// removes its folders on the machine.
pub(super) fn start(command: &mut Command) -> anyhow::Result<Child> {
    command.process_group(0).kill_on_drop(true);
    let program = command.as_std().get_program().to_owned();
    command.spawn().map_err(|error| {
        let shown = program.display();
        if error.kind() != std::io::ErrorKind::NotFound {
            return anyhow::Error::new(error).context(format!("failed to start {shown}"));
        }
        let package = if program == "adb" {
            "adb"
        } else {
            "openssh-client"
        };
        anyhow::anyhow!("{shown} is not installed; Debian's package is {package}")
    })
}

/// Runs a command to its end. The caller sets its standard input.
pub(super) async fn said(mut command: Command) -> anyhow::Result<CommandOutput> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = start(&mut command)?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (stdout, stderr, status) = tokio::join!(text(stdout), text(stderr), child.wait());
    Ok(CommandOutput {
        status: status.context("failed to wait for a command")?,
        stdout,
        stderr,
    })
}

/// Reads to the end, and keeps the beginning.
async fn text(from: Option<impl AsyncRead + Unpin>) -> String {
    let mut kept = Vec::new();
    if let Some(mut from) = from {
        // An output that cannot be read is treated as empty.
        let _ = (&mut from).take(MOST_SAID).read_to_end(&mut kept).await;
        let _ = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
    }
    String::from_utf8_lossy(&kept).into_owned()
}

impl CommandOutput {
    /// Returns why the command failed: adb's own error line, which may be on standard output, or the last line.
    pub(super) fn why(&self) -> &str {
        let lines = self.stdout.lines().chain(self.stderr.lines());
        let mut lines = lines.map(str::trim).filter(|line| !line.is_empty());
        let of_adb = lines.clone().find(|line| line.starts_with("adb: error"));
        of_adb.or_else(|| lines.next_back()).unwrap_or_default()
    }
}

/// Runs a line of shell on the machine, which must succeed. Returns its standard output.
pub(super) async fn line(on: &dyn Transport, line: &str) -> anyhow::Result<String> {
    let mut command = on.shell(line);
    command.stdin(Stdio::null());
    checked(on, said(command).await?)
}

/// Returns the standard output of a command; fails unless the command succeeded.
pub(super) fn checked(on: &dyn Transport, said: CommandOutput) -> anyhow::Result<String> {
    if said.status.success() {
        return Ok(said.stdout);
    }
    let (name, why) = (on.name(), said.why());
    let shown = match why {
        "" => said.status.to_string(),
        why => epwatch_proto::visible(why),
    };
    let text = format!("{name}: {shown}{}", on.way_out(why));
    if on.is_lost(said.status.code(), why) {
        return Err(Lost(text).into());
    }
    bail!("{text}")
}

/// The connection was lost, or could not be made.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Lost(pub(super) String);

/// Quotes a word, so that a shell takes it literally.
pub(super) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_quoted_word_is_one_word() {
        let word = "a 'b' $(c) \"d\" \\ *";
        let mut shell = Command::new("sh");
        shell
            .arg("-c")
            .arg(format!("printf %s {}", quoted(word)))
            .stdin(Stdio::null());
        assert_eq!(said(shell).await.unwrap().stdout, word);
    }
}
