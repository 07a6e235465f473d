//! Hears what ONNX Runtime says at VERBOSE while it makes a session, at no cost to any run.
//!
//! A session keeps its log level for life: one made at VERBOSE formats about ten lines in every
//! run, and nothing in ORT's API quiets it again. So the listening is done by a session apart, made
//! from a copy of the builder just before the host's own and dropped at once. The host's session,
//! its logger and its log level are untouched, and its environment's logger hears nothing of the
//! other one. What it costs: a second session creation.

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

/// Options of the host that must not take effect twice: files would be written, or contexts shared.
const OFF: [&str; 3] = [
    "ep.context_enable",
    "ep.share_ep_contexts",
    "ep.stop_share_ep_contexts",
];

/// Makes a session like the host's, hears it, drops it. Empty where a builder refuses to listen.
pub(crate) fn listen(
    builder: &SessionBuilder,
    make: impl Fn(&mut SessionBuilder) -> ort::Result<Session>,
) -> SessionLog {
    let reader = Arc::new(Mutex::new(LogReader::default()));
    let heard = Arc::clone(&reader);
    // ORT calls this from C, over which no panic may go.
    let hear = move |_: LogLevel, _: &str, _: &str, location: &str, message: &str| {
        let _ = catch_unwind(AssertUnwindSafe(|| {
            let mut reader = lock(&heard);
            reader.message(location, message);
        }));
    };
    let Ok(listening) = builder.clone().with_logger(Arc::new(hear)) else {
        return SessionLog::default();
    };
    let mut listening = listening
        .with_log_level(LogLevel::Verbose)
        .unwrap_or_else(ort::Error::recover);
    for option in OFF {
        listening = listening
            .with_config_entry(option, "0")
            .unwrap_or_else(ort::Error::recover);
    }
    match make(&mut listening) {
        Ok(session) => drop(session),
        // The host's own attempt tells the host.
        Err(error) => {
            let mut reader = lock(&reader);
            reader.message("", error.message());
        }
    }
    drop(listening);
    let mut reader = lock(&reader);
    let sessions = std::mem::take(&mut *reader).finish();
    sessions.into_iter().next().unwrap_or_default()
}
