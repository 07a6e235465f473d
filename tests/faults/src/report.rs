//! Reports as a device makes them: sound, small, and known by their key.
//!
//! Each has one session with an id of its own and one series of [`RUNS`] runs, so that every view's sums
//! follow from the number of reports.

use bytes::Bytes;
use epwatch_proto::{InstallationId, v1};
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2Serializer};
use prost::Message;

/// Runs in each report.
pub(crate) const RUNS: u64 = 3;
/// App that the reports name; the collectors know no keys, on loopback.
pub(crate) const APP: &str = "com.example.faults";

/// A key as the store tells it: installation, stream, sequence.
pub(crate) type Key = ([u8; 16], u64, u64);

/// One report, encoded once: sent again it must have the same bytes.
#[derive(Debug, Clone)]
pub(crate) struct Made {
    pub(crate) key: Key,
    pub(crate) bytes: Bytes,
}

/// The stream before this one, named until it is acknowledged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) stream: u64,
    pub(crate) last_sequence: u64,
}

/// What never changes about a device's reports.
#[derive(Debug)]
pub(crate) struct Template {
    installation: [u8; 16],
    firmware: String,
    chipset: &'static str,
    histogram: Bytes,
}

impl Template {
    pub(crate) fn new(secret: &[u8]) -> Self {
        let installation = *InstallationId::from_secret(secret).as_bytes();
        let chipset = ["SM8650", "SM8550", "SM8750"][usize::from(installation[0] % 3)];
        Self {
            installation,
            firmware: format!("{:032x}", installation[1] % 4),
            chipset,
            histogram: histogram(),
        }
    }

    pub(crate) fn installation(&self) -> [u8; 16] {
        self.installation
    }

    pub(crate) fn report(&self, stream: u64, sequence: u64, ended: Option<Ended>) -> Made {
        let uid = fastrand::u64(..);
        let report = v1::Report {
            key: Some(v1::ReportKey {
                installation_id: Bytes::copy_from_slice(&self.installation),
                stream_id: stream,
                sequence,
            }),
            ended_streams: ended.iter().map(named).collect(),
            interval_start_unix_ms: 1_760_000_000_000,
            interval_end_unix_ms: 1_760_000_030_000,
            interval_length_ms: 30_000,
            app: Some(v1::App {
                id: APP.into(),
                version: "1".into(),
                environment: "test".into(),
                ..Default::default()
            }),
            device: Some(v1::Device {
                chipset_raw: self.chipset.into(),
                chipset: self.chipset.into(),
                model: "Phone".into(),
                os: "android".into(),
                ram_class: v1::RamClass::RamClass8To12Gib.into(),
                vendor_fingerprint_hash: self.firmware.clone(),
                ..Default::default()
            }),
            runtime: Some(v1::Runtime {
                ort_version: "1.31.1".into(),
                ep_version: "2.7.0".into(),
                backend: v1::EpBackend::Htp.into(),
                ep_linkage: v1::EpLinkage::Plugin.into(),
                ..Default::default()
            }),
            sdk: Some(sdk()),
            sessions: vec![session(uid)],
            series: vec![self.series(uid)],
            health: Some(v1::SdkHealth {
                runs_observed: sequence * RUNS,
                runs_recorded: sequence * RUNS,
                ..Default::default()
            }),
            ..Default::default()
        };
        Made {
            key: (self.installation, stream, sequence),
            bytes: report.encode_to_vec().into(),
        }
    }

    fn series(&self, session_uid: u64) -> v1::LatencySeries {
        v1::LatencySeries {
            session_uid,
            stratum: Some(v1::Stratum {
                phase: v1::Phase::Warm.into(),
                thermal: v1::Thermal::None.into(),
                power_save: v1::PowerSave::Off.into(),
                shape_key: "static".into(),
                session_age: v1::SessionAge::Under1Min.into(),
                ..Default::default()
            }),
            hist_scheme: v1::HistScheme::HdrUs2sd160s.into(),
            histogram: self.histogram.clone(),
            n: RUNS,
            sum_us: 3_000.0,
            m2_us2: 20_000.0,
            min_us: 900.0,
            max_us: 1_100.0,
            runs_seen: RUNS,
            sampled_one_in: 1,
            baseline_absence: v1::BaselineAbsence::FirstVersion.into(),
            ..Default::default()
        }
    }
}

pub(crate) fn sdk() -> v1::Sdk {
    v1::Sdk {
        name: "epwatch-faults".into(),
        version: "1".into(),
        language: "rust".into(),
    }
}

fn named(ended: &Ended) -> v1::EndedStream {
    v1::EndedStream {
        stream_id: ended.stream,
        last_sequence: Some(ended.last_sequence),
        unsealed_runs: Some(0),
    }
}

fn session(uid: u64) -> v1::Session {
    let fingerprint = |value| v1::Fingerprint {
        algorithm: 1,
        value,
    };
    let npu = "QNNExecutionProvider".to_owned();
    v1::Session {
        uid,
        model: Some(v1::Model {
            id: "model".into(),
            version: "1".into(),
            ..Default::default()
        }),
        requested_eps: vec![npu.clone()],
        placement: Some(v1::Placement {
            requested_eps: vec![npu.clone()],
            eps: vec![v1::EpShare {
                ep: npu,
                n_nodes: 30,
                n_partitions: Some(1),
                ..Default::default()
            }],
            n_nodes: 30,
            graph_kind: v1::GraphKind::Jit.into(),
            source: v1::PlacementSource::AssignmentApi.into(),
            exact: Some(fingerprint(11)),
            normalised: Some(fingerprint(12)),
            ..Default::default()
        }),
        created_at_unix_ms: 1_760_000_000_000,
        ..Default::default()
    }
}

fn histogram() -> Bytes {
    let mut runs = Histogram::<u64>::new_with_bounds(1, 60_000_000, 2).expect("the fleet's bounds");
    for run_us in [900, 1_000, 1_100] {
        runs.record(run_us).expect("within the bounds");
    }
    let mut bytes = Vec::new();
    V2Serializer::new()
        .serialize(&runs, &mut bytes)
        .expect("a vector takes everything");
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report that the collector refuses would prove nothing.
    #[test]
    fn reports_are_sound() {
        let template = Template::new(b"a secret");
        let ended = Some(Ended {
            stream: 7,
            last_sequence: 3,
        });
        let made = template.report(8, 1, ended);
        let message = v1::Report::decode(made.bytes).unwrap();
        let report = epwatch_proto::Report::try_from(message).unwrap();
        assert_eq!(report.key.sequence.get(), 1);
    }
}
