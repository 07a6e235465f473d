//! Checks each build a second time. Its builder may have read a replica that lagged. Then a summary lacks reports that
//! were acknowledged, or counts an installation that was just hidden. `rollup_builds` has the number of rows of
//! `reports` that each builder saw. After `rollup.recheck_after` the rows are counted again, and buckets whose number
//! differs are built again. Every collector does this by itself; a bucket that is built twice does no harm.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use clickhouse::Row;
use serde::{Deserialize, Serialize};

use super::{RollUp, among};
use crate::store::SinkError;

/// Number of builds compared in one call.
const AT_ONCE: usize = 100;

/// How far a collector's state of comparisons goes back at its start, in milliseconds. Rows of `rollup_builds` stay twice
/// as long.
const LOOK_BACK_MS: i64 = 86_400_000;

/// The number of rows that a builder saw; times of buckets in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Row, Serialize)]
struct BuildRow {
    build_from: u32,
    build_until: u32,
    rows: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Row, Deserialize)]
struct StoredBuild {
    begins: u32,
    ends: u32,
    rows: u64,
    built_ms: i64,
    is_due: bool,
}

/// Returns the due builds, the earliest first. Leaves out builds that a later build of the same buckets replaced.
fn due(builds: &[StoredBuild]) -> Vec<StoredBuild> {
    let mut latest = BTreeMap::new();
    for build in builds {
        let at = latest.entry((build.begins, build.ends)).or_insert(0);
        *at = build.built_ms.max(*at);
    }
    let is_latest = |build: &&StoredBuild| latest[&(build.begins, build.ends)] == build.built_ms;
    let due = builds.iter().filter(|build| build.is_due);
    due.filter(is_latest).copied().collect()
}

impl RollUp {
    /// Stores the number of rows that the builder of `from..until` can see, before it reads them.
    pub(super) async fn note_build(
        &self,
        from: u64,
        until: u64,
        rows: u64,
    ) -> Result<(), SinkError> {
        let second = |time: u64| u32::try_from(time).unwrap_or(u32::MAX);
        let build = BuildRow {
            build_from: second(from),
            build_until: second(until),
            rows,
        };
        self.insert_builds(&[build]).await
    }

    /// Does the same as [`Self::note_build`] for single buckets.
    pub(super) async fn note_builds(&self, buckets: &[u32]) -> Result<(), SinkError> {
        let within = among(buckets.iter().copied());
        let sql = format!(
            "SELECT toUInt32(bucket) AS seconds, count() AS n FROM reports WHERE {within} GROUP BY bucket"
        );
        let counted = self
            .context
            .sink
            .fetch::<(u32, u64)>("reports", &sql)
            .await?;
        let counted = BTreeMap::from_iter(counted);
        let length = u32::try_from(self.context.bucket().as_secs()).unwrap_or(u32::MAX);
        let builds = buckets.iter().map(|bucket| BuildRow {
            build_from: *bucket,
            build_until: bucket.saturating_add(length),
            rows: counted.get(bucket).copied().unwrap_or(0),
        });
        self.insert_builds(&builds.collect::<Vec<_>>()).await
    }

    async fn insert_builds(&self, builds: &[BuildRow]) -> Result<(), SinkError> {
        let sink = &self.context.sink;
        sink.insert::<BuildRow>("rollup_builds", builds, None).await
    }

    /// Compares the builds that are old enough with their rows, and repeats the builds that differ.
    pub(super) async fn recheck(&self) -> Result<(), SinkError> {
        let state = &self.context.rechecked_ms;
        let since_ms = state.load(Ordering::Relaxed);
        let after = self.context.config.rollup.recheck_after.0.as_millis();
        let sql = format!(
            "SELECT toUInt32(build_from) AS begins, toUInt32(build_until) AS ends, rows, \
                    toUnixTimestamp64Milli(built_at) AS built_ms, \
                    toBool(built_at <= now64(3) - toIntervalMillisecond({after})) AS is_due \
             FROM rollup_builds \
             WHERE built_at > fromUnixTimestamp64Milli(toInt64({since_ms}), 'UTC') \
               AND built_at > now64(3) - toIntervalMillisecond({LOOK_BACK_MS} + {after}) \
             ORDER BY rollup_builds.built_at"
        );
        let builds = self
            .context
            .sink
            .fetch::<StoredBuild>("rollup_builds", &sql);
        let due = due(&builds.await?);
        if due.is_empty() {
            return Ok(());
        }
        let raw_since = self.raw_since().await?;
        for build in due.iter().take(AT_ONCE) {
            self.compare(build, raw_since).await?;
            state.fetch_max(build.built_ms, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn compare(&self, build: &StoredBuild, raw_since: u64) -> Result<(), SinkError> {
        let StoredBuild {
            begins,
            ends,
            rows,
            built_ms,
            ..
        } = *build;
        // Reports before `raw_since` may have expired.
        let begins = u64::from(begins).max(raw_since);
        let within =
            format!("bucket >= toDateTime({begins}, 'UTC') AND bucket < toDateTime({ends}, 'UTC')");
        // Reports of hidden installations that the builder may have counted.
        let after = self.context.config.rollup.recheck_after.0.as_millis();
        let hidden = format!(
            "SELECT count() AS n FROM report_copies WHERE {within} AND installation IN (\
             SELECT installation FROM hidden_installations \
             WHERE hidden_at <= fromUnixTimestamp64Milli(toInt64({built_ms} + {after}), 'UTC') \
               AND hidden_at > fromUnixTimestamp64Milli(toInt64({built_ms} - {after}), 'UTC'))"
        );
        let n_hidden = self.first::<u64>("hidden_installations", &hidden).await?;
        if self.n_rows(&within).await? == rows && n_hidden.unwrap_or(0) == 0 {
            return Ok(());
        }
        let sql =
            format!("SELECT DISTINCT toUInt32(bucket) AS seconds FROM reports WHERE {within}");
        let buckets = self.context.sink.fetch::<u32>("reports", &sql).await?;
        let buckets = BTreeSet::from_iter(buckets);
        self.build_or_request(&buckets, raw_since, "recheck").await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(from: u32, built_ms: i64, is_due: bool) -> StoredBuild {
        StoredBuild {
            begins: from,
            ends: from + 60,
            rows: 0,
            built_ms,
            is_due,
        }
    }

    #[track_caller]
    fn check(builds: &[StoredBuild], expected: &[i64]) {
        let due: Vec<i64> = due(builds).iter().map(|build| build.built_ms).collect();
        assert_eq!(due, expected);
    }

    #[test]
    fn the_latest_build_of_a_bucket_is_compared_once_it_is_old_enough() {
        check(&[build(0, 1, true), build(60, 2, true)], &[1, 2]);
        check(&[build(0, 1, true), build(60, 2, false)], &[1]);
        check(&[build(0, 1, true), build(0, 2, true)], &[2]);
        check(&[build(0, 1, true), build(0, 2, false)], &[]);
    }
}
