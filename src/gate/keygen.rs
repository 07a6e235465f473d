//! `epwatch gate keygen`: makes the key pair of a release pipeline, which only signs evidence.

use std::{path::PathBuf, process::ExitCode};

use crate::signing_key::{self, KeyUse};

/// Makes an Ed25519 key pair for signing evidence (`epwatch gate --attest`).
///
/// The private key goes into a file that only you can read. `epwatch directive` refuses it: a pipeline that attests
/// should not be able to switch NPUs off. The public key goes into OUT.pub, for `epwatch verify` and other tools.
#[derive(Debug, clap::Args)]
pub(super) struct GateKeygenArgs {
    /// Where the private key goes; an existing file is never overwritten.
    #[arg(long, value_name = "FILE", default_value = "gate-key.pem")]
    out: PathBuf,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

pub(super) fn keygen(args: &GateKeygenArgs) -> anyhow::Result<ExitCode> {
    let next_step = "`epwatch gate --attest` signs with it; `epwatch directive` refuses it.";
    signing_key::create_and_print(&args.out, KeyUse::Evidence, args.json, next_step)
}
