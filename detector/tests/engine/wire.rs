//! The same reports as devices would have sent them.

use std::collections::BTreeMap;

use epwatch_proto::placement::{CPU_EP, QNN_EP};
use epwatch_proto::{
    App, BaselineAbsence, BaselineKind, Baselines, Chipset, CpuNode, Device, EpBackend, EpLinkage,
    EpShare, Fingerprint, GraphKind, HistScheme, InstallationId, LatencySeries, Model, Phase,
    Placement, PlacementSource, PowerSave, RamClass, ReasonCode, Report, ReportKey, Runtime, Sdk,
    SdkHealth, SelfBaseline, SelfTest, Sequence, Session, SessionAge, SessionOptions, SessionUid,
    SparseHistogram, StartFailure, StartPhase, Stratum, StreamId, Thermal,
};
use jiff::Timestamp;

use crate::support::{Reports, silicon};

impl Reports {
    /// What [`Reports::store`] stores, on the wire.
    pub(crate) fn reports(&self, at: Timestamp) -> Vec<Report> {
        self.devices
            .clone()
            .map(|device| self.wire(device, at))
            .collect()
    }

    fn wire(&self, device: u8, at: Timestamp) -> Report {
        let mut installation = [0; 16];
        installation[0] = device;
        installation[1..7].copy_from_slice(self.chipset.as_bytes());
        let second = u64::try_from(at.as_second()).unwrap();
        let latency = self.latency(device);
        let uid = SessionUid::new(1).unwrap();
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
        Report {
            key: ReportKey {
                installation: InstallationId::from_bytes(installation),
                stream: StreamId(1),
                sequence: Sequence::new(second).unwrap(),
            },
            ended_streams: Vec::new(),
            interval_start_unix_ms: at.as_millisecond(),
            interval_end_unix_ms: at.as_millisecond(),
            interval_length_ms: 0,
            boot_id: String::new(),
            uptime_at_end_ms: None,
            app: App {
                id: "camera".into(),
                version: String::new(),
                build: String::new(),
                environment: "production".into(),
                rollout_labels: Vec::new(),
            },
            device: self.wire_device(),
            runtime: Runtime {
                ort_version: "1.31.1".into(),
                ep_package: String::new(),
                ep_version: "2.7.0".into(),
                ep_linkage: EpLinkage::Plugin,
                backend: EpBackend::Htp,
                qnn_sdk_version: String::new(),
                backend_build_id: String::new(),
            },
            sdk: Sdk {
                name: "epwatch".into(),
                version: "0.1.0".into(),
                language: "rust".into(),
            },
            sessions: match self.only_failed {
                true => Vec::new(),
                false => vec![self.wire_session(uid, at)],
            },
            self_tests: self.wire_tests(uid),
            start_failures: self.wire_starts(),
            series: vec![LatencySeries {
                session_uid: uid,
                stratum: Stratum {
                    phase: Phase::Warm,
                    thermal: Thermal::None,
                    power_save: PowerSave::Off,
                    performance_mode: String::new(),
                    shape_key: "static".into(),
                    session_age: SessionAge::Unknown,
                },
                hist_scheme: HistScheme::HdrUs2sd160s,
                histogram: SparseHistogram::from_parts(latency.buckets, latency.counts).unwrap(),
                n: self.runs,
                sum_us: latency.sum_us,
                m2_us2: latency.m2_us2,
                min_us: latency.min_us,
                max_us: latency.max_us,
                runs_seen: self.runs,
                sampled_one_in: 1,
                dropped_runs: 0,
                first_runs_us: Vec::new(),
                slow_fast_switches: None,
                longest_slow_streak: None,
                exceed: None,
                baselines,
            }],
            run_errors: Vec::new(),
            health: SdkHealth::default(),
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
        });
        tests.collect()
    }

    fn wire_starts(&self) -> Vec<StartFailure> {
        let failure = StartFailure {
            model: Model {
                id: "segmenter".into(),
                version: self.version.into(),
                sha256: None,
                source_sha256: None,
                ep_compatibility: String::new(),
            },
            requested_eps: vec![QNN_EP.into()],
            phase: StartPhase::SessionCreation,
            reason: ReasonCode::BackendSetupFailed,
            ort_status_code: 1,
            text: String::new(),
            count: self.failed_starts.max(1),
        };
        if self.failed_starts > 0 {
            vec![failure]
        } else {
            Vec::new()
        }
    }

    fn wire_device(&self) -> Device {
        Device {
            chipset_raw: self.chipset.into(),
            chipset: Chipset::normalise(self.chipset, "", ""),
            soc_manufacturer: String::new(),
            soc_id: None,
            board: String::new(),
            abi: String::new(),
            manufacturer: String::new(),
            model: String::new(),
            os: String::new(),
            os_version: String::new(),
            api_level: None,
            vendor_fingerprint_hash: self.firmware.into(),
            security_patch: String::new(),
            hexagon_arch: None,
            ram_class: RamClass::Unknown,
            reportable_contexts: Vec::new(),
        }
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
        Session {
            uid,
            model: Model {
                id: "segmenter".into(),
                version: self.version.into(),
                sha256: None,
                source_sha256: None,
                ep_compatibility: String::new(),
            },
            requested_eps: vec![QNN_EP.into()],
            directive_id: self.directive.into(),
            options: SessionOptions::default(),
            placement: Placement {
                requested_eps: vec![QNN_EP.into()],
                eps: vec![
                    share(QNN_EP, place.npu_nodes, npu_macs),
                    share(CPU_EP, place.cpu_nodes + 1, npu_macs.map(|npu| 1.0 - npu)),
                ],
                n_nodes: place.npu_nodes + place.cpu_nodes + 1,
                cpu_nodes: ops.map(node).collect(),
                cpu_nodes_truncated: false,
                macs_attributed: npu_macs.map(|_| 1.0),
                manifest_sha256: None,
                graph_kind: GraphKind::Jit,
                source: PlacementSource::AssignmentApi,
                exact: print,
                normalised: print,
                reasons: Vec::new(),
            },
            creation_us: None,
            created_at_unix_ms: at.as_millisecond(),
        }
    }
}
