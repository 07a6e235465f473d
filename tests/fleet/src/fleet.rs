//! The simulated devices of a scenario, and their setup.

use std::sync::Arc;

use crate::device::{Device, World};
use crate::placements::Placements;
use crate::scenario::{Scenario, ScenarioError};

/// All devices of a scenario, at one moment of their time.
#[derive(Debug)]
pub struct Fleet {
    pub(crate) world: Arc<World>,
    pub(crate) devices: Vec<Device>,
}

impl Fleet {
    /// Sets up the devices at time zero, which is `start_unix_ms` by their wall clocks.
    ///
    /// # Errors
    /// Names the scenario's field that is out of bounds, or the placement that is missing.
    pub fn new(
        scenario: Scenario,
        placements: Placements,
        start_unix_ms: i64,
    ) -> Result<Self, ScenarioError> {
        scenario.validate()?;
        for index in 0..scenario.n_devices {
            let chipset = scenario.chipset_of(index);
            for version in scenario.versions() {
                let placed = scenario.placed(index as u64, chipset, version);
                placements.placed(version, placed)?;
            }
        }
        let world = Arc::new(World {
            scenario,
            placements,
        });
        let devices = (0..world.scenario.n_devices)
            .map(|index| Device::new(&world, index, start_unix_ms))
            .collect::<Result<_, _>>()?;
        Ok(Self { world, devices })
    }
}
