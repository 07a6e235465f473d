//! The behaviour of a fleet, seen from outside, with one module for each behaviour.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod cost;
mod live;
mod virtual_time;
