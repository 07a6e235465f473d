//! How another machine is reached: by a program of this machine that runs a line of shell there, or puts a file there.

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

/// Longest answer of a machine that is kept, in bytes.
const MOST_SAID: u64 = 1 << 20;

/// A way to a machine: ssh or adb.
pub(super) trait Transport: Debug + Send + Sync {
    /// What the command line calls the machine.
    fn name(&self) -> &str;
    /// The folder there in which sessions make their own.
    fn parent(&self) -> &str;
    /// A command that runs a line of shell there.
    fn shell(&self, line: &str) -> Command;
    /// A command that copies a file there, into a folder that exists.
    fn push(&self, from: &Path, to: &str) -> std::io::Result<Command>;
    /// How a person runs a line of shell there.
    fn by_hand(&self, line: &str) -> String;
    /// The line of shell that shows what kind of machine it is.
    fn greeting(&self) -> &'static str;
    /// Reads the answer.
    fn machine(&self, said: &str) -> Machine;
    /// Where the DSP looks for its libraries, after the session's own folder.
    fn dsp_folders(&self) -> &'static str;
    /// Whether a command that ended so, with this text on standard error, did not end by itself, but with the connection.
    fn is_lost(&self, code: Option<i32>, said: &str) -> bool;
    /// The way out of a problem that the program describes; empty if it is not known.
    fn way_out(&self, said: &str) -> &'static str;
}

/// What a machine says of itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Machine {
    /// As `uname -sm` prints it.
    pub(super) kind: String,
    /// Facts for people, one line; may be empty.
    pub(super) told: String,
    /// What may disturb the launches.
    pub(super) warnings: Vec<String>,
    /// There is no library through which QNN reaches the DSP.
    pub(super) lacks_rpc_library: bool,
}

/// What a command there came to.
#[derive(Debug)]
pub(super) struct CommandOutput {
    pub(super) status: ExitStatus,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// Starts a command in a process group of its own. So Ctrl-C on a terminal reaches this program alone, which then removes
/// what it made there.
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

/// Runs a command to its end. Standard input is the caller's to set.
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
        // What cannot be read was not said.
        let _ = (&mut from).take(MOST_SAID).read_to_end(&mut kept).await;
        let _ = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
    }
    String::from_utf8_lossy(&kept).into_owned()
}

impl CommandOutput {
    /// Why the command failed: adb's own line, which it may write to standard output, or the last line.
    pub(super) fn why(&self) -> &str {
        let lines = self.stdout.lines().chain(self.stderr.lines());
        let mut lines = lines.map(str::trim).filter(|line| !line.is_empty());
        let of_adb = lines.clone().find(|line| line.starts_with("adb: error"));
        of_adb.or_else(|| lines.next_back()).unwrap_or_default()
    }
}

/// Runs a line of shell there, which must succeed. Returns its standard output.
pub(super) async fn line(on: &dyn Transport, line: &str) -> anyhow::Result<String> {
    let mut command = on.shell(line);
    command.stdin(Stdio::null());
    checked(on, said(command).await?)
}

/// Standard output of a command that succeeded.
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

/// The connection is gone, or there was none.
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
