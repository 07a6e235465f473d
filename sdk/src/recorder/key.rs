//! Key of a series inside its session, in one word that a run can compare.

use epwatch_proto::{Phase, SessionAge};

use crate::recorder::{
    conditions::{PackedConditions, at},
    interner::TextId,
};

/// p95 of the first baseline, by [`TextId`] of the shape.
pub(super) type P95s = [Option<f64>; 256];

/// Phase, age band, input shape and conditions, one to three bytes each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SeriesKey(u64);

impl SeriesKey {
    #[inline]
    pub(crate) fn new(
        phase: Phase,
        conditions: PackedConditions,
        shape: TextId,
        age: SessionAge,
    ) -> Self {
        let (phase, age) = (phase as u64, age as u64);
        Self(phase << 56 | age << 48 | u64::from(shape.0) << 32 | u64::from(conditions.0))
    }

    /// Key of the overflow series, for runs after the session has reached its limit of series.
    pub(crate) fn overflow(self) -> Self {
        let conditions = PackedConditions::unknown();
        Self::new(self.phase(), conditions, TextId::OTHER, SessionAge::Unknown)
    }

    pub(crate) fn is_overflow(self) -> bool {
        self == self.overflow()
    }

    pub(crate) fn number(self) -> u64 {
        self.0
    }

    pub(crate) fn phase(self) -> Phase {
        at(Phase::ALL, self.byte(7)).unwrap_or(Phase::Cold)
    }

    pub(crate) fn age(self) -> SessionAge {
        at(SessionAge::ALL, self.byte(6)).unwrap_or(SessionAge::Unknown)
    }

    pub(crate) fn shape(self) -> TextId {
        TextId(self.byte(4))
    }

    pub(crate) fn conditions(self) -> PackedConditions {
        let [a, b, c, d, ..] = self.0.to_le_bytes();
        PackedConditions(u32::from_le_bytes([a, b, c, d]))
    }

    fn byte(self, at: usize) -> u8 {
        self.0.to_le_bytes()[at]
    }
}

#[cfg(test)]
mod tests {
    use epwatch_proto::{PowerSave, Thermal};

    use super::*;

    #[test]
    fn every_part_comes_back() {
        for &age in SessionAge::ALL {
            for &phase in Phase::ALL {
                let conditions =
                    PackedConditions::new(Thermal::Shutdown, PowerSave::On, TextId(255));
                let key = SeriesKey::new(phase, conditions, TextId(254), age);
                assert_eq!((key.phase(), key.age()), (phase, age));
                assert_eq!((key.conditions(), key.shape()), (conditions, TextId(254)));
                assert!(!key.is_overflow() && key.overflow().is_overflow());
                assert_eq!(key.overflow().phase(), phase);
            }
        }
    }
}
