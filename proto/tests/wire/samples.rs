//! Messages with every field set, and the smallest messages that are accepted.

use std::collections::BTreeMap;

use bytes::Bytes;
use epwatch_proto::{
    fingerprint::{fingerprint_exact, fingerprint_normalised},
    placement::{CPU_EP, QNN_EP},
    *,
};

pub(crate) const CREATED_MS: i64 = 1_767_225_600_000;

pub(crate) fn key() -> ReportKey {
    ReportKey {
        installation: InstallationId::from_secret(b"golden"),
        stream: StreamId(0x0123_4567_89ab_cdef),
        sequence: Sequence::new(42).unwrap(),
    }
}

fn text(value: &str) -> String {
    value.to_owned()
}

pub(crate) fn model() -> Model {
    Model {
        id: text("mixed"),
        version: text("2"),
        sha256: Some(ModelHash::of(b"model")),
        source_sha256: Some(ModelHash::of(b"source")),
        ep_compatibility: text("QNN 2.51 SM8635"),
    }
}

pub(crate) fn placement() -> Placement {
    let nodes = [
        ("conv_token_3", "Conv", QNN_EP),
        ("input_q", "QuantizeLinear", CPU_EP),
        ("fc", "Gemm", CPU_EP),
    ];
    Placement {
        requested_eps: vec![text(QNN_EP)],
        eps: vec![
            EpShare {
                ep: text(QNN_EP),
                n_nodes: 1,
                n_partitions: Some(1),
                op_types: BTreeMap::from([(text("Conv"), 1)]),
                macs_share: Some(0.75),
            },
            EpShare {
                ep: text(CPU_EP),
                n_nodes: 2,
                n_partitions: None,
                op_types: BTreeMap::from([(text("Gemm"), 1), (text("QuantizeLinear"), 1)]),
                macs_share: Some(0.25),
            },
        ],
        n_nodes: 3,
        cpu_nodes: vec![
            CpuNode {
                name: text("input_q"),
                op_type: text("QuantizeLinear"),
                domain: String::new(),
                benign: true,
                reason: ReasonCode::EdgeQuantization,
                reason_text: String::new(),
                macs_share: None,
            },
            CpuNode {
                name: text("fc"),
                op_type: text("Gemm"),
                domain: text("com.ms.internal.nhwc"),
                benign: false,
                reason: ReasonCode::Fp16NotSupported,
                reason_text: text("Validation FAILED"),
                macs_share: Some(0.25),
            },
        ],
        cpu_nodes_truncated: false,
        macs_attributed: Some(1.0),
        manifest_sha256: Some(ModelHash::of(b"manifest")),
        graph_kind: GraphKind::Jit,
        source: PlacementSource::AssignmentApi,
        exact: Some(fingerprint_exact(nodes.map(|n| (n.0, n.2)))),
        normalised: Some(fingerprint_normalised(nodes)),
        reasons: vec![ReasonCode::Fp16NotSupported],
    }
}

pub(crate) fn session() -> Session {
    Session {
        uid: SessionUid::new(7).unwrap(),
        model: model(),
        requested_eps: vec![text(QNN_EP)],
        directive_id: text("directive-1"),
        options: SessionOptions {
            performance_mode: text("burst"),
            soc_model: text("68"),
            htp_arch: text("73"),
            graph_optimization_level: text("all"),
            selection_policy: Some(SelectionPolicy::PreferNpu),
            device_type: Some(DeviceType::Npu),
        },
        placement: placement(),
        creation_us: Some(412_000),
        created_at_unix_ms: CREATED_MS,
        devices: vec![EpDevice {
            ep: text(QNN_EP),
            device_type: DeviceType::Npu,
            vendor: text("Qualcomm"),
        }],
    }
}

fn baseline(kind: BaselineKind, model_version: &str) -> SelfBaseline {
    SelfBaseline {
        kind,
        model_version: text(model_version),
        n: 500,
        p10_us: 900.0,
        p50_us: 1_000.0,
        p95_us: 1_200.5,
        cv: 0.05,
        vendor_fingerprint_hash: device::vendor_fingerprint_hash("vendor/build:1"),
        ort_version: text("1.31.1"),
        ep_version: text("2.7.0"),
    }
}

pub(crate) fn stratum() -> Stratum {
    Stratum {
        phase: Phase::Warm,
        thermal: Thermal::Light,
        power_save: PowerSave::Off,
        performance_mode: text("sustained"),
        shape_key: text("x:1x3x32x32"),
        session_age: SessionAge::From1To10Min,
    }
}

/// Four runs.
pub(crate) fn series() -> LatencySeries {
    let runs_us = [1_000, 2_000, 3_000, 4_000];
    LatencySeries {
        stratum: stratum(),
        runs_seen: 10,
        sampled_one_in: 2,
        dropped_runs: 1,
        first_runs_us: vec![9_000, 1_100, 1_000],
        slow_fast_switches: Some(2),
        longest_slow_streak: Some(3),
        exceed: Some(ExceedCounts {
            beyond_1_4x: 3,
            beyond_2x: 2,
            beyond_3x: 1,
        }),
        baselines: Baselines::Known(vec![
            baseline(BaselineKind::PreviousVersion, "1"),
            baseline(BaselineKind::EarlierRuntime, "2"),
        ]),
        ..samples::series(session().uid, Phase::Warm, &runs_us)
    }
}

fn device() -> Device {
    Device {
        chipset_raw: text("QTI SM8635"),
        chipset: Chipset::normalise("QTI SM8635", "QTI", "pineapple"),
        soc_manufacturer: text("QTI"),
        soc_id: Some(614),
        board: text("pineapple"),
        abi: text("arm64-v8a"),
        manufacturer: text("Example"),
        model: text("EX-1"),
        os: text("android"),
        os_version: text("16"),
        api_level: Some(36),
        vendor_fingerprint_hash: device::vendor_fingerprint_hash("vendor/build:2"),
        security_patch: text("2026-05-01"),
        hexagon_arch: Some(73),
        ram_class: RamClass::From8To12Gib,
        reportable_contexts: ContextKind::ALL.to_vec(),
    }
}

fn runtime() -> Runtime {
    Runtime {
        ort_version: text("1.31.1"),
        ep_package: text("onnxruntime-qnn"),
        ep_version: text("2.7.0"),
        ep_linkage: EpLinkage::Plugin,
        backend: EpBackend::Htp,
        qnn_sdk_version: text("2.51"),
        backend_build_id: text("v2.51.0.260101"),
    }
}

fn sdk() -> Sdk {
    Sdk {
        name: text("epwatch-sdk"),
        version: text("0.1.0"),
        language: text("rust"),
    }
}

fn health() -> SdkHealth {
    let dropped = |n| Dropped {
        reports: n,
        runs: 10 * n,
    };
    let reasons = DropReason::ALL.iter().zip(1..);
    let kinds = UploadFailureKind::ALL.iter().zip(1..);
    let refusals = DirectiveRefusal::ALL.iter().zip(1..);
    SdkHealth {
        runs_observed: 1_000,
        runs_recorded: 900,
        dropped: reasons.map(|(r, n)| (*r, dropped(n))).collect(),
        overflowed_keys: 1,
        upload_failures: kinds.map(|(k, n)| (*k, n)).collect(),
        spool_bytes: 4_096,
        spool_oldest_ms: Some(60_000),
        directives_applied: 2,
        directives_refused: refusals.map(|(r, n)| (*r, n)).collect(),
        consent_changes: 3,
        internal_errors: 4,
    }
}

/// A report with every field set.
pub(crate) fn full_report() -> Report {
    Report {
        key: key(),
        ended_streams: vec![
            EndedStream {
                stream: StreamId(1),
                last_sequence: Some(9),
                unsealed_runs: Some(12),
            },
            EndedStream {
                stream: StreamId(2),
                last_sequence: None,
                unsealed_runs: None,
            },
        ],
        interval_start_unix_ms: CREATED_MS + 1_000,
        interval_end_unix_ms: CREATED_MS + 901_000,
        interval_length_ms: 900_000,
        boot_id: text("b007"),
        uptime_at_end_ms: Some(5_000_000),
        app: App {
            id: text("com.example.camera"),
            version: text("3.1"),
            build: text("310"),
            environment: text("production"),
            rollout_labels: vec![(text("group"), text("b"))],
        },
        device: device(),
        runtime: runtime(),
        sdk: sdk(),
        sessions: vec![session()],
        series: vec![series()],
        self_tests: vec![SelfTest {
            session_uid: session().uid,
            input_id: text("golden-1"),
            tolerance: Some(0.01),
            npu_output_hash: Some([1; 16]),
            cpu_output_hash: Some([2; 16]),
            max_abs: Some(0.004),
            cosine: Some(0.9999),
            top1_equal: Some(true),
            error_code: 0,
            first_off_output: text("softmax_3"),
        }],
        start_failures: vec![StartFailure {
            model: model(),
            requested_eps: vec![text(QNN_EP)],
            phase: StartPhase::SessionCreation,
            reason: ReasonCode::PrepareFailed,
            ort_status_code: 1,
            text: text("QNN_COMMON_ERROR_MEM_ALLOC"),
            count: 2,
            device_type: Some(DeviceType::Npu),
        }],
        run_errors: vec![RunErrors {
            session_uid: session().uid,
            ort_status_code: 11,
            count: 1,
        }],
        health: health(),
    }
}

/// The smallest report that is accepted: nothing happened, and nothing is known.
pub(crate) fn minimal_report() -> Report {
    let wire = v1::Report {
        key: Some((&key()).into()),
        app: Some(v1::App {
            id: text("a"),
            environment: text("e"),
            ..Default::default()
        }),
        device: Some(v1::Device {
            ram_class: RamClass::Unknown.to_wire(),
            ..Default::default()
        }),
        runtime: Some(v1::Runtime {
            ep_linkage: EpLinkage::Unknown.to_wire(),
            backend: EpBackend::Unknown.to_wire(),
            ..Default::default()
        }),
        sdk: Some(v1::Sdk::default()),
        health: Some(v1::SdkHealth::default()),
        ..Default::default()
    };
    Report::try_from(wire).unwrap()
}

pub(crate) fn upload_request() -> UploadRequest {
    UploadRequest {
        reports: vec![
            full_report().to_bytes().into(),
            minimal_report().to_bytes().into(),
        ],
        clock: SendClock {
            wall_unix_ms: Some(CREATED_MS + 902_000),
            uptime_ms: Some(5_001_000),
            boot_id: text("b007"),
        },
        sdk: sdk(),
        held_directive_ids: vec![text("directive-1")],
        attestation: Some(Attestation {
            kind: text("play_integrity"),
            token: Bytes::from_static(b"token"),
        }),
        request_id: 0x0123_4567_89ab_cdef,
    }
}

pub(crate) fn upload_response() -> UploadResponse {
    let refused = "series[0].n: expected 1 or more, got 0";
    UploadResponse {
        results: vec![
            ReportResult::new(0, Some(key()), Outcome::Duplicate, ""),
            ReportResult::new(1, None, Outcome::RefusedMalformed, refused),
            ReportResult::new(2, Some(key()), Outcome::RefusedOverloaded, ""),
        ],
        server_time_unix_ms: CREATED_MS + 902_100,
        retry_after_ms: Some(30_000),
        next_interval_ms: Some(900_000),
        max_request_bytes: Some(1 << 20),
        directives: directives().into_iter().map(|(_, d)| d).collect(),
        n_reports: 3,
        request_id: 0x0123_4567_89ab_cdef,
    }
}

pub(crate) fn directive(id: &str, action: DirectiveAction) -> Directive {
    Directive {
        id: text(id),
        scope: DirectiveScope {
            app_id: text("com.example.camera"),
            model_id: text("mixed"),
            model_version: text("2"),
            chipset: text("SM8635"),
            vendor_fingerprint_hash: device().vendor_fingerprint_hash,
        },
        action,
        not_before_unix_ms: CREATED_MS,
        expires_unix_ms: CREATED_MS + 86_400_000,
    }
}

/// One of each kind, with the file name of its golden bytes. Signatures are not real ones.
pub(crate) fn directives() -> Vec<(&'static str, SignedDirective)> {
    let signed = |name, action| {
        let signed = SignedDirective {
            directive: directive(name, action).to_bytes().into(),
            key_id: text("2026-a"),
            signature: [9; 64],
        };
        (name, signed)
    };
    vec![
        signed("directive_sampling", DirectiveAction::Sampling(10)),
        signed(
            "directive_report_interval",
            DirectiveAction::ReportIntervalMs(60_000),
        ),
        signed("directive_npu_off", DirectiveAction::NpuOff),
        signed("directive_recording_off", DirectiveAction::RecordingOff),
        signed(
            "directive_preferred_variant",
            DirectiveAction::PreferredVariant(text("int8")),
        ),
        signed(
            "directive_revoke",
            DirectiveAction::Revoke(text("directive_npu_off")),
        ),
    ]
}

pub(crate) fn recorded() -> Vec<RecordedReport> {
    let record = |report: Report, sent| RecordedReport {
        received_at_unix_ms: CREATED_MS + 902_050,
        app_id: text("com.example.camera"),
        environment: text("production"),
        report: report.to_bytes().into(),
        sent,
        is_unproven: None,
        is_own: None,
        network: None,
    };
    vec![
        record(full_report(), upload_request().clock),
        record(minimal_report(), SendClock::default()),
        RecordedReport {
            is_unproven: Some(true),
            is_own: None,
            network: None,
            ..record(minimal_report(), SendClock::default())
        },
    ]
}

pub(crate) fn manifest() -> ModelManifest {
    ModelManifest {
        algorithm: 1,
        total_macs: 100,
        nodes: vec![
            NodeMacs {
                name: text("conv"),
                op_type: text("Conv"),
                macs: 75,
            },
            NodeMacs {
                name: String::new(),
                op_type: text("MatMul"),
                macs: 25,
            },
        ],
    }
}
