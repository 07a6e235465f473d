//! This crate has no code: its `Cargo.toml` sets the features of third-party crates that servers and tests need.
//!
//! Every member but `proto` and `sdk` depends on this one. Cargo then resolves the same features for one member (`-p`)
//! as for the workspace, and compiles no third-party crate twice. `proto` and `sdk` ship in apps. So only their tests
//! depend on this crate, and they enable few features themselves.
