//! The wire contract: messages, their parsed types, and the histogram codec.

/// The messages as they travel, generated from `epwatch/v1/*.proto`. Nothing in them is checked.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    reason = "generated"
)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/epwatch.v1.rs"));
}
