//! What the SDK does on a simulated device.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use epwatch_proto::histogram::recording_histogram;
use epwatch_proto::stratum::MAX_SHAPE_KEY_BYTES;
use epwatch_proto::*;

use crate::chance::Chance;
use crate::identity::{self, Identity};
use crate::physics::Run;
use crate::scenario::Scenario;

/// The SDK's side of one device.
#[derive(Debug)]
pub(crate) struct Recording {
    app: App,
    start_unix_ms: i64,
    ids: Chance,
    sequence: Sequence,
    interval_start: Duration,
    sessions: Vec<Session>,
    runs: BTreeMap<(SessionUid, Stratum), Vec<u64>>,
    n_session_runs: u64,
    health: SdkHealth,
}

impl Recording {
    pub(crate) fn new(scenario: &Scenario, identity: &Identity, start_unix_ms: i64) -> Self {
        let _ = (MAX_SHAPE_KEY_BYTES, &identity.secret);
        Self {
            app: identity::app(scenario),
            start_unix_ms,
            ids: Chance::split(scenario.seed ^ identity.stream, "session uid", 0),
            sequence: Sequence::FIRST,
            interval_start: Duration::ZERO,
            sessions: Vec::new(),
            runs: BTreeMap::new(),
            n_session_runs: 0,
            health: SdkHealth::default(),
        }
    }

    pub(crate) fn open_session(&mut self, model: Model, placement: Placement, at: Duration) {
        let uid = SessionUid::new(self.ids.bits() | 1).expect("the lowest bit is set");
        self.n_session_runs = 0;
        self.sessions.push(Session {
            uid,
            model,
            requested_eps: placement.requested_eps.clone(),
            directive_id: String::new(),
            options: SessionOptions::default(),
            placement,
            creation_us: Some(400_000),
            created_at_unix_ms: self.wall(at),
        });
    }

    pub(crate) fn record(&mut self, run: &Run, shape_key: &str, _at: Duration) {
        let uid = self.sessions.last().expect("a session is open").uid;
        let thermal = match run.thermal_status {
            None => Thermal::Unknown,
            Some(0) => Thermal::None,
            Some(1) => Thermal::Light,
            Some(2) => Thermal::Moderate,
            Some(_) => Thermal::Severe,
        };
        let stratum = Stratum {
            phase: if self.n_session_runs < 3 {
                Phase::Cold
            } else {
                Phase::Warm
            },
            thermal,
            power_save: match run.power_save {
                None => PowerSave::Unknown,
                Some(false) => PowerSave::Off,
                Some(true) => PowerSave::On,
            },
            performance_mode: String::new(),
            shape_key: shape_key.to_owned(),
            session_age: SessionAge::Unknown,
        };
        self.n_session_runs += 1;
        let us = u64::try_from(run.latency.as_micros()).unwrap_or(u64::MAX);
        self.runs.entry((uid, stratum)).or_default().push(us);
        self.health.runs_observed += 1;
    }

    pub(crate) fn seal(&mut self, identity: &Identity, at: Duration) -> Option<Bytes> {
        let runs = std::mem::take(&mut self.runs);
        let series: Vec<LatencySeries> = runs
            .into_iter()
            .map(|((uid, stratum), runs)| series(uid, stratum, &runs))
            .collect();
        self.health.runs_recorded = self.health.runs_observed;
        let report = Report {
            key: ReportKey {
                installation: InstallationId::from_secret(&identity.secret),
                stream: StreamId(identity.stream),
                sequence: self.sequence,
            },
            ended_streams: Vec::new(),
            interval_start_unix_ms: self.wall(self.interval_start),
            interval_end_unix_ms: self.wall(at),
            interval_length_ms: ms(at - self.interval_start),
            boot_id: identity.boot_id.clone(),
            uptime_at_end_ms: Some(ms(at) + 1_000_000),
            app: self.app.clone(),
            device: identity.device.clone(),
            runtime: identity::runtime(),
            sdk: self.sdk(),
            sessions: self.sessions.clone(),
            series,
            self_tests: Vec::new(),
            start_failures: Vec::new(),
            run_errors: Vec::new(),
            health: self.health.clone(),
        };
        let last = self.sessions.len() - 1;
        self.sessions.drain(..last);
        self.sequence = self.sequence.next().expect("a simulation is shorter");
        self.interval_start = at;
        Some(report.to_bytes().into())
    }

    pub(crate) fn send_clock(&self, identity: &Identity, now: Duration) -> SendClock {
        SendClock {
            wall_unix_ms: Some(self.wall(now)),
            uptime_ms: Some(ms(now) + 1_000_000),
            boot_id: identity.boot_id.clone(),
        }
    }

    pub(crate) fn sdk(&self) -> Sdk {
        Sdk {
            name: "epwatch-fleet".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            language: "rust".to_owned(),
        }
    }

    fn wall(&self, at: Duration) -> i64 {
        self.start_unix_ms + i64::try_from(at.as_millis()).unwrap_or(i64::MAX)
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn series(session_uid: SessionUid, stratum: Stratum, runs: &[u64]) -> LatencySeries {
    let mut hdr = recording_histogram();
    for us in runs {
        hdr.saturating_record(*us);
    }
    let n = runs.len() as f64;
    let sum: f64 = runs.iter().map(|us| *us as f64).sum();
    let m2 = runs.iter().map(|us| (*us as f64 - sum / n).powi(2)).sum();
    LatencySeries {
        session_uid,
        stratum,
        hist_scheme: HistScheme::HdrUs2sd160s,
        histogram: SparseHistogram::from_hdr(&hdr),
        n: runs.len() as u64,
        sum_us: sum,
        m2_us2: m2,
        min_us: *runs.iter().min().unwrap_or(&0) as f64,
        max_us: *runs.iter().max().unwrap_or(&0) as f64,
        runs_seen: runs.len() as u64,
        sampled_one_in: 1,
        dropped_runs: 0,
        first_runs_us: Vec::new(),
        slow_fast_switches: None,
        longest_slow_streak: None,
        exceed: None,
        baselines: Baselines::Absent(BaselineAbsence::NotKept),
    }
}
