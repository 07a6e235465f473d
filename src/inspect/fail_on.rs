//! Rules of `inspect --fail-on`, for a pipeline.

use std::str::FromStr;

/// A pipeline's rule for each chipset. A session that cannot be made breaks every rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum FailOn {
    /// Broken by a computing node on the CPU.
    Cpu,
    /// Broken by a session that cannot be made.
    Failed,
    /// Broken by more than this share of the MACs on the CPU.
    Macs(f64),
}

impl FromStr for FailOn {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share = text.strip_prefix("macs=").and_then(share_of_percent);
        match (text, share) {
            ("cpu", _) => Ok(Self::Cpu),
            ("failed", _) => Ok(Self::Failed),
            (_, Some(share)) => Ok(Self::Macs(share)),
            _ => Err("expected cpu, failed or for example macs=2%".to_owned()),
        }
    }
}

/// Reads a percentage as a share, 0 to 1.
pub(crate) fn share_of_percent(text: &str) -> Option<f64> {
    let percent: f64 = text.strip_suffix('%')?.parse().ok()?;
    (0.0..=100.0).contains(&percent).then_some(percent / 100.0)
}
