//! `epwatch rollout`: may a version go from a few devices to more?

use std::process::ExitCode;

use epwatch_detector::verdict::{SEES_DOUBLE, SEES_DOUBLE_WITH_PLACEMENT};
use epwatch_page::{Needed, RolloutAnswer, RolloutQuery, ShellError};

use crate::{
    output::{self, WrongUse},
    store_args::StoreArgs,
};

/// Tells whether a version may go to more devices: go, stop or not yet, for each chipset.
///
/// Reads what the detector found in its last window. A page or a ticket of the version means stop. Go needs a healthy
/// verdict with enough devices compared, on each chipset that the model runs on. Chipsets with too few devices in all
/// versions decide nothing.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example, in a pipeline that raises the share of a staged roll-out:\n  \
    epwatch rollout com.example.camera segmenter 2.0.0 --clickhouse http://store:8123\n\n\
    Exit codes: 0 go, 1 stop, 2 wrong use, 3 not yet, or it could not be found out."
)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
    app: String,
    model: String,
    #[arg(value_name = "VERSION")]
    model_version: String,
    #[arg(long, default_value = "production")]
    environment: String,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let client = epwatch_store::client(&args.store.target().await?);
    let query = RolloutQuery {
        app: args.app,
        environment: args.environment,
        model: args.model,
        version: args.model_version,
    };
    let needed = Needed {
        with_placements: SEES_DOUBLE_WITH_PLACEMENT,
        without: SEES_DOUBLE,
    };
    let (answer, printed) = match epwatch_page::rollout(client, query, needed).await {
        // A version that is unknown may be too new to be judged. The others are typing errors, and no reason to stop.
        Err(error @ ShellError::NoSuch { what, .. }) if what != "version" => {
            return Err(WrongUse(error.to_string()).into());
        }
        found => found?,
    };
    match args.json {
        true => output::json(&serde_json::from_slice::<serde_json::Value>(&printed.json)?)?,
        false => output::line(&printed.text)?,
    }
    Ok(match answer {
        RolloutAnswer::Go => ExitCode::SUCCESS,
        RolloutAnswer::Stop => ExitCode::from(1),
        RolloutAnswer::NotYet | RolloutAnswer::Rare => ExitCode::from(3),
    })
}
