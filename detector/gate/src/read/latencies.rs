//! Reads run times of one launch: a JSON array of microseconds, or a CSV with a column `latency_us` or `latency_ms`.

use super::input::micros;
use crate::run::Run;

/// Text that holds no run times.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LatenciesError {
    /// A JSON array with something else than whole microseconds.
    #[error(
        "expected a JSON array of whole microseconds, for example [8210, 8190]; milliseconds go into a CSV with the \
         header latency_ms: {0}"
    )]
    Json(String),
    /// A CSV of something else.
    #[error("expected a CSV with one column latency_us or latency_ms; its header is {0:?}")]
    Header(String),
    /// A row without a run time.
    #[error("line {line}: expected a number above 0 in the column {column}, found {found:?}")]
    Row {
        /// Number of the line, from 1.
        line: usize,
        /// Name of the column.
        column: &'static str,
        /// Text of the cell.
        found: String,
    },
}

/// Longest text of a file that an error repeats.
const SHOWN: usize = 80;

pub(super) fn run(text: &str) -> Result<Run, LatenciesError> {
    Ok(Run {
        source: "latencies",
        runs_us: latencies(text)?,
        ..Run::default()
    })
}

/// Reads run times in microseconds, in order.
///
/// # Errors
/// The text is neither, or a value is no run time.
pub fn latencies(text: &str) -> Result<Vec<u64>, LatenciesError> {
    let text = text.trim_start_matches('\u{feff}');
    match text.trim_start().starts_with(['[', '{']) {
        true => serde_json::from_str(text).map_err(|error| LatenciesError::Json(error.to_string())),
        false => csv(text),
    }
}

fn csv(text: &str) -> Result<Vec<u64>, LatenciesError> {
    let shown = |text: &str| text.chars().take(SHOWN).collect::<String>();
    let mut lines = text.lines().enumerate();
    let header = lines.next().map_or("", |(_, line)| line);
    let names = header.split(',').map(|name| name.trim().trim_matches('"'));
    let columns = names.enumerate().filter_map(|(at, name)| match name {
        "latency_us" => Some((at, "latency_us", 1.0)),
        "latency_ms" => Some((at, "latency_ms", 1_000.0)),
        _ => None,
    });
    let &[(at, column, scale)] = &columns.collect::<Vec<_>>()[..] else {
        return Err(LatenciesError::Header(shown(header)));
    };
    let rows = lines.filter(|(_, line)| !line.trim().is_empty());
    rows.map(|(line, text)| {
        let cell = text.split(',').nth(at).unwrap_or_default();
        let us = cell.trim().trim_matches('"').parse().unwrap_or(f64::NAN) * scale;
        micros(us).ok_or_else(|| LatenciesError::Row {
            line: line + 1,
            column,
            found: shown(cell),
        })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_and_columns_are_read() {
        assert_eq!(latencies(" [8210, 8190]").unwrap(), [8210, 8190]);
        let csv = "\u{feff}run,\"latency_ms\"\r\n1,8.21\r\n\r\n2,\"8.19\"\r\n";
        assert_eq!(latencies(csv).unwrap(), [8210, 8190]);
        assert_eq!(latencies("latency_us\n5\n").unwrap(), [5]);
    }

    #[test]
    fn everything_else_is_named() {
        for (text, words) in [
            ("", "its header is \"\""),
            ("8210\n8190\n", "its header is \"8210\""),
            ("latency_us,latency_ms\n1,1", "one column"),
            ("[8.21]", "header latency_ms"),
            ("[8210, null]", "whole microseconds"),
            ("[8210", "whole microseconds"),
            ("run,latency_us\n1,5\n2", "line 3"),
            ("latency_us\n-5", "found \"-5\""),
            ("latency_us\n0", "above 0"),
            ("latency_us\nNaN", "above 0"),
            ("latency_us\n1e300", "above 0"),
        ] {
            let error = latencies(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
