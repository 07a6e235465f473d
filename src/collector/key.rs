//! `epwatch collector key`: makes an app key.

use std::process::ExitCode;

use epwatch_collector::config::NewKey;
use serde::Serialize;

use crate::output;

/// Makes an app key and its entry for the collector's config.
///
/// The key is shown once and kept nowhere: put it into the app, and the entry into the collector's
/// config or into its `keys_file`, which is read again while it runs. Several keys of one app are
/// valid at once, so a new one can be rolled out before the old one is revoked.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The one app that the key is for.
    #[arg(long, value_name = "APP_ID", required_unless_present = "all_apps")]
    app: Option<String>,
    /// The key is for every app: use it in a lab of your own. Its holder can write any app's
    /// reports, so never ship such a key.
    #[arg(long, conflicts_with = "app")]
    all_apps: bool,
    /// The one environment that the key is for.
    #[arg(long, default_value = "*")]
    environment: String,
    /// Name of the key in the collector's config.
    #[arg(long, default_value = "")]
    name: String,
    /// For a release pipeline instead of an app: it may also store manifests and certified
    /// placements. Never ship such a key.
    #[arg(long)]
    pipeline: bool,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct KeyDocument<'a> {
    key: &'a str,
    sha256: &'a str,
    name: &'a str,
    app: &'a str,
    environment: &'a str,
    upload_only: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let made = NewKey::random()?;
    let document = KeyDocument {
        key: &made.secret,
        sha256: &made.sha256,
        name: &args.name,
        app: args.app.as_deref().unwrap_or("*"),
        environment: &args.environment,
        upload_only: !args.pipeline,
    };
    if args.json {
        output::json(&document)?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line(format_args!("app key (shown only now): {}", made.secret))?;
    output::line("")?;
    output::line("entry for the config (as [[collector.keys]]) or its keys_file:")?;
    output::line("[[keys]]")?;
    let entry = [
        ("name", document.name),
        ("sha256", document.sha256),
        ("app", document.app),
        ("environment", document.environment),
    ];
    for (field, value) in entry {
        // JSON's strings are TOML's.
        let value = serde_json::to_string(value)?;
        output::line(format_args!("{field} = {value}"))?;
    }
    output::line(format_args!("upload_only = {}", document.upload_only))?;
    Ok(ExitCode::SUCCESS)
}
