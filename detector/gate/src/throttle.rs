//! Whether a device lowered its clocks around a launch, so that its run times say nothing about the model.

use crate::mistakes::Mistake;

/// Change of the CPU probe that shows another clock.
pub(crate) const PROBE_MOVED: f64 = 0.05;
/// The moment of the second probe.
const AFTER: &str = "after it";
/// Android's thermal status `moderate`, from which clocks are lowered.
const THROTTLED_STATUS: u8 = 2;
/// Battery temperature from which a phone lowers its clocks, in degrees Celsius.
const HOT_BATTERY_C: f64 = 37.0;

/// The state of a device around a launch. A field is `None` if the file does not have it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct DeviceState {
    /// Android's thermal status before the launch.
    pub thermal_before: Option<u8>,
    /// Android's thermal status after the launch.
    pub thermal_after: Option<u8>,
    /// Temperature of the battery before the launch, in degrees Celsius.
    pub battery_c: Option<f64>,
    /// Temperature of the battery after the launch, in degrees Celsius.
    pub battery_after_c: Option<f64>,
    /// Time of a fixed piece of work on the CPU before the launch, in microseconds.
    pub probe_us: Option<f64>,
    /// Time of the same work after the launch, in microseconds.
    pub probe_after_us: Option<f64>,
}

impl DeviceState {
    /// Returns why the device was throttled; `None` if nothing says so.
    #[must_use]
    pub fn throttled(&self) -> Option<String> {
        let clock = || {
            let ratio = self.clock_moved()?;
            Some(format!(
                "the CPU probe takes {ratio:.2} times as long {AFTER}"
            ))
        };
        self.heat().or_else(clock)
    }

    /// The same as a mistake that leaves a launch out.
    pub(crate) fn mistake(&self, file: &str) -> Option<Mistake> {
        let clock = || Some(Mistake::clock_moved(file, self.clock_moved()?, AFTER));
        let heat = self.heat().map(|why| Mistake::throttled(file, &why));
        heat.or_else(clock)
    }

    fn heat(&self) -> Option<String> {
        let status = self.thermal_before.max(self.thermal_after);
        if let Some(status) = status.filter(|status| *status >= THROTTLED_STATUS) {
            return Some(format!("thermal status {status}"));
        }
        let batteries = [self.battery_c, self.battery_after_c].into_iter().flatten();
        let hottest = batteries
            .reduce(f64::max)
            .filter(|battery| *battery >= HOT_BATTERY_C)?;
        Some(format!("battery at {hottest} C"))
    }

    /// How many times as long the CPU probe takes after the launch; `None` if that is about as long.
    fn clock_moved(&self) -> Option<f64> {
        let ratio = self.probe_after_us? / self.probe_us?;
        ((ratio - 1.0).abs() > PROBE_MOVED).then_some(ratio)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_and_another_clock_throttle() {
        let state = |status, battery, probe| DeviceState {
            thermal_before: status,
            battery_c: battery,
            probe_us: Some(100.0),
            probe_after_us: Some(probe),
            ..DeviceState::default()
        };
        assert_eq!(state(Some(1), Some(30.0), 104.0).throttled(), None);
        assert_eq!(DeviceState::default().throttled(), None);
        for hot in [
            state(Some(2), None, 100.0),
            state(None, Some(37.0), 100.0),
            state(None, None, 106.0),
        ] {
            assert!(hot.throttled().is_some(), "{hot:?}");
        }
    }
}
