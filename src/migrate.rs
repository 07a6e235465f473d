//! `epwatch migrate`: brings a ClickHouse server or cluster to the schema of this program.

use std::process::ExitCode;

use anyhow::{Context, bail};
use epwatch_collector::schema::{
    self, Retention,
    retention::{self, Days},
};
use epwatch_store::{Cluster, Planned, quoted_name};
use serde::Serialize;

use crate::{
    output::{self, WrongUse},
    server_config::{Runs, ServerArgs},
};

/// Brings a ClickHouse server or cluster to the schema of this version, forward only.
///
/// `serve` and `collector` do this by themselves; run it where they may not change the schema.
///
/// With --cluster (or `store.cluster`) each table is replicated on every shard, in the database `epwatch_shard`. A
/// Distributed table of the same name in `epwatch` is over it, sharded by installation. The cluster is one of the
/// servers' `remote_servers`; their macros {shard} and {replica} must be set.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Cluster to make the schema on [default: `store.cluster` of the config; none is one server].
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Without ON CLUSTER: change only the server that --clickhouse names; run it for each server.
    #[arg(long)]
    this_server_only: bool,
    /// Print the SQL that the server lacks, and change nothing. Without a server, print all of it.
    #[arg(long)]
    dry_run: bool,
    /// With --dry-run, print all of the SQL without connecting to a server.
    #[arg(long, requires = "dry_run")]
    from_nothing: bool,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// The document of `--json`.
#[derive(Debug, Serialize)]
struct MigrateDocument {
    database: String,
    cluster: Option<String>,
    dry_run: bool,
    /// Migrations that were applied, or with `dry_run` would be.
    migrations: Vec<Applied>,
    /// Statements that change how long the store keeps rows.
    retention: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Applied {
    version: u32,
    name: &'static str,
    /// The statements, in the order in which they run.
    statements: Vec<String>,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut config = args.server.load(Runs::Neither)?;
    if args.cluster.as_deref().is_some_and(str::is_empty) {
        bail!(WrongUse("--cluster: must not be empty".to_owned()));
    }
    config.store.cluster = args.cluster.or(config.store.cluster);
    let cluster = config.store.cluster.clone();
    if cluster.is_none() && args.this_server_only {
        let text = "--this-server-only: is for a cluster; give --cluster NAME";
        bail!(WrongUse(text.to_owned()));
    }
    let values = |retention: Retention| match &cluster {
        Some(name) if args.this_server_only => {
            schema::cluster(retention, Cluster::new(name).on_each_server())
        }
        _ => config.store.schema(retention),
    };
    let database = config.store.database.clone();
    let server = config.store.server()?.filter(|_| !args.from_nothing);
    let kept = match &server {
        Some(target) => retention::kept(target, values)
            .await
            .with_context(|| format!("failed to use the store {target}"))?,
        None => Days::default(),
    };
    // Applies the schema with the days that the store has, and then changes them to the config's days.
    let before = kept.over(config.store.days());
    let after = config.store.days().over(kept);
    let (as_it_is, asked) = (values(before), values(after));
    let planned = epwatch_store::plan(&database, schema::MIGRATIONS, &as_it_is)?;
    let mut retention = Vec::new();
    let versions = match server {
        Some(target) if !args.dry_run => {
            let versions = epwatch_store::migrate(&target, schema::MIGRATIONS, &as_it_is).await?;
            retention = retention::apply(&target, &asked).await?;
            versions
        }
        Some(target) => {
            let pending = epwatch_store::pending(&target, schema::MIGRATIONS, &as_it_is).await?;
            // With the same days the migrations already have the retention's statements.
            if pending.is_empty() || before != after {
                retention = retention::changes(&target, &asked).await?;
            }
            pending.iter().map(|migration| migration.version).collect()
        }
        _ if args.dry_run => schema::MIGRATIONS.files.iter().map(|m| m.version).collect(),
        _ => bail!(WrongUse(
            "no ClickHouse server is named; give --clickhouse http://host:8123 (the embedded store is \
             migrated by `epwatch serve`)"
                .to_owned()
        )),
    };
    let migrations = of_versions(&planned, &versions);
    if args.json {
        output::json(&MigrateDocument {
            migrations,
            database,
            cluster,
            dry_run: args.dry_run,
            retention,
        })?;
    } else if args.dry_run {
        print_sql(&database, &planned.databases, &migrations, &retention)?;
    } else if versions.is_empty() && retention.is_empty() {
        output::line("the schema is up to date")?;
    } else {
        if !versions.is_empty() {
            output::line(format_args!("applied migrations {versions:?}"))?;
        }
        if !retention.is_empty() {
            output::line("changed for how long rows are kept")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the migrations of `versions`. The first also has the statements that create the databases and the record.
fn of_versions(planned: &Planned<'_>, versions: &[u32]) -> Vec<Applied> {
    let wanted = planned
        .migrations
        .iter()
        .filter(|planned| versions.contains(&planned.migration.version));
    wanted
        .map(|of_this| {
            let mut statements = Vec::new();
            if of_this.migration.version == 1 {
                statements.extend_from_slice(&planned.databases);
                statements.extend_from_slice(&planned.record);
            }
            statements.extend_from_slice(&of_this.statements);
            statements.push(of_this.done.clone());
            Applied {
                version: of_this.migration.version,
                name: of_this.migration.name,
                statements,
            }
        })
        .collect()
}

/// Prints the SQL in the form of `clickhouse-client --queries-file`. The statements of `databases` run without a
/// current database.
fn print_sql(
    database: &str,
    databases: &[String],
    migrations: &[Applied],
    retention: &[String],
) -> anyhow::Result<()> {
    if migrations.is_empty() && retention.is_empty() {
        output::line("-- the schema is up to date")?;
        return Ok(());
    }
    let is_new = migrations.iter().any(|migration| migration.version == 1);
    for statement in databases.iter().filter(|_| is_new) {
        output::line(format_args!("{statement};"))?;
    }
    output::line(format_args!("USE {};\n", quoted_name(database)))?;
    for migration in migrations {
        output::line(format_args!(
            "\n-- {:04} {}",
            migration.version, migration.name
        ))?;
        for statement in &migration.statements {
            if !databases.contains(statement) {
                output::line(format_args!("{statement};\n"))?;
            }
        }
    }
    if !retention.is_empty() {
        output::line("\n-- for how long rows are kept")?;
    }
    for statement in retention {
        output::line(format_args!("{statement};\n"))?;
    }
    Ok(())
}
