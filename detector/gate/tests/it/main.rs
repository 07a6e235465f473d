//! The rules on launches of a simulated device, and on what a device farm measured in two releases.

mod device;
mod farm;
mod power;
