//! The store's schema: `migrations/*.sql` in order, and the values of their placeholders. [`retention`] changes TTLs of
//! an existing store. The command applies both; nothing here runs in the collector.

pub mod retention;

use epwatch_store::{Cluster, Migration, Migrations, TemplateValues};

/// Default name of the database.
pub const DATABASE: &str = "epwatch";

macro_rules! migration {
    ($version:literal, $name:literal) => {
        Migration {
            version: $version,
            name: $name,
            sql: include_str!(concat!("../../migrations/", $name, ".sql")),
        }
    };
}

/// The migrations. The series changes if released files are ever squashed into others. Stores that were made
/// before 0.1.0 have no series in their records.
pub const MIGRATIONS: Migrations<'_> = Migrations {
    series: "epwatch-1",
    files: &[
        migration!(1, "0001_functions"),
        migration!(2, "0002_reports"),
        migration!(3, "0003_rollups"),
        migration!(4, "0004_detector"),
        migration!(5, "0005_views"),
        migration!(6, "0006_calls"),
        migration!(7, "0007_ledger"),
        migration!(8, "0008_pages"),
        migration!(9, "0009_grafana"),
        migration!(10, "0010_orders"),
    ],
};

/// Days that surplus copies are kept beyond `raw_days`. Whole days of reports expire together, up to a day late, and
/// only when the store gets to it.
const SURPLUS_EXTRA_DAYS: u16 = 2;

/// The least `raw_days`: devices keep reports for 12 days, plus two for the upload. A copy that arrives after the first
/// one expired would count twice.
pub const MIN_RAW_DAYS: u16 = 14;

/// Limit of all retention days: the store's times wrap around in the year 2106.
pub const MAX_DAYS: u16 = 10_000;

/// Retention of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Days for which reports are kept. Devices keep their reports two days less, so that a late copy still finds the
    /// key of the first copy.
    pub raw_days: u16,
    /// Days for which summaries, verdicts and incidents are kept.
    pub rollup_days: u16,
}

impl Default for Retention {
    fn default() -> Self {
        // Two weeks of baseline; thirteen months for comparisons with the previous year.
        Self {
            raw_days: 14,
            rollup_days: 396,
        }
    }
}

/// Returns the placeholders' values for one server, embedded or not.
pub fn single_server(retention: Retention) -> TemplateValues {
    TemplateValues::new()
        .with("on_cluster", "")
        .with("replicated", "")
        .with(
            "deduplication_window",
            "non_replicated_deduplication_window",
        )
        .with("raw_ttl_days", retention.raw_days)
        .with(
            "surplus_ttl_days",
            retention.raw_days.saturating_add(SURPLUS_EXTRA_DAYS),
        )
        .with("rollup_ttl_days", retention.rollup_days)
}

/// Returns the placeholders' values for a replicated, sharded cluster.
pub fn cluster(retention: Retention, cluster: Cluster) -> TemplateValues {
    single_server(retention).for_cluster(cluster)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_in_the_list() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations");
        let mut files: Vec<String> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        let listed: Vec<String> = MIGRATIONS
            .files
            .iter()
            .map(|m| format!("{}.sql", m.name))
            .collect();
        assert_eq!(files, listed);
        assert!(
            MIGRATIONS
                .files
                .iter()
                .zip(1..)
                .all(|(migration, n)| migration.version == n)
        );
    }
}
