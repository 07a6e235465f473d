//! The requests of a load: the reports that a simulated fleet seals, in batches, each with its due time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use epwatch_proto::{Sdk, SendClock, UploadRequest};

use super::options::LoadOptions;
use crate::fleet::Fleet;
use crate::placements::{Placements, RecordedModel};
use crate::scenario::{Scenario, ScenarioError};
use crate::virtual_time::VirtualTime;

/// Number of runs that a median device makes between two reports.
const RUNS_PER_REPORT: f64 = 40.0;

/// Shortest time between two reports of a device in its simulated time, which may run ahead of real time.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);

/// Number of reports a second that are simulated if no rate is requested; they are sent as fast as the collector takes
/// them.
const UNPACED_RATE: f64 = 100_000.0;

/// One request, until each of its reports is settled.
#[derive(Debug)]
pub(super) struct Pending {
    /// Due time of the request, from the start of the load.
    pub(super) due: Duration,
    pub(super) request: UploadRequest,
}

impl Pending {
    pub(super) fn len(&self) -> usize {
        self.request.reports.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.request.reports.is_empty()
    }
}

/// Simulates devices, for as many requests as the load takes.
pub(super) struct Requests {
    reports: VirtualTime,
    sdk: Sdk,
    batch: usize,
    rate: f64,
    n_sent: u64,
    /// Number of reports to make; `None` for no limit.
    n_reports: Option<u64>,
}

impl Requests {
    pub(super) fn new(options: &LoadOptions) -> Result<Self, ScenarioError> {
        let rate = options.rate.unwrap_or(UNPACED_RATE);
        #[expect(clippy::cast_precision_loss, reason = "fleets are small next to 2^52")]
        let interval = options.devices as f64 / rate;
        let mut scenario = Scenario::new(&options.app_id, "load-model", "1", options.devices);
        scenario.environment.clone_from(&options.environment);
        scenario.app_version.clone_from(&options.mark);
        scenario.seed = options.seed;
        scenario.report_interval = Duration::from_secs_f64(interval).max(SHORTEST_INTERVAL);
        scenario.runs_per_second = RUNS_PER_REPORT / scenario.report_interval.as_secs_f64();
        let placements = Placements::recorded(&[("1", RecordedModel::INT8)]);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_ms = now.map_or(0, |now| now.as_millis());
        let start = i64::try_from(now_ms).unwrap_or(i64::MAX);
        let fleet = Fleet::new(scenario, placements, start)?;
        let sdk = fleet.devices[0].recording.sdk();
        let n_reports = options
            .rate
            .map(|rate| whole(rate * options.length.as_secs_f64()));
        Ok(Self {
            // Long enough that no device ends early; the number of reports is the limit.
            reports: VirtualTime::new(fleet, start, Duration::from_secs(365 * 24 * 3600)),
            sdk,
            batch: options.batch,
            rate,
            n_sent: 0,
            n_reports,
        })
    }

    /// The next request; `None` at the end of the load.
    pub(super) fn next(&mut self) -> Option<Pending> {
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 reports")]
        let due = Duration::from_secs_f64(self.n_sent as f64 / self.rate);
        let mut reports = Vec::with_capacity(self.batch);
        let mut clock = SendClock::default();
        while reports.len() < self.batch && self.n_reports.is_none_or(|n| self.n_sent < n) {
            let recorded = self.reports.next()?;
            // A request has the clocks of one device. With reports of several devices it has none.
            clock = recorded.sent;
            reports.push(recorded.report);
            self.n_sent += 1;
        }
        if reports.is_empty() {
            return None;
        }
        let clock = if reports.len() == 1 {
            clock
        } else {
            SendClock::default()
        };
        let request = UploadRequest {
            reports,
            clock,
            sdk: self.sdk.clone(),
            held_directive_ids: Vec::new(),
            attestation: None,
            request_id: 0,
        };
        Some(Pending { due, request })
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate times a length, both bounded and positive"
)]
fn whole(value: f64) -> u64 {
    value.round().max(1.0) as u64
}
