//! Reads measurements that were made elsewhere: a file of any kind below becomes [`Run`]s. Its content shows its kind.
//!
//! A file is read once from its beginning, so it may be a pipe. Files of events or lines may have any size; documents
//! have at most 16 MiB.

mod aihub;
mod coreml;
mod csv;
mod hdr;
mod input;
mod latencies;
mod litert;
mod ort_profile;
mod own;
mod perf_yaml;
mod protobuf;
mod qnn_csv;
pub(crate) mod recorded;
mod trtexec;
mod winml;

use std::io::{BufReader, Read};

use crate::{placement::Inspected, run::Run, run_document::SCHEMA};

pub use hdr::HdrUnit;
pub use input::ReadError;
use input::{SHOWN_CHARS, bytes, malformed, text};

/// Bytes at the beginning by which a file is recognised.
const HEAD: u64 = 4_096;

/// Facts from the command line about files that do not hold them.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadOptions {
    /// Unit of the values of an HDR log.
    pub hdr_unit: Option<HdrUnit>,
}

/// Reads a file. A table gives one run for each of its rows, recorded reports one for each session.
///
/// # Errors
/// The file is of no known kind, cut off, too large, or holds impossible values.
pub fn read(mut input: impl Read, options: ReadOptions) -> Result<Vec<Run>, ReadError> {
    let mut head = Vec::new();
    input.by_ref().take(HEAD).read_to_end(&mut head)?;
    let kind = kind_of(&head).ok_or(ReadError::Unknown)?;
    let input = BufReader::with_capacity(1 << 16, head.as_slice().chain(input));
    let run = match kind {
        Kind::OrtProfile => ort_profile::read(input)?,
        Kind::QnnCsv => qnn_csv::read(input)?,
        Kind::HdrLog => hdr::read(input, options.hdr_unit)?,
        Kind::Litert => litert::read(input)?,
        Kind::Coreml => coreml::read(input)?,
        Kind::PerfYaml => return perf_yaml::read(input),
        Kind::Recorded => return recorded::read(input),
        Kind::AihubResult => aihub::job_result(&bytes(input)?)?,
        Kind::Trtexec => trtexec::read(&text(input)?)?,
        Kind::Json => document(&text(input)?)?,
        Kind::Csv | Kind::Array => latencies::read(&text(input)?)?,
    };
    Ok(vec![run])
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    OrtProfile,
    Trtexec,
    Json,
    Array,
    QnnCsv,
    HdrLog,
    Litert,
    Coreml,
    PerfYaml,
    Csv,
    AihubResult,
    Recorded,
}

fn kind_of(head: &[u8]) -> Option<Kind> {
    if recorded::is_recorded(head) {
        return Some(Kind::Recorded);
    }
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    let text = String::from_utf8_lossy(head);
    let text = text.trim_start();
    let has = |words: &str| text.contains(words);
    let mut words = text.chars().filter(|c| !c.is_whitespace());
    match (words.next(), words.next()) {
        (Some('['), Some('{')) if !has("\"ph\"") && (has("\"count\"") || has("latencyMs")) => {
            Some(Kind::Trtexec)
        }
        (Some('['), Some('{')) => Some(Kind::OrtProfile),
        (Some('['), _) => Some(Kind::Array),
        (Some('{'), _) => Some(Kind::Json),
        _ if aihub::is_job_result(head) => Some(Kind::AihubResult),
        _ if has("Msg Timestamp,Message,Time") => Some(Kind::QnnCsv),
        _ if has("\"StartTimestamp\"") || has("#[Histogram log") || text.starts_with("#[") => {
            Some(Kind::HdrLog)
        }
        _ if has("\nprecisions:")
            || text.starts_with("precisions:")
            || has("supported_devices:") =>
        {
            Some(Kind::PerfYaml)
        }
        _ if has("=== ") && (has("ANE:") || has("CPU:") || has("GPU:")) => Some(Kind::Coreml),
        _ if has("STARTING!")
            || has("Inference timings in us")
            || has("count=")
            || has("Log parameter values") =>
        {
            Some(Kind::Litert)
        }
        _ if text.is_empty() || text.lines().next().is_some_and(|l| l.contains("latency_")) => {
            Some(Kind::Csv)
        }
        _ if head.contains(&0) => None,
        // The CSV reader's error names the expected header.
        _ => Some(Kind::Csv),
    }
}

fn document(text: &str) -> Result<Run, ReadError> {
    let value: serde_json::Value = serde_json::from_str(text)
        .map_err(|error| malformed("JSON", error.to_string(), "a whole document"))?;
    if value.get("execution_summary").is_some() {
        return aihub::profile(&value);
    }
    if value.get("chipsets").is_some() {
        let expected = "the document of `epwatch inspect --json`";
        let inspected = serde_json::from_value(value).map_err(|error| error.to_string());
        let inspected = inspected
            .and_then(Inspected::checked)
            .map_err(|what| malformed("inspect", what, expected))?;
        return Ok(Run {
            source: "inspect",
            inspected: Some(inspected),
            ..Run::default()
        });
    }
    if value.get("latency_ms").is_some() || value.get("raw_samples_ms").is_some() {
        return winml::read(&value);
    }
    match value.get("schema").and_then(serde_json::Value::as_str) {
        Some(SCHEMA) => own::read(value),
        Some(other) => {
            let shown: String = other.chars().take(SHOWN_CHARS).collect();
            let what = format!("the schema is {shown:?}");
            Err(malformed("JSON", what, SCHEMA))
        }
        None => Err(malformed(
            "JSON",
            "an object of no known kind",
            "a JSON array of whole microseconds, for example [8210, 8190], or a document epwatch.run/1, of `epwatch \
             inspect --json`, AI Hub or winml perf",
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    pub(super) fn only(text: &str) -> Run {
        let [run] =
            <[Run; 1]>::try_from(read(text.as_bytes(), ReadOptions::default()).unwrap()).unwrap();
        run
    }

    #[test]
    fn what_is_read_is_named_where_a_file_is_of_another_kind() {
        for (text, words) in [
            ("", "the file is empty; expected run times, or a profile"),
            (" \n", "the file is empty"),
            (
                r#"{"schema": "epwatch.run/2", "latencies": {}}"#,
                r#"the schema is "epwatch.run/2"; expected epwatch.run/1"#,
            ),
            (r#"{"a": 1}"#, "an object of no known kind"),
        ] {
            let error = read(text.as_bytes(), ReadOptions::default()).unwrap_err();
            assert!(error.to_string().contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn kinds_are_told_by_their_content() {
        for (text, kind) in [
            ("[{\"cat\" : \"Session\",\"ph\" : \"X\"}]", Kind::OrtProfile),
            (
                "[ { \"count\" : 30 }\n, { \"name\" : \"a\" } ]",
                Kind::Trtexec,
            ),
            ("[8210]", Kind::Array),
            ("{\"execution_summary\": {}}", Kind::Json),
            (
                "Msg Timestamp,Message,Time,Unit of Measurement\n",
                Kind::QnnCsv,
            ),
            ("#[StartTime: 1 (seconds since epoch)]\n", Kind::HdrLog),
            ("supported_devices:\n- a\nprecisions:\n", Kind::PerfYaml),
            (
                "\n=== m.mlpackage ===\n  ANE:    3 /     4 ( 75.0%)\n",
                Kind::Coreml,
            ),
            ("STARTING!\nMin num runs: [50]\n", Kind::Litert),
            ("latency_us\n8210\n", Kind::Csv),
            ("", Kind::Csv),
        ] {
            assert_eq!(kind_of(text.as_bytes()), Some(kind), "{text}");
        }
        assert_eq!(kind_of(b"\x7fELF\0\0\0"), None);
    }

    #[test]
    fn what_is_too_large_or_unknown_is_refused() {
        let options = ReadOptions::default();
        let endless = b"[1".chain(io::repeat(b' '));
        assert!(matches!(read(endless, options), Err(ReadError::TooLarge)));
        let unknown = read(&b"\x7fELF\0\0\0"[..], options);
        assert!(matches!(unknown, Err(ReadError::Unknown)));
        let line = b"STARTING!\n".chain(io::repeat(b' '));
        let error = read(line, options).unwrap_err().to_string();
        assert!(error.contains("line 2 is longer"), "{error}");
    }
}
