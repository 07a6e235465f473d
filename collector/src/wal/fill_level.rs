//! How full the WAL is, and what is said of it: once when it begins to fill, once when it refuses what comes, and
//! once when it takes again.

/// How far the WAL has filled up to its `max_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FillLevel {
    /// There is room.
    Low,
    /// Four fifths are held.
    High,
    /// Something was refused.
    Full,
}

impl FillLevel {
    /// How it is now. Each level is left a good deal below where it is
    /// entered, so that a WAL at its edge does not say the same again and again.
    pub(super) fn after(self, held: u64, limit: u64, was_refused: bool) -> Self {
        let is_above = |percent: u64| held >= limit / 100 * percent;
        match self {
            _ if was_refused => Self::Full,
            Self::Full if is_above(95) => Self::Full,
            Self::Full | Self::High if is_above(70) => Self::High,
            Self::Low if is_above(80) => Self::High,
            _ => Self::Low,
        }
    }

    /// Says what changed.
    pub(super) fn tell(self, now: Self, held: u64, limit: u64) {
        match (self, now) {
            (Self::Low | Self::High, Self::Full) => tracing::error!(
                held,
                limit,
                "wal refuses reports: wal.max_bytes wait for the store"
            ),
            (Self::Full, Self::Low | Self::High) => {
                tracing::info!(
                    held,
                    limit,
                    "wal takes reports again: the store has taken some"
                );
            }
            (Self::Low, Self::High) => tracing::warn!(
                held,
                limit,
                "wal fills up: the store is away or slower than the devices"
            ),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_is_entered_once_and_left_well_below() {
        let mut fill = FillLevel::Low;
        for (held, was_refused, expected) in [
            (799, false, FillLevel::Low),
            (800, false, FillLevel::High),
            (750, false, FillLevel::High),
            (801, false, FillLevel::High),
            (699, false, FillLevel::Low),
            (990, false, FillLevel::High),
            (990, true, FillLevel::Full),
            // Devices come again after half a minute: that nobody was refused says nothing.
            (990, false, FillLevel::Full),
            (951, false, FillLevel::Full),
            (949, false, FillLevel::High),
            (980, false, FillLevel::High),
            (980, true, FillLevel::Full),
            (100, false, FillLevel::Low),
            // A large batch does not fit where small ones do.
            (100, true, FillLevel::Full),
            (100, false, FillLevel::Low),
        ] {
            fill = fill.after(held, 1_000, was_refused);
            assert_eq!(fill, expected, "{held} {was_refused}");
        }
    }
}
