//! How full the log is, and what is said of it: once when it begins to fill, once when it refuses what comes, and
//! once when it takes again.

/// How far the log has filled up to its `max_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fill {
    /// There is room.
    Low,
    /// Four fifths are held.
    High,
    /// Something was refused.
    Full,
}

impl Fill {
    /// How it is now. Each level is left a good deal below where it is
    /// entered, so that a log at its edge does not say the same again and again.
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
        let mut fill = Fill::Low;
        for (held, was_refused, expected) in [
            (799, false, Fill::Low),
            (800, false, Fill::High),
            (750, false, Fill::High),
            (801, false, Fill::High),
            (699, false, Fill::Low),
            (990, false, Fill::High),
            (990, true, Fill::Full),
            // Devices come again after half a minute: that nobody was refused says nothing.
            (990, false, Fill::Full),
            (951, false, Fill::Full),
            (949, false, Fill::High),
            (980, false, Fill::High),
            (980, true, Fill::Full),
            (100, false, Fill::Low),
            // A large batch does not fit where small ones do.
            (100, true, Fill::Full),
            (100, false, Fill::Low),
        ] {
            fill = fill.after(held, 1_000, was_refused);
            assert_eq!(fill, expected, "{held} {was_refused}");
        }
    }
}
