//! `epwatch detector test-page`: sends a test through the channels of the config.

use std::process::ExitCode;

use epwatch_detector::notify;
use jiff::Timestamp;

use crate::{
    all_in_one,
    output::{self, WrongUse},
    server_config::{Runs, ServerArgs},
};

/// Sends a page that is marked as a test through the channels of the config, once.
///
/// It has severity page, and no channel's min_severity, apps or environments hold it back. Alertmanager ends it after
/// five minutes; at PagerDuty it must be resolved. Exit code 1: a channel did not take it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Only through this channel, for example slack, or pagerduty-2 for the second of its kind.
    #[arg(long, value_name = "NAME")]
    channel: Option<String>,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = args.server.load(Runs::Detector)?;
    let mut notifiers = all_in_one::notifiers(&config.detector)?;
    if let Some(wanted) = &args.channel {
        let names: Vec<String> = notifiers.iter().map(|n| n.name().to_owned()).collect();
        notifiers.retain(|notifier| notifier.name() == wanted);
        if notifiers.is_empty() {
            let names = names.join(", ");
            let text =
                format!("--channel {wanted}: the config has no such channel; it has {names}");
            return Err(WrongUse(text).into());
        }
    }
    let now = Timestamp::now();
    let page = notify::test_page(now);
    let mut code = ExitCode::SUCCESS;
    for notifier in notifiers {
        let name = notifier.name().to_owned();
        match notifier.notify(&page, now).await {
            Ok(()) => output::line(format_args!("{name}: sent"))?,
            Err(error) => {
                code = ExitCode::from(output::NO);
                let error = format!("{:#}", anyhow::Error::from(error));
                output::line(format_args!("{name}: {error}"))?;
            }
        }
    }
    Ok(code)
}
