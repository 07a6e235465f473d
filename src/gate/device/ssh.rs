//! A board over ssh. The user's own `ssh` checks keys and host keys, and reads the user's configuration.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Stdio,
};

use tokio::process::Command;

use super::transport::{Machine, Transport, quoted};
use crate::output::WrongUse;

/// ssh's own exit code for a connection that failed.
const FAILED_CONNECTION: i32 = 255;

/// A host in the form that ssh accepts.
#[derive(Debug)]
pub(super) struct Ssh {
    host: String,
    config: Option<PathBuf>,
    parent: String,
}

impl Ssh {
    pub(super) fn new(host: &str, config: Option<&Path>, parent: &str) -> Result<Self, WrongUse> {
        let is_host = |c: char| !c.is_whitespace() && !c.is_control();
        if host.is_empty() || host.starts_with('-') || !host.chars().all(is_host) {
            let text =
                format!("--ssh {host:?}: expected a host as ssh takes it, for example user@board");
            return Err(WrongUse(text));
        }
        Ok(Self {
            host: host.to_owned(),
            config: config.map(Path::to_owned),
            parent: parent.to_owned(),
        })
    }
}

impl Transport for Ssh {
    fn name(&self) -> &str {
        &self.host
    }

    fn parent(&self) -> &str {
        &self.parent
    }

    fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("ssh");
        if let Some(config) = &self.config {
            command.arg("-F").arg(config);
        }
        command
            .args(["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20"])
            // These options make ssh end a connection that is silent for a minute.
            .args([
                "-o",
                "ServerAliveInterval=20",
                "-o",
                "ServerAliveCountMax=3",
            ])
            .args(["--", &self.host])
            // The login shell may not be `sh`.
            .arg(format!("exec sh -c {}", quoted(line)));
        command
    }

    /// Copies with `cat`, because a board may have no sftp. The file gets its name only when it is complete.
    fn push(&self, from: &Path, to: &str) -> std::io::Result<Command> {
        let (part, to) = (quoted(&format!("{to}.part")), quoted(to));
        let mut command = self.shell(&format!(
            "cat >{part} && chmod 700 {part} && mv {part} {to}"
        ));
        command.stdin(Stdio::from(File::open(from)?));
        Ok(command)
    }

    fn by_hand(&self, line: &str) -> String {
        match &self.config {
            Some(config) => format!(
                "ssh -F {} {} {line}",
                quoted(&config.display().to_string()),
                self.host
            ),
            None => format!("ssh {} {line}", self.host),
        }
    }

    fn greeting(&self) -> &'static str {
        "uname -sm"
    }

    fn machine(&self, said: &str) -> Machine {
        Machine {
            kind: said.trim().to_owned(),
            ..Machine::default()
        }
    }

    fn dsp_folders(&self) -> &'static str {
        "${ADSP_LIBRARY_PATH:-/usr/lib/rfsa/adsp;/usr/lib/dsp;/dsp}"
    }

    fn is_lost(&self, code: Option<i32>, _said: &str) -> bool {
        code == Some(FAILED_CONNECTION)
    }

    fn way_out(&self, said: &str) -> &'static str {
        let has = |text| said.contains(text);
        if has("Host key verification failed") {
            "; connect once with ssh by hand, and compare the board's key"
        } else if has("Permission denied (") {
            "; it asks for no password here: load the key into ssh-agent, or name it in ~/.ssh/config"
        } else if has("No space left on device") {
            "; free space there, or give another folder with --workdir"
        } else if has("Permission denied") {
            "; give a folder that may be written with --workdir"
        } else {
            ""
        }
    }
}
