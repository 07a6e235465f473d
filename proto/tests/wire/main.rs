//! The contract from outside: golden bytes that must decode for ever, every bound with a message
//! that breaks it, and fixtures that other languages made.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests, which clippy takes for code"
)]

mod bounds;
mod fixtures;
mod generated;
mod golden;
mod hostile;
mod samples;
mod validate;
