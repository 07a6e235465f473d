//! Runs one program of another project, with a bounded wait.
//!
//! The command has no standard input. Its output goes to files in the work folder, because a full pipe would stall
//! it. The end of its standard error becomes part of the error: npm and pip name the cause there.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use crate::EngineError;

/// Slow networks exist (180 MB at 1 Mbit/s takes 25 minutes); a stuck proxy must still end.
pub(crate) const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(45 * 60);
/// Unpacking 570 MB takes seconds, on a poor disk minutes.
pub(crate) const UNPACK_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// A signal sets this flag. A terminal also sends its signal to the program that runs here; a service manager may not.
pub(crate) static INTERRUPTED: AtomicBool = AtomicBool::new(false);

const POLL: Duration = Duration::from_millis(100);
/// The command's standard output, in the work folder.
pub(crate) const STDOUT_FILE: &str = "stdout.log";
/// npm prints the cause first and a long explanation after it; fewer lines would lose the cause.
const TAIL_LINES: usize = 24;
const TAIL_BYTES: u64 = 8 << 10;

/// The texts of a command's errors.
#[derive(Debug, Clone)]
pub(crate) struct Purpose {
    /// The entry being fetched.
    pub(crate) name: String,
    /// The way out when the program is not installed.
    pub(crate) install: String,
    /// The way out when the program fails.
    pub(crate) way_out: String,
}

/// Runs `command` in `work`, calling `while_waiting` about ten times a second.
///
/// # Errors
/// The program is missing, fails, or outlives `timeout` (it is killed then).
pub(crate) fn run(
    mut command: Command,
    work: &Path,
    timeout: Duration,
    purpose: &Purpose,
    while_waiting: &mut dyn FnMut(),
) -> Result<(), EngineError> {
    let stderr_path = work.join("stderr.log");
    let stdout_path = work.join(STDOUT_FILE);
    let stdout = File::create(&stdout_path).map_err(EngineError::io("create log", &stdout_path))?;
    let stderr = File::create(&stderr_path).map_err(EngineError::io("create log", &stderr_path))?;
    command
        .current_dir(work)
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(stderr);

    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(EngineError::ToolMissing {
                name: purpose.name.clone(),
                tool: command.get_program().to_string_lossy().into_owned(),
                way_out: purpose.install.clone(),
            });
        }
        Err(error) => return Err(EngineError::io("start", command.get_program())(error)),
    };
    let ended = wait(&mut child, timeout, while_waiting)
        .map_err(EngineError::io("wait for", command.get_program()))?;
    let status = match ended {
        Some(status) if status.success() => return Ok(()),
        Some(status) => format!("ended with {status}"),
        None if INTERRUPTED.load(Ordering::Relaxed) => "was interrupted".to_owned(),
        None => format!("did not end within {} s", timeout.as_secs_f32()),
    };
    let stderr_tail = stderr_tail(&stderr_path);
    Err(EngineError::CommandFailed {
        name: purpose.name.clone(),
        command: text(&command),
        status,
        way_out: way_out(&stderr_tail, purpose),
        stderr_tail,
    })
}

/// Returns `None` if the child had to be killed.
fn wait(
    child: &mut Child,
    timeout: Duration,
    while_waiting: &mut dyn FnMut(),
) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline || INTERRUPTED.load(Ordering::Relaxed) {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        while_waiting();
        std::thread::sleep(POLL);
    }
}

fn way_out(stderr_tail: &str, purpose: &Purpose) -> String {
    if stderr_tail.contains("ENOSPC") || stderr_tail.contains("No space left") {
        "the disk is full: free about 2 GB, or set EPWATCH_CACHE to a folder on a larger disk"
            .to_owned()
    } else if stderr_tail.contains("No module named pip") {
        format!("pip is missing: {}", purpose.install)
    } else {
        purpose.way_out.clone()
    }
}

fn text(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}

/// Returns the last lines, indented; a log that cannot be read is an empty one.
fn stderr_tail(path: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = fs::metadata(path)?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let first = lines.len().saturating_sub(TAIL_LINES);
    lines[first..]
        .iter()
        .map(|line| format!("  | {}", line.trim_end()))
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_shortly(command: Command, timeout: Duration) -> Result<(), EngineError> {
        let work = tempfile::tempdir().unwrap();
        let purpose = Purpose {
            name: "x-1".to_owned(),
            install: "install x".to_owned(),
            way_out: "look at x".to_owned(),
        };
        run(command, work.path(), timeout, &purpose, &mut || ())
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[track_caller]
    fn failure(command: Command, timeout: Duration) -> EngineError {
        run_shortly(command, timeout).unwrap_err()
    }

    #[test]
    fn failed_command_shows_its_last_lines_and_the_way_out() {
        let error = failure(shell("seq 1 30 >&2; exit 3"), UNPACK_TIMEOUT).to_string();
        assert!(error.contains("exit status: 3"), "{error}");
        assert!(error.contains("  | 30\nlook at x"), "{error}");
        assert!(!error.contains("| 6\n"), "{error}");
    }

    #[test]
    fn full_disk_is_named() {
        let error = failure(
            shell("echo 'npm error code ENOSPC' >&2; exit 1"),
            UNPACK_TIMEOUT,
        );
        assert!(error.to_string().contains("the disk is full"), "{error}");
    }

    #[test]
    fn missing_program_says_what_to_install() {
        let error = failure(Command::new("epwatch-no-such-program"), UNPACK_TIMEOUT);
        assert!(
            matches!(error, EngineError::ToolMissing { .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains("install x"), "{error}");
    }

    #[test]
    fn stuck_command_is_killed() {
        let error = failure(shell("exec sleep 600"), Duration::from_millis(150));
        let text = error.to_string();
        assert!(text.contains("did not end within 0.15 s"), "{text}");
    }

    #[test]
    fn child_has_no_standard_input() {
        run_shortly(shell("! read line"), UNPACK_TIMEOUT).unwrap();
    }
}
