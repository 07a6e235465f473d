//! `epwatch completions` and `epwatch man`: texts for shells and `man` about the command, from its own description.

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::Context;
use clap_complete::Shell;

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
        // Commit and runtimes are of this build; `--version` has them.
        let described = described.long_version(None);
        clap_mangen::generate_to(described, folder)
    };
    write().with_context(|| format!("failed to write the manual into {}", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}
