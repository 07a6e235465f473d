//! A list of ended streams whose folders had to be deleted before a report named them. Without it the collector's
//! ledger would never contain their reports.
//!
//! `DIR/streams/unnamed` is a [`message_file`], replaced atomically under the spool's lock. A damaged file names none.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use epwatch_proto::{EndedStream, v1};
use prost::Message;

use crate::folder::{
    files,
    message_file::{self, Magic},
};

const MAGIC: &Magic = b"epwunn1\n";
/// Maximum number of streams in the list. An app can crash at this many starts without a network, beyond the streams
/// that still have a folder.
pub(super) const MAX_UNNAMED: usize = 1_024;
/// Far above the size of a full file.
const MAX_FILE_BYTES: u64 = 64 << 10;

#[derive(Clone, PartialEq, Message)]
struct UnnamedStreams {
    #[prost(message, repeated, tag = "1")]
    streams: Vec<v1::EndedStream>,
}

fn path(streams: &Path) -> PathBuf {
    streams.join("unnamed")
}

pub(super) fn parse(bytes: &[u8]) -> Vec<EndedStream> {
    let unnamed: UnnamedStreams = message_file::parse(MAGIC, bytes).unwrap_or_default();
    let parsed = unnamed
        .streams
        .into_iter()
        .filter_map(|ended| ended.try_into().ok());
    parsed.take(MAX_UNNAMED).collect()
}

pub(super) fn read(streams: &Path) -> io::Result<Vec<EndedStream>> {
    let bytes = files::read_ours(&path(streams), MAX_FILE_BYTES)?;
    Ok(parse(&bytes.unwrap_or_default()))
}

/// Adds a stream, and returns whether it is in the list on disk. It may already be in the list, because a kill before
/// the removal of its folder leaves both.
pub(super) fn add(streams: &Path, ended: EndedStream) -> bool {
    let Ok(mut unnamed) = read(streams) else {
        return false;
    };
    if unnamed.iter().any(|known| known.stream == ended.stream) {
        return true;
    }
    unnamed.push(ended);
    unnamed.len() <= MAX_UNNAMED && write(streams, &unnamed).is_ok()
}

/// Removes the streams for which `is_gone` is true, and with the last stream the file. Another process may already have
/// removed them.
pub(super) fn remove(streams: &Path, is_gone: impl Fn(&EndedStream) -> bool) -> io::Result<()> {
    let mut unnamed = read(streams)?;
    unnamed.retain(|ended| !is_gone(ended));
    match unnamed.is_empty() {
        true => match fs::remove_file(path(streams)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        },
        false => write(streams, &unnamed),
    }
}

fn write(streams: &Path, unnamed: &[EndedStream]) -> io::Result<()> {
    let streams_of = UnnamedStreams {
        streams: unnamed.iter().map(v1::EndedStream::from).collect(),
    };
    files::replace(&path(streams), &message_file::to_bytes(MAGIC, &streams_of))
}

#[cfg(test)]
mod tests {
    use epwatch_proto::StreamId;

    use super::*;

    #[test]
    fn a_full_or_damaged_list_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let ended = |n| EndedStream {
            stream: StreamId(n),
            last_sequence: Some(u64::MAX >> 16),
            unsealed_runs: Some(0),
        };
        let full: Vec<_> = (0..MAX_UNNAMED as u64).map(ended).collect();
        write(dir.path(), &full).unwrap();
        assert!(!add(dir.path(), ended(u64::MAX)));
        assert_eq!(read(dir.path()).unwrap(), full);
        remove(dir.path(), |ended| ended.stream.0 > 0).unwrap();
        assert!(add(dir.path(), ended(7)) && add(dir.path(), ended(7)));
        assert_eq!(read(dir.path()).unwrap(), [ended(0), ended(7)]);
        let mut bytes = fs::read(path(dir.path())).unwrap();
        bytes[20] ^= 1;
        fs::write(path(dir.path()), bytes).unwrap();
        assert_eq!(read(dir.path()).unwrap(), []);
    }
}
