//! Logs of the command: one line for each event, on stderr. If the reader of stderr is gone, lines are dropped and
//! counted.

use std::env::VarError;
use std::io::{self, IsTerminal, Write};
use std::sync::LazyLock;

use anyhow::bail;
use epwatch_server::MetricTable;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::version;

/// Variable with a level for all, and levels by part of this program: `info,epwatch_collector=debug`.
const FILTER_ENV: &str = "EPWATCH_LOG";
/// Names of this program's own parts begin with this.
const OWN_TARGETS: &str = "epwatch";
/// Format of the lines: `text` or `json`.
const FORMAT_ENV: &str = "EPWATCH_LOG_FORMAT";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// `time LEVEL message key=value`, in colours on a terminal.
    Text,
    /// One JSON object, for programs.
    Json,
}

/// Starts logging. `default` applies if the environment has no level for all.
///
/// # Errors
/// A variable of the environment has a wrong value. Nothing is logged then.
pub(crate) fn init(default: LevelFilter) -> anyhow::Result<()> {
    let filter = filter(&variable(FILTER_ENV)?.unwrap_or_default(), default)?;
    let format = format(variable(FORMAT_ENV)?.as_deref().unwrap_or_default())?;
    let logs = tracing_subscriber::registry().with(filter);
    // Otherwise the layer would report a failed write on stderr, and panic if that fails too.
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

/// Standard error, whose writes never fail, because a server must outlive the reader of its log.
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

/// Returns the metrics of the process, for the page of a server.
pub(crate) fn metrics() -> Registry {
    let mut table = MetricTable::new("epwatch");
    version::add_to(&mut table);
    let help = "Lines of log that were dropped because their reader is gone or the disk is full";
    table.add_metric("log_lines_dropped", help, DROPPED.clone());
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

/// Reads levels strictly: a word that is not a level would name a target, and mute everything else.
fn filter(text: &str, default: LevelFilter) -> anyhow::Result<Targets> {
    let mut filter = Targets::new().with_default(default);
    for item in text
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
    {
        let (target, level) = item.split_once('=').unwrap_or(("", item));
        let is_for_all = item == level;
        // `LevelFilter` would also parse numbers and an empty text.
        let is_word = level.starts_with(|c: char| c.is_ascii_alphabetic());
        let is_sound = is_word && (is_for_all || target.starts_with(OWN_TARGETS));
        let level = level.parse::<LevelFilter>().ok().filter(|_| is_sound);
        filter = match level {
            Some(level) if target.is_empty() => filter.with_default(level),
            Some(level) => filter.with_target(target, level),
            None => bail!(
                "{FILTER_ENV}: expected off, error, warn, info, debug or trace, for all or as \
                 `epwatch_collector=debug`, separated by commas; got {item:?}"
            ),
        };
    }
    Ok(filter)
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
        let shows = |text, target, level| {
            let filter = filter(text, LevelFilter::INFO).unwrap();
            filter.would_enable(target, &level)
        };
        assert!(shows("warn", "hyper", Level::WARN));
        assert!(!shows("warn", "hyper", Level::INFO));
        let two = "debug, epwatch_collector=trace,";
        assert!(shows(two, "epwatch_collector::wal", Level::TRACE));
        assert!(shows(two, "hyper", Level::DEBUG));
        assert!(!shows(two, "hyper", Level::TRACE));
        assert!(!shows("off", "epwatch", Level::ERROR));
        // Without a level for all, the command's default applies, so that no error is muted.
        for text in ["", "epwatch_collector=trace"] {
            assert!(shows(text, "hyper", Level::INFO), "{text}");
            assert!(!shows(text, "hyper", Level::DEBUG), "{text}");
        }
    }

    #[test]
    fn what_is_no_level_is_refused() {
        for wrong in [
            "warning",
            "debgu",
            "5",
            "hyper",
            "hyper=off",
            "loud=very",
            "epwatch=loud",
            "info,epwatch=a=info",
            "epwatch=",
            "=info",
            "epwatch_collector",
        ] {
            let error = filter(wrong, LevelFilter::INFO).unwrap_err().to_string();
            assert!(error.starts_with("EPWATCH_LOG: expected off,"), "{error}");
        }
    }
}
