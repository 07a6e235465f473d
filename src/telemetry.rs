//! Logs of the command: one line each on stderr, fields not prose.

use std::env::VarError;
use std::io::IsTerminal;

use anyhow::bail;
use tracing_subscriber::EnvFilter;

/// Which logs are shown, in the syntax of `RUST_LOG`.
const FILTER_ENV: &str = "EPWATCH_LOG";
/// How a line of the logs is written.
const FORMAT_ENV: &str = "EPWATCH_LOG_FORMAT";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// `time LEVEL message key=value`, in colours on a terminal.
    Text,
    /// One JSON object, for programs.
    Json,
}

/// Starts logging; `default` says which logs are shown where the environment does not.
///
/// # Errors
/// If a variable of the environment cannot be read; nothing is logged then.
pub(crate) fn init(default: &str) -> anyhow::Result<()> {
    let filter = filter(variable(FILTER_ENV)?.as_deref().unwrap_or(default))?;
    let format = format(variable(FORMAT_ENV)?.as_deref().unwrap_or_default())?;
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false);
    match format {
        Format::Text => logs.with_ansi(std::io::stderr().is_terminal()).init(),
        Format::Json => logs.json().flatten_event(true).init(),
    }
    Ok(())
}

/// A variable's value; one that is set and empty is not set.
fn variable(name: &str) -> anyhow::Result<Option<String>> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => bail!("{name}: expected text"),
    }
}

fn filter(text: &str) -> anyhow::Result<EnvFilter> {
    let Ok(filter) = text.parse() else {
        bail!("{FILTER_ENV}: expected a level or `target=level,...` such as `debug`, got {text:?}");
    };
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
        filter("warn").unwrap();
        filter("info,epwatch_collector=trace").unwrap();
        for wrong in ["loud=very", "info,a=b=c"] {
            let error = filter(wrong).unwrap_err().to_string();
            assert!(error.starts_with("EPWATCH_LOG: "), "{error}");
        }
    }
}
