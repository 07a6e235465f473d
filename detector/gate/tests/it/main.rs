//! Tests the rules on launches of a simulated device, and on a device farm's measurements of two releases.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod changes;
mod checks;
mod defaults;
mod device;
mod devices;
mod farm;
mod greens;
mod launches;
mod power;
mod rates;
mod sessions;
