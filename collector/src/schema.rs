//! The store's schema, as the files of `migrations/` have it, and the values of its placeholders.

use std::time::Duration;

use epwatch_store::{Migration, TemplateValues};

/// How long raw reports are kept. Devices keep theirs two days less, so that a key is decided on
/// as long as a copy of it can come.
pub const RAW_TTL: Duration = Duration::from_secs(14 * 86_400);
/// How long summaries are kept: 13 months, so that a month has the one of a year ago beside it.
pub const ROLLUP_TTL: Duration = Duration::from_secs(400 * 86_400);

macro_rules! migration {
    ($version:literal, $name:literal) => {
        Migration {
            version: $version,
            name: $name,
            sql: include_str!(concat!("../migrations/", $name, ".sql")),
        }
    };
}

/// All migrations, in order.
pub const MIGRATIONS: &[Migration] = &[
    migration!(1, "0001_functions"),
    migration!(2, "0002_reports"),
    migration!(3, "0003_rollups"),
    migration!(4, "0004_detector"),
    migration!(5, "0005_views"),
];

/// Returns the placeholders' values for one server or the embedded engine.
#[must_use]
pub fn single_server(raw_ttl: Duration, rollup_ttl: Duration) -> TemplateValues {
    let days = |ttl: Duration| ttl.as_secs().div_ceil(86_400);
    TemplateValues::new()
        .with("on_cluster", "")
        .with("replicated", "")
        .with(
            "deduplication_window",
            "non_replicated_deduplication_window",
        )
        .with("raw_ttl_days", days(raw_ttl))
        .with("rollup_ttl_days", days(rollup_ttl))
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
            .iter()
            .map(|m| format!("{}.sql", m.name))
            .collect();
        assert_eq!(files, listed);
        let versions: Vec<u32> = MIGRATIONS.iter().map(|m| m.version).collect();
        assert!(versions.iter().copied().eq(1..=5), "{versions:?}");
    }
}
