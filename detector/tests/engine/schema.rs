//! The store's schema, from the collector's migrations.

use epwatch_collector::schema::{MIGRATIONS, Retention, single_server};
use epwatch_store::{StoreTarget, migrate};

/// Applies the schema to an embedded store. Reports stay for 30 days.
pub(crate) async fn apply_schema(target: &StoreTarget) {
    let retention = Retention {
        raw_days: 30,
        ..Retention::default()
    };
    let applied = migrate(target, MIGRATIONS, &single_server(retention)).await;
    applied.expect("the store takes the schema");
}
