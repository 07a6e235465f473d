//! `epwatch-faults`: the harness as a command, `just faults`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use epwatch_faults::{FaultOptions, Servers, command_beside, run};
use epwatch_server::Period;
use tokio_util::sync::CancellationToken;

/// The answer is no.
const NO: u8 = 1;
/// Could not find out.
const COULD_NOT_FIND_OUT: u8 = 3;

/// Kills collectors and their store under load, and counts what is lost or counted twice.
///
/// Exit codes: 0 nothing is lost and nothing counted twice, 1 something is, 2 wrong use, 3 could not find
/// out.
#[derive(Debug, Parser)]
#[command(name = "epwatch-faults")]
struct Args {
    /// Processes to kill.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    kills: u64,
    /// The servers: two collectors before one store, or `serve` with the store inside.
    #[arg(long, value_enum, default_value = "collectors")]
    servers: Servers,
    /// No fault begins after this.
    #[arg(long, value_name = "TIME", default_value = "2h")]
    length: Period,
    /// Chooses the faults; when they hit, the machine decides [default: random].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Devices that send.
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u16).range(1..=1000))]
    devices: u16,
    /// Mean pause of a device between two uploads.
    #[arg(long, value_name = "TIME", default_value = "500ms")]
    pause: Period,
    /// Mean pause between two faults.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    fault_pause: Period,
    /// Mean length of a spell without a store.
    #[arg(long, value_name = "TIME", default_value = "20s")]
    spell: Period,
    /// How long nothing may happen at a check while something is missing.
    #[arg(long, value_name = "TIME", default_value = "5m")]
    drain: Period,
    /// The epwatch command [default: the one in this program's folder].
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
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
    let program = match &args.program {
        Some(program) => program.clone(),
        None => command_beside(&std::env::current_exe()?)?,
    };
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
    let options = FaultOptions {
        program,
        dir,
        servers: args.servers,
        kills: args.kills,
        length: args.length.0,
        seed: args.seed.unwrap_or_else(|| fastrand::u64(..1 << 32)),
        devices: args.devices.into(),
        pause: args.pause.0,
        fault_pause: args.fault_pause.0,
        spell: args.spell.0,
        drain: args.drain.0,
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
        options.seed,
        options.dir.display()
    ));
    let document = run(&options, say, stop).await?;
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
