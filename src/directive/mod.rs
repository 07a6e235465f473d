//! `epwatch directive`: makes and signs instructions to devices, with a private key that stays on this machine. It
//! publishes them into the store, from which collectors send them.

mod file;
mod keygen;
mod make;
mod published;
mod reach;

use std::process::ExitCode;

use clap::Subcommand;

/// Makes, signs, publishes, lists and revokes directives for devices.
///
/// Until a date, a directive tells devices to sample less, report more often, or load another variant of a model. It
/// can also forbid the NPU for a model on a chipset. Devices obey only directives that are signed with a key whose
/// public half the app carries (`keygen` prints it). Collectors hand on the signed bytes; they have no private key.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  epwatch directive keygen --out ops.pem
  epwatch directive make --npu-off --app com.example.camera --model detector --chipset SM8650 \\
      --for 7d --key ops.pem --out off.signed
  epwatch directive publish off.signed
  epwatch directive list
  epwatch directive revoke ID --key ops.pem")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: DirectiveCommand,
}

#[derive(Debug, Subcommand)]
enum DirectiveCommand {
    Keygen(keygen::KeygenArgs),
    Make(Box<make::MakeArgs>),
    Sign(make::SignArgs),
    Show(make::ShowArgs),
    Publish(published::PublishArgs),
    List(published::ListArgs),
    Revoke(published::RevokeArgs),
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        DirectiveCommand::Keygen(args) => keygen::keygen(&args),
        DirectiveCommand::Make(args) => make::make(&args),
        DirectiveCommand::Sign(args) => make::sign(&args),
        DirectiveCommand::Show(args) => make::show(&args),
        DirectiveCommand::Publish(args) => published::publish(&args).await,
        DirectiveCommand::List(args) => published::list(&args).await,
        DirectiveCommand::Revoke(args) => published::revoke(&args).await,
    }
}
