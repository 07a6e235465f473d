//! Reports like the reports of devices: valid, small, and identified by their key.
//!
//! Each has one session with its own id, and one series of [`RUNS`] runs. So every view's sums follow from the number
//! of reports.

use bytes::Bytes;
use epwatch_proto::report::EndedStream;
use epwatch_proto::{Device, InstallationId, Phase, StreamId, samples};

const RUNS_US: [u64; 3] = [900, 1_000, 1_100];
/// Number of runs in each report.
pub(crate) const RUNS: u64 = RUNS_US.len() as u64;
/// App of the reports. The collectors listen on loopback and need no key.
pub(crate) const APP: &str = "com.example.faults";

/// A key in the store's form: installation, stream, sequence.
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

/// The constant part of a device's reports.
#[derive(Debug)]
pub(crate) struct Template {
    installation: [u8; 16],
    device: Device,
}

impl Template {
    pub(crate) fn new(secret: &[u8]) -> Self {
        let installation = *InstallationId::from_secret(secret).as_bytes();
        let chipset = ["SM8650", "SM8550", "SM8750"][usize::from(installation[0] % 3)];
        let device = Device {
            model: "Phone".into(),
            vendor_fingerprint_hash: format!("{:032x}", installation[1] % 4),
            ..samples::device(chipset)
        };
        Self {
            installation,
            device,
        }
    }

    pub(crate) fn installation(&self) -> [u8; 16] {
        self.installation
    }

    pub(crate) fn report(&self, stream: u64, sequence: u64, ended: Option<Ended>) -> Made {
        let session_uid = samples::session_uid(fastrand::u64(1..));
        let key = samples::key(self.installation, stream, sequence);
        let mut report = samples::report(key, session_uid);
        report.app.id = APP.into();
        report.app.environment = "test".into();
        report.device = self.device.clone();
        report.ended_streams = ended.iter().map(named).collect();
        report.series = vec![samples::series(session_uid, Phase::Warm, &RUNS_US)];
        report.health.runs_observed = sequence * RUNS;
        report.health.runs_recorded = sequence * RUNS;
        Made {
            key: (self.installation, stream, sequence),
            bytes: report.to_bytes().into(),
        }
    }
}

fn named(ended: &Ended) -> EndedStream {
    EndedStream {
        stream: StreamId(ended.stream),
        last_sequence: Some(ended.last_sequence),
        unsealed_runs: Some(0),
    }
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
        let report = epwatch_proto::Report::parse(&made.bytes).unwrap();
        assert_eq!(report.key.sequence.get(), 1);
    }
}
