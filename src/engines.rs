//! `epwatch engines`: the runtimes that epwatch runs but does not ship.

use std::process::ExitCode;

use epwatch_engines::{Engine, Installed, State};

use crate::output;

/// Shows or fetches the runtimes: libchdb, onnxruntime, onnxruntime-qnn.
///
/// They come from npm and PyPI, pinned by version and hash, into a cache (EPWATCH_CACHE, else
/// XDG_CACHE_HOME/epwatch, else ~/.cache/epwatch). Other commands fetch what they need by themselves.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// Print one JSON document.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show what is in the cache (the default).
    List,
    /// Fetch what is missing, all or the named ones.
    Fetch {
        /// libchdb, onnxruntime or onnxruntime-qnn.
        engines: Vec<Engine>,
    },
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    tokio::task::spawn_blocking(move || fetch_or_list(args)).await?
}

fn fetch_or_list(args: Args) -> anyhow::Result<ExitCode> {
    if let Some(Action::Fetch { engines }) = args.action {
        let wanted = if engines.is_empty() {
            Engine::ALL.to_vec()
        } else {
            engines
        };
        for engine in wanted {
            match epwatch_engines::ensure(engine) {
                // The list below shows that it does not exist on this platform.
                Err(error) if error.is_unavailable() => {}
                other => {
                    other?;
                }
            }
        }
    }
    show(args.json)
}

fn show(json: bool) -> anyhow::Result<ExitCode> {
    let statuses = epwatch_engines::list();
    if json {
        output::json(&statuses)?;
    } else {
        for status in &statuses {
            output::line(status)?;
        }
    }
    let is_missing = statuses
        .iter()
        .any(|s| matches!(s.state, State::Missing | State::Damaged));
    Ok(ExitCode::from(u8::from(is_missing)))
}

/// Makes a runtime available, with progress on stderr.
pub(crate) async fn ensure(engine: Engine) -> anyhow::Result<Installed> {
    tokio::task::spawn_blocking(move || Ok(epwatch_engines::ensure(engine)?)).await?
}
