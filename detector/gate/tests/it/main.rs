//! The rules on launches of a simulated device, and on what a device farm measured in two releases.

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
