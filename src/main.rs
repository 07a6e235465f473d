//! The `epwatch` command: one file a subcommand, no logic of its own.

fn main() {}
