//! Run times of one launch: a JSON array of microseconds, or a CSV with a column `latency_us` or `latency_ms`.

use super::{
    csv::cells,
    input::{ReadError, malformed, micros, run_times},
};
use crate::run::Run;

const KIND: &str = "latencies";
/// Longest text of a file that an error repeats.
const SHOWN: usize = 80;

pub(super) fn read(text: &str) -> Result<Run, ReadError> {
    let text = text.trim_start_matches('\u{feff}');
    if text.trim().is_empty() {
        let expected = "run times, or a profile, which ONNX Runtime writes when the session ends or end_profiling is called";
        return Err(malformed(KIND, "the file is empty", expected));
    }
    let runs_us = match text.trim_start().starts_with('[') {
        true => array(text)?,
        false => csv(text)?,
    };
    if runs_us.is_empty() {
        return Err(malformed(KIND, "no run time", "a run or more"));
    }
    Ok(Run {
        source: "latencies",
        runs_us,
        ..Run::default()
    })
}

fn array(text: &str) -> Result<Vec<u64>, ReadError> {
    let expected = "a JSON array of whole microseconds, for example [8210, 8190]; milliseconds go into a CSV with the header \
                    latency_ms";
    let runs: Vec<u64> =
        serde_json::from_str(text).map_err(|error| malformed(KIND, error.to_string(), expected))?;
    run_times(KIND, "run", runs.into_iter().map(|us| us as f64))
}

fn csv(text: &str) -> Result<Vec<u64>, ReadError> {
    let shown = |text: &str| text.chars().take(SHOWN).collect::<String>();
    let mut lines = text.lines().zip(1..);
    let header = lines.next().map_or("", |(line, _)| line);
    let scale = |name: &str| match name.trim() {
        "latency_us" => Some(1.0),
        "latency_ms" => Some(1_000.0),
        _ => None,
    };
    let names = cells(header);
    let columns = names.iter().enumerate();
    let columns: Vec<(usize, f64)> = columns
        .filter_map(|(at, name)| Some((at, scale(name)?)))
        .collect();
    let [(column, scale)] = columns[..] else {
        let what = format!("the header is {:?}", shown(header));
        let expected = "one column latency_us or latency_ms";
        return Err(malformed(KIND, what, expected));
    };
    let rows = lines.filter(|(line, _)| !line.trim().is_empty());
    let runs = rows.map(|(line, at)| {
        let cells = cells(line);
        let cell = cells.get(column).map_or("", |cell| cell.trim());
        let us = cell.parse().unwrap_or(f64::NAN) * scale;
        let wrong = || {
            let what = format!("line {at}: {:?}", shown(cell));
            malformed(KIND, what, "a number above 0 in the column of latencies")
        };
        micros(us).ok_or_else(wrong)
    });
    runs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_and_columns_are_read() {
        let runs = |text: &str| read(text).unwrap().runs_us;
        assert_eq!(runs(" [8210, 8190]"), [8210, 8190]);
        let csv = "\u{feff}run,\"latency_ms\"\r\n1,8.21\r\n\r\n\"2, warm\",\"8.19\"\r\n";
        assert_eq!(runs(csv), [8210, 8190]);
        assert_eq!(runs("latency_us\n5\n"), [5]);
    }

    #[test]
    fn everything_else_is_named() {
        for (text, words) in [
            ("", "the file is empty"),
            ("8210\n8190\n", "the header is \"8210\""),
            ("latency_us,latency_ms\n1,1", "one column"),
            ("[8.21]", "header latency_ms"),
            ("[8210, null]", "whole microseconds"),
            ("[8210", "whole microseconds"),
            ("[]", "no run time"),
            ("latency_us\n", "no run time"),
            ("[8210, 0]", "run[1] is 0 us"),
            ("[18446744073709551615]", "1 us to an hour"),
            ("[-1]", "whole microseconds"),
            ("run,latency_us\n1,5\n2", "line 3"),
            ("latency_us\n-5", "line 2: \"-5\""),
            ("latency_us\n0", "above 0"),
            ("latency_us\nNaN", "above 0"),
            ("latency_us\n1e300", "above 0"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
