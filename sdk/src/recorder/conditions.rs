//! What holds while a run is measured, as the host sets it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

use epwatch_proto::{PowerSave, Thermal};

use crate::recorder::interner::{NameId, Names};

/// Thermal state, power save and performance mode. The default is "unknown" throughout, which is
/// not "none": a host that cannot tell leaves it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Conditions {
    /// Android's thermal status.
    pub thermal: Thermal,
    /// Whether the device saves power.
    pub power_save: PowerSave,
    /// As the host says it, for example `sustained`; empty: unknown. At most 32 bytes; process-wide
    /// at most 16 of them, more are `other`.
    pub performance_mode: String,
}

impl Default for Conditions {
    fn default() -> Self {
        Self {
            thermal: Thermal::Unknown,
            power_save: PowerSave::Unknown,
            performance_mode: String::new(),
        }
    }
}

impl Conditions {
    /// Nothing known.
    pub fn unknown() -> Self {
        Self::default()
    }

    /// With this thermal status.
    #[must_use]
    pub fn with_thermal(mut self, thermal: Thermal) -> Self {
        self.thermal = thermal;
        self
    }

    /// With this power-save state.
    #[must_use]
    pub fn with_power_save(mut self, power_save: PowerSave) -> Self {
        self.power_save = power_save;
        self
    }

    /// With this performance mode.
    #[must_use]
    pub fn with_performance_mode(mut self, mode: impl Into<String>) -> Self {
        self.performance_mode = mode.into();
        self
    }
}

/// Conditions as three numbers in one word: what a run is keyed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PackedConditions(pub(crate) u32);

impl PackedConditions {
    pub(crate) fn new(thermal: Thermal, power_save: PowerSave, mode: NameId) -> Self {
        let thermal = position(Thermal::ALL, thermal);
        let power_save = position(PowerSave::ALL, power_save);
        Self(u32::from_le_bytes([thermal, power_save, mode.0, 0]))
    }

    pub(crate) fn unknown() -> Self {
        Self::new(Thermal::Unknown, PowerSave::Unknown, NameId::default())
    }

    fn with_thermal_of(self, other: Self) -> Self {
        let [_, power_save, mode, rest] = self.0.to_le_bytes();
        let [thermal, ..] = other.0.to_le_bytes();
        Self(u32::from_le_bytes([thermal, power_save, mode, rest]))
    }

    pub(crate) fn thermal(self) -> Thermal {
        let [thermal, ..] = self.0.to_le_bytes();
        at(Thermal::ALL, thermal).unwrap_or(Thermal::Unknown)
    }

    pub(crate) fn power_save(self) -> PowerSave {
        let [_, power_save, ..] = self.0.to_le_bytes();
        at(PowerSave::ALL, power_save).unwrap_or(PowerSave::Unknown)
    }

    pub(crate) fn mode(self) -> NameId {
        let [_, _, mode, _] = self.0.to_le_bytes();
        NameId(mode)
    }
}

/// The conditions that hold now: one atomic word, so that a run reads them without waiting, and
/// beside it whether runs are recorded at all.
///
/// The word names the performance mode by a number whose text was written before: stored with
/// release and loaded with acquire, so that whoever has the number, and the sealer that gets it from
/// there, has the text, too.
#[derive(Debug)]
pub(crate) struct CurrentConditions(AtomicU32, AtomicBool);

impl CurrentConditions {
    pub(crate) fn new() -> Self {
        Self(
            AtomicU32::new(PackedConditions::unknown().0),
            AtomicBool::new(true),
        )
    }

    pub(crate) fn set(&self, conditions: PackedConditions) {
        self.0.store(conditions.0, Ordering::Release);
    }

    /// All but the thermal status, which stays.
    pub(crate) fn set_but_thermal(&self, conditions: PackedConditions) {
        self.update(|now| conditions.with_thermal_of(now));
    }

    /// The thermal status alone; the rest stays.
    pub(crate) fn set_thermal(&self, thermal: Thermal) {
        let heat = PackedConditions::new(thermal, PowerSave::Unknown, NameId::default());
        self.update(|now| now.with_thermal_of(heat));
    }

    fn update(&self, changed: impl Fn(PackedConditions) -> PackedConditions) {
        let changed = |now| Some(changed(PackedConditions(now)).0);
        // It cannot fail: the closure always has a value.
        let _ = (self.0).fetch_update(Ordering::Release, Ordering::Relaxed, changed);
    }

    /// Whether consent is given: without it nothing is kept of a run, not even its number.
    #[inline]
    pub(crate) fn is_recording(&self) -> bool {
        self.1.load(Ordering::Relaxed)
    }

    pub(crate) fn set_recording(&self, is_recording: bool) {
        self.1.store(is_recording, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn get(&self) -> PackedConditions {
        PackedConditions(self.0.load(Ordering::Acquire))
    }
}

/// Sets the conditions of a process without touching its core.
#[derive(Debug, Clone)]
pub(crate) struct ConditionsSetter {
    modes: Arc<Names>,
    current: Arc<CurrentConditions>,
    is_thermal_read: bool,
}

impl ConditionsSetter {
    pub(crate) fn new(modes: Arc<Names>, current: Arc<CurrentConditions>) -> Self {
        Self {
            modes,
            current,
            is_thermal_read: false,
        }
    }

    /// Whether the SDK reads the thermal status by itself: then the host's does not count.
    pub(crate) fn with_thermal_read(mut self, is_read: bool) -> Self {
        self.is_thermal_read = is_read;
        self
    }

    #[cfg(test)]
    pub(crate) fn current(&self) -> PackedConditions {
        self.current.get()
    }

    pub(crate) fn set_thermal(&self, thermal: Thermal) {
        self.current.set_thermal(thermal);
    }

    pub(crate) fn set(&self, conditions: &Conditions) {
        // A mode that another thread is adding right now is unknown until the next call.
        let mode = self.modes.try_id(&conditions.performance_mode);
        let (thermal, power_save) = (conditions.thermal, conditions.power_save);
        let packed = PackedConditions::new(thermal, power_save, mode.unwrap_or_default());
        match self.is_thermal_read {
            true => self.current.set_but_thermal(packed),
            false => self.current.set(packed),
        }
    }
}

fn position<T: PartialEq>(all: &[T], value: T) -> u8 {
    let at = all.iter().position(|v| *v == value);
    at.and_then(|at| u8::try_from(at).ok()).unwrap_or(u8::MAX)
}

fn at<T: Copy>(all: &[T], position: u8) -> Option<T> {
    all.get(usize::from(position)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_and_the_rest_change_apart() {
        let current = CurrentConditions::new();
        let set = |thermal| PackedConditions::new(thermal, PowerSave::On, NameId(3));
        current.set_but_thermal(set(Thermal::Severe));
        assert_eq!(current.get(), set(Thermal::Unknown));
        for &thermal in Thermal::ALL {
            current.set_thermal(thermal);
            assert_eq!(current.get(), set(thermal));
            current.set_but_thermal(set(Thermal::Shutdown));
            assert_eq!(current.get(), set(thermal));
        }
    }

    #[test]
    fn every_condition_comes_back() {
        let current = CurrentConditions::new();
        assert_eq!(current.get(), PackedConditions::unknown());
        for &thermal in Thermal::ALL {
            for &power_save in PowerSave::ALL {
                let conditions = PackedConditions::new(thermal, power_save, NameId(7));
                current.set(conditions);
                let got = current.get();
                assert_eq!((got.thermal(), got.power_save()), (thermal, power_save));
                assert_eq!(got.mode(), NameId(7));
            }
        }
    }
}
