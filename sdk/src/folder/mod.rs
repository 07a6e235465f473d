//! The names of the SDK's files in the folder that the host gives it.
//!
//! One list, so that whoever wipes the folder forgets none. The folders of streams are the spool's
//! (`spool/`), the secret is the installation's (`identity.rs`).

pub(crate) mod files;

/// Held by who writes one of these files, or makes the secret.
pub(crate) const LOCK: &str = "lock";

/// What the device was used to.
pub(crate) const BASELINES: &str = "baselines.json";

/// Directives that the device holds, and the server's time when they came.
pub(crate) const DIRECTIVES: &str = "directives";

/// Golden self-tests that were begun and finished.
pub(crate) const SELF_TESTS: &str = "self-tests.json";

/// What was learnt or received and is forgotten with the installation.
pub(crate) const MEMORIES: [&str; 3] = [BASELINES, DIRECTIVES, SELF_TESTS];
