//! Simulated devices that record, report and upload with the real SDK.
//!
//! A [`Scenario`] holds the fleet's devices and their placements; `physics` makes latency from placement, silicon, heat
//! and chance; the SDK's core makes reports from runs. The reports are uploaded in real time ([`Live`]), sent at a rate
//! ([`load`]) or iterated over in virtual time ([`VirtualTime`]). Everything except the times of [`Live`] follows from
//! the scenario's seed.
//!
//! No code here makes a device slow by itself: its placement does (`fallback`). Report bytes of simulated devices come
//! from the SDK alone.
#![expect(missing_docs, reason = "only this workspace uses it")]

mod assignment;
pub mod chance;
mod chipsets;
mod client;
mod device;
mod fallback;
mod fleet;
mod identity;
mod live;
pub mod load;
mod outbox;
pub mod physics;
mod placements;
mod recording;
mod scenario;
mod virtual_time;

pub use chipsets::Chipset;
pub use client::{ClientError, ClientTls, endpoint};
pub use fleet::Fleet;
pub use live::{Live, Progress};
pub use placements::{Placements, RecordedModel};
pub use scenario::{ChipsetShare, Placed, PlacementFault, Rollout, Scenario, ScenarioError};
pub use virtual_time::VirtualTime;
