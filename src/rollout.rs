//! `epwatch rollout`: may a version go from a few devices to more?

use std::process::ExitCode;

use epwatch_page::{Needed, RolloutAnswer, RolloutQuery, TerminalError};

use crate::{
    output::{self, WrongUse},
    store_args::StoreArgs,
};

/// Tells whether a version may go to more devices: go, stop or not yet, for each chipset.
///
/// Reads what the detector found in its last window. A page or a ticket of the version means stop. Go needs a healthy
/// verdict with enough devices compared, on each chipset that the model runs on. Chipsets with too few devices in all
/// versions decide nothing. A firmware with enough devices, or with a finding, has its own line, and decides for its
/// chipset if it is worse.
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
    /// The app's id, as in its key.
    app: String,
    /// The model's id, as the app reports it.
    model: String,
    /// The version that is rolled out.
    #[arg(value_name = "VERSION")]
    model_version: String,
    /// The app's environment.
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
    let found = epwatch_page::rollout(client, query, Needed::OF_THE_DETECTOR).await;
    let (answer, printed) = match found {
        // An unknown version may be too new to be judged. Other unknown names are typing errors, which must not stop a
        // roll-out.
        Err(error @ TerminalError::NoSuch { what, .. }) if what != "version" => {
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

#[cfg(test)]
mod tests {
    use epwatch_detector::verdict::{SEES_DOUBLE, SEES_DOUBLE_WITH_PLACEMENT};

    use super::*;

    /// The page may not use the detector's crate, so it has numbers of its own.
    #[test]
    fn the_needed_devices_are_those_of_the_detector() {
        let Needed {
            with_placements,
            without,
        } = Needed::OF_THE_DETECTOR;
        assert_eq!(
            (with_placements, without),
            (SEES_DOUBLE_WITH_PLACEMENT, SEES_DOUBLE)
        );
    }
}
