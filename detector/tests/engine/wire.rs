//! Reports as devices send them.

use std::collections::BTreeMap;

use epwatch_proto::placement::CPU_EP;
use epwatch_proto::{
    App, BaselineAbsence, BaselineKind, Baselines, CpuNode, Device, EpDevice, EpShare, Fingerprint,
    LatencySeries, Model, ModelHash, Phase, Placement, ReasonCode, Report, SelectionPolicy,
    SelfBaseline, SelfTest, Session, SessionOptions, SessionUid, SparseHistogram, StartFailure,
    StartPhase, Stratum, samples,
};
use jiff::{SignedDuration, Timestamp};

use crate::support::{MODEL_SHA256, Reports, firmware, silicon};

impl Reports {
    /// Returns one report of each device, recorded until `at`.
    pub(crate) fn reports(&self, at: Timestamp) -> Vec<Report> {
        let devices = self.devices.clone();
        devices.map(|device| self.wire(device, at)).collect()
    }

    fn wire(&self, device: u8, at: Timestamp) -> Report {
        let mut installation = [0; 16];
        installation[0] = device;
        installation[1..7].copy_from_slice(self.chipset.as_bytes());
        let second = u64::try_from(at.as_second()).unwrap();
        let uid = samples::session_uid(1);
        let sample = samples::report(samples::key(installation, 1, second), uid);
        let late = SignedDuration::from_hours(if self.is_late { 49 } else { 0 });
        let end_ms = (at - late).as_millisecond();
        Report {
            interval_start_unix_ms: end_ms,
            interval_end_unix_ms: end_ms,
            interval_length_ms: 0,
            boot_id: String::new(),
            uptime_at_end_ms: None,
            app: App {
                id: "camera".into(),
                ..sample.app
            },
            device: Device {
                vendor_fingerprint_hash: firmware(self.firmware),
                ..samples::device(self.chipset)
            },
            sessions: match self.only_failed {
                true => Vec::new(),
                false => vec![self.wire_session(uid, at)],
            },
            self_tests: self.wire_tests(uid),
            start_failures: self.wire_starts(),
            series: match self.only_failed {
                true => Vec::new(),
                false => vec![self.wire_series(uid, device)],
            },
            ..sample
        }
    }

    fn wire_series(&self, uid: SessionUid, device: u8) -> LatencySeries {
        let latency = self.latency(device);
        let baselines = match self.previous {
            None => Baselines::Absent(BaselineAbsence::FirstVersion),
            Some((version, us)) => {
                let us = us * silicon(device);
                Baselines::Known(vec![SelfBaseline {
                    kind: BaselineKind::PreviousVersion,
                    model_version: version.into(),
                    n: 100,
                    p10_us: 0.95 * us,
                    p50_us: us,
                    p95_us: 1.1 * us,
                    cv: 0.05,
                    vendor_fingerprint_hash: String::new(),
                    ort_version: String::new(),
                    ep_version: String::new(),
                }])
            }
        };
        let sample = samples::series(uid, Phase::Warm, &[1]);
        LatencySeries {
            stratum: Stratum {
                performance_mode: String::new(),
                shape_key: "static".into(),
                ..sample.stratum
            },
            histogram: SparseHistogram::from_parts(latency.buckets, latency.counts).unwrap(),
            n: self.runs,
            sum_us: latency.sum_us,
            m2_us2: latency.m2_us2,
            min_us: latency.min_us,
            max_us: latency.max_us,
            runs_seen: self.runs,
            first_runs_us: Vec::new(),
            slow_fast_switches: None,
            longest_slow_streak: None,
            exceed: None,
            baselines,
            ..sample
        }
    }

    fn wire_tests(&self, session_uid: SessionUid) -> Vec<SelfTest> {
        let tests = self.golden.iter().map(|(hash, max_abs)| SelfTest {
            session_uid,
            input_id: "golden".into(),
            tolerance: Some(0.05),
            npu_output_hash: Some([*hash; 16]),
            cpu_output_hash: Some([0; 16]),
            max_abs: Some(*max_abs),
            cosine: Some(0.9),
            top1_equal: Some(true),
            error_code: 0,
            first_off_output: String::new(),
        });
        tests.collect()
    }

    fn wire_starts(&self) -> Vec<StartFailure> {
        let failure = StartFailure {
            model: samples::model("segmenter", self.version),
            requested_eps: vec![self.ep.into()],
            phase: StartPhase::SessionCreation,
            reason: ReasonCode::BackendSetupFailed,
            ort_status_code: 1,
            text: String::new(),
            count: self.failed_starts.max(1),
            device_type: self.asked_device,
        };
        let any = (self.failed_starts > 0).then_some(failure);
        any.into_iter().collect()
    }

    fn wire_devices(&self) -> Vec<EpDevice> {
        let device = self.device.map(|device_type| EpDevice {
            ep: self.ep.into(),
            device_type,
            vendor: "Intel".into(),
        });
        device.into_iter().collect()
    }

    fn wire_session(&self, uid: SessionUid, at: Timestamp) -> Session {
        let place = self.place;
        let print = Some(Fingerprint {
            algorithm: 1,
            value: place.fingerprint,
        });
        let node = |op_type: &str| CpuNode {
            name: op_type.into(),
            op_type: op_type.into(),
            domain: String::new(),
            benign: op_type == "QuantizeLinear",
            reason: ReasonCode::Fp16NotSupported,
            reason_text: String::new(),
            macs_share: (op_type == "Gemm").then_some(0.13),
        };
        let share = |ep: &str, n_nodes: u32, macs_share: Option<f64>| EpShare {
            ep: ep.into(),
            n_nodes,
            n_partitions: None,
            op_types: BTreeMap::new(),
            macs_share,
        };
        let npu_macs = place.npu_macs_share.map(f64::from);
        let ops = std::iter::once("QuantizeLinear").chain(place.cpu_ops.iter().copied());
        let requested = vec![String::from(if self.requests_npu {
            self.ep
        } else {
            CPU_EP
        })];
        let sample = samples::session(uid);
        Session {
            model: Model {
                sha256: ModelHash::from_hex(MODEL_SHA256),
                ..samples::model("segmenter", self.version)
            },
            requested_eps: requested.clone(),
            options: SessionOptions {
                selection_policy: SelectionPolicy::of_request(self.ep),
                device_type: self.asked_device,
                ..SessionOptions::default()
            },
            devices: self.wire_devices(),
            directive_id: self.directive.into(),
            placement: Placement {
                requested_eps: requested,
                eps: vec![
                    share(self.ep, place.npu_nodes, npu_macs),
                    share(CPU_EP, place.cpu_nodes + 1, npu_macs.map(|npu| 1.0 - npu)),
                ],
                n_nodes: place.npu_nodes + place.cpu_nodes + 1,
                cpu_nodes: ops.map(node).collect(),
                cpu_nodes_truncated: place.cpu_ops.len() < place.cpu_nodes as usize,
                macs_attributed: npu_macs.map(|_| 1.0),
                exact: print,
                normalised: print,
                reasons: Vec::new(),
                ..samples::placement()
            },
            creation_us: None,
            created_at_unix_ms: at.as_millisecond(),
            ..sample
        }
    }
}
