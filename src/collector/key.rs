//! `epwatch collector key`: makes an app key.

use std::process::ExitCode;

use epwatch_collector::config::{KeyKind, NewKey};
use serde::Serialize;

use crate::output::{self, WrongUse};

/// Makes an app key and its entry for the collector's config.
///
/// The key is shown once and kept nowhere. Put it into the app, and the entry into the collector's config or into its
/// `keys_file`. The collector reads that file again while it runs. Several keys of one app are valid at once, so a new
/// one can be rolled out before the old one is revoked.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The one app that the key is for.
    #[arg(long, value_name = "APP_ID", required_unless_present = "all_apps")]
    app: Option<String>,
    /// The key is for every app: use it in a lab of your own. Its holder can write any app's
    /// reports, so never ship such a key.
    #[arg(long, conflicts_with = "app")]
    all_apps: bool,
    /// Holder of the key.
    #[arg(long)]
    kind: Option<Kind>,
    /// The one environment that the key is for, such as production; '*' is any.
    #[arg(long, value_name = "NAME")]
    environment: Option<String>,
    /// Name of the key in the collector's config, logs and metrics. The default is kind and app.
    #[arg(long)]
    name: Option<String>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Kind {
    /// Everyone: it ships in an app. Its devices are weighed by networks and days.
    App,
    /// Your own machines, such as robots or a lab. Their devices are trusted as they are.
    Own,
    /// A release pipeline. It stores manifests and certified placements, and uploads nothing.
    Pipeline,
}

const KINDS: &str = "the key needs --kind:\n  \
    --kind app       it ships in an app, so it is public: it uploads, and its devices are weighed\n  \
    --kind own       only machines of yours have it, such as robots or a lab: their devices are trusted\n  \
    --kind pipeline  a release pipeline has it: it stores manifests and certified placements, no reports";

const ENVIRONMENT: &str = "the key needs --environment, the one that its reports may name, such as \
    `--environment production`; '*' is any, for a lab";

#[derive(Debug, Serialize)]
struct KeyDocument<'a> {
    key: &'a str,
    sha256: &'a str,
    name: &'a str,
    app: &'a str,
    environment: &'a str,
    kind: &'static str,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let kind = match args.kind.ok_or_else(|| wrong(KINDS))? {
        Kind::App if args.all_apps => {
            return Err(wrong(
                "a key of --kind app is public, so it takes --app; --all-apps is for own and pipeline",
            ));
        }
        Kind::App => KeyKind::App,
        Kind::Own => KeyKind::Own,
        Kind::Pipeline => KeyKind::Pipeline,
    };
    let environment = args
        .environment
        .as_deref()
        .ok_or_else(|| wrong(ENVIRONMENT))?;
    let app = args.app.as_deref().unwrap_or("*");
    // A collector takes no name of more than 64 bytes.
    let by_default = || epwatch_proto::clipped(&format!("{} {app}", kind.label()), 64);
    let name = args.name.clone().unwrap_or_else(by_default);
    let made = NewKey::random()?;
    let document = KeyDocument {
        key: &made.secret,
        sha256: &made.sha256,
        name: &name,
        app,
        environment,
        kind: kind.label(),
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
        ("kind", document.kind),
    ];
    for (field, value) in entry {
        // A JSON string is also a valid TOML string.
        let value = serde_json::to_string(value)?;
        output::line(format_args!("{field} = {value}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn wrong(text: &str) -> anyhow::Error {
    WrongUse(text.to_owned()).into()
}
