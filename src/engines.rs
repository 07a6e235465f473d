//! `epwatch engines`: the runtimes that epwatch runs but does not ship.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use epwatch_engines::{CacheState, Engine, EngineError, Installed, QnnVersion};

use crate::output::{self, WrongUse};

/// Shows or fetches the runtimes: libchdb, onnxruntime, onnxruntime-qnn.
///
/// They come from npm and PyPI, pinned by version and hash, except libchdb on arm64 and macOS (see `fetch --unpinned`).
/// They are kept in a cache: EPWATCH_CACHE, else XDG_CACHE_HOME/epwatch, else ~/.cache/epwatch. Other commands fetch
/// what they need by themselves.
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
    /// Fetch what this machine can use and lacks, or the named ones.
    Fetch {
        /// libchdb, onnxruntime or onnxruntime-qnn.
        engines: Vec<Engine>,
        /// Also take one whose build for this platform has no pinned hash, on its source's word.
        #[arg(long)]
        unpinned: bool,
        /// Instead: QNN of this version (2.3 to 2.7, or 2.47 to 2.51 as the QNN SDK counts), for `gate --qnn-version`.
        #[arg(long, value_name = "VERSION", conflicts_with_all = ["engines", "unpinned"])]
        qnn_version: Option<QnnVersion>,
    },
    /// Write fetched runtimes into one archive, for a machine without internet.
    Export {
        /// Archive to write; `.tar.gz` is compressed, `.tar` is not.
        file: PathBuf,
        /// Only these, for example libchdb, which is all that `serve` needs [default: all that are fetched].
        engines: Vec<Engine>,
    },
    /// Take the runtimes of such an archive into the cache, with their hashes verified.
    Import {
        /// Archive that `epwatch engines export` wrote.
        file: PathBuf,
        /// Also take one whose build for this platform has no pinned hash, on the archive's word.
        #[arg(long)]
        unpinned: bool,
    },
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    tokio::task::spawn_blocking(move || fetch_or_list(args)).await?
}

fn fetch_or_list(args: Args) -> anyhow::Result<ExitCode> {
    let is_question = matches!(args.action, None | Some(Action::List));
    match args.action {
        Some(Action::Export { file, engines }) => {
            let engines = if engines.is_empty() { ready() } else { engines };
            if engines.is_empty() {
                bail!(WrongUse(
                    "nothing is fetched yet; `epwatch engines fetch` does that".to_owned()
                ));
            }
            epwatch_engines::export(&engines, &file)?;
        }
        Some(Action::Import { file, unpinned }) => drop(epwatch_engines::import(&file, unpinned)?),
        Some(Action::Fetch {
            qnn_version: Some(version),
            ..
        }) => drop(epwatch_engines::ensure_qnn(version)?),
        Some(Action::Fetch {
            engines, unpinned, ..
        }) => fetch(engines, unpinned)?,
        Some(Action::List) | None => {}
    }
    let is_missing = show(args.json)?;
    Ok(ExitCode::from(u8::from(is_question && is_missing)))
}

/// Returns the engines in the cache.
fn ready() -> Vec<Engine> {
    let statuses = epwatch_engines::list().into_iter();
    let ready = statuses.filter(|status| status.state == CacheState::Ready);
    let mut engines: Vec<Engine> = Vec::new();
    for status in ready {
        // An older release is a second line of the same engine.
        if !engines.contains(&status.engine) {
            engines.push(status.engine);
        }
    }
    engines
}

fn fetch(engines: Vec<Engine>, unpinned: bool) -> anyhow::Result<()> {
    let wanted = if engines.is_empty() {
        Engine::ALL.to_vec()
    } else {
        engines
    };
    epwatch_engines::check_programs(&wanted, unpinned)?;
    let mut refused = None;
    for fetched in epwatch_engines::ensure_all(&wanted, unpinned) {
        match fetched {
            // The list below shows that it does not exist on this platform.
            Err(error) if error.is_unavailable() => {}
            // The others are fetched all the same.
            Err(error @ EngineError::NotPinned { .. }) => refused = Some(error),
            other => {
                other?;
            }
        }
    }
    match refused {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}

/// Prints all engines; returns whether one is missing.
fn show(json: bool) -> anyhow::Result<bool> {
    let statuses = epwatch_engines::list();
    if json {
        output::json(&statuses)?;
    } else {
        for status in &statuses {
            output::line(status)?;
        }
        let sends = statuses.iter().find_map(|status| status.telemetry_switch);
        if let Some(switch) = sends {
            output::line(format_args!(
                "onnxruntime sends telemetry of its own to Microsoft. epwatch runs it with {switch}=1, and an app with \
                 onnxruntime decides for itself (docs/privacy.md)"
            ))?;
        }
    }
    Ok(statuses
        .iter()
        .any(|s| matches!(s.state, CacheState::Missing | CacheState::Damaged)))
}

/// Makes runtimes available, with one progress on stderr. Fails before the first download if a program is missing.
pub(crate) async fn ensure_all<const N: usize>(
    engines: [Engine; N],
) -> anyhow::Result<[Result<Installed, EngineError>; N]> {
    let fetch = move || {
        epwatch_engines::check_programs(&engines, false)?;
        let fetched = epwatch_engines::ensure_all(&engines, false);
        Ok(fetched.try_into().expect("one result for each engine"))
    };
    tokio::task::spawn_blocking(fetch).await?
}

/// Makes a runtime available, with progress on stderr.
pub(crate) async fn ensure(engine: Engine) -> anyhow::Result<Installed> {
    tokio::task::spawn_blocking(move || Ok(epwatch_engines::ensure(engine)?)).await?
}

/// Makes ONNX Runtime with Intel's EP available, with progress on stderr.
pub(crate) async fn ensure_openvino() -> anyhow::Result<Installed> {
    tokio::task::spawn_blocking(|| Ok(epwatch_engines::ensure_openvino()?)).await?
}

/// Makes ONNX Runtime and a release of QNN available, with progress on stderr.
pub(crate) async fn ensure_qnn(version: QnnVersion) -> anyhow::Result<(Installed, Installed)> {
    tokio::task::spawn_blocking(move || Ok(epwatch_engines::ensure_qnn(version)?)).await?
}
