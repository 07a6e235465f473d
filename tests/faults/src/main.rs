//! `epwatch-faults`: the harness as a command, `just faults`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use epwatch_faults::{FaultOptions, run};
use tokio_util::sync::CancellationToken;

/// A negative answer.
const NO: u8 = 1;
/// Exit code: the run could not find out whether reports were lost.
const COULD_NOT_FIND_OUT: u8 = 3;

/// Kills collectors and their store under load, and counts the reports that are lost or counted twice.
///
/// Exit codes: 0 nothing is lost and nothing counted twice, 1 something is, 2 wrong use, 3 could not find out.
#[derive(Debug, Parser)]
#[command(name = "epwatch-faults")]
struct Args {
    #[command(flatten)]
    options: FaultOptions,
    /// Folder for logs and data, kept afterwards; it must not exist [default: a temporary one].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = tokio::runtime::Runtime::new();
    let ended = runtime
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(harness(&args)));
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(NO),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "epwatch-faults: {error:#}");
            ExitCode::from(COULD_NOT_FIND_OUT)
        }
    }
}

async fn harness(args: &Args) -> anyhow::Result<bool> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing::Level::ERROR)
        .init();
    let program = args.options.program.display();
    anyhow::ensure!(
        args.options.program.is_file(),
        "{program} does not exist; build it with `cargo build`, or name another with --program"
    );
    let temporary = tempfile::Builder::new()
        .prefix("epwatch-faults-")
        .tempdir()?;
    let dir = match &args.dir {
        Some(dir) => {
            std::fs::create_dir(dir)?;
            dir.clone()
        }
        None => temporary.path().to_owned(),
    };
    let stop = CancellationToken::new();
    let stop_early = stop.clone();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            stop_early.cancel();
        }
    });
    let say = |line: &str| {
        let _ = writeln!(std::io::stderr(), "{line}");
    };
    say(&format!(
        "seed {}, logs in {}",
        args.options.seed,
        dir.display()
    ));
    let document = run(&args.options, &dir, say, stop).await?;
    if args.json {
        let mut out = std::io::stdout().lock();
        serde_json::to_writer_pretty(&mut out, &document)?;
        writeln!(out)?;
    } else {
        writeln!(std::io::stdout(), "{document}")?;
    }
    if !document.ok && args.dir.is_none() {
        let kept = temporary.keep();
        say(&format!("logs and data are kept in {}", kept.display()));
    }
    Ok(document.ok)
}
