//! Files of recorded reports: dumps of the collector's WAL, which `replay` reads. Each record follows its length as a
//! varint.

use std::io::{self, Read, Write};

use bytes::Bytes;
use prost::{Message, encoding::encode_varint};

use crate::{
    device::{MAX_APP_ID_BYTES, MAX_ENVIRONMENT_BYTES},
    error::{Inside, ParseError},
    message::{Kind, Name, UnixMs},
    report::{MAX_REPORT_BYTES, Report},
    upload::SendClock,
    v1,
};

/// Largest encoded record: a report and the fields around it.
pub const MAX_RECORDED_BYTES: usize = MAX_REPORT_BYTES + (1 << 10);

/// A report as the collector received it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct RecordedReport {
    pub received_at_unix_ms: i64,
    pub app_id: String,
    pub environment: String,
    /// The received bytes.
    pub report: Bytes,
    pub sent: SendClock,
    pub is_unproven: Option<bool>,
    pub is_own: Option<bool>,
    /// Hashes of the network at both widths.
    pub network: Option<[u32; 2]>,
}

impl RecordedReport {
    /// Reads the report itself.
    ///
    /// # Errors
    /// Names the refused field.
    pub fn parse_report(&self) -> Result<Report, ParseError> {
        Report::parse(&self.report).inside("report")
    }
}

/// A file of recorded reports cannot be read to its end.
#[derive(Debug, thiserror::Error)]
pub enum RecordedError {
    /// The file could not be read.
    #[error("failed to read the record at byte {offset}")]
    Io {
        /// First byte of the record.
        offset: u64,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The file ends within a record.
    #[error("failed to read the record at byte {offset}: the file ends within it")]
    Torn {
        /// First byte of the record.
        offset: u64,
    },
    /// The bytes are not a record.
    #[error("failed to parse the record at byte {offset}")]
    Malformed {
        /// First byte of the record.
        offset: u64,
        /// The refused field.
        #[source]
        source: ParseError,
    },
}

/// Appends one record.
///
/// # Errors
/// The writer failed.
pub fn write_recorded(to: &mut impl Write, record: &RecordedReport) -> io::Result<()> {
    let message = v1::RecordedReport::from(record);
    let len = message.encoded_len();
    let mut bytes = Vec::with_capacity(len + 4);
    encode_varint(len as u64, &mut bytes);
    message.encode(&mut bytes).expect("a Vec takes any length");
    to.write_all(&bytes)
}

/// Reads records one by one, and holds one at a time in memory. It ends after an error.
#[derive(Debug)]
pub struct RecordedReader<R> {
    from: R,
    offset: u64,
    ended: bool,
}

impl<R: Read> RecordedReader<R> {
    /// Reads from the beginning of `from`, which should be buffered.
    pub fn new(from: R) -> Self {
        Self {
            from,
            offset: 0,
            ended: false,
        }
    }

    fn read(&mut self) -> Result<Option<RecordedReport>, RecordedError> {
        let offset = self.offset;
        let io = |source: io::Error| match source.kind() {
            io::ErrorKind::UnexpectedEof => RecordedError::Torn { offset },
            _ => RecordedError::Io { offset, source },
        };
        let malformed = |source| RecordedError::Malformed { offset, source };

        let Some(len) = self.read_length().map_err(io)? else {
            return Ok(None);
        };
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > MAX_RECORDED_BYTES {
            let error = ParseError::too_large("length", MAX_RECORDED_BYTES, len);
            return Err(malformed(error));
        }
        let mut bytes = vec![0; len];
        self.from.read_exact(&mut bytes).map_err(io)?;
        self.offset += len as u64;
        let record = v1::RecordedReport::decode(Bytes::from(bytes));
        let record = record.map_err(|e| malformed(ParseError::not_protobuf("record", &e)))?;
        RecordedReport::try_from(record)
            .map(Some)
            .map_err(malformed)
    }

    /// `None` at the end of the file.
    fn read_length(&mut self) -> io::Result<Option<u64>> {
        let mut value = 0;
        for position in 0..10 {
            let mut byte = [0];
            let n = loop {
                match self.from.read(&mut byte) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    other => break other?,
                }
            };
            if n == 0 && position == 0 {
                return Ok(None);
            }
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.offset += 1;
            value |= u64::from(byte[0] & 0x7f)
                .checked_shl(7 * position)
                .unwrap_or(0);
            if byte[0] & 0x80 == 0 {
                return Ok(Some(value));
            }
        }
        // No varint is this long. The check of the length reports the error.
        Ok(Some(u64::MAX))
    }
}

impl<R: Read> Iterator for RecordedReader<R> {
    type Item = Result<RecordedReport, RecordedError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let record = self.read().transpose();
        self.ended = !matches!(record, Some(Ok(_)));
        record
    }
}

impl TryFrom<v1::RecordedReport> for RecordedReport {
    type Error = ParseError;

    fn try_from(r: v1::RecordedReport) -> Result<Self, ParseError> {
        let sent = v1::SendClock {
            wall_unix_ms: r.sent_wall_unix_ms,
            uptime_ms: r.sent_uptime_ms,
            boot_id: r.sent_boot_id,
        };
        Ok(Self {
            received_at_unix_ms: UnixMs::parse("received_at_unix_ms", r.received_at_unix_ms)?,
            app_id: Name::<MAX_APP_ID_BYTES>::parse("app_id", r.app_id)?,
            environment: Name::<MAX_ENVIRONMENT_BYTES>::parse("environment", r.environment)?,
            report: r.report,
            sent: SendClock::try_from(sent).inside("sent")?,
            is_unproven: r.is_unproven,
            is_own: r.is_own,
            network: (r.network != 0).then_some([r.network, r.network_wide]),
        })
    }
}

impl From<&RecordedReport> for v1::RecordedReport {
    fn from(r: &RecordedReport) -> Self {
        Self {
            received_at_unix_ms: r.received_at_unix_ms,
            app_id: r.app_id.clone(),
            environment: r.environment.clone(),
            report: r.report.clone(),
            sent_wall_unix_ms: r.sent.wall_unix_ms,
            sent_uptime_ms: r.sent.uptime_ms,
            sent_boot_id: r.sent.boot_id.clone(),
            is_unproven: r.is_unproven,
            is_own: r.is_own,
            network: r.network.map_or(0, |[narrow, _]| narrow),
            network_wide: r.network.map_or(0, |[_, wide]| wide),
        }
    }
}
