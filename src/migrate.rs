//! `epwatch migrate`: brings a ClickHouse server to the schema this program knows.

use std::process::ExitCode;

use epwatch_collector::schema;

use crate::{output, server_config::ServerArgs};

/// Brings a ClickHouse server to the schema of this version, forward only.
///
/// `serve` and `collector` do this by themselves; run it where they may not change the schema.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Show what would be applied and change nothing.
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = args.server.load()?;
    let Some(target) = config.store.server()? else {
        anyhow::bail!(
            "no ClickHouse server is named; give --clickhouse http://host:8123 (the embedded store \
             is migrated by `epwatch serve`)"
        );
    };
    let values = schema::single_server(config.store.retention());
    if args.dry_run {
        for migration in epwatch_store::pending(&target, schema::MIGRATIONS, &values).await? {
            output::line(format_args!(
                "-- {:04} {}",
                migration.version, migration.name
            ))?;
            output::line(migration.sql)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let applied = epwatch_store::migrate(&target, schema::MIGRATIONS, &values).await?;
    if applied.is_empty() {
        output::line("the schema is up to date")?;
    } else {
        output::line(format_args!("applied migrations {applied:?}"))?;
    }
    Ok(ExitCode::SUCCESS)
}
