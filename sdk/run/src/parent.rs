//! The parent process: plans the launches, starts each, and keeps its file.

use std::{
    collections::BTreeMap,
    env,
    fs::{self, File},
    io,
    os::unix::process::CommandExt as _,
    path::{self, Path, PathBuf},
    process::{Child, ExitCode, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use epwatch_gate::{profile::RunProfile, run::Arm};
use epwatch_manifest::ModelOutline;
use epwatch_proto::{clipped, visible};
use epwatch_sdk::runtime::TELEMETRY_SWITCH;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
    process::{Pid, Signal, kill_process_group, set_parent_process_death_signal},
};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};

use crate::{
    args::Command,
    attended::{self, StartedBy},
    conditions::target,
    crash::{Crashed, TimedOut, without_document},
    document::{self, Placed, RunDocument},
    job::{Ep, Job, KeyValue, Task, with_whole_paths},
    kept::{known, out_of_turn},
    launch::launch,
    launch_timeout::LaunchTimeout,
    report::write_report,
    report_file::check_seen_report,
    say::say,
    schedule::{MOST_TRIES, order},
    settings::settings,
    side::Side,
    untimed::{UNFINISHED, WARM_STARTS},
    wrong_use::WrongUse,
};

/// The exit code for an error: 2 wrong use, 130 interrupted, 3 anything else.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<Ended>() {
        Some(Ended::Interrupted(_)) => 130,
        _ if error.is::<WrongUse>() => 2,
        _ => 3,
    }
}

#[derive(Debug)]
enum Ended {
    Interrupted(Caller),
}

/// The one who gave the options, so that messages name them as they were given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caller {
    User,
    Gate,
}

impl Caller {
    fn name_of_baseline(self) -> &'static str {
        match self {
            Self::User => "--against",
            Self::Gate => "--baseline",
        }
    }

    fn name_of_out(self) -> &'static str {
        match self {
            Self::User => "--out",
            Self::Gate => "--keep",
        }
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self::Interrupted(caller) = self;
        f.write_str(match caller {
            Caller::User => {
                "interrupted; the files of ended launches are kept, and the same command goes on"
            }
            Caller::Gate => {
                "interrupted; a gate with --keep keeps the files of ended launches, and the same command goes on"
            }
        })
    }
}

impl std::error::Error for Ended {}

/// Pause between two checks whether a process has ended.
const PAUSE: Duration = Duration::from_millis(20);
/// Longest reason why a try does not count.
const MOST_REASON_BYTES: usize = 300;
/// Pause before a launch is made again, for the device to cool.
const COOLING: Duration = Duration::from_secs(10);

/// Makes all launches, or the single launch of a child process. `subcommand` holds the words of the command line that
/// lead to this function.
///
/// # Errors
/// Fails if a file cannot be read or written, or a process ended without its launch. [`exit_code`] maps the error to
/// the program's exit code.
pub fn run(command: Command, subcommand: &[&str]) -> anyhow::Result<ExitCode> {
    if let Some(path) = &command.job {
        // This process ends with its parent, whatever ends the parent, because nobody would read the file.
        set_parent_process_death_signal(Some(Signal::KILL))?;
        let job: Job = serde_json::from_slice(&fs::read(path)?)?;
        let Err(error) = launch(&job) else {
            return Ok(ExitCode::SUCCESS);
        };
        // The parent reports it, so that its error names the reason.
        let told = error_of(&job.out);
        return match fs::write(&told, format!("{error:#}")) {
            Ok(()) => Ok(ExitCode::from(exit_code(&error))),
            Err(_) => {
                // A full disk leaves an empty file.
                let _ = fs::remove_file(told);
                Err(error)
            }
        };
    }
    let plan = Plan::of(&command, subcommand)?;
    // One process at a time makes the launches of a folder. The system releases the lock, however the process ends.
    let folder = File::open(&plan.out)?;
    match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => plan.make_and_report(command.report.as_deref())?,
        Err(Errno::WOULDBLOCK) => {
            let (option, out) = (plan.caller.name_of_out(), plan.out.display());
            let text = format!("{option} {out} is in use by another run");
            return Err(WrongUse(text).into());
        }
        Err(error) => {
            return Err(error).with_context(|| format!("failed to lock {}", plan.out.display()));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// All launches of a command line.
struct Plan {
    sides: Vec<Side>,
    launches: u32,
    /// Longest time of one launch.
    launch_timeout: LaunchTimeout,
    /// A job without the fields that differ between launches.
    job: Job,
    out: PathBuf,
    /// Whether this call made the folder.
    is_new: bool,
    /// Words of the command line that make this program the runner.
    subcommand: Vec<String>,
    /// Whether each file goes to standard output too.
    attended: bool,
    caller: Caller,
    interrupted: Arc<AtomicBool>,
}

impl Plan {
    fn of(command: &Command, subcommand: &[&str]) -> anyhow::Result<Self> {
        let absolute = |argument: &str, path: &Path| {
            let shown = path.display();
            let found = path.canonicalize();
            let found = found.map_err(|error| WrongUse(format!("{argument} {shown}: {error}")))?;
            // A FIFO would wait for ever.
            match found.is_file() {
                true => Ok(found),
                false => Err(WrongUse(format!(
                    "{argument} {shown}: it is not a regular file; expected a file"
                ))),
            }
        };
        if let Some(report) = &command.report {
            check_seen_report("--report", report)?;
        }
        let given = |argument, path: &Option<PathBuf>| -> Result<Option<PathBuf>, WrongUse> {
            path.as_deref()
                .map(|path| absolute(argument, path))
                .transpose()
        };
        let needed = |argument: &str, path: Option<PathBuf>| {
            path.ok_or_else(|| WrongUse(format!("{argument} is missing")))
        };
        let caller = match command.attended || command.ends_with_stdin {
            true => Caller::Gate,
            false => Caller::User,
        };
        // A model that is a link keeps its name: its data is next to the link.
        let linked = |argument: &str, path: &Path| -> Result<PathBuf, WrongUse> {
            absolute(argument, path)?;
            path::absolute(path).map_err(|error| WrongUse(format!("{argument}: {error}")))
        };
        let model = command.model.as_deref();
        let model = needed(
            "MODEL",
            model.map(|path| linked("MODEL", path)).transpose()?,
        )?;
        let mut sides = vec![Side::new(Arm::Candidate, "MODEL", &model)?];
        sides[0].add_macs("--manifest", command.manifest.as_deref())?;
        let old = command.against.as_deref();
        let old = old.map(|path| linked(caller.name_of_baseline(), path));
        if let Some(old) = old.transpose()? {
            let mut old = Side::new(Arm::Baseline, caller.name_of_baseline(), &old)?;
            old.add_macs("--against-manifest", command.against_manifest.as_deref())?;
            sides.push(old);
        }
        let ep = match (
            given("--qnn-provider", &command.qnn_provider)?,
            given("--qnn-backend", &command.qnn_backend)?,
        ) {
            (Some(provider), Some(backend)) => Ep::Qnn {
                provider,
                backend,
                soc_model: command.soc_model.clone(),
                options: with_whole_paths(&command.ep_option, absolute)?,
            },
            _ => Ep::Cpu,
        };
        let inputs = command.inputs.absolute();
        let inputs = inputs.map_err(|error| WrongUse(format!("{error:#}")))?;
        if let Some(ignored) = inputs.ignored() {
            say(ignored);
        }
        let ort = needed("--ort", given("--ort", &command.ort)?)?;
        let libraries = command.custom_ops.iter();
        let libraries = libraries.map(|library| absolute("--custom-ops", library));
        let custom_ops = libraries.collect::<Result<Vec<_>, _>>()?;
        let job = Job {
            task: Task::Look,
            name: model
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            model,
            sha256: String::new(),
            data: BTreeMap::new(),
            settings: settings(command, &ort, &ep, &inputs, &custom_ops)?,
            ort,
            ep,
            dims: command
                .dim
                .iter()
                .map(|dim| KeyValue {
                    key: dim.name().to_owned(),
                    value: dim.size().to_string(),
                })
                .collect(),
            custom_ops,
            manifest: None,
            inputs,
            warmup: command.warmup,
            runs: command.runs,
            steady_seconds: command.steady_seconds,
            arm: Arm::Candidate,
            target: target(command),
            out: PathBuf::new(),
        };
        let out = needed("--out", command.out.clone())?;
        let is_new = !out.exists();
        fs::create_dir_all(&out).map_err(|error| {
            WrongUse(format!(
                "{} {}: {error}",
                caller.name_of_out(),
                out.display()
            ))
        })?;
        let out = out.canonicalize()?;
        let interrupted = Arc::<AtomicBool>::default();
        for signal in [SIGINT, SIGTERM] {
            flag::register(signal, Arc::clone(&interrupted))?;
        }
        let started_by = match (command.attended, command.ends_with_stdin) {
            (true, _) => Some(StartedBy::OtherMachine),
            (_, true) => Some(StartedBy::ThisMachine),
            _ => None,
        };
        if let Some(by) = started_by {
            attended::watch_standard_input(by, Arc::clone(&interrupted));
        }
        Ok(Self {
            sides,
            launches: command.launches,
            launch_timeout: command.launch_timeout,
            job,
            out,
            is_new,
            subcommand: subcommand.iter().map(ToString::to_string).collect(),
            attended: command.attended,
            caller,
            interrupted,
        })
    }

    /// Makes all launches. The report is also written if the device refused the model, because reports exist to show
    /// such refusals.
    fn make_and_report(&self, report: Option<&Path>) -> anyhow::Result<()> {
        let made = self.make();
        // A launch that was interrupted counts for nothing. If a file stays, the next call removes it.
        let _ = self.remove_unfinished();
        if self.is_new && made.is_err() {
            // Fails if a launch was made.
            let _ = fs::remove_dir(&self.out);
        }
        let is_interrupted = made.as_ref().is_err_and(|error| error.is::<Ended>());
        let Some(file) = report.filter(|_| !is_interrupted) else {
            return made;
        };
        let written = write_report(&self.out, file, made.is_err());
        // The launches' own error counts more than a report that there is nothing for.
        made.and(written)
    }

    fn make(&self) -> anyhow::Result<()> {
        // Of an earlier call that was killed.
        self.remove_unfinished()?;
        let mut looked = BTreeMap::new();
        for side in &self.sides {
            let file = self.out.join(format!("{}-look.json", side.arm.as_str()));
            let job = self.job_of(side, Task::Look, &file);
            let kept = self.known(&job)?;
            let mut document = match kept.clone() {
                Some(document) => document,
                None => self.look(&job)?,
            };
            let placed = document.placement.as_ref();
            if let Some(why) = placed.and_then(Placed::why_broken) {
                return Err(self.broken(side, why).into());
            }
            // A full disk may have cost an earlier call these two.
            if has_session(&document) && document.profile.is_none() {
                document.profile = self.profile(&job)?;
            }
            if has_session(&document) && document.load_warm_us.is_none() {
                document.load_warm_us = self.load_warm_us(&job)?;
            }
            if kept.as_ref() != Some(&document) {
                self.write(&document, &file)?;
            }
            if !has_session(&document) {
                let error = document.placement.as_ref().and_then(Placed::error);
                let error = visible(error.unwrap_or("the runtime gives no reason")).to_string();
                let word = document
                    .placement
                    .as_ref()
                    .map_or("no session", Placed::word);
                if side.arm == Arm::Baseline {
                    return Err(self.without_baseline(word, &error).into());
                }
                // One file is enough, because no launch of this model would have a run.
                self.write(&document, &self.file(side.arm, 1))?;
                say(format_args!("{}: {word}: {error}", side.arm.as_str()));
            }
            looked.insert(side.arm, (side, document));
        }
        let order = order(self.launches, self.sides.len() > 1);
        if looked.values().all(|(_, seen)| has_session(seen)) {
            self.check_turns(&order)?;
        }
        for (at, (arm, n)) in order.iter().enumerate() {
            let (side, seen) = looked.get(arm).context("each side has a model")?;
            let file = self.file(*arm, *n);
            let job = self.job_of(side, Task::Time(*n), &file);
            if !has_session(seen) {
                continue;
            }
            if let Some(kept) = self.known(&job)? {
                self.add_missing(kept, seen, &file)?;
                continue;
            }
            self.launch(&job, seen)?;
            say(format_args!(
                "launch {} of {}: {}",
                at + 1,
                order.len(),
                name_of(&file)
            ));
        }
        for side in &self.sides {
            if let Some(file) = side.changed_by_hash()? {
                return Err(self.changed(side.arm, &file).into());
            }
        }
        if self.attended {
            attended::send_end()?;
        }
        Ok(())
    }

    /// Refuses to go on with a model that is another file now, because all its launches count as launches of one model.
    fn check_unchanged(&self) -> Result<(), WrongUse> {
        let mut changed = self.sides.iter();
        let changed = changed.find_map(|side| Some((side.arm, side.changed()?)));
        changed.map_or(Ok(()), |(arm, file)| Err(self.changed(arm, file)))
    }

    fn changed(&self, arm: Arm, file: &Path) -> WrongUse {
        let argument = match arm {
            Arm::Candidate => "MODEL",
            Arm::Baseline => self.caller.name_of_baseline(),
        };
        WrongUse(format!(
            "{} of {argument} was changed or replaced while launches were made, so that they are not launches of one model; \
             leave its files alone until the end, and measure again in another folder",
            name_of(file)
        ))
    }

    /// Gives a launch of an earlier call what only this call's look has, because the disk was full then.
    fn add_missing(
        &self,
        mut kept: RunDocument,
        seen: &RunDocument,
        file: &Path,
    ) -> anyhow::Result<()> {
        let lacks_profile = kept.profile.is_none() && seen.profile.is_some();
        let lacks_load = kept.load_warm_us.is_none() && seen.load_warm_us.is_some();
        if lacks_profile || lacks_load {
            explain(&mut kept, seen);
            self.write(&kept, file)?;
        }
        Ok(())
    }

    fn known(&self, job: &Job) -> Result<Option<RunDocument>, WrongUse> {
        known(job).map_err(|why| self.needs_other_folder(&why))
    }

    /// Refuses launches of an earlier call that this call's launches would not take turns with.
    fn check_turns(&self, order: &[(Arm, u32)]) -> Result<(), WrongUse> {
        let is_there = |arm, n| self.file(arm, n).is_file();
        let Some([missing, later]) = out_of_turn(order, is_there) else {
            return Ok(());
        };
        let [missing, later] = [missing, later].map(|(arm, n)| name_of(&self.file(arm, n)));
        let why = format!("{later} is there, and {missing}, which is measured before it, is not");
        Err(self.needs_other_folder(&why))
    }

    /// Advice if the launches of a folder cannot be judged together with this call's launches.
    fn needs_other_folder(&self, why: &str) -> WrongUse {
        let option = self.caller.name_of_out();
        // On another machine the folder is the session's, and the user has another one.
        let folder = match self.attended {
            true => option.to_owned(),
            false => format!("{option} {}", self.out.display()),
        };
        WrongUse(format!("{folder}: {why}; give another folder"))
    }

    /// The look at a model. If its process crashes twice, the model has no session here, as in the app.
    fn look(&self, job: &Job) -> anyhow::Result<RunDocument> {
        match self.child(job) {
            Err(error) if error.is::<Crashed>() => say(format_args!("made again: {error}")),
            looked => return looked,
        }
        self.child(job).or_else(|error| {
            let crashed = error.downcast::<Crashed>()?;
            say(&crashed);
            Ok(crashed.document(job))
        })
    }

    /// Nothing could be measured of a model that no EP takes.
    fn broken(&self, side: &Side, why: &str) -> WrongUse {
        let why = visible(why);
        WrongUse(match (side.arm, self.caller.name_of_baseline()) {
            (Arm::Candidate, _) => format!("MODEL {} is broken: {why}", name_of(&side.model)),
            (Arm::Baseline, argument) => format!(
                "the model of {argument} is broken: {why}; without {argument} MODEL is measured alone"
            ),
        })
    }

    /// No launch could be compared with an earlier model that has no session.
    fn without_baseline(&self, word: &str, error: &str) -> WrongUse {
        let argument = self.caller.name_of_baseline();
        // `epwatch gate calibrate` measures MODEL in turn with itself.
        if self
            .sides
            .iter()
            .all(|side| side.sha256 == self.sides[0].sha256)
        {
            return WrongUse(format!("MODEL has {word} here: {error}"));
        }
        WrongUse(format!(
            "the model of {argument} has {word} here: {error}; without {argument} MODEL is measured alone"
        ))
    }

    /// A profile, which a launch is judged without: `None` if the runtime or the disk refuses it.
    fn profile(&self, job: &Job) -> anyhow::Result<Option<RunProfile>> {
        let Some(found) = self.untimed(job, Task::Profile)? else {
            return Ok(None);
        };
        let mut profile = found.profile.unwrap_or_default();
        if self.attended {
            let mut sent = Vec::new();
            for name in profile.files {
                match attended::send_file(&self.out.join(&name))? {
                    true => sent.push(name),
                    false => say(format_args!("{name} is too long to be sent")),
                }
            }
            profile.files = sent;
        }
        Ok(Some(profile))
    }

    /// How long a session takes to start from its compiled graph; `None` of an EP that compiles none, and of a model that
    /// is one.
    fn load_warm_us(&self, job: &Job) -> anyhow::Result<Option<f64>> {
        let outline = ModelOutline::of(&job.model);
        let is_compiled = outline.is_ok_and(|outline| outline.precompiled().is_some());
        if job.ep == Ep::Cpu || is_compiled {
            return Ok(None);
        }
        let mut starts_us = Vec::new();
        if self.untimed(job, Task::Compile)?.is_some() {
            for _ in 0..WARM_STARTS {
                let warm = self.untimed(job, Task::Warm)?;
                let Some(us) = warm.and_then(|document| document.load_warm_us) else {
                    break;
                };
                starts_us.push(us);
            }
        }
        self.remove_unfinished()?;
        starts_us.sort_by(f64::total_cmp);
        Ok(starts_us.get(starts_us.len() / 2).copied())
    }

    /// A launch next to the look. A failure is told, and ends nothing.
    fn untimed(&self, job: &Job, task: Task) -> anyhow::Result<Option<RunDocument>> {
        let job = Job {
            task,
            ..job.clone()
        };
        match self.child(&job) {
            Ok(document) => Ok(Some(document)),
            Err(error) if error.is::<Ended>() => Err(error),
            Err(error) => {
                say(format_args!("{error:#}; the launches go on without it"));
                // Half a profile would fill the disk.
                self.remove_unfinished()?;
                Ok(None)
            }
        }
    }

    /// Removes files of a launch that did not end.
    fn remove_unfinished(&self) -> anyhow::Result<()> {
        for entry in fs::read_dir(&self.out)? {
            let path = entry?.path();
            let name = name_of(&path);
            let is_ours = UNFINISHED.iter().any(|begin| name.starts_with(begin));
            if is_ours && path.is_file() {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    fn write(&self, document: &RunDocument, file: &Path) -> anyhow::Result<()> {
        let written = document::write(document, file);
        written.with_context(|| format!("failed to write {}", file.display()))?;
        if self.attended {
            attended::send(document, file)?;
        }
        Ok(())
    }

    fn file(&self, arm: Arm, n: u32) -> PathBuf {
        self.out.join(format!("{}-{n:03}.json", arm.as_str()))
    }

    fn job_of(&self, side: &Side, task: Task, out: &Path) -> Job {
        Job {
            task,
            arm: side.arm,
            model: side.model.clone(),
            sha256: side.sha256.clone(),
            data: side.data.clone(),
            manifest: side.manifest.clone(),
            out: out.to_owned(),
            ..self.job.clone()
        }
    }

    /// Makes a launch, again if the device throttled it or a signal ended it. Earlier tries are kept under names that no
    /// launch has.
    fn launch(&self, job: &Job, seen: &RunDocument) -> anyhow::Result<()> {
        let mut made_again: Vec<String> = Vec::new();
        for attempt in 1..=MOST_TRIES {
            let last = attempt == MOST_TRIES;
            let mut document = match self.child(job) {
                Ok(document) => document,
                Err(error)
                    if last
                        || error.is::<Ended>()
                        || error.is::<WrongUse>()
                        || error.is::<TimedOut>() =>
                {
                    return Err(error);
                }
                Err(error) => {
                    say(format_args!("made again: {error:#}"));
                    made_again.push(clipped(&format!("{error:#}"), MOST_REASON_BYTES));
                    continue;
                }
            };
            document.made_again.clone_from(&made_again);
            explain(&mut document, seen);
            let why = document.device_state().throttled();
            let Some(why) = why.filter(|_| !last) else {
                // The last try is kept unchanged: the gate reports that it was throttled.
                return self.write(&document, &job.out);
            };
            made_again.push(why.clone());
            let aside = job.out.with_extension(format!("try-{attempt}"));
            self.write(&document, &aside)?;
            say(format_args!(
                "made again: {why}; the first one is {}",
                name_of(&aside)
            ));
            self.pause(COOLING)?;
        }
        Ok(())
    }

    /// Runs a process that makes one launch of a model that does not change meanwhile.
    fn child(&self, job: &Job) -> anyhow::Result<RunDocument> {
        self.check_unchanged()?;
        let made = self.launched(job);
        // Explains the launch's own error too.
        self.check_unchanged()?;
        made
    }

    /// The file gets the launch's name only once it is complete.
    fn launched(&self, job: &Job) -> anyhow::Result<RunDocument> {
        let (told, answer) = (self.out.join("job.json"), self.out.join("launching.json"));
        let job = Job {
            out: answer.clone(),
            ..job.clone()
        };
        let ended = fs::write(&told, serde_json::to_vec(&job)?)
            .with_context(|| format!("failed to write {}", told.display()))
            .and_then(|()| self.run_child(&told, &job));
        let read = match ended {
            Ok(ended) if ended.success() => document::read(&answer).with_context(|| {
                format!("failed to read {}, which a launch wrote", answer.display())
            }),
            Ok(ended) => {
                let why = fs::read_to_string(error_of(&answer)).ok();
                Err(match (ended.code(), why) {
                    (Some(2), why) => {
                        let unknown = || "no launch can be made like this, see above".to_owned();
                        WrongUse(why.unwrap_or_else(unknown)).into()
                    }
                    (_, why) => without_document(&job, ended, why.as_deref()),
                })
            }
            Err(error) => Err(error),
        };
        for file in [told, error_of(&answer), answer] {
            // If the file remains, the next launch replaces it.
            let _ = fs::remove_file(file);
        }
        read
    }

    fn run_child(&self, told: &Path, job: &Job) -> anyhow::Result<ExitStatus> {
        let mut child = std::process::Command::new(env::current_exe()?);
        child
            .args(&self.subcommand)
            .arg("--job")
            .arg(told)
            .current_dir(&self.out)
            .env(TELEMETRY_SWITCH, "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // A library may start processes of its own, which end with the launch.
            .process_group(0);
        let child = child.spawn();
        self.wait(
            child.context("failed to start a process for a launch")?,
            job,
        )
    }

    fn wait(&self, mut child: Child, job: &Job) -> anyhow::Result<ExitStatus> {
        let began = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if self.interrupted.load(Relaxed) {
                end_group(&mut child)?;
                return Err(Ended::Interrupted(self.caller).into());
            }
            if began.elapsed() >= self.launch_timeout.0 {
                end_group(&mut child)?;
                return Err(TimedOut::of(job, self.launch_timeout).into());
            }
            thread::sleep(PAUSE);
        }
    }

    fn pause(&self, time: Duration) -> anyhow::Result<()> {
        let mut left = time;
        while !left.is_zero() {
            if self.interrupted.load(Relaxed) {
                return Err(Ended::Interrupted(self.caller).into());
            }
            let now = left.min(PAUSE);
            thread::sleep(now);
            left -= now;
        }
        Ok(())
    }
}

/// Ends a launch, and the processes that it started.
fn end_group(child: &mut Child) -> io::Result<()> {
    kill_process_group(Pid::from_child(child), Signal::KILL)?;
    child.wait()?;
    Ok(())
}

/// The file in which a process explains why it made no launch.
fn error_of(answer: &Path) -> PathBuf {
    answer.with_extension("error")
}

/// A file's name without its folder, which belongs to the caller and may be temporary.
fn name_of(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn has_session(document: &RunDocument) -> bool {
    document.placement.as_ref().is_none_or(Placed::is_ok)
}

/// Gives a launch the reasons, the outputs and the profile of the look, if it has the same placement.
fn explain(document: &mut RunDocument, seen: &RunDocument) {
    let print = |of: &RunDocument| of.placement.as_ref()?.fingerprint_normalised.clone();
    if print(document).is_some() && print(document) == print(seen) {
        document.placement.clone_from(&seen.placement);
        document.outputs.clone_from(&seen.outputs);
        document.profile.clone_from(&seen.profile);
        document.load_warm_us = seen.load_warm_us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A gate without `--keep` removes its folder.
    #[test]
    fn an_interrupted_gate_promises_only_what_keep_keeps() {
        let told = |caller| Ended::Interrupted(caller).to_string();
        assert!(told(Caller::Gate).contains("with --keep"));
        assert!(told(Caller::User).contains("ended launches are kept"));
    }
}
