//! `epwatch migrate`: brings a ClickHouse server or cluster to the schema this program knows.

use std::process::ExitCode;

use epwatch_collector::schema;
use epwatch_store::{Cluster, Planned};
use serde::Serialize;

use crate::{output, server_config::ServerArgs};

/// Brings a ClickHouse server or cluster to the schema of this version, forward only.
///
/// `serve` and `collector` do this by themselves; run it where they may not change the schema.
///
/// With --cluster (or `store.cluster`) each table is a replicated one on every shard, in the database
/// `epwatch_shard`, and a Distributed one of the same name in `epwatch`, sharded by installation. The
/// cluster is one of the servers' `remote_servers`; their macros {shard} and {replica} must be set.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Cluster to make the schema on [default: `store.cluster` of the config; none is one server].
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Change only the server that is asked, without ON CLUSTER: then ask each server in turn.
    #[arg(long)]
    this_server_only: bool,
    /// Print the SQL of what would be applied, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// With --dry-run, print the SQL of the whole schema and ask no server.
    #[arg(long, requires = "dry_run")]
    from_nothing: bool,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// What `--json` says.
#[derive(Debug, Serialize)]
struct Document {
    database: String,
    cluster: Option<String>,
    dry_run: bool,
    /// Applied, or with `dry_run` to be applied.
    migrations: Vec<Applied>,
}

#[derive(Debug, Serialize)]
struct Applied {
    version: u32,
    name: &'static str,
    /// What it runs, in order.
    statements: Vec<String>,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut config = args.server.load()?;
    if args.cluster.as_deref().is_some_and(str::is_empty) {
        let error = anyhow::anyhow!("--cluster: must not be empty");
        return Ok(output::wrong_use(&error));
    }
    config.store.cluster = args.cluster.or(config.store.cluster);
    let cluster = config.store.cluster.clone();
    let mut values = config.store.schema();
    if args.this_server_only {
        let Some(name) = &cluster else {
            let error =
                anyhow::anyhow!("--this-server-only: is for a cluster; give --cluster NAME");
            return Ok(output::wrong_use(&error));
        };
        let cluster = Cluster::new(name).on_each_server();
        values = schema::cluster(config.store.retention(), cluster);
    }
    let database = config.store.database.clone();
    let planned = epwatch_store::plan(&database, schema::MIGRATIONS, &values)?;
    let versions = if args.from_nothing {
        schema::MIGRATIONS.iter().map(|m| m.version).collect()
    } else {
        let Some(target) = config.store.server()? else {
            let error = anyhow::anyhow!(
                "no ClickHouse server is named; give --clickhouse http://host:8123 (the embedded \
                 store is migrated by `epwatch serve`)"
            );
            return Ok(output::wrong_use(&error));
        };
        if args.dry_run {
            let pending = epwatch_store::pending(&target, schema::MIGRATIONS, &values).await?;
            pending.iter().map(|migration| migration.version).collect()
        } else {
            epwatch_store::migrate(&target, schema::MIGRATIONS, &values).await?
        }
    };
    if args.json {
        output::json(&Document {
            database,
            cluster,
            dry_run: args.dry_run,
            migrations: of_versions(&planned, &versions),
        })?;
    } else if args.dry_run {
        print_sql(&planned, &versions)?;
    } else if versions.is_empty() {
        output::line("the schema is up to date")?;
    } else {
        output::line(format_args!("applied migrations {versions:?}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The migrations of `versions`. The first carries what makes the databases and the record.
fn of_versions(planned: &Planned<'_>, versions: &[u32]) -> Vec<Applied> {
    let mut before = [&planned.databases[..], &planned.record].concat();
    let wanted = planned
        .migrations
        .iter()
        .filter(|(migration, _)| versions.contains(&migration.version));
    wanted
        .map(|(migration, statements)| {
            if migration.version == 1 {
                before.extend_from_slice(statements);
                (migration, std::mem::take(&mut before))
            } else {
                (migration, statements.clone())
            }
        })
        .map(|(migration, statements)| Applied {
            version: migration.version,
            name: migration.name,
            statements,
        })
        .collect()
}

fn print_sql(planned: &Planned<'_>, versions: &[u32]) -> anyhow::Result<()> {
    for applied in of_versions(planned, versions) {
        output::line(format_args!("-- {:04} {}", applied.version, applied.name))?;
        for statement in applied.statements {
            output::line(format_args!("{statement};\n"))?;
        }
    }
    Ok(())
}
