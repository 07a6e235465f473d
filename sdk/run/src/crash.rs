//! A launch whose process ended without a document, or not in its time: the words for its end, and what helps.

use std::{os::unix::process::ExitStatusExt, process::ExitStatus};

use crate::{
    document::{Placed, RunDocument},
    job::{Job, Task},
    launch_timeout::LaunchTimeout,
    measured::document_of,
};

/// A fault in the code of ONNX Runtime or the EP ended the process of a launch.
#[derive(Debug)]
pub(crate) struct Crashed {
    signal: &'static str,
    text: String,
}

impl std::fmt::Display for Crashed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Crashed {}

/// Returns a signal's name, if the signal comes from a fault in the process's own code.
pub fn crash_signal(signal: i32) -> Option<&'static str> {
    Some(match signal {
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        11 => "SIGSEGV",
        _ => return None,
    })
}

const SIGKILL: i32 = 9;

/// A launch did not end in its time. It is not made again, because a library that hangs does so each time.
#[derive(Debug)]
pub(crate) struct TimedOut(String);

impl TimedOut {
    pub(crate) fn of(job: &Job, limit: LaunchTimeout) -> Self {
        Self(format!(
            "{} did not end within {limit}, and was ended: a library that it loads may hang, such as the EP or custom ops; \
             --launch-timeout gives it longer",
            name_of(job)
        ))
    }
}

impl std::fmt::Display for TimedOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TimedOut {}

/// A launch in messages, with its model.
fn name_of(job: &Job) -> String {
    let what = match job.task {
        Task::Look => "the placement's launch".to_owned(),
        Task::Profile => "the profile's launch".to_owned(),
        Task::Compile => "the launch that compiles the graph".to_owned(),
        Task::Warm => "the launch from the compiled graph".to_owned(),
        Task::Time(n) => format!("launch {n}"),
    };
    let model = job.model.file_name().unwrap_or_default().to_string_lossy();
    format!("{what} of the {} ({model})", job.arm.as_str())
}

/// The error of a launch whose process ended like this, with its own reason if it gave one.
pub(crate) fn without_document(job: &Job, ended: ExitStatus, why: Option<&str>) -> anyhow::Error {
    let launch = name_of(job);
    match ended.signal().map(|signal| (signal, crash_signal(signal))) {
        Some((_, Some(signal))) => Crashed {
            signal,
            text: format!(
                "{signal} ended {launch}: {} crashed, as it would in the app",
                suspects(job)
            ),
        }
        .into(),
        Some((SIGKILL, None)) => anyhow::anyhow!(
            "SIGKILL ended {launch}, as the system does if memory runs out; close other programs, or use a smaller model"
        ),
        Some((signal, None)) => anyhow::anyhow!("signal {signal} ended {launch}"),
        None => match why {
            Some(why) => anyhow::anyhow!("{launch} failed: {why}"),
            None => anyhow::anyhow!("{launch} ended with {ended}, see above"),
        },
    }
}

/// The code that may have crashed: the runtime, or the app's libraries in its process.
fn suspects(job: &Job) -> String {
    let runtime = job.ep.runtime();
    let libraries = job.custom_ops.iter().filter_map(|path| path.file_name());
    let libraries: Vec<_> = libraries.map(|name| name.to_string_lossy()).collect();
    match libraries.is_empty() {
        true => runtime.to_owned(),
        false => format!("{runtime}, or {} of --custom-ops,", libraries.join(" or ")),
    }
}

impl Crashed {
    /// The document of a launch that crashes each time. It has no session, as for a refusal.
    pub(crate) fn document(&self, job: &Job) -> RunDocument {
        let error = format!(
            "{} crashed ({}) while it made the session or ran the model, as it would in the app",
            suspects(job),
            self.signal
        );
        let placed = Placed::failed(job, error, None);
        RunDocument {
            // The gate's own row of an emulated chipset names the node.
            placement: Some(match job.ep.is_npu() && job.ep.soc_model().is_empty() {
                true => placed.with_way_out(
                    "`epwatch gate MODEL --soc CHIPSET` makes the session on an emulator, and names the node if it crashes there \
                     too.",
                ),
                false => placed,
            }),
            ..document_of(job)
        }
    }
}
