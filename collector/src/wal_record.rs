//! Payload of a WAL record: the received bytes of a report, with the call's clocks and scope. Ingest writes it; the
//! writer, the loader of admission and the dump read it.
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 1 | version, 2 |
//! | 1 | 1 | bit 0: wall clock present, bit 1: uptime present, bit 2: the installation is unproven, bit 3: the key is `own` |
//! | 2 | 8 | device wall clock at sending, milliseconds since 1970, little endian |
//! | 10 | 8 | device uptime at sending, milliseconds, little endian |
//! | 18 | 3 | lengths of boot id, app id, environment |
//! | 21 | 8 | hash of the sender's network, narrow and wide, little endian; 0 is unknown |
//! | 29 | | boot id, app id, environment, report |
//!
//! Version 1 is the same format without bit 3 and without networks.

use epwatch_proto::SendClock;

const VERSION: u8 = 2;
const FIXED_BYTES: usize = 29;
const FIXED_BYTES_V1: usize = 21;

/// The collector's decision about the sender of a report, made once, at ingest: see [`crate::admission`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SenderMark {
    /// True if the installation is new and beyond the quota of its app or network.
    pub(crate) is_unproven: bool,
    /// True if the report came with a key of kind `own`.
    pub(crate) is_own: bool,
    /// Hashes of the sender's network at both widths; 0 means unknown.
    pub(crate) network: [u32; 2],
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ReportRecord<'a> {
    /// The device's clocks at the upload.
    pub(crate) sent: SendClock,
    /// Proved by the app key.
    pub(crate) app_id: &'a str,
    /// Proved by the app key.
    pub(crate) environment: &'a str,
    pub(crate) mark: SenderMark,
    /// The encoded report, as received.
    pub(crate) report: &'a [u8],
}

/// The payload is not a record of a known version. The WAL's checksums matched, so a newer collector wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("failed to read wal record: version {version}, {len} bytes")]
pub(crate) struct RecordError {
    version: u8,
    len: usize,
}

/// Replaces `out` by the header before a report. Boot id, app id and environment have at most 255 bytes each, by the
/// bounds of the wire contract.
pub(crate) fn write_header(
    out: &mut Vec<u8>,
    sent: &SendClock,
    (app_id, environment): (&str, &str),
    mark: SenderMark,
) {
    let texts = [sent.boot_id.as_str(), app_id, environment];
    let (wall, uptime) = (sent.wall_unix_ms, sent.uptime_ms);
    out.clear();
    out.push(VERSION);
    let has_wall = u8::from(wall.is_some());
    let has_uptime = u8::from(uptime.is_some()) << 1;
    let has_mark = u8::from(mark.is_unproven) << 2 | u8::from(mark.is_own) << 3;
    out.push(has_wall | has_uptime | has_mark);
    out.extend(wall.unwrap_or(0).to_le_bytes());
    out.extend(uptime.unwrap_or(0).to_le_bytes());
    for text in texts {
        out.push(u8::try_from(text.len()).expect("bounded by the contract"));
    }
    for network in mark.network {
        out.extend(network.to_le_bytes());
    }
    for text in texts {
        out.extend_from_slice(text.as_bytes());
    }
}

impl<'a> ReportRecord<'a> {
    ///
    /// # Errors
    /// [`RecordError`] if another version wrote it.
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, RecordError> {
        let version = payload.first().copied().unwrap_or(0);
        let error = RecordError {
            version,
            len: payload.len(),
        };
        let fixed_bytes = match version {
            1 => FIXED_BYTES_V1,
            VERSION => FIXED_BYTES,
            _ => return Err(error),
        };
        let (fixed, mut rest) = payload.split_at_checked(fixed_bytes).ok_or(error)?;
        let mut text = |len: u8| {
            let (text, after) = rest.split_at_checked(usize::from(len)).ok_or(error)?;
            rest = after;
            std::str::from_utf8(text).map_err(|_| error)
        };
        let (boot_id, app_id, environment) = (text(fixed[18])?, text(fixed[19])?, text(fixed[20])?);
        let wall = i64::from_le_bytes(fixed[2..10].try_into().expect("eight bytes"));
        let uptime = u64::from_le_bytes(fixed[10..18].try_into().expect("eight bytes"));
        let sent = SendClock {
            wall_unix_ms: (fixed[1] & 1 != 0).then_some(wall),
            uptime_ms: (fixed[1] & 2 != 0).then_some(uptime),
            boot_id: boot_id.to_owned(),
        };
        let network = |at: usize| {
            let bytes = fixed
                .get(at..at + 4)
                .and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u32::from_le_bytes)
        };
        let mark = SenderMark {
            is_unproven: fixed[1] & 4 != 0,
            is_own: version > 1 && fixed[1] & 8 != 0,
            network: [network(21), network(25)],
        };
        Ok(Self {
            sent,
            app_id,
            environment,
            mark,
            report: rest,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn records_round_trip(
            wall_unix_ms: Option<i64>,
            uptime_ms: Option<u64>,
            boot_id in "[a-z0-9-]{0,64}",
            app_id in "[a-zé.]{1,60}",
            environment in "[a-z]{1,32}",
            is_unproven: bool,
            is_own: bool,
            network: [u32; 2],
            report in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let sent = SendClock { wall_unix_ms, uptime_ms, boot_id };
            let mut payload = Vec::new();
            let mark = SenderMark { is_unproven, is_own, network };
            write_header(&mut payload, &sent, (&app_id, &environment), mark);
            payload.extend_from_slice(&report);
            let record = ReportRecord {
                sent,
                app_id: &app_id,
                environment: &environment,
                mark,
                report: &report,
            };
            prop_assert_eq!(ReportRecord::parse(&payload), Ok(record.clone()));
            // A record of the previous version has no networks.
            let mut before = payload.clone();
            before[0] = 1;
            before[1] &= 0b111;
            before.drain(FIXED_BYTES_V1..FIXED_BYTES);
            let mark = SenderMark { is_unproven, ..SenderMark::default() };
            prop_assert_eq!(ReportRecord::parse(&before), Ok(ReportRecord { mark, ..record }));
        }

        #[test]
        fn other_bytes_never_panic(payload in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = ReportRecord::parse(&payload);
        }
    }
}
