//! One report: what one process saw during one interval. It can be judged without another one.

use std::collections::BTreeSet;

use prost::Message;

use crate::{
    bounds::{each_once, list, required, text, unix_ms, within},
    device::{App, Device, Runtime, Sdk},
    error::{Inside, ParseError},
    failure::{RunErrors, SelfTest, StartFailure},
    health::SdkHealth,
    ids::{ReportKey, SessionUid, StreamId, required_key},
    latency::LatencySeries,
    session::Session,
    v1,
};

/// Largest encoded report.
pub const MAX_REPORT_BYTES: usize = 256 << 10;
/// Longest interval by the monotonic clock: 31 days.
pub const MAX_INTERVAL_MS: u64 = 31 * 24 * 3_600_000;
/// Longest boot id, in bytes.
pub const MAX_BOOT_ID_BYTES: usize = 64;

/// Field number and most entries of each repeated message of a report.
const MAX_ENTRIES: [(u32, &str, usize); 6] = [
    (2, "ended_streams", MAX_ENDED_STREAMS),
    (12, "sessions", MAX_SESSIONS),
    (13, "series", MAX_SERIES),
    (14, "self_tests", MAX_SELF_TESTS),
    (15, "start_failures", MAX_START_FAILURES),
    (16, "run_errors", MAX_RUN_ERRORS),
];
/// Most ended streams of a report.
pub const MAX_ENDED_STREAMS: usize = 64;
/// Most sessions of a report.
pub const MAX_SESSIONS: usize = 64;
/// Most latency series of a report.
pub const MAX_SERIES: usize = 256;
/// Most self-tests of a report.
pub const MAX_SELF_TESTS: usize = 64;
/// Most start failures of a report.
pub const MAX_START_FAILURES: usize = 32;
/// Most run-error counters of a report.
pub const MAX_RUN_ERRORS: usize = 64;

/// One upload unit.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// What it is known by.
    pub key: ReportKey,
    /// Streams of this installation that ended before this one began.
    pub ended_streams: Vec<EndedStream>,
    /// When the interval began, by the device's wall clock.
    pub interval_start_unix_ms: i64,
    /// When it ended; may precede the start when the clock was set back.
    pub interval_end_unix_ms: i64,
    /// How long it was by the monotonic clock.
    pub interval_length_ms: u64,
    /// Id of the boot at its end; empty: not known.
    pub boot_id: String,
    /// Time since boot at its end.
    pub uptime_at_end_ms: Option<u64>,
    /// The app.
    pub app: App,
    /// The device.
    pub device: Device,
    /// The inference runtime.
    pub runtime: Runtime,
    /// The SDK that recorded.
    pub sdk: Sdk,
    /// Sessions, each once.
    pub sessions: Vec<Session>,
    /// Latency, by session and stratum.
    pub series: Vec<LatencySeries>,
    /// Self-tests.
    pub self_tests: Vec<SelfTest>,
    /// Sessions that could not be made.
    pub start_failures: Vec<StartFailure>,
    /// Failed runs.
    pub run_errors: Vec<RunErrors>,
    /// The SDK's own counters.
    pub health: SdkHealth,
}

/// The end of an earlier stream, so that what it lost is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedStream {
    /// Which one.
    pub stream: StreamId,
    /// The highest sequence that was sealed, 0 if none was; `None`: not known.
    pub last_sequence: Option<u64>,
    /// Runs recorded but never sealed into a report; `None`: not known.
    pub unsealed_runs: Option<u64>,
}

impl Report {
    /// Reads an encoded report and checks every bound of the contract.
    ///
    /// Takes time linear in the input, and memory within a constant factor of it.
    ///
    /// # Errors
    /// Names the first refused field; [`ParseError::outcome`] says how the report ends.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        if bytes.len() > MAX_REPORT_BYTES {
            return Err(ParseError::too_large(
                "report",
                MAX_REPORT_BYTES,
                bytes.len(),
            ));
        }
        check_entry_counts(bytes)?;
        let report = v1::Report::decode(bytes).map_err(|error| not_protobuf("report", &error))?;
        Self::try_from(report)
    }

    /// The encoded report, as a device sends it.
    pub fn to_bytes(&self) -> Vec<u8> {
        v1::Report::from(self).encode_to_vec()
    }

    /// The session of that uid.
    pub fn session(&self, uid: SessionUid) -> Option<&Session> {
        self.sessions.iter().find(|s| s.uid == uid)
    }

    /// What refers to each other must be there, and once.
    fn check_references(&self) -> Result<(), ParseError> {
        each_once("sessions", &self.sessions, |s| s.uid)?;
        let uids: BTreeSet<_> = self.sessions.iter().map(|s| s.uid).collect();
        check_uids("series", &self.series, &uids, |s| s.session_uid)?;
        check_uids("self_tests", &self.self_tests, &uids, |t| t.session_uid)?;
        check_uids("run_errors", &self.run_errors, &uids, |e| e.session_uid)?;
        each_once("series", &self.series, |s| (s.session_uid, &s.stratum))?;
        each_once("ended_streams", &self.ended_streams, |e| e.stream)?;
        let own = |e: &EndedStream| e.stream == self.key.stream;
        if let Some(at) = self.ended_streams.iter().position(own) {
            let field = format!("ended_streams[{at}].stream_id");
            let expected = "a stream that ended";
            return Err(ParseError::malformed(&field, expected, "the report's own"));
        }
        Ok(())
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

/// Counts the repeated messages before they are decoded: two bytes on the wire can stand for an
/// empty message that takes hundreds in memory.
fn check_entry_counts(report: &[u8]) -> Result<(), ParseError> {
    use prost::encoding::{DecodeContext, decode_key, skip_field};
    let mut counts = [0; MAX_ENTRIES.len()];
    let mut rest = report;
    while !rest.is_empty() {
        let (tag, wire_type) = decode_key(&mut rest).map_err(|e| not_protobuf("report", &e))?;
        if let Some(at) = MAX_ENTRIES.iter().position(|(number, ..)| *number == tag) {
            counts[at] += 1;
            let (_, field, most) = MAX_ENTRIES[at];
            crate::bounds::at_most(field, counts[at], most)?;
        }
        skip_field(wire_type, tag, &mut rest, DecodeContext::default())
            .map_err(|error| not_protobuf("report", &error))?;
    }
    Ok(())
}

/// The bytes are no message of this type.
pub(crate) fn not_protobuf(field: &str, error: &prost::DecodeError) -> ParseError {
    ParseError::malformed(field, "a protobuf message", error)
}

impl TryFrom<v1::Report> for Report {
    type Error = ParseError;

    fn try_from(r: v1::Report) -> Result<Self, ParseError> {
        let app = required("app", r.app)?;
        let device = required("device", r.device)?;
        let runtime = required("runtime", r.runtime)?;
        let sdk = required("sdk", r.sdk)?;
        let health = required("health", r.health)?;
        let ended = |e: v1::EndedStream| {
            Ok(EndedStream {
                stream: StreamId(e.stream_id),
                last_sequence: e.last_sequence,
                unsealed_runs: e.unsealed_runs,
            })
        };
        let start = r.interval_start_unix_ms;
        let end = r.interval_end_unix_ms;
        let length = r.interval_length_ms;
        let starts = r.start_failures;
        let report = Self {
            key: required_key("key", r.key)?,
            ended_streams: list("ended_streams", r.ended_streams, MAX_ENDED_STREAMS, ended)?,
            interval_start_unix_ms: unix_ms("interval_start_unix_ms", start)?,
            interval_end_unix_ms: unix_ms("interval_end_unix_ms", end)?,
            interval_length_ms: within("interval_length_ms", length, 0, MAX_INTERVAL_MS)?,
            boot_id: text("boot_id", r.boot_id, MAX_BOOT_ID_BYTES)?,
            uptime_at_end_ms: r.uptime_at_end_ms,
            app: App::try_from(app).inside("app")?,
            device: Device::try_from(device).inside("device")?,
            runtime: Runtime::try_from(runtime).inside("runtime")?,
            sdk: Sdk::try_from(sdk).inside("sdk")?,
            sessions: list("sessions", r.sessions, MAX_SESSIONS, Session::try_from)?,
            series: list("series", r.series, MAX_SERIES, LatencySeries::try_from)?,
            self_tests: list(
                "self_tests",
                r.self_tests,
                MAX_SELF_TESTS,
                SelfTest::try_from,
            )?,
            start_failures: list(
                "start_failures",
                starts,
                MAX_START_FAILURES,
                StartFailure::try_from,
            )?,
            run_errors: list(
                "run_errors",
                r.run_errors,
                MAX_RUN_ERRORS,
                RunErrors::try_from,
            )?,
            health: SdkHealth::try_from(health).inside("health")?,
        };
        report.check_references()?;
        Ok(report)
    }
}

impl From<&Report> for v1::Report {
    fn from(r: &Report) -> Self {
        let ended = |e: &EndedStream| v1::EndedStream {
            stream_id: e.stream.0,
            last_sequence: e.last_sequence,
            unsealed_runs: e.unsealed_runs,
        };
        Self {
            key: Some((&r.key).into()),
            ended_streams: r.ended_streams.iter().map(ended).collect(),
            interval_start_unix_ms: r.interval_start_unix_ms,
            interval_end_unix_ms: r.interval_end_unix_ms,
            interval_length_ms: r.interval_length_ms,
            boot_id: r.boot_id.clone(),
            uptime_at_end_ms: r.uptime_at_end_ms,
            app: Some((&r.app).into()),
            device: Some((&r.device).into()),
            runtime: Some((&r.runtime).into()),
            sdk: Some((&r.sdk).into()),
            sessions: r.sessions.iter().map(Into::into).collect(),
            series: r.series.iter().map(Into::into).collect(),
            self_tests: r.self_tests.iter().map(Into::into).collect(),
            start_failures: r.start_failures.iter().map(Into::into).collect(),
            run_errors: r.run_errors.iter().map(Into::into).collect(),
            health: Some((&r.health).into()),
        }
    }
}
