//! Launches that the gate makes itself: on this machine, on a board over ssh, on phones on a cable.
//!
//! The runner of `epwatch run` makes them. For another machine its files are copied there first, and its launches are
//! copied back ([`remote`]).

mod adb;
mod call;
mod remote;
mod ssh;
mod transport;

use std::{
    fs,
    io::{self, BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use epwatch_engines::{Engine, QnnVersion};
use epwatch_gate::policy::Policy;
use epwatch_manifest::{
    FreeDim, GraphFacts, InputShape, ManifestError, ModelOutline, graph_facts, manifest_of,
};
use epwatch_proto::placement::QNN_EP;
use epwatch_run::LaunchTimeout;
use serde_json::Value;
use tempfile::{NamedTempFile, TempDir};
use tokio::process::{Child, ChildStderr, ChildStdin, Command};

use self::{
    call::{LIBRARIES, RunnerCall},
    remote::DeviceSession,
    ssh::Ssh,
    transport::Transport,
};
use super::folder_lock;
use crate::{
    engines,
    input_file::{self, FilePurpose},
    inspect::{EpOption, Placed, SocModel},
    manifest,
    output::{self, WrongUse},
};

pub(super) use remote::LeftBehind;

/// A runner that has not ended this long after its standard input was closed is killed.
const RUNNER_ENDS_WITHIN: Duration = Duration::from_secs(3);
/// Pause between two checks whether the runner has ended.
const LOOK: Duration = Duration::from_millis(10);

/// How and where launches are made.
#[derive(Debug, clap::Args)]
pub(super) struct DeviceArgs {
    /// Measure on this machine: launches of MODEL, in turn with launches of a model as --baseline. Each is a process of its
    /// own. With --soc it is QNN's emulator, which shows placement and outputs, and whose times keep no limit.
    #[arg(long, group = "place")]
    local: bool,
    /// Measure on a board, by the user's own ssh, without a password. The model, the runner and the app's libraries go into
    /// a folder there, which is removed at the end.
    #[arg(long, value_name = "HOST", group = "place")]
    ssh: Option<String>,
    /// With --ssh: ssh's configuration [default: the user's].
    #[arg(long, value_name = "FILE", requires = "ssh")]
    ssh_config: Option<PathBuf>,
    /// Measure on phones, by the user's own adb, side by side. Without a serial, on the only one.
    #[arg(
        long,
        value_name = "SERIAL",
        num_args = 0..,
        group = "place",
        requires_all = ["runner", "ort"]
    )]
    adb: Option<Vec<String>>,
    /// With --ssh or --adb: the device's runner, which is `epwatch` or `epwatch-run` for its architecture [default of --ssh:
    /// this program, if the architecture fits].
    #[arg(
        long,
        value_name = "FILE",
        requires = "place",
        conflicts_with = "local"
    )]
    runner: Option<PathBuf>,
    /// With --ssh or --adb: a file that the app's libraries need next to them, for example the DSP's library. Once for each.
    /// Libraries of QNN next to --qnn-backend are taken along anyway.
    #[arg(
        long,
        value_name = "FILE",
        requires = "place",
        conflicts_with = "local"
    )]
    push: Vec<PathBuf>,
    /// With --ssh or --adb: the folder on the device in which a session makes its own [default: /tmp of a board,
    /// /data/local/tmp of a phone].
    #[arg(long, value_name = "DIR", requires = "place", conflicts_with = "local")]
    workdir: Option<String>,
    /// With launches made here: the app's QNN plugin, on a device with an NPU.
    #[arg(long, value_name = "LIB", requires_all = ["place", "qnn_backend"])]
    qnn_provider: Option<PathBuf>,
    /// With launches made here: the app's libQnnHtp.so.
    #[arg(long, value_name = "LIB", requires = "qnn_provider")]
    qnn_backend: Option<PathBuf>,
    /// With launches made here: what the model computes. It is noise, zeros, ones, ramp, or a folder with input_0.pb,
    /// input_1.pb and so on [default: the policy's outputs.golden, or noise].
    #[arg(long, value_name = "KIND|FOLDER", requires = "place")]
    inputs: Option<String>,
    /// With launches made here: how long one launch may take [default: 1h].
    #[arg(long, value_name = "TIME", requires = "place")]
    launch_timeout: Option<LaunchTimeout>,
    /// With launches made here: the folder that keeps the launches. The same command goes on where it was broken off, and
    /// `--runs` judges the files again [default: a temporary one].
    #[arg(long, value_name = "DIR", requires = "place")]
    keep: Option<PathBuf>,
    /// With launches made here on one device: a signed file of what was seen there, to send to epwatch. It has no path,
    /// no name of a file, node or person, and no time of day.
    #[arg(long, value_name = "FILE", requires = "place")]
    report: Option<PathBuf>,
}

/// The model, runtime and chipset that launches measure.
#[derive(Debug)]
pub(super) struct Measured<'a> {
    pub(super) model: &'a Path,
    /// libonnxruntime of the app; `None` for a fetched one.
    pub(super) ort: Option<&'a Path>,
    pub(super) baseline: Option<&'a Path>,
    /// The chipset that QNN's emulator stands for; `None` for the CPU or the app's own libraries.
    pub(super) soc: Option<&'a SocModel>,
    pub(super) qnn_version: QnnVersion,
    pub(super) ep_options: &'a [EpOption],
    pub(super) dims: &'a [FreeDim],
    pub(super) custom_ops: &'a [PathBuf],
    pub(super) shapes: &'a [InputShape],
    pub(super) policy: &'a Policy,
    /// The folder of the policy's file, to which its paths are relative.
    pub(super) policy_folder: &'a Path,
}

/// Files of the launches that were made.
#[derive(Debug, Default)]
pub(super) struct LaunchFiles {
    pub(super) candidate: Vec<PathBuf>,
    pub(super) baseline: Vec<PathBuf>,
    /// The temporary folder of the files, removed on drop; `None` if the files are kept.
    folder: Option<TempDir>,
    /// Why the file of `--report` could not be written. The launches are judged all the same.
    pub(super) unwritten: Option<anyhow::Error>,
}

impl LaunchFiles {
    /// The folder that is removed with the files.
    pub(super) fn temporary(&self) -> Option<&Path> {
        self.folder.as_ref().map(TempDir::path)
    }
}

impl DeviceArgs {
    /// The option that makes launches; `None` without one.
    pub(super) fn option(&self) -> Option<&'static str> {
        let given = [
            ("--local", self.local),
            ("--ssh", self.ssh.is_some()),
            ("--adb", self.adb.is_some()),
        ];
        let given = given.into_iter().find(|(_, is_given)| *is_given);
        given.map(|(option, _)| option)
    }

    /// Whether launches are made on this machine.
    pub(super) fn is_here(&self) -> bool {
        self.local
    }

    /// Whether the app's own QNN plugin is given, for a device with an NPU.
    pub(super) fn has_npu(&self) -> bool {
        self.qnn_provider.is_some()
    }

    /// Whether launches are made, and on the CPU.
    pub(super) fn is_on_cpu(&self, soc: Option<&SocModel>) -> bool {
        self.option().is_some() && !self.has_npu() && (soc.is_none() || self.adb.is_some())
    }

    /// The folder that keeps the launches, if one was given.
    pub(super) fn kept(&self) -> Option<&Path> {
        self.keep.as_deref()
    }

    /// The file that gets what was seen on the device (`--report`).
    pub(super) fn report(&self) -> Option<&Path> {
        self.report.as_deref()
    }

    /// Whether launches are made on another machine.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.ssh.is_some() || self.adb.is_some()
    }

    /// Makes the launches, and adds data from the model's graph to their files. Launches of an earlier call count.
    pub(super) async fn measure(
        &self,
        of: &Measured<'_>,
        left: &LeftBehind,
        before: Option<LaunchFiles>,
    ) -> anyhow::Result<LaunchFiles> {
        self.check_files(of)?;
        if let Some(report) = &self.report {
            let checked = epwatch_run::check_seen_report("--report", report);
            checked.map_err(|error| WrongUse(error.to_string()))?;
        }
        let mut temporary = before.and_then(|files| files.folder);
        let folder = match (&self.keep, &temporary) {
            (Some(folder), _) => folder.clone(),
            (None, Some(folder)) => folder.path().to_owned(),
            (None, None) => {
                let made = tempfile::Builder::new().prefix("epwatch-run-").tempdir()?;
                temporary.insert(made).path().to_owned()
            }
        };
        let mut call = RunnerCall::default();
        add_model(&mut call, of.model, "candidate");
        self.add_runtime(&mut call, of).await?;
        self.add_policy(&mut call, of.policy, of.policy_folder);
        if let Some(limit) = &self.launch_timeout {
            call.text(["--launch-timeout".to_owned(), limit.to_string()]);
        }
        let counted = ModelCount::of(of.model, of.shapes)?;
        if let Some(file) = &counted.macs {
            call.text(["--manifest"]);
            call.file(file.path(), "candidate");
        }
        let mut old = None;
        if let Some(model) = of.baseline {
            call.text(["--against"]);
            add_model(&mut call, model, "baseline");
            let counted = old.insert(ModelCount::of(model, of.shapes)?);
            if let Some(file) = &counted.macs {
                call.text(["--against-manifest"]);
                call.file(file.path(), "baseline");
            }
        }
        call.text(of.dims.iter().map(|dim| format!("--dim={dim}")));
        for library in of.custom_ops {
            call.text(["--custom-ops"]);
            call.file(library, LIBRARIES);
        }
        let folders = match self.devices().await? {
            devices if devices.is_empty() => {
                let made = local(&call, &folder).await;
                if let (Some(report), true) = (&self.report, made.is_err()) {
                    // The launches' own error counts more than a report that there is nothing for.
                    let _ = epwatch_run::write_report(&folder, report, true);
                }
                made.map_err(|error| self.with_way_on(error, &folder))?;
                vec![folder]
            }
            devices if self.report.is_some() && devices.len() > 1 => {
                let text = format!(
                    "--report is of one device, and --adb names {}: give one serial",
                    devices.len()
                );
                return Err(WrongUse(text).into());
            }
            devices => self.elsewhere(devices, call, &folder, left).await?,
        };
        let written = match (&self.report, &folders[..]) {
            (Some(report), [folder]) => epwatch_run::write_report(folder, report, false),
            _ => Ok(()),
        };
        let mut files = LaunchFiles {
            folder: temporary,
            unwritten: written.err(),
            ..LaunchFiles::default()
        };
        let most = of.policy.latency.launches;
        for folder in folders {
            files
                .candidate
                .extend(documents(&folder, "candidate-", most)?);
            if of.baseline.is_some() {
                files
                    .baseline
                    .extend(documents(&folder, "baseline-", most)?);
            }
        }
        for (paths, counted) in [
            (&files.candidate, Some(&counted)),
            (&files.baseline, old.as_ref()),
        ] {
            let with_facts = counted.and_then(|counted| Some((counted, counted.facts.as_ref()?)));
            let Some((counted, facts)) = with_facts else {
                continue;
            };
            for path in paths {
                let shown = || format!("failed to complete {}", path.display());
                complete(path, facts, counted.has_unknown_turns).with_context(shown)?;
            }
        }
        Ok(files)
    }

    /// Adds what a second call could do after launches that ended early: it goes on only with launches that are kept.
    fn with_way_on(&self, error: anyhow::Error, folder: &Path) -> anyhow::Error {
        let made = documents(folder, "candidate-", None).unwrap_or_default();
        match &self.keep {
            Some(keep) if !made.is_empty() && !error.is::<WrongUse>() => anyhow::anyhow!(
                "{error}; the same command goes on with the launches in {}",
                keep.display()
            ),
            _ => error,
        }
    }

    /// Refuses files that the launches need, before anything is opened or made.
    fn check_files(&self, of: &Measured<'_>) -> Result<(), WrongUse> {
        let of_one = [
            ("MODEL", Some(of.model), FilePurpose::Model),
            ("--baseline", of.baseline, FilePurpose::Model),
            ("--ort", of.ort, FilePurpose::Library),
            (
                "--qnn-provider",
                self.qnn_provider.as_deref(),
                FilePurpose::Library,
            ),
            (
                "--qnn-backend",
                self.qnn_backend.as_deref(),
                FilePurpose::Library,
            ),
            ("--runner", self.runner.as_deref(), FilePurpose::Library),
        ];
        let pushed = self.push.iter().map(|path| ("--push", path));
        let custom_ops = of.custom_ops.iter().map(|path| ("--custom-ops", path));
        let of_several = pushed.chain(custom_ops);
        let of_several = of_several
            .map(|(argument, path)| (argument, Some(path.as_path()), FilePurpose::Library));
        for (argument, path, kind) in of_one.into_iter().chain(of_several) {
            let Some(path) = path else { continue };
            let wrong = |error: &dyn std::fmt::Display| {
                WrongUse(format!("{argument} {}: {error}", path.display()))
            };
            input_file::check(path, kind).map_err(|error| wrong(&error))?;
            if kind != FilePurpose::Model {
                continue;
            }
            match ModelOutline::of(path) {
                // Else the launches would be made for nothing.
                Err(
                    error @ (ManifestError::NotOnnx { .. }
                    | ManifestError::Over2Gb { .. }
                    | ManifestError::Io(_)),
                ) => return Err(wrong(&error)),
                Err(_) => {}
                Ok(outline) => {
                    if let Some(why) = outline.irregular_data() {
                        return Err(wrong(&why));
                    }
                }
            }
            // The older model need not have the inputs that --shape and --dim name.
            if argument == "MODEL"
                && let Err(
                    error @ (ManifestError::WrongDim { .. } | ManifestError::WrongShape { .. }),
                ) = manifest_of(path, of.shapes)
            {
                return Err(wrong(&error));
            }
        }
        Ok(())
    }

    /// The other machines; none for `--local`.
    async fn devices(&self) -> anyhow::Result<Vec<Arc<dyn Transport>>> {
        let parent = |default: &'static str| -> Result<&str, WrongUse> {
            let parent = self.workdir.as_deref().unwrap_or(default);
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
            if !parent.starts_with('/') || !parent.chars().all(is_plain) {
                let text = format!(
                    "--workdir {parent:?}: expected an absolute path of letters, digits and ._-"
                );
                return Err(WrongUse(text));
            }
            Ok(parent.trim_end_matches('/'))
        };
        let mut devices: Vec<Arc<dyn Transport>> = Vec::new();
        if let Some(host) = &self.ssh {
            let ssh = Ssh::new(host, self.ssh_config.as_deref(), parent("/tmp")?)?;
            devices.push(Arc::new(ssh));
        }
        if let Some(serials) = &self.adb {
            for phone in adb::phones(serials, parent("/data/local/tmp")?).await? {
                devices.push(Arc::new(phone));
            }
        }
        Ok(devices)
    }

    /// Makes the launches on other machines, side by side. Returns the folders that have them.
    async fn elsewhere(
        &self,
        devices: Vec<Arc<dyn Transport>>,
        mut call: RunnerCall,
        keep: &Path,
        left: &LeftBehind,
    ) -> anyhow::Result<Vec<PathBuf>> {
        for path in &self.push {
            call.needs(path.clone(), below(LIBRARIES, path));
        }
        let own = std::env::current_exe()?;
        if self.runner.is_none() {
            call.of_this_machine.insert(0, "--runner");
        }
        let runner = self.runner.as_deref().unwrap_or(&own);
        let _lock = folder_lock::locked(keep, "--keep")?;
        let is_alone = devices.len() == 1;
        let mut folders = Vec::new();
        let mut phones = Vec::new();
        for (at, on) in devices.into_iter().enumerate() {
            let folder = match is_alone {
                true => keep.to_owned(),
                false => keep.join(format!("phone-{}", at + 1)),
            };
            folder_lock::made(&folder, "--keep")?;
            folders.push(folder);
            phones.push((on, (!is_alone).then(|| (at + 1).to_string())));
        }
        let sessions: Vec<DeviceSession<'_>> = phones
            .into_iter()
            .zip(&folders)
            .map(|((on, phone), keep)| DeviceSession {
                on,
                call: &call,
                runner,
                phone,
                keep,
                left,
            })
            .collect();
        futures::future::try_join_all(sessions.iter().map(DeviceSession::measure)).await?;
        Ok(folders)
    }

    async fn add_runtime(&self, call: &mut RunnerCall, of: &Measured<'_>) -> anyhow::Result<()> {
        let given = self.qnn_provider.as_ref().zip(self.qnn_backend.as_ref());
        let mut fetched = None;
        if given.is_none() && of.soc.is_some() && self.adb.is_none() {
            let ensured = engines::ensure_qnn(of.qnn_version).await;
            fetched =
                Some(ensured.context("without QNN's emulator there is no chipset to run on")?);
        }
        let ort = match (of.ort, &fetched) {
            (Some(path), _) => path.to_owned(),
            (None, Some((ort, _))) => ort.ort_library(),
            (None, None) => engines::ensure(Engine::OnnxRuntime).await?.ort_library(),
        };
        if of.ort.is_none() {
            call.of_this_machine.push("--ort");
        }
        call.text(["--ort"]);
        call.file(ort, LIBRARIES);
        let qnn = match (given, &fetched) {
            (Some((provider, backend)), _) => Some((provider.clone(), backend.clone())),
            (None, Some((_, qnn))) => Some((qnn.qnn_provider_library(), qnn.qnn_htp_library())),
            (None, None) => None,
        };
        if let Some((provider, backend)) = qnn {
            if given.is_none() {
                call.of_this_machine
                    .push("--qnn-provider and --qnn-backend");
            }
            call.is_on_npu = true;
            add_neighbours(call, &backend)?;
            call.text(["--qnn-provider"]);
            call.file(provider, LIBRARIES);
            call.text(["--qnn-backend"]);
            call.file(backend, LIBRARIES);
            call.text(
                of.ep_options
                    .iter()
                    .map(|option| format!("--ep-option={option}")),
            );
        }
        if let Some(soc) = of.soc {
            call.text(["--chipset".to_owned(), soc.chipset()]);
            if let Some(id) = soc.qnn_id.filter(|_| fetched.is_some()) {
                call.text(["--soc-model".to_owned(), id.to_string()]);
            }
        }
        Ok(())
    }

    fn add_policy(&self, call: &mut RunnerCall, policy: &Policy, folder: &Path) {
        let latency = &policy.latency;
        for (option, number) in [
            ("--launches", latency.launches),
            ("--runs", latency.runs),
            // Policies have no larger number.
            (
                "--warmup",
                latency.warmup.map(|n| u32::try_from(n).unwrap_or(u32::MAX)),
            ),
        ] {
            if let Some(number) = number {
                call.text([option.to_owned(), number.to_string()]);
            }
        }
        let golden = policy
            .outputs
            .golden
            .as_ref()
            .map(|path| folder.join(path).display().to_string());
        if let Some(inputs) = self.inputs.clone().or(golden) {
            call.text(["--inputs"]);
            match Path::new(&inputs).is_dir() {
                true => call.folder(inputs, "inputs"),
                false => call.text([inputs]),
            }
        }
    }
}

/// Makes the launches on this machine.
async fn local(call: &RunnerCall, folder: &Path) -> anyhow::Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("run")
        .args(call.local())
        .arg("--out")
        .arg(Path::new(".").join(folder))
        // The end of its standard input tells the runner that this process has ended, by whatever signal.
        .arg("--ends-with-stdin")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let (ended, error) = LocalRunner::start(&mut command)
        .context("failed to start `epwatch run`")?
        .ended()
        .await?;
    match ended.code() {
        Some(0) => {
            remark_of_runner(&error);
            Ok(())
        }
        Some(2) if !error.is_empty() => Err(WrongUse(error).into()),
        Some(2) => Err(WrongUse("the runner cannot measure this, see above".to_owned()).into()),
        _ if error.is_empty() => bail!("the runner ended with {ended}"),
        _ => bail!("the runner ended with {ended}: {error}"),
    }
}

/// The runner on this machine. When its standard input ends, the runner ends with its current launch.
struct LocalRunner {
    runner: Child,
    stdin: Option<ChildStdin>,
    /// Repeats the messages of the runner, and returns its error.
    messages: Option<JoinHandle<String>>,
}

impl LocalRunner {
    fn start(command: &mut Command) -> io::Result<Self> {
        let mut runner = command.spawn()?;
        let stdin = runner.stdin.take();
        let stderr = runner.stderr.take();
        let stderr = stderr.map(ChildStderr::into_owned_fd).transpose()?;
        Ok(Self {
            runner,
            stdin,
            messages: stderr.map(|stderr| thread::spawn(|| repeat_messages(stderr.into()))),
        })
    }

    /// Waits for the end of the runner, and returns its error too.
    async fn ended(mut self) -> io::Result<(ExitStatus, String)> {
        // `wait` would close a standard input that is still in `runner`, so it was taken out.
        let ended = self.runner.wait().await?;
        Ok((ended, self.error()))
    }

    /// The error of a runner that has ended.
    fn error(&mut self) -> String {
        let messages = self.messages.take().map(JoinHandle::join);
        messages.and_then(Result::ok).unwrap_or_default()
    }
}

/// Writes an error that is not the gate's own.
fn remark_of_runner(error: &str) {
    if !error.is_empty() {
        output::remark(error);
    }
}

/// Writes the messages of the runner to standard error as they come. Its last error is returned instead, because reports
/// have it too.
fn repeat_messages(from: fs::File) -> String {
    let mut error = String::new();
    for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        match (
            line.strip_prefix(output::PREFIX),
            line.strip_prefix(output::CAUSE),
        ) {
            (Some(text), _) => {
                remark_of_runner(&error);
                text.clone_into(&mut error);
            }
            (_, Some(cause)) => error = format!("{error}: {cause}"),
            // If stderr is closed, the text is dropped.
            _ => _ = writeln!(io::stderr(), "{line}"),
        }
    }
    error
}

impl Drop for LocalRunner {
    /// Waits for the runner's end, so that it cannot write into a folder that is removed next.
    fn drop(&mut self) {
        self.stdin.take();
        let began = Instant::now();
        while began.elapsed() < RUNNER_ENDS_WITHIN && matches!(self.runner.try_wait(), Ok(None)) {
            thread::sleep(LOOK);
        }
        if !matches!(self.runner.try_wait(), Ok(None)) {
            remark_of_runner(&self.error());
        }
    }
}

/// A model, with the files that hold its tensors. A model that cannot be read is refused later, by the runner.
fn add_model(call: &mut RunnerCall, model: &Path, side: &'static str) {
    call.file(model, side);
    let folder = model.parent().unwrap_or(Path::new(""));
    let outline = ModelOutline::of(model).ok();
    for file in outline.iter().flat_map(ModelOutline::data_files) {
        call.needs(folder.join(file), format!("{side}/{}", file.display()));
    }
}

/// QNN's back end loads other libraries of QNN from its own folder, and a wheel has more in a folder next to that one.
fn add_neighbours(call: &mut RunnerCall, backend: &Path) -> anyhow::Result<()> {
    let folder = backend
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let of_wheel = PathBuf::from(format!("{}.libs", folder.display()));
    let is_of_qnn = |name: &str| name.contains("Qnn") || name.contains("Htp");
    for (folder, is_whole) in [(folder, false), (of_wheel.as_path(), true)] {
        if is_whole && !folder.is_dir() {
            continue;
        }
        let entries = fs::read_dir(folder);
        for entry in entries.with_context(|| format!("failed to read {}", folder.display()))? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.contains(".so") && (is_whole || is_of_qnn(&name)) {
                call.needs(path.clone(), below(LIBRARIES, &path));
            }
        }
    }
    Ok(())
}

fn below(folder: &str, path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    format!("{folder}/{name}")
}

/// The parts of a model's graph that its launches need.
struct ModelCount {
    /// A file with the MACs, which must exist until the runner has ended; `None` if they cannot be counted.
    macs: Option<NamedTempFile>,
    /// Whether a loop's number of iterations is unknown, so that no share of the MACs is known either.
    has_unknown_turns: bool,
    facts: Option<GraphFacts>,
}

impl ModelCount {
    fn of(model: &Path, shapes: &[InputShape]) -> anyhow::Result<Self> {
        let counted = manifest_of(model, shapes).ok();
        Ok(Self {
            macs: counted.as_ref().map(manifest::temporary).transpose()?,
            has_unknown_turns: counted.is_some_and(|counted| counted.has_unknown_turns()),
            facts: graph_facts(model, shapes).ok(),
        })
    }
}

/// Documents of one side, in the order of their numbers. A folder may have more than a policy asks for: these do not count.
fn documents(folder: &Path, side: &str, most: Option<u32>) -> anyhow::Result<Vec<PathBuf>> {
    let most = most.unwrap_or(u32::MAX);
    let mut found = Vec::new();
    for entry in
        fs::read_dir(folder).with_context(|| format!("failed to read {}", folder.display()))?
    {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let number = name
            .strip_prefix(side)
            .and_then(|rest| rest.strip_suffix(".json"));
        let is_digits = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit());
        let number = number.filter(is_digits).and_then(|text| text.parse().ok());
        if number.is_some_and(|number: u32| number <= most) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Adds to a launch's placement the positions of its CPU nodes in the graph, and the tensors that cross.
fn complete(path: &Path, facts: &GraphFacts, has_unknown_turns: bool) -> anyhow::Result<()> {
    let mut document: Value = serde_json::from_slice(&fs::read(path)?)?;
    let Some(placement) = document.get_mut("placement").and_then(Value::as_object_mut) else {
        return Ok(());
    };
    if placement.contains_key("crossings") {
        // An earlier call has completed it.
        return Ok(());
    }
    let names = placement.remove("npu_nodes");
    let npu_nodes: Vec<String> = names
        .map(serde_json::from_value)
        .transpose()?
        .unwrap_or_default();
    let mut placed: Placed = serde_json::from_value(Value::Object(placement.clone()))?;
    placed.locate(facts, QNN_EP, &npu_nodes);
    if has_unknown_turns {
        placed.forget_shares(QNN_EP);
    }
    if let Value::Object(located) = serde_json::to_value(&placed)? {
        placement.extend(located);
    }
    // Written to a temporary file first, so that a full disk does not destroy the launch.
    let mut file = NamedTempFile::new_in(path.parent().context("a launch is in a folder")?)?;
    file.write_all(&serde_json::to_vec(&document)?)?;
    file.persist(path)?;
    Ok(())
}
