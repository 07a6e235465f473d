//! Counts of reports that ended otherwise than stored, by bucket, app and outcome. Ingest counts; the writer moves the
//! counts to the store. They are in memory only: a crash loses counts of refusals, never a report.

use std::collections::BTreeMap;
use std::time::Duration;

use epwatch_proto::Outcome;
use parking_lot::Mutex;

/// The most keys between two flushes. Further reports are counted without their app. The limit is needed because a
/// device can name any app.
const MAX_KEYS: usize = 1_000;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RefusalKey {
    /// Start of the bucket, seconds since 1970.
    pub(crate) bucket: u32,
    pub(crate) app_id: String,
    pub(crate) environment: String,
    pub(crate) outcome: &'static str,
}

#[derive(Debug)]
pub(crate) struct RefusalCounts {
    bucket: Duration,
    counts: Mutex<BTreeMap<RefusalKey, u64>>,
}

impl RefusalCounts {
    pub(crate) fn new(bucket: Duration) -> Self {
        Self {
            bucket,
            counts: Mutex::default(),
        }
    }

    /// Counts `n_reports` of an app and environment, each empty if it is not proven.
    pub(crate) fn count(
        &self,
        now_us: u64,
        (app_id, environment): (&str, &str),
        outcome: Outcome,
        n_reports: u64,
    ) {
        let mut key = RefusalKey {
            bucket: bucket_of(now_us, self.bucket),
            app_id: app_id.to_owned(),
            environment: environment.to_owned(),
            outcome: outcome.label(),
        };
        let mut counts = self.counts.lock();
        if counts.len() >= MAX_KEYS && !counts.contains_key(&key) {
            key.app_id.clear();
            key.environment.clear();
        }
        *counts.entry(key).or_default() += n_reports;
    }

    /// Returns all counts and starts at zero.
    pub(crate) fn take(&self) -> BTreeMap<RefusalKey, u64> {
        std::mem::take(&mut self.counts.lock())
    }
}

/// Returns the start of the bucket that contains `time_us`, in seconds since 1970.
pub(crate) fn bucket_of(time_us: u64, bucket: Duration) -> u32 {
    let seconds = time_us / 1_000_000;
    let length = bucket.as_secs().max(1);
    u32::try_from(seconds - seconds % length).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_add_up_by_bucket_and_app_and_stay_bounded() {
        let ledger = RefusalCounts::new(Duration::from_secs(60));
        let app = ("a", "production");
        ledger.count(61_000_000, app, Outcome::Duplicate, 1);
        ledger.count(119_999_999, app, Outcome::Duplicate, 2);
        ledger.count(120_000_000, app, Outcome::Duplicate, 2);
        let counts: Vec<(u32, u64)> = ledger
            .take()
            .into_iter()
            .map(|(k, n)| (k.bucket, n))
            .collect();
        assert_eq!(counts, [(60, 3), (120, 2)]);

        for app in 0..3_000 {
            let app = app.to_string();
            ledger.count(0, (&app, "production"), Outcome::RefusedConflict, 1);
        }
        let counts = ledger.take();
        assert!(counts.len() <= MAX_KEYS + 1);
        assert_eq!(counts.values().sum::<u64>(), 3_000);
    }
}
