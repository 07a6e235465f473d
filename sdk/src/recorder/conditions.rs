//! Conditions under which a run is measured: set by the host, read by every run.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use epwatch_proto::{PowerSave, Thermal};

use crate::{
    policy,
    recorder::interner::{Interner, TextId},
    types,
};

/// Thermal state, power save and performance mode. All default to "unknown", which is not "none".
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Conditions {
    /// Thermal status by Android's scale.
    pub thermal: types::Thermal,
    /// Whether the device saves power.
    pub power_save: types::PowerSave,
    /// The host's name of the performance mode, for example `sustained`, at most 32 bytes. Empty if unknown. A process
    /// keeps 16 names; further names become `other`.
    pub performance_mode: String,
}

impl Default for Conditions {
    fn default() -> Self {
        Self {
            thermal: types::Thermal::Unknown,
            power_save: types::PowerSave::Unknown,
            performance_mode: String::new(),
        }
    }
}

impl Conditions {
    /// No condition is known.
    pub fn unknown() -> Self {
        Self::default()
    }

    /// Sets the thermal status.
    #[must_use]
    pub fn with_thermal(mut self, thermal: types::Thermal) -> Self {
        self.thermal = thermal;
        self
    }

    /// Sets the power-save state.
    #[must_use]
    pub fn with_power_save(mut self, power_save: types::PowerSave) -> Self {
        self.power_save = power_save;
        self
    }

    /// Sets the performance mode.
    #[must_use]
    pub fn with_performance_mode(mut self, mode: impl Into<String>) -> Self {
        self.performance_mode = mode.into();
        self
    }

    pub(crate) fn packed(&self, mode: TextId) -> PackedConditions {
        PackedConditions::new(self.thermal.into(), self.power_save.into(), mode)
    }
}

/// Conditions in one word, as part of a series' key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PackedConditions(pub(crate) u32);

impl PackedConditions {
    pub(crate) fn new(thermal: Thermal, power_save: PowerSave, mode: TextId) -> Self {
        let bytes = [thermal as u8, power_save as u8, mode.0, 0];
        Self(u32::from_le_bytes(bytes))
    }

    pub(crate) fn unknown() -> Self {
        Self::new(Thermal::Unknown, PowerSave::Unknown, TextId::default())
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

    pub(crate) fn mode(self) -> TextId {
        let [_, _, mode, _] = self.0.to_le_bytes();
        TextId(mode)
    }
}

/// The current conditions in one atomic word, so that a run reads them without waiting, and whether runs are
/// recorded. A process has one; host, sessions and sealer share it without locking the core.
///
/// The word holds the id of the performance mode, whose text was interned before. Release and acquire ensure that a
/// reader of the id, and the sealer after it, also sees the text.
#[derive(Debug)]
pub(crate) struct CurrentConditions {
    word: AtomicU32,
    is_recording: AtomicBool,
    modes: Interner,
}

impl CurrentConditions {
    pub(crate) fn new() -> Self {
        Self {
            word: AtomicU32::new(PackedConditions::unknown().0),
            is_recording: AtomicBool::new(true),
            modes: Interner::new(policy::MAX_PERFORMANCE_MODES, 32),
        }
    }

    /// Names of performance modes.
    pub(crate) fn modes(&self) -> &Interner {
        &self.modes
    }

    /// Takes the host's conditions. Ignores their thermal status if the SDK reads the status itself.
    pub(crate) fn set(&self, conditions: &Conditions, is_thermal_read: bool) {
        // A mode that another thread is adding right now stays unknown until the next call.
        let mode = self.modes.try_intern(&conditions.performance_mode);
        let packed = conditions.packed(mode.unwrap_or_default());
        match is_thermal_read {
            true => self.store_except_thermal(packed),
            false => self.store(packed),
        }
    }

    /// Returns the current conditions, for a child of a fork.
    pub(crate) fn conditions(&self) -> Conditions {
        let packed = self.get();
        Conditions {
            thermal: packed.thermal().into(),
            power_save: packed.power_save().into(),
            performance_mode: self.modes.text(packed.mode()).to_owned(),
        }
    }

    fn store(&self, conditions: PackedConditions) {
        self.word.store(conditions.0, Ordering::Release);
    }

    /// Stores everything except the thermal status, which stays unchanged.
    fn store_except_thermal(&self, conditions: PackedConditions) {
        self.update(|now| conditions.with_thermal_of(now));
    }

    /// Changes only the thermal status.
    pub(crate) fn set_thermal(&self, thermal: Thermal) {
        let heat = PackedConditions::new(thermal, PowerSave::Unknown, TextId::default());
        self.update(|now| now.with_thermal_of(heat));
    }

    fn update(&self, changed: impl Fn(PackedConditions) -> PackedConditions) {
        let changed = |now| Some(changed(PackedConditions(now)).0);
        // Cannot fail: the closure always returns a value.
        let _ = self
            .word
            .fetch_update(Ordering::Release, Ordering::Relaxed, changed);
    }

    /// `false` without consent: then no data of a run is kept, not even its count.
    #[inline]
    pub(crate) fn is_recording(&self) -> bool {
        self.is_recording.load(Ordering::Relaxed)
    }

    pub(crate) fn set_recording(&self, is_recording: bool) {
        self.is_recording.store(is_recording, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn get(&self) -> PackedConditions {
        PackedConditions(self.word.load(Ordering::Acquire))
    }
}

pub(super) fn at<T: Copy>(all: &[T], position: u8) -> Option<T> {
    all.get(usize::from(position)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_and_the_rest_change_apart() {
        let current = CurrentConditions::new();
        let set = |thermal| PackedConditions::new(thermal, PowerSave::On, TextId(3));
        current.store_except_thermal(set(Thermal::Severe));
        assert_eq!(current.get(), set(Thermal::Unknown));
        for &thermal in Thermal::ALL {
            current.set_thermal(thermal);
            assert_eq!(current.get(), set(thermal));
            current.store_except_thermal(set(Thermal::Shutdown));
            assert_eq!(current.get(), set(thermal));
        }
    }

    #[test]
    fn every_condition_comes_back() {
        let current = CurrentConditions::new();
        assert_eq!(current.get(), PackedConditions::unknown());
        for &thermal in Thermal::ALL {
            for &power_save in PowerSave::ALL {
                let conditions = PackedConditions::new(thermal, power_save, TextId(7));
                current.store(conditions);
                let got = current.get();
                assert_eq!((got.thermal(), got.power_save()), (thermal, power_save));
                assert_eq!(got.mode(), TextId(7));
            }
        }
    }
}
