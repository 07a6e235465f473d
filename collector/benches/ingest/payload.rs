//! The reference payload: a report of one session and two series of about 40 buckets, in the form in
//! which an SDK sends it, encoded once. Each request is a copy with random ids put in, so that the client's work
//! is a copy and a send, whatever it loads.

use bytes::{BufMut, Bytes, BytesMut};
use epwatch_proto::SparseHistogram;
use epwatch_proto::histogram::bucket_low_us;
use epwatch_proto::v1;
use prost::Message;

const INSTALLATION: [u8; 16] = [0xa5; 16];
const STREAM: u64 = 0x5151_5252_5353_5454;
const SESSION: u64 = 0x6161_6262_6363_6464;

/// An encoded request with the places of its random ids.
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
            sdk: Some(sdk()),
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
        // A session's uid stands once in the session and once in each series.
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

fn sdk() -> v1::Sdk {
    v1::Sdk {
        name: "epwatch".into(),
        version: "0.1.0".into(),
        ..v1::Sdk::default()
    }
}

fn report() -> v1::Report {
    v1::Report {
        key: Some(v1::ReportKey {
            installation_id: Bytes::from_static(&INSTALLATION),
            stream_id: STREAM,
            sequence: 17,
        }),
        interval_start_unix_ms: 1_760_000_000_000,
        interval_end_unix_ms: 1_760_000_030_000,
        interval_length_ms: 30_000,
        uptime_at_end_ms: Some(90_000),
        app: Some(v1::App {
            id: "com.example.camera".into(),
            version: "3.1".into(),
            environment: "production".into(),
            ..v1::App::default()
        }),
        device: Some(v1::Device {
            chipset_raw: "SM8650".into(),
            os: "android".into(),
            api_level: Some(36),
            ram_class: v1::RamClass::RamClass8To12Gib.into(),
            ..v1::Device::default()
        }),
        runtime: Some(v1::Runtime {
            ort_version: "1.31.1".into(),
            ep_version: "2.7.0".into(),
            ep_linkage: v1::EpLinkage::Plugin.into(),
            backend: v1::EpBackend::Htp.into(),
            ..v1::Runtime::default()
        }),
        sdk: Some(sdk()),
        sessions: vec![session()],
        series: vec![
            series(v1::Phase::Warm, 780, 1_000),
            series(v1::Phase::Cold, 900, 300),
        ],
        health: Some(v1::SdkHealth {
            runs_observed: 40_000,
            runs_recorded: 40_000,
            ..v1::SdkHealth::default()
        }),
        ..v1::Report::default()
    }
}

fn session() -> v1::Session {
    let npu = v1::EpShare {
        ep: "QNNExecutionProvider".into(),
        n_nodes: 30,
        n_partitions: Some(1),
        ..v1::EpShare::default()
    };
    v1::Session {
        uid: SESSION,
        model: Some(v1::Model {
            id: "detector".into(),
            version: "7".into(),
            ..v1::Model::default()
        }),
        placement: Some(v1::Placement {
            requested_eps: vec!["QNNExecutionProvider".into()],
            eps: vec![npu],
            n_nodes: 30,
            graph_kind: v1::GraphKind::Jit.into(),
            source: v1::PlacementSource::AssignmentApi.into(),
            exact: Some(v1::Fingerprint {
                algorithm: 1,
                value: 11,
            }),
            normalised: Some(v1::Fingerprint {
                algorithm: 1,
                value: 12,
            }),
            ..v1::Placement::default()
        }),
        creation_us: Some(400_000),
        created_at_unix_ms: 1_760_000_000_000,
        ..v1::Session::default()
    }
}

/// A bell of 40 buckets around `first` + 20.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "whole numbers below 2^53"
)]
fn series(phase: v1::Phase, first: u16, runs: u64) -> v1::LatencySeries {
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
    let total: u64 = counts.iter().sum();
    let histogram = SparseHistogram::from_parts(indices, counts).expect("rising, not empty");
    v1::LatencySeries {
        session_uid: SESSION,
        stratum: Some(v1::Stratum {
            phase: phase.into(),
            thermal: v1::Thermal::None.into(),
            power_save: v1::PowerSave::Off.into(),
            shape_key: "static".into(),
            session_age: v1::SessionAge::Under1Min.into(),
            ..v1::Stratum::default()
        }),
        hist_scheme: v1::HistScheme::HdrUs2sd160s.into(),
        histogram: histogram.encode_v2().into(),
        n: total,
        m2_us2: (squares - sum * sum / n).max(0.0),
        whole_ns: Some(v1::WholeNanoseconds {
            sum: 1_000 * sum as u64,
            min: 1_000 * low,
            max: 1_000 * high,
        }),
        baseline_absence: v1::BaselineAbsence::FirstVersion.into(),
        ..v1::LatencySeries::default()
    }
}
