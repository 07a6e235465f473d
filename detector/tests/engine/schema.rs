//! The store's schema: the files of the collector's `migrations`, in order. The detector does not use
//! the collector's crate, so its tests and its bench read what that ships.

use std::path::Path;

use epwatch_store::{MigrateError, Migration, Migrations, StoreTarget, TemplateValues, migrate};

/// Every file there is: one that is added is there for tests and bench at once.
fn migrations() -> Vec<Migration> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../collector/migrations");
    let files =
        std::fs::read_dir(&dir).expect("the collector's migrations lie beside the detector");
    let mut migrations: Vec<Migration> = files
        .map(|file| migration(&file.expect("a folder that can be read").path()))
        .collect();
    migrations.sort_by_key(|migration| migration.version);
    migrations
}

/// `0004_detector.sql` is version 4, "detector".
fn migration(path: &Path) -> Migration {
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    let (version, name) = stem
        .and_then(|stem| stem.split_once('_'))
        .unwrap_or_else(|| panic!("{path:?}: expected NNNN_name.sql"));
    let sql = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    Migration {
        version: version
            .parse()
            .unwrap_or_else(|e| panic!("{path:?}: {e}: expected NNNN_name.sql")),
        name: name.to_owned().leak(),
        sql: sql.leak(),
    }
}

/// Brings an embedded store to the schema.
pub(crate) async fn apply(target: &StoreTarget) -> Result<(), MigrateError> {
    let values = TemplateValues::new()
        .with("on_cluster", "")
        .with("replicated", "")
        .with(
            "deduplication_window",
            "non_replicated_deduplication_window",
        )
        .with("raw_ttl_days", 30)
        .with("surplus_ttl_days", 32)
        .with("rollup_ttl_days", 400);
    let migrations = Migrations {
        series: "epwatch-1",
        files: &migrations(),
    };
    migrate(target, migrations, &values).await.map(drop)
}
