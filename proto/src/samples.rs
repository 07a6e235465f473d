//! A valid report and its parts, for tests and benches of all crates: the feature `samples`.
//!
//! The report is one of a simulated phone: one session on the NPU, a warm and a cold series. Fields are public, so a
//! test sets the field that it checks. No product crate enables the feature.

use std::collections::BTreeMap;

use crate::{
    App, BaselineAbsence, Baselines, Chipset, Device, EpBackend, EpLinkage, EpShare, Fingerprint,
    GraphKind, HistScheme, InstallationId, LatencySeries, Model, Phase, Placement, PlacementSource,
    PowerSave, RamClass, Report, ReportKey, Runtime, Sdk, SdkHealth, Sequence, Session, SessionAge,
    SessionOptions, SessionUid, SparseHistogram, Stratum, StreamId, Thermal, placement::QNN_EP,
    stratum::STATIC_SHAPE,
};

/// Start of the report's interval: 2025-10-09 08:53:20 UTC.
pub const START_UNIX_MS: i64 = 1_760_000_000_000;
/// Length of the report's interval.
pub const LENGTH_MS: u64 = 30_000;
/// Runs of the warm series, in microseconds.
pub const WARM_RUNS_US: [u64; 5] = [900, 1_000, 1_000, 1_100, 5_000];
/// Runs of the cold series, in microseconds.
pub const COLD_RUNS_US: [u64; 1] = [20_000];

/// The key of one report of a stream.
///
/// # Panics
/// Panics if `sequence` is 0.
pub fn key(installation: [u8; 16], stream: u64, sequence: u64) -> ReportKey {
    ReportKey {
        installation: InstallationId::from_bytes(installation),
        stream: StreamId(stream),
        sequence: Sequence::new(sequence).expect("sequences begin at 1"),
    }
}

/// The id of the report's session.
///
/// # Panics
/// Panics if `uid` is 0.
pub fn session_uid(uid: u64) -> SessionUid {
    SessionUid::new(uid).expect("a session's uid is not 0")
}

/// A report of one session with a warm and a cold series. Its counters fit a stream in which every
/// report is alike.
pub fn report(key: ReportKey, session_uid: SessionUid) -> Report {
    let runs = (WARM_RUNS_US.len() + COLD_RUNS_US.len()) as u64;
    Report {
        key,
        ended_streams: Vec::new(),
        interval_start_unix_ms: START_UNIX_MS,
        interval_end_unix_ms: START_UNIX_MS + LENGTH_MS.cast_signed(),
        interval_length_ms: LENGTH_MS,
        boot_id: "boot".into(),
        uptime_at_end_ms: Some(90_000),
        app: App {
            id: "com.example.camera".into(),
            version: "3.1".into(),
            build: String::new(),
            environment: "production".into(),
            rollout_labels: Vec::new(),
        },
        device: device("SM8650"),
        runtime: runtime(),
        sdk: sdk(),
        sessions: vec![session(session_uid)],
        series: vec![
            series(session_uid, Phase::Warm, &WARM_RUNS_US),
            series(session_uid, Phase::Cold, &COLD_RUNS_US),
        ],
        self_tests: Vec::new(),
        start_failures: Vec::new(),
        run_errors: Vec::new(),
        health: SdkHealth {
            runs_observed: key.sequence.get() * runs,
            runs_recorded: key.sequence.get() * runs,
            ..SdkHealth::default()
        },
    }
}

/// The SDK that makes the reports.
pub fn sdk() -> Sdk {
    Sdk {
        name: "epwatch".into(),
        version: "0.1.0".into(),
        language: String::new(),
    }
}

/// An Android phone whose platform names the chipset as `chipset`.
pub fn device(chipset: &str) -> Device {
    Device {
        chipset_raw: chipset.into(),
        chipset: Chipset::normalise(chipset, "", ""),
        soc_manufacturer: String::new(),
        soc_id: None,
        board: String::new(),
        abi: String::new(),
        manufacturer: String::new(),
        model: String::new(),
        os: "android".into(),
        os_version: String::new(),
        api_level: Some(36),
        vendor_fingerprint_hash: String::new(),
        security_patch: String::new(),
        hexagon_arch: None,
        ram_class: RamClass::From8To12Gib,
        reportable_contexts: Vec::new(),
    }
}

/// ONNX Runtime with the QNN EP as a plugin, on its HTP back end.
pub fn runtime() -> Runtime {
    Runtime {
        ort_version: "1.31.1".into(),
        ep_package: String::new(),
        ep_version: "2.7.0".into(),
        ep_linkage: EpLinkage::Plugin,
        backend: EpBackend::Htp,
        qnn_sdk_version: String::new(),
        backend_build_id: String::new(),
    }
}

/// A model file without hashes.
pub fn model(id: &str, version: &str) -> Model {
    Model {
        id: id.into(),
        version: version.into(),
        sha256: None,
        source_sha256: None,
        ep_compatibility: String::new(),
    }
}

/// A session of version 7 of the model `detector`, with the placement [`placement`].
pub fn session(uid: SessionUid) -> Session {
    Session {
        uid,
        model: model("detector", "7"),
        requested_eps: Vec::new(),
        directive_id: String::new(),
        options: SessionOptions::default(),
        placement: placement(),
        creation_us: Some(400_000),
        created_at_unix_ms: START_UNIX_MS,
        devices: Vec::new(),
    }
}

/// A graph of 30 nodes, all on the NPU.
pub fn placement() -> Placement {
    let fingerprint = |value| {
        Some(Fingerprint {
            algorithm: 1,
            value,
        })
    };
    Placement {
        requested_eps: vec![QNN_EP.into()],
        eps: vec![EpShare {
            ep: QNN_EP.into(),
            n_nodes: 30,
            n_partitions: Some(1),
            op_types: BTreeMap::new(),
            macs_share: None,
        }],
        n_nodes: 30,
        cpu_nodes: Vec::new(),
        cpu_nodes_truncated: false,
        macs_attributed: None,
        manifest_sha256: None,
        graph_kind: GraphKind::Jit,
        source: PlacementSource::AssignmentApi,
        exact: fingerprint(11),
        normalised: fingerprint(12),
        reasons: Vec::new(),
    }
}

/// A series of these runs, all recorded, by a device without a self baseline.
///
/// # Panics
/// Panics if there is no run.
#[expect(
    clippy::cast_precision_loss,
    reason = "runs of a test are below 2^53 us"
)]
pub fn series(session_uid: SessionUid, phase: Phase, runs_us: &[u64]) -> LatencySeries {
    let mut histogram = SparseHistogram::default();
    for run in runs_us {
        histogram.record_n(*run, 1);
    }
    let sum_us = runs_us.iter().sum::<u64>() as f64;
    let mean = sum_us / runs_us.len() as f64;
    let least = runs_us.iter().min().expect("a series has runs");
    let most = runs_us.iter().max().expect("a series has runs");
    LatencySeries {
        session_uid,
        stratum: Stratum {
            phase,
            thermal: Thermal::None,
            power_save: PowerSave::Off,
            performance_mode: String::new(),
            shape_key: STATIC_SHAPE.into(),
            session_age: SessionAge::Under1Min,
        },
        hist_scheme: HistScheme::HdrUs2sd160s,
        n: histogram.total(),
        runs_seen: histogram.total(),
        histogram,
        sum_us,
        m2_us2: runs_us.iter().map(|us| (*us as f64 - mean).powi(2)).sum(),
        min_us: *least as f64,
        max_us: *most as f64,
        sampled_one_in: 1,
        dropped_runs: 0,
        first_runs_us: Vec::new(),
        slow_fast_switches: None,
        longest_slow_streak: None,
        exceed: None,
        baselines: Baselines::Absent(BaselineAbsence::FirstVersion),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_is_valid() {
        let report = report(key([1; 16], 2, 3), session_uid(4));
        assert_eq!(Report::parse(&report.to_bytes()), Ok(report));
    }
}
