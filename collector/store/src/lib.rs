//! ClickHouse for collector, detector and command: the client, the migrations runner, Native blocks, and the
//! embedded engine as a child process.
//!
//! Its input is a [`StoreTarget`] (a server's URL or the embedded engine's socket), its output a `clickhouse::Client`
//! that works the same on both. None of epwatch's tables is named here. The schema belongs to the collector, and the
//! meaning of rows to the crates that write and read them.

mod client;
pub mod embedded;
mod lexer;
pub mod native;
mod schema;

pub use client::{StoreTarget, TargetError, client};
pub use lexer::quoted_name;
pub use schema::{
    Cluster, ClusterStatementError, LEAST_VERSION, MADE_IN_DEVELOPMENT, MigrateError, Migration,
    Migrations, Planned, PlannedMigration, TableTtl, TemplateValues, check_version, migrate,
    mutated_name, pending, plan, schema_version, stale_views, table_ttls,
};
