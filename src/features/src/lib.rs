//! No code: `Cargo.toml` holds the features that servers and tests need of third-party crates.
//!
//! Every member but `proto` and `sdk` depends on this one. Cargo then resolves the same features for one member (`-p`)
//! as for the workspace, and compiles no third-party crate twice. `proto` and `sdk` ship into apps: their tests alone
//! depend on this crate, and the features they name themselves stay few.
