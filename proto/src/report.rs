//! One report: what one process saw during one interval. It can be judged without another one.

use std::collections::BTreeSet;

use prost::Message as _;
use prost::encoding::{DecodeContext, decode_key, skip_field};

use crate::{
    accelerator::{Asked, cohort_chipset},
    device::{App, Device, Runtime, Sdk},
    ep_device::DeviceType,
    error::ParseError,
    failure::{RunErrors, SelfTest, StartFailure},
    health::SdkHealth,
    ids::{ReportKey, SessionUid, StreamId},
    latency::LatencySeries,
    message::{AtMost64, Count, Inner, List, Maybe, Text, UnixMs, at_most, each_once, message},
    session::Session,
    v1,
    wire::each_field,
};

/// Largest encoded report.
pub const MAX_REPORT_BYTES: usize = 256 << 10;
/// Longest interval by the monotonic clock: 31 days.
pub const MAX_INTERVAL_MS: u64 = 31 * 24 * 3_600_000;
/// Longest boot id, in bytes.
pub const MAX_BOOT_ID_BYTES: usize = 64;

/// Maximum number of ended streams of a report.
pub const MAX_ENDED_STREAMS: usize = 64;
/// Maximum number of sessions of a report.
pub const MAX_SESSIONS: usize = 64;
/// Maximum number of latency series of a report.
pub const MAX_SERIES: usize = 256;
/// Maximum number of self-tests of a report.
pub const MAX_SELF_TESTS: usize = 64;
/// Maximum number of start failures of a report.
pub const MAX_START_FAILURES: usize = 32;
/// Maximum number of run-error counters of a report.
pub const MAX_RUN_ERRORS: usize = 64;

/// One upload unit.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct Report {
    pub key: ReportKey,
    pub ended_streams: Vec<EndedStream>,
    pub interval_start_unix_ms: i64,
    pub interval_end_unix_ms: i64,
    pub interval_length_ms: u64,
    pub boot_id: String,
    pub uptime_at_end_ms: Option<u64>,
    pub app: App,
    pub device: Device,
    pub runtime: Runtime,
    pub sdk: Sdk,
    pub sessions: Vec<Session>,
    pub series: Vec<LatencySeries>,
    pub self_tests: Vec<SelfTest>,
    pub start_failures: Vec<StartFailure>,
    pub run_errors: Vec<RunErrors>,
    pub health: SdkHealth,
}

/// The end of an earlier stream, which shows what that stream lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct EndedStream {
    pub stream: StreamId,
    pub last_sequence: Option<u64>,
    pub unsealed_runs: Option<u64>,
}

impl Report {
    /// Reads an encoded report and checks every bound of the contract.
    ///
    /// Takes time linear in the input, and memory within a constant factor of it.
    ///
    /// # Errors
    /// Names the first refused field; [`ParseError::outcome`] is the report's outcome.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        if bytes.len() > MAX_REPORT_BYTES {
            return Err(ParseError::too_large(
                "report",
                MAX_REPORT_BYTES,
                bytes.len(),
            ));
        }
        check_entry_counts(bytes)?;
        let report = v1::Report::decode(bytes);
        Self::try_from(report.map_err(|error| ParseError::not_protobuf("report", &error))?)
    }

    /// Returns the chipset of each session's cohort: [`cohort_chipset`] of the device's chipset, and of accelerator and type
    /// of device that the session asked for. A session that a directive changed stays in the cohort of the accelerator that
    /// the app asked for.
    ///
    /// The session's `devices` do not count. ONNX Runtime returns none if inputs and outputs belong to nodes on the CPU. So a
    /// fallback would move the session to another cohort, and hide itself.
    pub fn session_chipsets<'a>(&'a self, chipset: &'a str) -> impl Iterator<Item = String> + 'a {
        self.sessions.iter().map(move |session| {
            let in_effect = session.placement.asked();
            let by_app = || Asked::by_names(&session.requested_eps);
            let asked = match session.directive_id.is_empty() {
                true => in_effect,
                false => by_app().or(in_effect),
            };
            self.cohort_of(chipset, asked, session.options.device_type)
        })
    }

    /// Returns the cohort's chipset for each session that could not be created; empty if the session asked for the CPU.
    /// A request without EPs counts as one for an NPU.
    pub fn start_failure_chipsets<'a>(
        &'a self,
        chipset: &'a str,
    ) -> impl Iterator<Item = String> + 'a {
        self.start_failures.iter().map(move |failure| {
            let asked = Asked::by_names(&failure.requested_eps);
            match asked.is_none() && !failure.requested_eps.is_empty() {
                true => String::new(),
                false => self.cohort_of(chipset, asked, failure.device_type),
            }
        })
    }

    fn cohort_of(
        &self,
        chipset: &str,
        asked: Option<Asked<'_>>,
        device: Option<DeviceType>,
    ) -> String {
        let asked = asked.map(|asked| asked.with_backend(self.runtime.backend));
        cohort_chipset(chipset, asked, device.unwrap_or_default())
    }

    /// Number of series that parsing dropped from the encoded report, because their numbers are impossible.
    pub fn n_dropped_series(&self, bytes: &[u8]) -> usize {
        let mut n_sent = 0_usize;
        let _ = each_field(bytes, |number, _| {
            n_sent += usize::from(number == report_fields::field::series);
            Some(())
        });
        n_sent.saturating_sub(self.series.len())
    }

    /// Encodes the report as a device sends it.
    pub fn to_bytes(&self) -> Vec<u8> {
        v1::Report::from(self).encode_to_vec()
    }

    /// Finds a session by its uid.
    pub fn session(&self, uid: SessionUid) -> Option<&Session> {
        self.sessions.iter().find(|s| s.uid == uid)
    }
}

fn check_uids<T>(
    field: &str,
    entries: &[T],
    known: &BTreeSet<SessionUid>,
    uid: impl Fn(&T) -> SessionUid,
) -> Result<(), ParseError> {
    match entries
        .iter()
        .position(|entry| !known.contains(&uid(entry)))
    {
        None => Ok(()),
        Some(at) => {
            let path = format!("{field}[{at}].session_uid");
            let expected = "the uid of a session in this report";
            Err(ParseError::malformed(&path, expected, uid(&entries[at])))
        }
    }
}

/// Counts the repeated messages before they are decoded: an empty message takes two bytes on the wire and may take
/// hundreds in memory.
fn check_entry_counts(report: &[u8]) -> Result<(), ParseError> {
    let mut counts = [0; report_fields::MOST.len()];
    let mut rest = report;
    while !rest.is_empty() {
        let not_protobuf = |e| ParseError::not_protobuf("report", &e);
        let (tag, wire_type) = decode_key(&mut rest).map_err(not_protobuf)?;
        let mut fields = report_fields::MOST.iter().zip(&mut counts);
        if let Some(((_, field, most), count)) = fields.find(|((number, ..), _)| *number == tag) {
            *count += 1;
            at_most(field, *count, *most)?;
        }
        skip_field(wire_type, tag, &mut rest, DecodeContext::default()).map_err(not_protobuf)?;
    }
    Ok(())
}

message! {
    mod report_fields: Report = v1::Report {
        1 key: Inner<ReportKey>,
        2 ended_streams: List<EndedStream, MAX_ENDED_STREAMS>,
        3 interval_start_unix_ms: UnixMs,
        4 interval_end_unix_ms: UnixMs,
        5 interval_length_ms: AtMost64<MAX_INTERVAL_MS>,
        6 boot_id: Text<MAX_BOOT_ID_BYTES>,
        7 uptime_at_end_ms: Maybe<Count>,
        8 app: Inner<App>,
        9 device: Inner<Device>,
        10 runtime: Inner<Runtime>,
        11 sdk: Inner<Sdk>,
        12 sessions: List<Session, MAX_SESSIONS>,
        13 series: List<LatencySeries, MAX_SERIES>,
        14 self_tests: List<SelfTest, MAX_SELF_TESTS>,
        15 start_failures: List<StartFailure, MAX_START_FAILURES>,
        16 run_errors: List<RunErrors, MAX_RUN_ERRORS>,
        17 health: Inner<SdkHealth>,
    }
    rule Report::with_known_references;
    checked by hand;
}

impl Report {
    /// Fails if an entry refers to a session that is not in the report, or if an entry is repeated. Drops series with
    /// impossible numbers, and keeps the rest of the report.
    fn with_known_references(mut self) -> Result<Self, ParseError> {
        each_once("sessions", &self.sessions, |s| s.uid)?;
        let uids: BTreeSet<_> = self.sessions.iter().map(|s| s.uid).collect();
        check_uids("series", &self.series, &uids, |s| s.session_uid)?;
        check_uids("self_tests", &self.self_tests, &uids, |t| t.session_uid)?;
        check_uids("run_errors", &self.run_errors, &uids, |e| e.session_uid)?;
        each_once("series", &self.series, |s| (s.session_uid, &s.stratum))?;
        self.series
            .retain(|series| series.is_possible_in(self.interval_length_ms));
        each_once("ended_streams", &self.ended_streams, |e| e.stream)?;
        let own = |e: &EndedStream| e.stream == self.key.stream;
        if let Some(at) = self.ended_streams.iter().position(own) {
            let field = format!("ended_streams[{at}].stream_id");
            let expected = "a stream that ended";
            return Err(ParseError::malformed(&field, expected, "the report's own"));
        }
        Ok(self)
    }
}

message! {
    mod ended_fields: EndedStream = v1::EndedStream {
        1 stream_id as stream: StreamId,
        2 last_sequence as last_sequence: Maybe<Count>,
        3 unsealed_runs as unsealed_runs: Maybe<Count>,
    }
    keeps u64 = |seen| Some(seen.stream_id);
}
