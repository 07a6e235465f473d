//! HdrHistogram's log (`HistogramLogWriter`): intervals with compressed V2 histograms, added up. The log does not say
//! the unit of its values, so the command line names it.

use std::{io::BufRead, str::FromStr};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hdrhistogram::{Histogram, serialization::Deserializer};

use super::input::{ReadError, lines, malformed, micros};
use crate::{mistakes::Mistake, run::Run};

const KIND: &str = "HDR log";
/// Maximum number of runs of a launch.
const MOST_RUNS: usize = 1_000_000;

/// Unit of an HDR log's values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HdrUnit {
    us: f64,
}

impl FromStr for HdrUnit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let us = match text {
            "ns" => 1e-3,
            "us" => 1.0,
            "ms" => 1e3,
            _ => return Err("expected ns, us or ms".to_owned()),
        };
        Ok(Self { us })
    }
}

pub(super) fn read(input: impl BufRead, unit: Option<HdrUnit>) -> Result<Run, ReadError> {
    let unit = unit.ok_or_else(|| {
        malformed(
            KIND,
            "a log does not say the unit of its values",
            "--hdr-unit ns, us or ms",
        )
    })?;
    let mut runs_us = Vec::new();
    let mut deserializer = Deserializer::new();
    lines(KIND, input, |at, line| {
        let is_data = line.starts_with(|c: char| c.is_ascii_digit()) || line.starts_with("Tag=");
        if !is_data {
            return Ok(());
        }
        let expected = "an interval: start, length, maximum, histogram in base64";
        let wrong = |what: &str| malformed(KIND, format!("line {at}: {what}"), expected);
        let encoded = line.rsplit(',').next().unwrap_or_default().trim();
        let bytes = STANDARD.decode(encoded).map_err(|_| wrong("no base64"))?;
        let histogram: Histogram<u64> = deserializer
            .deserialize(&mut bytes.as_slice())
            .map_err(|error| wrong(&format!("no histogram ({error:?})")))?;
        for value in histogram.iter_recorded() {
            let us = histogram.median_equivalent(value.value_iterated_to()) as f64 * unit.us;
            let us = micros(us)
                .ok_or_else(|| wrong(&format!("a run of {us} us; is the unit right?")))?;
            let n = usize::try_from(value.count_at_value()).unwrap_or(usize::MAX);
            if n > MOST_RUNS - runs_us.len() {
                return Err(malformed(
                    KIND,
                    "more than 1,000,000 runs",
                    "the log of one launch",
                ));
            }
            runs_us.extend(std::iter::repeat_n(us, n));
        }
        Ok(())
    })?;
    if runs_us.is_empty() {
        return Err(malformed(KIND, "no run", "an interval with runs"));
    }
    runs_us.sort_unstable();
    Ok(Run {
        source: "hdr_log",
        runs_us,
        warmup: Some(0),
        mistakes: vec![Mistake::no_order()],
        ..Run::default()
    })
}

#[cfg(test)]
mod tests {
    use hdrhistogram::serialization::{Serializer, V2DeflateSerializer, V2Serializer};

    use super::*;
    use crate::read::{ReadOptions, read as read_any};

    fn log(values: &[u64], compressed: bool) -> String {
        let mut histogram = Histogram::<u64>::new_with_bounds(1, 60_000_000, 3).unwrap();
        for value in values {
            histogram.record(*value).unwrap();
        }
        let mut bytes = Vec::new();
        match compressed {
            true => V2DeflateSerializer::new()
                .serialize(&histogram, &mut bytes)
                .map(|_| ())
                .unwrap(),
            false => V2Serializer::new()
                .serialize(&histogram, &mut bytes)
                .map(|_| ())
                .unwrap(),
        }
        format!(
            "#[Histogram log format version 1.3]\n#[StartTime: 1.0 (seconds since epoch)]\n\"StartTimestamp\",\"Interval_Length\",\
             \"Interval_Max\",\"Interval_Compressed_Histogram\"\n0.000,1.000,8.211,{}\nTag=b,1.000,1.000,8.211,{}\n",
            STANDARD.encode(&bytes),
            STANDARD.encode(&bytes)
        )
    }

    fn with(unit: Option<&str>, text: &str) -> Result<Vec<Run>, ReadError> {
        let hdr_unit = unit.map(|unit| unit.parse().unwrap());
        read_any(text.as_bytes(), ReadOptions { hdr_unit })
    }

    #[test]
    fn intervals_are_added_up_in_the_unit_that_is_named() {
        for compressed in [true, false] {
            let text = log(&[1_000, 1_000, 2_000], compressed);
            let run = &with(Some("us"), &text).unwrap()[0];
            assert_eq!(run.runs_us, [1_000, 1_000, 1_000, 1_000, 2_000, 2_000]);
            assert_eq!(with(Some("ms"), &text).unwrap()[0].runs_us[0], 1_000_000);
            assert_eq!(run.mistakes[0].id, "no_order");
        }
    }

    #[test]
    fn a_log_without_a_unit_or_histogram_is_refused() {
        let text = log(&[1_000], true);
        for (unit, text, says) in [
            (None, text.clone(), "--hdr-unit"),
            (Some("us"), text.replace("HIST", "HASU"), "no histogram"),
            (
                Some("us"),
                text.lines().take(3).collect::<Vec<_>>().join("\n"),
                "no run",
            ),
            (Some("us"), text.replace(",8.211,", ",8.211,="), "no base64"),
        ] {
            let error = with(unit, &text).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        assert!("h".parse::<HdrUnit>().is_err());
    }
}
