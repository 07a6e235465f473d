//! ClickHouse for collector, detector and command: the client, the migrations runner, and the
//! embedded engine as a child process.
//!
//! What comes in is a [`StoreTarget`] (a server's URL or the embedded engine's socket); what goes
//! out is a `clickhouse::Client` that works the same on both. Nothing here knows a table of ours:
//! the schema belongs to the collector. Nothing here parses rows or builds reports.

pub mod backup;
mod client;
pub mod embedded;
mod lexer;
pub mod native;
mod schema;

pub use client::{StoreTarget, TargetError, client};
pub use schema::{
    Cluster, ClusterStatementError, MADE_IN_DEVELOPMENT, MigrateError, Migration, Planned,
    PlannedMigration, SERIES, TableTtl, TemplateValues, migrate, mutated_name, pending, plan,
    schema_version, stale_views, table_ttls,
};
