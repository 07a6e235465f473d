//! Logs of the command: one line each on stderr, fields not prose.

use tracing_subscriber::EnvFilter;

/// Which logs are shown, in the syntax of `RUST_LOG`.
const FILTER_ENV: &str = "EPWATCH_LOG";

/// Starts logging; `default` holds where the environment says nothing.
pub(crate) fn init(default: &str) {
    use std::io::IsTerminal;

    let filter = EnvFilter::try_from_env(FILTER_ENV).unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
}
