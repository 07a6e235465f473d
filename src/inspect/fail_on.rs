//! Rules of `inspect --fail-on`, for a pipeline.

use std::str::FromStr;

/// Rule of a pipeline for a chipset. A session that cannot be made breaks every rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum FailOn {
    /// A computing node on the CPU.
    Cpu,
    /// A session that cannot be made.
    Failed,
    /// More than this share of the MACs on the CPU.
    Macs(f64),
}

impl FromStr for FailOn {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let percent = text
            .strip_prefix("macs=")
            .and_then(|t| t.strip_suffix('%'))
            .and_then(|t| t.parse::<f64>().ok())
            .filter(|percent| (0.0..=100.0).contains(percent));
        match (text, percent) {
            ("cpu", _) => Ok(Self::Cpu),
            ("failed", _) => Ok(Self::Failed),
            (_, Some(percent)) => Ok(Self::Macs(percent / 100.0)),
            _ => Err("expected cpu, failed or for example macs=2%".to_owned()),
        }
    }
}
