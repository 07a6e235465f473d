//! A fleet in virtual time: as fast as the machine can, without a server or a clock.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use epwatch_proto::RecordedReport;

use crate::device::Device;
use crate::fleet::Fleet;

/// Reports of a fleet in the order in which a collector would have received them. They go from time zero to an end at
/// which every device seals its open report.
#[derive(Debug)]
pub struct VirtualTime {
    fleet: Fleet,
    start_unix_ms: i64,
    ends: Duration,
    /// The time of each device's next report; empty once all have finished.
    agenda: BinaryHeap<Reverse<(Duration, usize)>>,
    ready: VecDeque<RecordedReport>,
    n_runs: u64,
}

impl VirtualTime {
    /// Runs `fleet` from its time zero for `length`. A report is received at the moment it is
    /// sealed; time zero is `start_unix_ms` by the collector's clock.
    #[must_use]
    pub fn new(fleet: Fleet, start_unix_ms: i64, length: Duration) -> Self {
        let due = fleet.devices.iter().map(Device::due);
        let agenda = due.zip(0..).map(Reverse).collect();
        Self {
            fleet,
            start_unix_ms,
            ends: length,
            agenda,
            ready: VecDeque::new(),
            n_runs: 0,
        }
    }

    /// Runs simulated so far, which the reports' counts must equal.
    #[must_use]
    pub fn n_runs(&self) -> u64 {
        self.n_runs
    }

    /// Simulates the device with the earliest next report, up to that report.
    fn step(&mut self) -> Option<()> {
        let Reverse((due, index)) = self.agenda.pop()?;
        let device = &mut self.fleet.devices[index];
        let done = if due < self.ends {
            let done = device.advance(due);
            self.agenda.push(Reverse((device.due(), index)));
            done
        } else {
            device.finish(self.ends)
        };
        self.n_runs += done.n_runs;
        for (at, report) in done.reports {
            let record = self.record(index, at, report.bytes);
            self.ready.push_back(record);
        }
        Some(())
    }

    fn record(&self, index: usize, at: Duration, report: Bytes) -> RecordedReport {
        let at_ms = i64::try_from(at.as_millis()).unwrap_or(i64::MAX);
        let scenario = &self.fleet.world.scenario;
        RecordedReport {
            received_at_unix_ms: self.start_unix_ms.saturating_add(at_ms),
            app_id: scenario.app_id.clone(),
            environment: scenario.environment.clone(),
            report,
            sent: self.fleet.devices[index].recording.send_clock(at),
            is_unproven: None,
            is_own: None,
            network: None,
        }
    }
}

impl Iterator for VirtualTime {
    type Item = RecordedReport;

    fn next(&mut self) -> Option<RecordedReport> {
        while self.ready.is_empty() {
            self.step()?;
        }
        self.ready.pop_front()
    }
}
