//! The parent process: plans the launches, starts each, and keeps its file.

use std::{
    env, fs,
    io::{self, Write as _},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, ExitCode, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, bail};
use epwatch_sdk::runtime::TELEMETRY_SWITCH;
use rustix::process::{Signal, set_parent_process_death_signal};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};

use crate::{
    args::Command,
    conditions::output_of,
    document::{Arm, MeasuredOn, Placed, RunDocument},
    job::{Ep, Job, Task},
    launch::launch,
    schedule::{MOST_TRIES, order},
};

/// The command line makes no sense on this device.
#[derive(Debug)]
pub struct WrongUse(String);

impl std::fmt::Display for WrongUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongUse {}

/// The exit code for an error: 2 wrong use, 130 interrupted, 3 anything else.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<Ended>() {
        Some(Ended::Interrupted) => 130,
        _ if error.is::<WrongUse>() => 2,
        _ => 3,
    }
}

#[derive(Debug)]
enum Ended {
    Interrupted,
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(
            "interrupted; the files of ended launches are kept, and the same command goes on",
        )
    }
}

impl std::error::Error for Ended {}

/// Share of the CPU's clock that may be lost during a launch, as the gate has it.
const PROBE_MOVED: f64 = 0.05;
/// Android's thermal status `moderate`, from which clocks are lowered.
const THROTTLED_STATUS: u8 = 2;
/// Battery temperature from which a phone lowers its clocks.
const HOT_BATTERY_C: f64 = 37.0;
/// Pause between two looks at a process.
const PAUSE: Duration = Duration::from_millis(20);
/// Pause before a launch is made again, for the device to cool.
const COOLING: Duration = Duration::from_secs(10);

/// Makes all launches, or the one of a child process.
///
/// # Errors
/// A file cannot be read or written, or a process ended without its launch. [`exit_code`] is for it.
pub fn run(command: Command) -> anyhow::Result<ExitCode> {
    if let Some(path) = &command.job {
        // Ends with the parent, whatever ends that: nobody would look at the file.
        set_parent_process_death_signal(Some(Signal::KILL))?;
        let job: Job = serde_json::from_slice(&fs::read(path)?)?;
        launch(&job)?;
        return Ok(ExitCode::SUCCESS);
    }
    let plan = Plan::of(&command)?;
    plan.make()?;
    Ok(ExitCode::SUCCESS)
}

/// All launches of a command line.
struct Plan {
    arms: Vec<(Arm, PathBuf, Option<PathBuf>)>,
    launches: u32,
    /// Without what differs between launches.
    job: Job,
    out: PathBuf,
    interrupted: Arc<AtomicBool>,
}

impl Plan {
    fn of(command: &Command) -> anyhow::Result<Self> {
        let absolute = |argument: &str, path: &Path| {
            let found = path.canonicalize();
            found.map_err(|error| WrongUse(format!("{argument} {}: {error}", path.display())))
        };
        let given = |argument, path: &Option<PathBuf>| -> Result<Option<PathBuf>, WrongUse> {
            path.as_deref()
                .map(|path| absolute(argument, path))
                .transpose()
        };
        let needed = |argument: &str, path: Option<PathBuf>| {
            path.ok_or_else(|| WrongUse(format!("{argument} is missing")))
        };
        let model = needed("MODEL", given("MODEL", &command.model)?)?;
        let mut arms = vec![(
            Arm::Candidate,
            model.clone(),
            given("--manifest", &command.manifest)?,
        )];
        if let Some(old) = given("--against", &command.against)? {
            let manifest = given("--against-manifest", &command.against_manifest)?;
            arms.push((Arm::Baseline, old, manifest));
        }
        let ep = match (
            given("--qnn-provider", &command.qnn_provider)?,
            given("--qnn-backend", &command.qnn_backend)?,
        ) {
            (Some(provider), Some(backend)) => Ep::Qnn {
                provider,
                backend,
                soc_model: command.soc_model.clone(),
                options: command.ep_option.clone(),
            },
            _ => Ep::Cpu,
        };
        let out = needed("--out", command.out.clone())?;
        fs::create_dir_all(&out)
            .with_context(|| format!("failed to make --out {}", out.display()))?;
        let out = out.canonicalize()?;
        let inputs = command.inputs.absolute();
        let job = Job {
            task: Task::Look,
            name: model
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            model,
            ort: needed("--ort", given("--ort", &command.ort)?)?,
            ep,
            dims: command.dim.clone(),
            manifest: None,
            inputs: inputs.map_err(|error| WrongUse(format!("{error:#}")))?,
            warmup: command.warmup,
            runs: command.runs,
            steady_seconds: command.steady_seconds,
            arm: Arm::Candidate,
            target: target(command),
            out: PathBuf::new(),
        };
        let interrupted = Arc::<AtomicBool>::default();
        for signal in [SIGINT, SIGTERM] {
            flag::register(signal, Arc::clone(&interrupted))?;
        }
        Ok(Self {
            arms,
            launches: command.launches,
            job,
            out,
            interrupted,
        })
    }

    fn make(&self) -> anyhow::Result<()> {
        let of_arm = |arm: Arm| {
            let found = self.arms.iter().find(|(of, ..)| *of == arm);
            found.context("each side has a model")
        };
        let mut looked = Vec::new();
        for (arm, model, manifest) in &self.arms {
            let out = self.out.join(format!("{}-look.json", arm.as_str()));
            let job = self.job_of(*arm, model, manifest.as_ref(), Task::Look, &out);
            let document = match RunDocument::read(&out) {
                Ok(document) => document,
                Err(_) => self.child(&job)?,
            };
            let placed = document.placement.as_ref();
            if placed.is_some_and(|placed| !placed.is_ok()) {
                // One file says it all: no launch of this model would have a run.
                let file = self.file(*arm, 1);
                document.write(&file)?;
                say(format_args!(
                    "{}: no session, see {}",
                    arm.as_str(),
                    file.display()
                ));
            }
            looked.push((*arm, document));
        }
        let order = order(self.launches, self.arms.len() > 1);
        for (at, (arm, n)) in order.iter().enumerate() {
            let (_, model, manifest) = of_arm(*arm)?;
            let seen = looked
                .iter()
                .find(|(of, _)| of == arm)
                .map(|(_, seen)| seen);
            let has_session = seen
                .and_then(|seen| seen.placement.as_ref())
                .is_none_or(Placed::is_ok);
            let out = self.file(*arm, *n);
            if !has_session || out.is_file() {
                continue;
            }
            let job = self.job_of(*arm, model, manifest.as_ref(), Task::Time(*n), &out);
            self.launch(&job, seen)?;
            say(format_args!(
                "launch {} of {}: {}",
                at + 1,
                order.len(),
                out.display()
            ));
        }
        Ok(())
    }

    fn file(&self, arm: Arm, n: u32) -> PathBuf {
        self.out.join(format!("{}-{n:03}.json", arm.as_str()))
    }

    fn job_of(
        &self,
        arm: Arm,
        model: &Path,
        manifest: Option<&PathBuf>,
        task: Task,
        out: &Path,
    ) -> Job {
        Job {
            task,
            arm,
            model: model.to_owned(),
            manifest: manifest.cloned(),
            out: out.to_owned(),
            ..self.job.clone()
        }
    }

    /// Makes a launch, again if the device throttled it or a signal ended it. Earlier tries are kept under names that no
    /// launch has.
    fn launch(&self, job: &Job, seen: Option<&RunDocument>) -> anyhow::Result<()> {
        for attempt in 1..=MOST_TRIES {
            let last = attempt == MOST_TRIES;
            let mut document = match self.child(job) {
                Ok(document) => document,
                Err(error) if last || error.is::<Ended>() => return Err(error),
                Err(error) => {
                    say(format_args!("made again: {error:#}"));
                    continue;
                }
            };
            if let Some(seen) = seen {
                explain(&mut document, seen);
            }
            let why = throttled(&document);
            if let Some(why) = why.filter(|_| !last) {
                let aside = job.out.with_extension(format!("try-{attempt}"));
                document.write(&aside)?;
                fs::remove_file(&job.out)?;
                say(format_args!(
                    "made again: {why}; the first one is {}",
                    aside.display()
                ));
                self.pause(COOLING)?;
                continue;
            }
            // The last try is kept as it is: the gate says that it was throttled.
            document.write(&job.out)?;
            return Ok(());
        }
        Ok(())
    }

    /// Runs a process that makes one launch.
    fn child(&self, job: &Job) -> anyhow::Result<RunDocument> {
        let file = self.out.join("job.json");
        fs::write(&file, serde_json::to_vec(job)?)?;
        let mut child = std::process::Command::new(env::current_exe()?);
        child
            .args(own_words())
            .arg("--job")
            .arg(&file)
            .current_dir(&self.out)
            .env(TELEMETRY_SWITCH, "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let child = child
            .spawn()
            .context("failed to start a process for a launch")?;
        let ended = self.wait(child)?;
        fs::remove_file(&file)?;
        if !ended.success() {
            bail!(without_document(job, ended));
        }
        RunDocument::read(&job.out)
            .with_context(|| format!("failed to read {}, which a launch wrote", job.out.display()))
    }

    fn wait(&self, mut child: Child) -> anyhow::Result<ExitStatus> {
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if self.interrupted.load(Relaxed) {
                child.kill()?;
                child.wait()?;
                let _ = fs::remove_file(self.out.join("job.json"));
                return Err(Ended::Interrupted.into());
            }
            thread::sleep(PAUSE);
        }
    }

    fn pause(&self, time: Duration) -> anyhow::Result<()> {
        let mut left = time;
        while !left.is_zero() {
            if self.interrupted.load(Relaxed) {
                return Err(Ended::Interrupted.into());
            }
            let now = left.min(PAUSE);
            thread::sleep(now);
            left -= now;
        }
        Ok(())
    }
}

/// Tells of progress on standard error.
pub fn say(text: impl std::fmt::Display) {
    // A closed stderr leaves nothing to do.
    let _ = writeln!(io::stderr(), "epwatch-run: {text}");
}

/// What the command line has before the runner's own words: nothing, or a subcommand.
fn own_words() -> Vec<std::ffi::OsString> {
    let is_runner = env::args_os().next().is_some_and(|name| {
        Path::new(&name)
            .file_name()
            .is_some_and(|name| name == "epwatch-run")
    });
    match is_runner {
        true => Vec::new(),
        false => vec!["run".into()],
    }
}

fn without_document(job: &Job, ended: ExitStatus) -> String {
    let what = match job.task {
        Task::Look => "the placement's launch".to_owned(),
        Task::Time(n) => format!("launch {n}"),
    };
    let arm = job.arm.as_str();
    match ended.signal() {
        Some(signal) => format!("signal {signal} ended {what} of the {arm}"),
        None => format!("{what} of the {arm} ended with {ended}"),
    }
}

/// Why the device's own state makes this launch worth another try.
fn throttled(document: &RunDocument) -> Option<String> {
    let status = document.thermal_before.max(document.thermal_after);
    if let Some(status) = status.filter(|status| *status >= THROTTLED_STATUS) {
        return Some(format!("thermal status {status}"));
    }
    if let Some(battery) = document
        .battery_c
        .filter(|battery| *battery >= HOT_BATTERY_C)
    {
        return Some(format!("battery at {battery} C"));
    }
    let moved = document.probe_after_us? / document.probe_us? - 1.0;
    (moved.abs() > PROBE_MOVED).then(|| {
        format!(
            "the CPU probe takes {:.2} times as long after it",
            1.0 + moved
        )
    })
}

/// Gives a launch the reasons and the outputs of the look, if it has the same placement.
fn explain(document: &mut RunDocument, seen: &RunDocument) {
    let print = |of: &RunDocument| of.placement.as_ref()?.fingerprint_normalised.clone();
    if print(document).is_some() && print(document) == print(seen) {
        document.placement.clone_from(&seen.placement);
        document.outputs.clone_from(&seen.outputs);
    }
}

/// What the device says of itself, and what the command line says instead.
fn target(command: &Command) -> MeasuredOn {
    let device = epwatch_sdk::desk::device();
    let property =
        |name: &str| output_of("/system/bin/getprop", name).filter(|text| !text.is_empty());
    let known =
        |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty() && text != "unknown");
    let chipset = command.chipset.clone();
    let chipset = chipset.or_else(|| property("ro.soc.model"));
    let name = command.device.clone();
    let name = name.or_else(|| property("ro.product.model"));
    let firmware = command.firmware.clone();
    let firmware = firmware.or_else(|| property("ro.build.fingerprint"));
    MeasuredOn {
        chipset: chipset.or_else(|| known(device.chipset.as_str())),
        device: name.or_else(|| known(&device.model)),
        firmware: firmware.or_else(|| known(&device.os_version)),
        os: known(&format!("{} {}", device.os, device.abi)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_of_a_hot_device_is_made_again() {
        let document = |before, battery, probe: f64| RunDocument {
            thermal_before: before,
            battery_c: battery,
            probe_us: Some(100.0),
            probe_after_us: Some(probe),
            ..RunDocument::default()
        };
        assert_eq!(throttled(&document(Some(1), Some(30.0), 104.0)), None);
        for hot in [
            document(Some(2), None, 100.0),
            document(None, Some(37.0), 100.0),
            document(None, None, 106.0),
        ] {
            assert!(throttled(&hot).is_some(), "{hot:?}");
        }
    }
}
