//! Fill level of the WAL, with hysteresis, and its log lines. There is one line when the WAL fills up, one when it
//! refuses reports, and one when it accepts them again.

/// Level of the held bytes against `max_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FillLevel {
    Low,
    /// Four fifths are used.
    High,
    /// An append was refused.
    Full,
}

impl FillLevel {
    /// Returns the next level. A level ends well below the point where it begins, so that a WAL at the edge does not
    /// log repeatedly.
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

    /// Logs a change of level.
    pub(super) fn log_change(self, now: Self, held: u64, limit: u64) {
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
            // Devices retry after half a minute, so a second without a refusal means nothing.
            (990, false, FillLevel::Full),
            (951, false, FillLevel::Full),
            (949, false, FillLevel::High),
            (980, false, FillLevel::High),
            (980, true, FillLevel::Full),
            (100, false, FillLevel::Low),
            // A large batch was refused, although small batches would still fit.
            (100, true, FillLevel::Full),
            (100, false, FillLevel::Low),
        ] {
            fill = fill.after(held, 1_000, was_refused);
            assert_eq!(fill, expected, "{held} {was_refused}");
        }
    }
}
