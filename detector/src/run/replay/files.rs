//! Files of recorded reports, plain or gzip, one after another into one recording.
//!
//! Errors name the file and the byte. Bytes that are not records end the replay. A report that breaks the contract is
//! refused and counted, as a collector does. A file that ends within a record is read up to that record, and the tail
//! is named.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use epwatch_proto::recorded::{RecordedError, RecordedReader};
use flate2::bufread::MultiGzDecoder;

use crate::read::Recording;
use crate::read::recorded::{Intake, IntakeSummary};

/// Maximum number of refused reports that are named; the others are only counted.
const MAX_NAMED: usize = 20;

/// The reason why files could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the file, and the cause")]
pub enum FileError {
    /// The file cannot be opened.
    #[error("failed to open {}", path.display())]
    Open {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The file does not contain recorded reports.
    #[error(
        "failed to read {} as recorded reports (varint-length-delimited \
         epwatch.v1.RecordedReport, plain or gzip)", path.display()
    )]
    Read {
        path: PathBuf,
        #[source]
        source: RecordedError,
    },
    /// Reports that do not fit into memory have no space on the disk.
    #[error(
        "failed to hold recorded reports in a temporary file in {}; TMPDIR names another directory",
        std::env::temp_dir().display()
    )]
    Spill {
        #[source]
        source: io::Error,
    },
}

/// Reports that were read from files.
#[derive(Debug)]
pub struct FilesRead {
    /// The accepted reports of all files.
    pub recording: Recording,
    /// Their number and span.
    pub summary: IntakeSummary,
    /// Reports that break the contract: not counted.
    pub refused: u64,
    /// The first refused reports: file, record number from 1, and the field.
    pub refused_because: Vec<String>,
    /// Files that end within a record.
    pub torn: Vec<TornTail>,
}

/// A file that ends within a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TornTail {
    /// The path as it was given.
    pub path: PathBuf,
    /// Where the torn record begins, in bytes of the unpacked file.
    pub offset: u64,
}

/// Reads files into one recording with buckets of `bucket`.
///
/// # Errors
/// A file cannot be opened or is not a file of records.
pub fn read_files(paths: &[PathBuf], bucket: Duration) -> Result<FilesRead, FileError> {
    let mut intake = Intake::new(bucket);
    let (mut refused, mut refused_because, mut torn) = (0, Vec::new(), Vec::new());
    for path in paths {
        let mut position = 0_u64;
        for record in RecordedReader::new(open(path)?) {
            position += 1;
            let record = match record {
                Ok(record) => record,
                Err(RecordedError::Torn { offset }) => {
                    torn.push(TornTail {
                        path: path.clone(),
                        offset,
                    });
                    break;
                }
                Err(source) => {
                    let path = path.clone();
                    return Err(FileError::Read { path, source });
                }
            };
            if let Err(error) = intake.add(&record) {
                refused += 1;
                if refused_because.len() < MAX_NAMED {
                    let path = path.display();
                    refused_because.push(format!("{path}: record {position}: {}", error.detail()));
                }
            }
        }
    }
    let finished = intake.finish();
    let (recording, summary) = finished.map_err(|source| FileError::Spill { source })?;
    Ok(FilesRead {
        recording,
        summary,
        refused,
        refused_because,
        torn,
    })
}

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

fn open(path: &Path) -> Result<Box<dyn Read>, FileError> {
    let failed = |source| FileError::Open {
        path: path.to_owned(),
        source,
    };
    let mut file = BufReader::with_capacity(1 << 16, File::open(path).map_err(failed)?);
    let is_gzip = file.fill_buf().map_err(failed)?.starts_with(&GZIP_MAGIC);
    if is_gzip {
        // Reads are small: a length is read byte by byte.
        let unpacked = MultiGzDecoder::new(file);
        return Ok(Box::new(BufReader::with_capacity(1 << 16, unpacked)));
    }
    Ok(Box::new(file))
}
