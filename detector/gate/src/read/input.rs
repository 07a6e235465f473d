//! Parts of all readers: their error, and texts of bounded size.

use std::io::{self, BufRead, Read};

/// Largest document that is read whole.
const MOST_BYTES: u64 = 16 << 20;
/// Longest line of a text that is read line by line.
const MOST_LINE_BYTES: u64 = 1 << 20;
/// Longest run time: an hour, in microseconds.
pub(super) const MOST_US: f64 = 3.6e9;

/// A file that cannot be read: where it is wrong, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// An error of the file system.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is of a known kind, but its content is wrong.
    #[error("{kind}: {what}; expected {expected}")]
    Malformed {
        /// Kind of the file.
        kind: &'static str,
        /// The wrong part of the file, and its position.
        what: String,
        /// The expected text, or what to do instead.
        expected: &'static str,
    },
    /// A document of more than 16 MiB.
    #[error("expected ONNX Runtime's profile, QNN's CSV, a log, or a document of at most 16 MiB")]
    TooLarge,
    /// The file is of no known kind.
    #[error(
        "the file is of no known kind: expected ONNX Runtime's profile, QNN's CSV, AI Hub's result, perf.yaml, latencies \
         (JSON array, CSV, HDR log), the output of benchmark_model, coreml_compute_plan.py, trtexec or winml perf, recorded \
         reports, or a document epwatch.run/1"
    )]
    Unknown,
}

/// Longest text of a file that an error repeats.
pub(super) const SHOWN_CHARS: usize = 80;

pub(super) fn malformed(
    kind: &'static str,
    what: impl Into<String>,
    expected: &'static str,
) -> ReadError {
    ReadError::Malformed {
        kind,
        what: what.into(),
        expected,
    }
}

pub(super) fn bytes(input: impl Read) -> Result<Vec<u8>, ReadError> {
    let mut bytes = Vec::new();
    input.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > MOST_BYTES {
        true => Err(ReadError::TooLarge),
        false => Ok(bytes),
    }
}

pub(super) fn text(input: impl Read) -> Result<String, ReadError> {
    let bytes = bytes(input)?;
    String::from_utf8(bytes).map_err(|error| {
        malformed(
            "text",
            format!("byte {}", error.utf8_error().valid_up_to()),
            "UTF-8",
        )
    })
}

/// Calls `each` with the lines of a text, numbered from 1. A line that is too long is an error, and so is a text that is
/// not UTF-8.
pub(super) fn lines(
    kind: &'static str,
    mut input: impl BufRead,
    mut each: impl FnMut(usize, &str) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    let mut line = Vec::new();
    for at in 1.. {
        line.clear();
        let read = input
            .by_ref()
            .take(MOST_LINE_BYTES)
            .read_until(b'\n', &mut line)?;
        if read == 0 {
            break;
        }
        if line.last() != Some(&b'\n') && line.len() as u64 == MOST_LINE_BYTES {
            return Err(malformed(
                kind,
                format!("line {at} is longer than 1 MiB"),
                "lines of text",
            ));
        }
        let text = std::str::from_utf8(&line)
            .map_err(|_| malformed(kind, format!("line {at} is not text"), "UTF-8"))?;
        each(at, text.trim_end_matches(['\n', '\r']))?;
    }
    Ok(())
}

/// A run time in microseconds; `None` outside 1 us to an hour.
pub(super) fn micros(us: f64) -> Option<u64> {
    #[expect(clippy::cast_possible_truncation, reason = "from 1 to an hour")]
    #[expect(clippy::cast_sign_loss, reason = "from 1 to an hour")]
    match us.round() {
        us @ 1.0..=MOST_US => Some(us as u64),
        _ => None,
    }
}

/// Run times of a list of microseconds. The error names the list and the place of a value that is not a run time.
pub(super) fn run_times(
    kind: &'static str,
    list: &str,
    each_us: impl Iterator<Item = f64>,
) -> Result<Vec<u64>, ReadError> {
    let runs = each_us.enumerate().map(|(at, us)| {
        let wrong = || malformed(kind, format!("{list}[{at}] is {us} us"), "1 us to an hour");
        micros(us).ok_or_else(wrong)
    });
    runs.collect()
}
