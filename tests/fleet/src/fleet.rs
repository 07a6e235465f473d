//! All devices of a scenario.

use std::time::Duration;

use epwatch_proto::{Placement, Sdk, SendClock};

use crate::chipsets::Chipset;
use crate::device::{Advance, Device};
use crate::placements::Placements;
use crate::scenario::{Scenario, ScenarioError};

/// All devices of a scenario, at one moment of their time.
#[derive(Debug)]
pub struct Fleet {
    scenario: Scenario,
    placements: Placements,
    devices: Vec<Device>,
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
        let devices = (0..scenario.n_devices)
            .map(|index| Device::new(&scenario, &placements, index, start_unix_ms))
            .collect::<Result<Vec<_>, _>>()?;
        for index in 0..scenario.n_devices {
            let chipset = scenario.chipset_of(index);
            for version in scenario.versions() {
                let placed = scenario.placed(index as u64, chipset, version);
                placements.placed(version, placed)?;
            }
        }
        Ok(Self {
            scenario,
            placements,
            devices,
        })
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.devices.len()
    }

    /// Always `false`: a scenario has at least one device.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    #[must_use]
    pub fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// Sets the placement of later sessions of this version on this chipset.
    pub fn set_placement(&mut self, version: &str, chipset: Chipset, placement: Placement) {
        self.placements.insert(version, chipset, placement);
    }

    pub(crate) fn due(&self, index: usize) -> Duration {
        self.devices[index].due()
    }

    pub(crate) fn advance(&mut self, index: usize, now: Duration) -> Advance {
        self.devices[index].advance(&self.scenario, &self.placements, now)
    }

    pub(crate) fn finish(&mut self, index: usize, now: Duration) -> Advance {
        self.devices[index].finish(&self.scenario, &self.placements, now)
    }

    pub(crate) fn device(&mut self, index: usize) -> &mut Device {
        &mut self.devices[index]
    }

    pub(crate) fn sender(&self, index: usize, now: Duration) -> (SendClock, Sdk) {
        let device = &self.devices[index];
        (device.send_clock(now), device.sdk())
    }
}
