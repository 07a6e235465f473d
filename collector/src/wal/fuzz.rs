//! A segment in memory, for fuzz targets.

use std::ops::Range;

use super::checkpoint;
use super::dir;
use super::faulty_storage::FaultyStorage;
use super::frame::{self, FrameKey};
use super::reader::Reader;
use super::segment::SEGMENT_HEADER_BYTES;
use super::storage::Storage;

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
        let file = FaultyStorage::default().create("segment").expect("memory");
        let written = file.write_at(SEGMENT_HEADER_BYTES, &frames);
        written.expect("memory can be written");
        let mut reader = Reader::over(file, self.0, 0, end);
        let mut found = Vec::new();
        while let Some(record) = reader.next_record().expect("memory can be read") {
            found.push(record.payload.to_vec());
        }
        found
    }

    /// Reads the small files of a WAL, each with `bytes` as its content.
    pub(crate) fn checkpoint(&self, bytes: &[u8]) {
        let storage = FaultyStorage::default();
        for name in [checkpoint::FILE, dir::ID_FILE] {
            let file = storage.create(name).expect("memory");
            file.write_at(0, bytes).expect("memory can be written");
        }
        let _ = dir::read_id(&storage);
        let id = checkpoint::wal_id(&storage).expect("memory can be read");
        let id = id.unwrap_or([7; 16]);
        let found = checkpoint::load(&storage, &id).expect("memory can be read");
        let Some(known) = found.known() else {
            return;
        };
        checkpoint::save(&storage, &id, &known).expect("memory can be written");
        let again = checkpoint::load(&storage, &id).expect("memory can be read");
        assert_eq!((again.latest, again.before), (Some(known), Some(known)));
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
