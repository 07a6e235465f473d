//! A segment in memory, for fuzz targets.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::frame::{self, FrameKey};
use super::reader::Reader;
use super::segment::SegmentHeader;
use super::storage::SegmentFile;
use super::{Record, WalOffset};

/// The frames of one segment.
#[derive(Debug)]
pub(crate) struct WalSegmentFuzz(FrameKey);

impl Default for WalSegmentFuzz {
    fn default() -> Self {
        Self(FrameKey::new(&[7; 16]))
    }
}

impl WalSegmentFuzz {
    /// Reads the payloads of these frames.
    pub(crate) fn read(&self, frames: Vec<u8>) -> Vec<Vec<u8>> {
        let end = frames.len() as u64;
        let mut file = SegmentHeader {
            wal_id: [7; 16],
            base: 0,
            not_before_us: 0,
        }
        .encode()
        .to_vec();
        file.extend(frames);
        let mut reader = Reader::over(Arc::new(InMemory(file)), self.0, 0, end);
        let mut found = Vec::new();
        while let Some(record) = reader.next_record().expect("memory can be read") {
            found.push(record.payload.to_vec());
        }
        found
    }

    /// Returns valid frames, and the range of each.
    pub(crate) fn write(&self, payloads: &[Vec<u8>]) -> (Vec<u8>, Vec<Range<usize>>) {
        let mut frames = Vec::new();
        let mut places = Vec::new();
        for payload in payloads {
            let from = frames.len();
            frame::push_unsealed(&mut frames, &[payload]);
            places.push(from..frames.len());
        }
        frame::seal(self.0, &mut frames, 0, 1);
        (frames, places)
    }
}

impl Record {
    pub(crate) fn of(offset: WalOffset, received_at_us: u64, payload: bytes::Bytes) -> Self {
        Self {
            offset,
            received_at_us,
            frame_bytes: frame::frame_bytes(payload.len()) as u64,
            payload,
        }
    }
}

#[derive(Debug)]
struct InMemory(Vec<u8>);

impl SegmentFile for InMemory {
    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let from = usize::try_from(position).unwrap_or(usize::MAX);
        let there = self.0.get(from..).unwrap_or_default();
        let n = there.len().min(buffer.len());
        buffer[..n].copy_from_slice(&there[..n]);
        Ok(n)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn append_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync(&self) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn reserve(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}
