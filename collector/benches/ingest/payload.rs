//! The reference payload: a report of one session and two series of about 40 buckets. It is in the form in which an SDK
//! sends it, encoded once. Each request is a copy with random ids put in. So the client only copies and sends,
//! whichever server it loads.

use bytes::{BufMut, Bytes, BytesMut};
use epwatch_proto::histogram::bucket_low_us;
use epwatch_proto::{LatencySeries, Phase, SparseHistogram, samples, v1};
use prost::Message;

const INSTALLATION: [u8; 16] = [0xa5; 16];
const STREAM: u64 = 0x5151_5252_5353_5454;
const SESSION: u64 = 0x6161_6262_6363_6464;

/// An encoded request, with the offsets of its random ids.
pub(crate) struct Template {
    bytes: Vec<u8>,
    installations: Vec<usize>,
    streams: Vec<usize>,
    sessions: Vec<usize>,
    pub(crate) n_reports: usize,
    pub(crate) report_bytes: usize,
}

impl Template {
    /// A gRPC message: prefix, then an UploadRequest with `n_reports` reports.
    pub(crate) fn new(n_reports: usize) -> Self {
        let report: Bytes = report().encode_to_vec().into();
        let report_bytes = report.len();
        let request = v1::UploadRequest {
            reports: vec![report; n_reports],
            clock: Some(v1::SendClock {
                wall_unix_ms: Some(1_760_000_060_000),
                uptime_ms: Some(120_000),
                boot_id: "3f1b8c8e-6a55-4c42".into(),
            }),
            sdk: Some((&samples::sdk()).into()),
            ..v1::UploadRequest::default()
        };
        let mut bytes = Vec::new();
        bytes.put_u8(0);
        bytes.put_u32(u32::try_from(request.encoded_len()).expect("far below 4 GiB"));
        request.encode(&mut bytes).expect("a Vec takes any length");
        Self {
            installations: places(&bytes, &INSTALLATION),
            streams: places(&bytes, &STREAM.to_le_bytes()),
            sessions: places(&bytes, &SESSION.to_le_bytes()),
            bytes,
            n_reports,
            report_bytes,
        }
    }

    /// A copy with ids of its own.
    pub(crate) fn fill(&self, random: &mut Random) -> Bytes {
        let mut bytes = BytesMut::from(&self.bytes[..]);
        for &at in &self.installations {
            bytes[at..at + 8].copy_from_slice(&random.next().to_le_bytes());
            bytes[at + 8..at + 16].copy_from_slice(&random.next().to_le_bytes());
        }
        for &at in &self.streams {
            bytes[at..at + 8].copy_from_slice(&random.next().to_le_bytes());
        }
        // A session's uid occurs once in the session and once in each series.
        for places in self.sessions.chunks(3) {
            let uid = random.next() | 1;
            for &at in places {
                bytes[at..at + 8].copy_from_slice(&uid.to_le_bytes());
            }
        }
        bytes.freeze()
    }
}

fn places(bytes: &[u8], pattern: &[u8]) -> Vec<usize> {
    let windows = bytes.windows(pattern.len()).enumerate();
    windows
        .filter(|(_, w)| *w == pattern)
        .map(|(at, _)| at)
        .collect()
}

/// SplitMix64: ids only have to differ.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// The sample report, as large as in earlier measurements.
fn report() -> v1::Report {
    let key = samples::key(INSTALLATION, STREAM, 17);
    let mut report = samples::report(key, samples::session_uid(SESSION));
    report.boot_id.clear();
    report.series = vec![
        series(Phase::Warm, 780, 1_000),
        series(Phase::Cold, 900, 300),
    ];
    report.health.runs_observed = 40_000;
    report.health.runs_recorded = 40_000;
    let mut report = v1::Report::from(&report);
    report.sessions[0].options = None;
    report.device = report.device.map(|device| v1::Device {
        chipset: String::new(),
        ..device
    });
    report
}

/// A bell-shaped histogram of 40 buckets around `first` + 20.
#[expect(clippy::cast_precision_loss, reason = "whole numbers below 2^53")]
fn series(phase: Phase, first: u16, runs: u64) -> LatencySeries {
    let (mut indices, mut counts) = (Vec::new(), Vec::new());
    let (mut n, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for bucket in 0..40_u16 {
        let distance = u64::from(bucket.abs_diff(20));
        let count = 1 + runs / (20 + distance * distance);
        let value = bucket_low_us(first + bucket) as f64;
        indices.push(first + bucket);
        counts.push(count);
        n += count as f64;
        sum += count as f64 * value;
        squares += count as f64 * value * value;
    }
    let (low, high) = (bucket_low_us(first), bucket_low_us(first + 39));
    let histogram = SparseHistogram::from_parts(indices, counts).expect("rising, not empty");
    LatencySeries {
        n: histogram.total(),
        runs_seen: histogram.total(),
        histogram,
        sum_us: sum,
        m2_us2: (squares - sum * sum / n).max(0.0),
        ..samples::series(samples::session_uid(SESSION), phase, &[low, high])
    }
}
