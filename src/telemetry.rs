//! Logs of the command: one line an event, on stderr. Lines for a reader that is gone are dropped and counted.

use std::env::VarError;
use std::io::{self, IsTerminal, Write};
use std::sync::LazyLock;

use anyhow::bail;
use epwatch_server::MetricTable;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Levels by target, such as `info,epwatch_collector=debug`.
const FILTER_ENV: &str = "EPWATCH_LOG";
/// Format of the lines: `text` or `json`.
const FORMAT_ENV: &str = "EPWATCH_LOG_FORMAT";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// `time LEVEL message key=value`, in colours on a terminal.
    Text,
    /// One JSON object, for programs.
    Json,
}

/// Starts logging; `default` has the levels if the environment has none.
///
/// # Errors
/// A variable of the environment has a wrong value. Nothing is logged then.
pub(crate) fn init(default: &str) -> anyhow::Result<()> {
    let filter = filter(variable(FILTER_ENV)?.as_deref().unwrap_or(default))?;
    let format = format(variable(FORMAT_ENV)?.as_deref().unwrap_or_default())?;
    let logs = tracing_subscriber::registry().with(filter);
    // The layer would report a failed write on stderr, and panic there.
    let lines = layer()
        .log_internal_errors(false)
        .with_writer(|| Stderr)
        .with_target(false);
    match format {
        Format::Text => {
            let is_terminal = std::io::stderr().is_terminal();
            logs.with(lines.with_ansi(is_terminal)).init();
        }
        Format::Json => logs.with(lines.json().flatten_event(true)).init(),
    }
    Ok(())
}

/// Lines of log that could not be written since the start.
static DROPPED: LazyLock<Counter> = LazyLock::new(Counter::default);

/// Standard error, which never fails: a server outlives the reader of its log.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if io::stderr().write_all(line).is_err() {
            DROPPED.inc();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the metrics of the log, for the page of a server.
pub(crate) fn metrics() -> Registry {
    let mut table = MetricTable::new("epwatch_log");
    let help = "Lines of log that were dropped because their reader is gone or the disk is full";
    table.add_metric("lines_dropped", help, DROPPED.clone());
    table.into_registry()
}

/// Returns a variable's value; an empty one is not set.
fn variable(name: &str) -> anyhow::Result<Option<String>> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => bail!("{name}: expected text"),
    }
}

fn filter(text: &str) -> anyhow::Result<Targets> {
    let items: Vec<&str> = text.split(',').filter(|item| !item.is_empty()).collect();
    // `Targets` would parse these as names of targets, or as the level `error`.
    let is_wrong = |item: &&str| {
        item.ends_with('=') || item.contains('[') || item.starts_with(|c: char| !is_of_name(c))
    };
    match items.join(",").parse() {
        Ok(filter) if !items.iter().any(is_wrong) => Ok(filter),
        _ => bail!(
            "{FILTER_ENV}: expected a level or `target=level,...` such as `debug`, got {text:?}"
        ),
    }
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || "-:_".contains(c)
}

fn format(text: &str) -> anyhow::Result<Format> {
    match text {
        "" | "text" => Ok(Format::Text),
        "json" => Ok(Format::Json),
        other => bail!("{FORMAT_ENV}: expected `text` or `json`, got {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn formats_are_text_and_json_and_nothing_else() {
        assert_eq!(format("").unwrap(), Format::Text);
        assert_eq!(format("text").unwrap(), Format::Text);
        assert_eq!(format("json").unwrap(), Format::Json);
        let error = format("JSON lines").unwrap_err().to_string();
        assert!(error.starts_with("EPWATCH_LOG_FORMAT: "), "{error}");
    }

    #[test]
    fn filters_are_levels_by_target() {
        let shows = |text, target, level| filter(text).unwrap().would_enable(target, &level);
        assert!(shows("warn", "hyper", Level::WARN));
        assert!(!shows("warn", "hyper", Level::INFO));
        let two = "info,,epwatch_collector=trace,";
        assert!(shows(two, "epwatch_collector::wal", Level::TRACE));
        assert!(!shows(two, "hyper", Level::DEBUG));
        assert!(shows("5,hyper=off", "epwatch", Level::TRACE));
        assert!(!shows("5,hyper=off", "hyper", Level::ERROR));
        assert!(shows("hyper", "hyper", Level::TRACE));
        assert!(!shows("hyper", "epwatch", Level::ERROR));
        for wrong in [
            "loud=very",
            "info,a=b=c",
            "a=",
            "=info",
            "a[b]=info",
            "warn, a=info",
        ] {
            let error = filter(wrong).unwrap_err().to_string();
            assert!(error.starts_with("EPWATCH_LOG: "), "{error}");
        }
    }
}
