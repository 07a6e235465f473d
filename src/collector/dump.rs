//! `epwatch collector dump`: the reports in a WAL as a file.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use epwatch_collector::dump_wal;

use crate::output::{self, WrongUse};

/// Writes the reports in a collector's WAL to a file, for `epwatch gate --runs` and `epwatch replay --reports`.
///
/// The collector may run meanwhile. Its WAL also has reports that are stored already, until their segment is used
/// again. So a bench of a few phones finds today's reports there.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of the WAL: `epwatch-wal` in the data folder, or `collector.wal.dir`.
    #[arg(long, value_name = "DIR")]
    wal: PathBuf,
    /// The file of recorded reports to write.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (wal, out) = (args.wal.display(), args.out.display());
    if !args.wal.is_dir() {
        return Err(WrongUse(format!(
            "--wal {wal} is not a folder; expected a collector's WAL"
        ))
        .into());
    }
    let folder = args.out.parent().filter(|folder| *folder != Path::new(""));
    // A failed dump must not leave a file that looks complete.
    let mut file = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))
        .with_context(|| format!("failed to make --out {out}"))?;
    let mut to = std::io::BufWriter::new(file.as_file_mut());
    let dumped = dump_wal(&args.wal, &mut to).with_context(|| format!("failed to dump {wal}"))?;
    to.flush()
        .with_context(|| format!("failed to write {out}"))?;
    drop(to);
    file.persist(&args.out)
        .with_context(|| format!("failed to write {out}"))?;
    if dumped.unreadable > 0 || dumped.skipped_bytes > 0 {
        output::remark(format_args!(
            "left out: {} records that this version cannot read, {} bytes without a whole record",
            dumped.unreadable, dumped.skipped_bytes
        ));
    }
    output::line(format_args!("{} reports in {out}", dumped.reports))?;
    Ok(ExitCode::SUCCESS)
}
