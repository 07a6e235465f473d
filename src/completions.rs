//! `epwatch completions` and `epwatch man`: shell completions and manual pages, made from the command's own
//! description.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::output;

/// Prints the completions of a shell.
///
/// bash: `epwatch completions bash > /etc/bash_completion.d/epwatch`, or `source <(epwatch completions bash)`.
/// zsh: into a file `_epwatch` in a folder of `fpath`. fish: into `~/.config/fish/completions/epwatch.fish`.
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Writes the manual pages into a folder, one for each command.
///
/// `epwatch man /usr/local/share/man/man1`, then `man epwatch-gate`.
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Folder to write into; it is made if it does not exist.
    folder: PathBuf,
}

pub(crate) fn completions(
    args: &CompletionsArgs,
    mut described: clap::Command,
) -> anyhow::Result<ExitCode> {
    clap_complete::generate(args.shell, &mut described, "epwatch", &mut output::Stdout);
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn man(args: &ManArgs, described: clap::Command) -> anyhow::Result<ExitCode> {
    let folder = &args.folder;
    let write = || {
        fs::create_dir_all(folder)?;
        // Commit and runtimes belong to this build only, so they are left to `--version`.
        let mut described = described.disable_help_subcommand(true).long_version(None);
        described.build();
        write_pages(&described, folder)
    };
    write().with_context(|| format!("failed to write the manual into {}", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the page of a command and the pages of its subcommands. Each names epwatch as its source, not the subcommand.
fn write_pages(command: &clap::Command, folder: &Path) -> io::Result<()> {
    for subcommand in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        write_pages(subcommand, folder)?;
    }
    Man::new(command.clone())
        .source(concat!("epwatch ", env!("CARGO_PKG_VERSION")))
        .manual("epwatch")
        .generate_to(folder)?;
    Ok(())
}
