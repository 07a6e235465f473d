//! Format of a segment file.
//!
//! ```text
//! "EPWSPL1\n"                                            8 bytes, the format's name and version
//! ( u32 length | u32 crc32c of the report | report )*    little-endian
//! ```
//!
//! Records are only appended. A killed process leaves at most one torn record at the end; a power cut may leave any
//! bytes after the last sync. A scan returns all whole records before the first broken one, and the number of bytes
//! after them.

use std::{fs, io, ops::Range, path::Path};

use epwatch_proto::{ReportKey, report::MAX_REPORT_BYTES};
use prost::Message;

use crate::folder::crc32c::crc32c;

pub(crate) const MAGIC: &[u8; 8] = b"EPWSPL1\n";
pub(crate) const RECORD_HEADER_BYTES: u64 = 8;
/// The spool never writes larger files; a larger one is not read into memory.
const MAX_SEGMENT_BYTES: u64 = 64 << 20;

/// Position of a report in its segment, and its entries for the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecordMeta {
    pub(crate) key: ReportKey,
    pub(crate) runs: u64,
    pub(crate) sealed_unix_ms: i64,
    /// Position of the report's bytes, without the record's header.
    pub(crate) bytes: Range<u64>,
    pub(crate) crc: u32,
}

/// Content of a segment file.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    pub(crate) records: Vec<RecordMeta>,
    /// Length of the whole records.
    pub(crate) whole_bytes: u64,
    /// Torn or corrupt bytes after the whole records.
    pub(crate) lost_bytes: u64,
}

pub(crate) fn encode_record(report: &[u8]) -> Vec<u8> {
    let length = u32::try_from(report.len()).unwrap_or(u32::MAX);
    let mut record = Vec::with_capacity(report.len() + 8);
    record.extend(length.to_le_bytes());
    record.extend(crc32c(report).to_le_bytes());
    record.extend(report);
    record
}

/// Reads a segment file with any content.
pub(crate) fn scan(path: &Path) -> io::Result<Scan> {
    let length = fs::metadata(path)?.len();
    if length > MAX_SEGMENT_BYTES {
        return Ok(Scan {
            lost_bytes: length,
            ..Scan::default()
        });
    }
    Ok(scan_bytes(&fs::read(path)?))
}

pub(crate) fn scan_bytes(bytes: &[u8]) -> Scan {
    let mut scan = Scan::default();
    if bytes.starts_with(MAGIC) {
        let mut at = MAGIC.len();
        while let Some(record) = next_record(bytes, at) {
            at = usize::try_from(record.bytes.end).unwrap_or(bytes.len());
            scan.records.push(record);
        }
        scan.whole_bytes = at as u64;
    }
    scan.lost_bytes = bytes.len() as u64 - scan.whole_bytes;
    scan
}

fn next_record(bytes: &[u8], at: usize) -> Option<RecordMeta> {
    let header = bytes.get(at..at + 8)?;
    let number = |at: usize| header[at..at + 4].try_into().map(u32::from_le_bytes).ok();
    let length = usize::try_from(number(0)?).ok()?;
    let crc = number(4)?;
    if length > MAX_REPORT_BYTES {
        return None;
    }
    let start = at + 8;
    let report = bytes.get(start..start + length)?;
    if crc32c(report) != crc {
        return None;
    }
    let mut meta = describe(report)?;
    meta.bytes = start as u64..(start + length) as u64;
    Some(meta)
}

/// The fields of an `epwatch.v1.Report` that the ledger needs. They are read alone, because code that decodes whole
/// reports would be a tenth of the library in an app.
#[derive(Clone, PartialEq, Message)]
struct ReportHead {
    #[prost(int64, tag = "4")]
    interval_end_unix_ms: i64,
    #[prost(message, repeated, tag = "13")]
    series: Vec<SeriesHead>,
}

#[derive(Clone, PartialEq, Message)]
struct SeriesHead {
    #[prost(uint64, tag = "5")]
    n: u64,
}

/// Reads the entries for the ledger; `None` if the bytes are not a report.
pub(crate) fn describe(report: &[u8]) -> Option<RecordMeta> {
    let decoded = ReportHead::decode(report).ok()?;
    Some(RecordMeta {
        key: ReportKey::peek(report)?,
        runs: decoded.series.iter().fold(0, |n, s| s.n.saturating_add(n)),
        sealed_unix_ms: decoded.interval_end_unix_ms,
        bytes: 0..report.len() as u64,
        crc: crc32c(report),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use epwatch_proto::{InstallationId, Sequence, StreamId, v1};
    use proptest::prelude::*;

    /// A report with this sequence, `runs` runs and some ballast.
    pub(crate) fn report(stream: StreamId, sequence: u64, runs: u64, ballast: usize) -> Vec<u8> {
        let key = ReportKey {
            installation: InstallationId::from_secret(b"x"),
            stream,
            sequence: Sequence::new(sequence).unwrap(),
        };
        let report = v1::Report {
            key: Some((&key).into()),
            interval_end_unix_ms: 1_800_000_000_000,
            boot_id: "b".repeat(ballast),
            series: vec![v1::LatencySeries {
                n: runs,
                ..Default::default()
            }],
            ..Default::default()
        };
        report.encode_to_vec()
    }

    fn segment(reports: &[Vec<u8>]) -> Vec<u8> {
        let records = reports.iter().flat_map(|r| encode_record(r));
        MAGIC.iter().copied().chain(records).collect()
    }

    proptest! {
        /// After any crash the scan returns only whole records, which are a prefix of the written ones.
        #[test]
        fn a_cut_or_flipped_file_gives_back_whole_reports_only(
            ballasts in prop::collection::vec(0_usize..300, 1..8),
            cut in any::<prop::sample::Index>(),
            flip in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let reports: Vec<_> = (1..)
                .zip(&ballasts)
                .map(|(sequence, ballast)| report(StreamId(1), sequence, sequence, *ballast))
                .collect();
            let whole = segment(&reports);
            let mut bytes = whole[..=cut.index(whole.len())].to_vec();
            let flipped = flip.map(|at| at.index(bytes.len()));
            if let Some(at) = flipped {
                bytes[at] ^= 0x10;
            }
            let scan = scan_bytes(&bytes);
            prop_assert_eq!(scan.whole_bytes + scan.lost_bytes, bytes.len() as u64);
            for (meta, expected) in scan.records.iter().zip(&reports) {
                let place = |at: u64| usize::try_from(at).unwrap();
                let range = place(meta.bytes.start)..place(meta.bytes.end);
                prop_assert_eq!(&bytes[range], &expected[..]);
            }
            // All records before the damage are returned.
            let damage = flipped.unwrap_or(bytes.len());
            let mut end = MAGIC.len();
            let n_before = reports.iter().take_while(|r| { end += 8 + r.len(); end <= damage }).count();
            prop_assert!(scan.records.len() >= n_before);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let with_magic: Vec<u8> = MAGIC.iter().copied().chain(bytes.iter().copied()).collect();
            scan_bytes(&bytes);
            scan_bytes(&with_magic);
        }
    }
}
