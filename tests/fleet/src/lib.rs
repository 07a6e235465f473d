//! Simulated devices that record, report and upload with the real SDK.

mod assignment;
mod chance;
mod chipsets;
mod episodes;
mod fallback;
mod physics;
mod placements;
mod scenario;

pub use chipsets::{Chipset, Workload};
pub use episodes::EpisodePattern;
pub use fallback::{CpuWork, slow_factor};
pub use physics::{DevicePhysics, DeviceTraits, Noise, Run, SessionPhysics};
pub use placements::{Placements, RecordedModel, cpu_work};
pub use scenario::{ChipsetShare, Fault, InputShape, Rollout, Scenario, ScenarioError};
