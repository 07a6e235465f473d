//! Captures ONNX Runtime's log at VERBOSE while a session is made, at no cost to any run.
//!
//! A session keeps its log level for life, because ORT has no call to change it. At VERBOSE it formats about ten lines
//! in every run. So the log comes from a separate session, made from a copy of the builder just before the host's own
//! and dropped at once. The host's session, logger and log level stay unchanged, and the environment's logger gets no
//! line of the separate session. The cost is the creation of a second session.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex},
};

use ort::{
    logging::LogLevel,
    session::{Session, builder::SessionBuilder},
};

use crate::lock::lock;

use super::{
    host_runtime::NOT_TWICE,
    log::{LogReader, SessionLog},
};

/// Makes a session like the host's, captures its log and drops it. The log is empty if a builder does not accept a
/// logger.
pub(crate) fn capture_log(
    builder: &SessionBuilder,
    make: impl Fn(&mut SessionBuilder) -> ort::Result<Session>,
) -> SessionLog {
    let Some(mut verbose) = VerboseBuilder::of(builder) else {
        return SessionLog::default();
    };
    for option in NOT_TWICE {
        let option = option.to_str().expect("ASCII");
        let builder = verbose.builder.with_config_entry(option, "0");
        verbose.builder = builder.unwrap_or_else(ort::Error::recover);
    }
    // An error is ignored here, because the host gets it from its own attempt.
    let made = make(&mut verbose.builder);
    let error = made.as_ref().err().map(ort::Error::message);
    let log = verbose.log(error);
    drop(made);
    log
}

/// A copy of a builder whose sessions log at VERBOSE into a reader. The copy must outlive these sessions.
pub(crate) struct VerboseBuilder {
    pub(crate) builder: SessionBuilder,
    reader: Arc<Mutex<LogReader>>,
}

impl VerboseBuilder {
    /// `None` if the builder does not accept a logger.
    pub(crate) fn of(builder: &SessionBuilder) -> Option<Self> {
        let reader = Arc::new(Mutex::new(LogReader::default()));
        let sink = Arc::clone(&reader);
        // ORT calls this from C, where no panic may pass.
        let log = move |_: LogLevel, _: &str, _: &str, location: &str, message: &str| {
            let _ = catch_unwind(AssertUnwindSafe(|| {
                let mut reader = lock(&sink);
                reader.message(location, message);
            }));
        };
        let copy = builder.clone().with_logger(Arc::new(log)).ok()?;
        let builder = copy
            .with_log_level(LogLevel::Verbose)
            .unwrap_or_else(ort::Error::recover);
        Some(Self { builder, reader })
    }

    /// The log of the session that was made, or of the attempt that ended with this error.
    pub(crate) fn log(&self, error: Option<&str>) -> SessionLog {
        let mut reader = lock(&self.reader);
        if let Some(error) = error {
            reader.message("", error);
        }
        let sessions = std::mem::take(&mut *reader).finish();
        sessions.into_iter().next().unwrap_or_default()
    }
}
