//! Captures ONNX Runtime's log at VERBOSE while a session is made, at no cost to any run.
//!
//! A session keeps its log level for life: at VERBOSE it formats about ten lines in every run, and ORT has no call to
//! change the level. So the log comes from a separate session, made from a copy of the builder just before the host's
//! own and dropped at once. The host's session, logger and log level stay as they are, and the environment's logger
//! gets nothing of the other session. The cost is a second session creation.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex},
};

use ort::{
    logging::LogLevel,
    session::{Session, builder::SessionBuilder},
};

use crate::lock::lock;

use super::log::{LogReader, SessionLog};

/// Options of the host that must not take effect twice: they would write files, or share contexts.
const OFF: [&str; 3] = [
    "ep.context_enable",
    "ep.share_ep_contexts",
    "ep.stop_share_ep_contexts",
];

/// Makes a session like the host's, captures its log and drops it. Empty if a builder does not accept a logger.
pub(crate) fn capture_log(
    builder: &SessionBuilder,
    make: impl Fn(&mut SessionBuilder) -> ort::Result<Session>,
) -> SessionLog {
    let reader = Arc::new(Mutex::new(LogReader::default()));
    let sink = Arc::clone(&reader);
    // ORT calls this from C, where no panic may pass.
    let log = move |_: LogLevel, _: &str, _: &str, location: &str, message: &str| {
        let _ = catch_unwind(AssertUnwindSafe(|| {
            let mut reader = lock(&sink);
            reader.message(location, message);
        }));
    };
    let Ok(copy) = builder.clone().with_logger(Arc::new(log)) else {
        return SessionLog::default();
    };
    let mut copy = copy
        .with_log_level(LogLevel::Verbose)
        .unwrap_or_else(ort::Error::recover);
    for option in OFF {
        copy = copy
            .with_config_entry(option, "0")
            .unwrap_or_else(ort::Error::recover);
    }
    match make(&mut copy) {
        Ok(session) => drop(session),
        // The host gets the error from its own attempt.
        Err(error) => {
            let mut reader = lock(&reader);
            reader.message("", error.message());
        }
    }
    drop(copy);
    let mut reader = lock(&reader);
    let sessions = std::mem::take(&mut *reader).finish();
    sessions.into_iter().next().unwrap_or_default()
}
