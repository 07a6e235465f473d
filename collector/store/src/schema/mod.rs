//! The store's schema: migrations from files of the caller, on one server or on a cluster.
//!
//! The collector passes in its files; none of their tables is named here. A file has several statements and `${name}`
//! placeholders, so that one text serves a single engine and a replicated cluster.

mod cluster;
mod error;
mod migrate;
mod plan;
mod template;
mod ttl;
mod version;
mod views;

pub(crate) use self::cluster::CLUSTER_SETTINGS;
pub use self::cluster::{Cluster, ClusterStatementError, mutated_name};
pub use self::error::{MADE_IN_DEVELOPMENT, MigrateError};
pub use self::migrate::{migrate, pending, schema_version};
pub use self::plan::{Planned, PlannedMigration, plan};
pub use self::template::{Migration, Migrations, TemplateValues};
pub use self::ttl::{TableTtl, table_ttls};
pub use self::version::{LEAST_VERSION, check_version};
pub use self::views::stale_views;
