//! A session on another machine: files go there, the runner makes the launches, and each launch comes back as it is made.

use std::{
    collections::BTreeSet,
    io::Write as _,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, bail};
use epwatch_gate::run_document::SCHEMA;
use serde_json::Value;
use tempfile::NamedTempFile;
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdin},
    time::{Instant, interval, sleep, timeout},
};

use super::{
    call::{LIBRARIES, RunnerCall},
    transport::{Lost, Machine, Transport, checked, line, quoted, said, start},
};
use crate::output::{self, WrongUse, one_line};

/// Pause between two beats to the runner, which ends after a minute without one.
const BEAT: Duration = Duration::from_secs(10);
/// How long a lost machine may take to come back, and the pause between two attempts to reach it.
const ABSENCE: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_secs(2);
/// Maximum number of restarts of a session in a row without a new launch.
const MOST_RETURNS: u32 = 3;
/// Beginning of a folder's name.
const NAME: &str = "epwatch-";
/// Longest time for a folder's removal.
const REMOVAL: Duration = Duration::from_secs(30);
/// Longest line of the runner, which is a launch with its placement.
const MOST_LINE: u64 = 64 << 20;

/// Folders on other machines that are to be removed, however the command ends.
#[derive(Debug, Default, Clone)]
pub(in crate::gate) struct LeftBehind(Arc<Mutex<Vec<Folder>>>);

#[derive(Debug, Clone)]
struct Folder {
    on: Arc<dyn Transport>,
    path: String,
}

impl LeftBehind {
    fn add(&self, folder: &Folder) {
        let mut folders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        folders.push(folder.clone());
    }

    /// Ends the processes that run in the folders, and removes the folders. Names the folders that it could not remove.
    pub(in crate::gate) async fn remove(&self) {
        let folders = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let each = folders.iter().map(|folder| async move {
            let removed = timeout(REMOVAL, folder.remove()).await;
            if let Ok(Ok(_)) = removed {
                return;
            }
            let why = match removed {
                Ok(Err(error)) => format!("{error:#}"),
                _ => "no answer".to_owned(),
            };
            let (name, path) = (folder.on.name(), &folder.path);
            let by_hand = folder.on.by_hand(&format!("rm -rf {path}"));
            output::remark(format_args!(
                "left on {name}: {path} ({why}); a runner there ends within a minute. Remove it with: {by_hand}"
            ));
        });
        futures::future::join_all(each).await;
    }
}

impl Folder {
    /// Ends the processes whose command line names the folder, and removes the folder. The shell line has the name in
    /// parts, so that it does not end itself.
    async fn remove(&self) -> anyhow::Result<String> {
        let (parent, id) = self.path.rsplit_once(NAME).unwrap_or((&self.path, ""));
        let text = format!(
            "n=0; while p=$(grep -l '[e]pwatch-{id}' /proc/[0-9]*/cmdline 2>/dev/null); [ -n \"$p\" ] && [ $n -lt 20 ]; do \
             for f in $p; do f=${{f#/proc/}}; kill ${{f%/cmdline}} 2>/dev/null; done; sleep 1; n=$((n+1)); done; \
             rm -rf {parent}epw''atch-{id}"
        );
        line(self.on.as_ref(), &text).await
    }
}

/// A session on one machine.
#[derive(Debug)]
pub(super) struct DeviceSession<'a> {
    pub(super) on: Arc<dyn Transport>,
    pub(super) call: &'a RunnerCall,
    /// The runner's program. `epwatch` is one under the runner's name.
    pub(super) runner: &'a Path,
    /// The phone's name, which tells devices of one kind apart.
    pub(super) phone: Option<String>,
    /// Gets the launches.
    pub(super) keep: &'a Path,
    pub(super) left: &'a LeftBehind,
}

impl DeviceSession<'_> {
    /// Makes all launches. Waits for a broken connection to come back.
    pub(super) async fn measure(&self) -> anyhow::Result<()> {
        self.greet().await?;
        let folder = Folder {
            path: format!(
                "{}/{NAME}{:016x}",
                self.on.parent(),
                epwatch_sdk::simulation::random_u64()
            ),
            on: Arc::clone(&self.on),
        };
        self.say(format_args!("works in {}", folder.path));
        // Added before the folder is made, because a signal may arrive in between.
        self.left.add(&folder);
        let (mut returns, mut made) = (0, self.made()?);
        loop {
            let lost = match self.once(&folder).await {
                Err(error) if error.is::<Lost>() => error,
                ended => return ended,
            };
            let now = self.made()?;
            returns = if now > made { 1 } else { returns + 1 };
            made = now;
            if returns > MOST_RETURNS {
                return Err(lost.context("gave up: no launch was made since it came back"));
            }
            output::remark(format_args!("{lost:#}; waiting for it"));
            self.wait_for_return(lost).await?;
            folder.remove().await?;
            self.say("is back; the launches that were made count");
        }
    }

    async fn greet(&self) -> anyhow::Result<()> {
        let on = self.on.as_ref();
        let machine = on.machine(&line(on, on.greeting()).await?);
        let Machine {
            kind,
            told,
            warnings,
            lacks_rpc_library,
        } = machine;
        if !told.is_empty() {
            self.say(&told);
        }
        for warning in warnings {
            self.say(format_args!("warning: {warning}"));
        }
        let missing = &self.call.of_this_machine;
        if !missing.is_empty() && kind != own_kind() {
            let text = format!(
                "{} is {}, and this machine is {}: give {} for it",
                on.name(),
                one_line(&kind),
                own_kind(),
                missing.join(", ")
            );
            return Err(WrongUse(text).into());
        }
        if lacks_rpc_library && self.call.is_on_npu {
            bail!(
                "{}: its ROM has no libcdsprpc.so in /vendor/lib64 or /system/vendor/lib64, and QNN reaches the DSP \
                 through it alone; measure on the maker's ROM, or without --qnn-provider on the CPU",
                on.name()
            );
        }
        Ok(())
    }

    /// Pushes everything, and runs the runner to its end.
    async fn once(&self, folder: &Folder) -> anyhow::Result<()> {
        let (on, at) = (self.on.as_ref(), folder.path.as_str());
        let mut files = self.call.files()?;
        files.push((self.runner.to_owned(), epwatch_run::PROGRAM.to_owned()));
        for path in launch_files(self.keep)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let to = format!("launches/{name}");
            files.push((path, to));
        }
        let parents = files
            .iter()
            .filter_map(|(_, to)| Path::new(to).parent()?.to_str());
        let mut folders: BTreeSet<String> = parents
            .filter(|parent| !parent.is_empty())
            .map(|parent| quoted(&format!("{at}/{parent}")))
            .collect();
        folders.extend([LIBRARIES, "launches"].map(|name| quoted(&format!("{at}/{name}"))));
        let folders = Vec::from_iter(folders).join(" ");
        // The folder must not exist yet, because another user might have made it.
        let made = format!("umask 077 && mkdir {} && mkdir -p {folders}", quoted(at));
        line(on, &made).await?;
        for (from, to) in files {
            let shown = || format!("failed to push {}", from.display());
            let push = on.push(&from, &format!("{at}/{to}")).with_context(shown)?;
            checked(on, said(push).await?).with_context(shown)?;
        }
        self.run(at).await
    }

    async fn run(&self, at: &str) -> anyhow::Result<()> {
        let mut words = self.call.remote(at);
        words.extend(["--attended", "--out"].map(str::to_owned));
        words.push(format!("{at}/launches"));
        if let Some(phone) = &self.phone {
            words.extend(["--phone".to_owned(), phone.clone()]);
        }
        let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        let (lib, dsp) = (format!("{at}/{LIBRARIES}"), self.on.dsp_folders());
        let text = format!(
            "cd {here} && chmod 700 epwatch-run && \
             export LD_LIBRARY_PATH={lib}\"${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\" ADSP_LIBRARY_PATH={lib}\";{dsp}\" && \
             exec ./epwatch-run {words}",
            here = quoted(at),
            lib = quoted(&lib),
            words = words.join(" ")
        );
        let mut command = self.on.shell(&text);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = start(&mut command)?;
        let (is_whole, last) = self.follow(&mut child).await?;
        let status = child.wait().await?;
        let name = self.on.name();
        match status.code() {
            Some(0) if is_whole => Ok(()),
            Some(2) => Err(WrongUse(format!("the runner on {name}: {}", one_line(&last))).into()),
            // The runner's own texts say nothing about the connection, so an empty text is passed.
            code if self.on.is_lost(code, "") => Err(Lost(format!(
                "{name}: the connection broke{}",
                self.on.way_out(&last)
            ))
            .into()),
            // The exit code is 128 plus the number of the signal.
            Some(code @ 129..) => Err(Lost(format!(
                "{name}: the runner was ended there by signal {}",
                code - 128
            ))
            .into()),
            Some(0) => bail!(
                "{name}: the program of --runner ended without a launch; expected `epwatch` or `epwatch-run` of this version, for \
                 its architecture"
            ),
            Some(126 | 127) => bail!(
                "{name} cannot start the runner: {}; expected a program for it, in a folder that may run programs \
                 (--workdir), and that SELinux lets it run",
                one_line(&last)
            ),
            _ => bail!(
                "the runner on {name} ended with {status}: {}",
                one_line(&last)
            ),
        }
    }

    /// Keeps the launches that the runner sends, repeats its messages, and sends it beats. Returns whether it came to
    /// its end, and its last message.
    async fn follow(&self, child: &mut Child) -> anyhow::Result<(bool, String)> {
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("the runner has an output")?;
        let stderr = child.stderr.take().context("the runner has an output")?;
        let launches = async {
            let (mut from, mut is_whole) = (BufReader::new(stdout), false);
            while let Some(line) = next_line(&mut from).await? {
                match line.as_str() {
                    "end" => is_whole = true,
                    launch => self.keep(launch)?,
                }
            }
            anyhow::Ok(is_whole)
        };
        let told = async {
            let (mut from, mut last) = (BufReader::new(stderr), String::new());
            while let Some(line) = next_line(&mut from).await? {
                let line = line.strip_prefix("epwatch-run: ").unwrap_or(&line);
                self.say(one_line(line));
                line.clone_into(&mut last);
            }
            anyhow::Ok(last)
        };
        tokio::select! {
            ended = async { tokio::try_join!(launches, told) } => ended,
            never = beat(stdin) => match never {},
        }
    }

    /// Keeps one launch under its name.
    fn keep(&self, line: &str) -> anyhow::Result<()> {
        let wrong = || format!("{} sent something else than a launch", self.on.name());
        let (name, json) = line.split_once(' ').with_context(wrong)?;
        let is_launch = is_launch(name);
        if !is_launch && !is_profile(name) {
            bail!("{}: the name {:?}", wrong(), one_line(name));
        }
        let document: Value = serde_json::from_str(json).with_context(wrong)?;
        let content = match &document {
            // A profiler's own file.
            Value::String(content) if !is_launch => content,
            document if is_launch && document["schema"] == SCHEMA => json,
            _ => bail!("{}: it is not an {SCHEMA}", wrong()),
        };
        let path = self.keep.join(name);
        let mut file = NamedTempFile::new_in(self.keep)?;
        file.write_all(content.as_bytes())?;
        let kept = file.persist(&path).map_err(|error| error.error);
        kept.with_context(|| format!("failed to write {}", path.display()))?;
        Ok(())
    }

    fn made(&self) -> anyhow::Result<usize> {
        Ok(launch_files(self.keep)?.len())
    }

    async fn wait_for_return(&self, lost: anyhow::Error) -> anyhow::Result<()> {
        let until = Instant::now() + ABSENCE;
        while line(self.on.as_ref(), "true").await.is_err() {
            if Instant::now() >= until {
                return Err(lost.context("gave up: it did not come back in five minutes"));
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    fn say(&self, text: impl std::fmt::Display) {
        output::remark(format_args!("{}: {text}", self.on.name()));
    }
}

/// Writes a beat to the runner at intervals, for ever.
async fn beat(stdin: Option<ChildStdin>) -> std::convert::Infallible {
    let mut beats = interval(BEAT);
    if let Some(mut stdin) = stdin {
        // Writing fails once the runner has ended; its exit code then shows this.
        while stdin.write_all(b"\n").await.is_ok() && stdin.flush().await.is_ok() {
            beats.tick().await;
        }
    }
    std::future::pending().await
}

/// Returns the next line; `None` at the end. A line without a line break was cut by a broken connection, and is
/// dropped.
async fn next_line(from: &mut (impl AsyncBufRead + Unpin)) -> anyhow::Result<Option<String>> {
    let mut line = Vec::new();
    (&mut *from)
        .take(MOST_LINE)
        .read_until(b'\n', &mut line)
        .await?;
    if line.len() as u64 == MOST_LINE {
        bail!("a line has more than {MOST_LINE} bytes; expected a launch");
    }
    let whole = line.pop() == Some(b'\n');
    Ok(whole.then(|| String::from_utf8_lossy(&line).into_owned()))
}

/// All files of launches in a folder.
fn launch_files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in folder.read_dir()? {
        let entry = entry?;
        files.extend(is_launch(&entry.file_name().to_string_lossy()).then(|| entry.path()));
    }
    Ok(files)
}

/// Whether this is a valid file name for a launch, a look, or a try that was repeated.
fn is_launch(name: &str) -> bool {
    let is_number =
        |text: &str| (1..=9).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    let side = ["candidate-", "baseline-"].into_iter();
    let Some(rest) = side.filter_map(|side| name.strip_prefix(side)).next() else {
        return false;
    };
    rest == "look.json"
        || rest.strip_suffix(".json").is_some_and(is_number)
        || rest
            .split_once(".try-")
            .is_some_and(|(n, attempt)| is_number(n) && is_number(attempt))
}

/// Whether a profiler's own file may have this name.
fn is_profile(name: &str) -> bool {
    let side = ["candidate-", "baseline-"].into_iter();
    let mut rest = side.filter_map(|side| name.strip_prefix(side));
    rest.any(|rest| matches!(rest, "ort-profile.json" | "qnn-profile.csv"))
}

/// Returns this machine's kind in the form of `uname -sm` on Linux.
fn own_kind() -> String {
    use std::env::consts::{ARCH, OS};
    match OS {
        "linux" => format!("Linux {ARCH}"),
        other => format!("{other} {ARCH}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_chooses_no_other_name() {
        for name in [
            "candidate-001.json",
            "baseline-look.json",
            "candidate-003.try-1",
        ] {
            assert!(is_launch(name), "{name}");
        }
        for name in [
            "",
            "candidate-.json",
            "candidate-../x.json",
            "/etc/passwd",
            "gate.json",
            "candidate-1.try-",
            "candidate-0000000001.json",
        ] {
            assert!(!is_launch(name) && !is_profile(name), "{name}");
        }
        assert!(is_profile("baseline-qnn-profile.csv"));
        assert!(!is_profile("baseline-../qnn-profile.csv"));
    }

    #[tokio::test]
    async fn a_line_that_was_cut_counts_for_nothing() {
        let mut from: &[u8] = b"a b\nc";
        assert_eq!(next_line(&mut from).await.unwrap().as_deref(), Some("a b"));
        assert_eq!(next_line(&mut from).await.unwrap(), None);
    }
}
