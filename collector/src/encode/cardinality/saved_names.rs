//! Lines of the file of admitted names.
//!
//! Each line is a CRC-32C in hex, a blank, and a JSON array: day, app, environment, dimension, name, network, offset. A
//! torn line is skipped, because its batch was not inserted. A damaged line is skipped too, and its name counts as new.

use super::dimension::Dimension;

/// A line of the file: day, app, environment, dimension, name, network, offset.
pub(crate) type SavedName = (i64, String, String, usize, String, u32, u64);

/// Returns the lines of a file, and the number of damaged ones.
pub(crate) fn parse(bytes: &[u8]) -> (Vec<(Dimension, SavedName)>, u64) {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = Vec::new();
    let mut n_damaged = 0;
    // A failed write may have left an empty line.
    for line in text.lines().filter(|line| !line.is_empty()) {
        match parse_line(line) {
            Some(line) => lines.push(line),
            None => n_damaged += 1,
        }
    }
    (lines, n_damaged)
}

pub(crate) fn line_of(line: &SavedName) -> String {
    let json = serde_json::json!(line).to_string();
    format!("{:08x} {json}\n", crc32c::crc32c(json.as_bytes()))
}

/// Returns `None` if the line was torn or damaged.
fn parse_line(line: &str) -> Option<(Dimension, SavedName)> {
    let (crc, json) = line.split_once(' ')?;
    if crc != format!("{:08x}", crc32c::crc32c(json.as_bytes())) {
        return None;
    }
    let line: SavedName = serde_json::from_str(json).ok()?;
    Some((*Dimension::ALL.get(line.3)?, line))
}
