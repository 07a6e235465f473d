//! Simulated devices that record, report and upload with the real SDK.
//!
//! A [`Scenario`] says who is in the fleet and which placement a device gets; `physics` makes
//! latency from placement, silicon, heat and chance; the SDK's core makes reports from runs. What
//! comes out is uploaded in real time ([`Live`]), sent as fast as asked ([`load`]) or iterated over
//! in virtual time ([`VirtualTime`]). Everything follows from the scenario's seed but for the times of [`Live`].
//!
//! It never decides that a device is slow: its placement does ([`slow_factor`]). It never makes
//! report bytes itself: the SDK does.

mod assignment;
mod chance;
mod chipsets;
mod device;
mod fallback;
mod fleet;
mod identity;
pub mod labelled;
mod live;
pub mod load;
mod outbox;
mod physics;
mod placements;
mod progress;
mod recording;
mod scenario;
mod upload;
mod virtual_time;

pub use chipsets::{Chipset, Workload};
pub use fallback::{CpuWork, slow_factor};
pub use fleet::Fleet;
pub use live::{Live, LiveOptions};
pub use placements::{Placements, RecordedModel, cpu_work};
pub use progress::Progress;
pub use scenario::{ChipsetShare, Fault, InputShape, Rollout, Scenario, ScenarioError};
pub use upload::LiveError;
pub use virtual_time::VirtualTime;
