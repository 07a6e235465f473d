//! The latency of the CPU alone, measured on devices that run all of the model there, and the latency of the devices
//! hit. `verdict` computes it, `next_step` ranks steps by it.

use std::collections::BTreeMap;

use epwatch_model::{Installation, TOTAL_FALLBACK_BELOW};
use epwatch_stats::order_stat::median;

use crate::judge::signals::PlacementChange;
use crate::judge::window::CohortWindow;

/// Median latencies with the input shape that most devices on the CPU alone have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CpuAlone {
    /// Latency of the devices on the CPU alone, in microseconds.
    pub(crate) p50_us: f64,
    pub(crate) devices: u64,
    /// Latency of the devices hit that still have work on the NPU, in microseconds.
    pub(crate) hit_p50_us: f64,
}

impl CpuAlone {
    /// `None` unless both kinds of devices have runs with one input shape.
    pub(crate) fn measured(window: &CohortWindow, change: &PlacementChange) -> Option<Self> {
        // A device with several placements of one kind has a vote for each, but counts once, with its slowest vote.
        type Devices = BTreeMap<Installation, f64>;
        let mut by_shape: BTreeMap<&str, (Devices, Devices)> = BTreeMap::new();
        for vote in &window.votes {
            let share = vote.placement.npu_share();
            let low = vote.latency.as_ref().and_then(|latency| latency.low);
            let Some(((share, _), low)) = share.zip(low) else {
                continue;
            };
            let (cpu, hit) = by_shape.entry(&vote.shape_key).or_default();
            let devices = match share < TOTAL_FALLBACK_BELOW {
                true => cpu,
                false if change.hit_devices.contains(&vote.installation) => hit,
                false => continue,
            };
            let slowest = devices.entry(vote.installation).or_insert(low.p50_us);
            *slowest = slowest.max(low.p50_us);
        }
        let median = |of: &Devices| median(&of.values().copied().collect::<Vec<_>>());
        let both = by_shape.into_values().filter(|(_, hit)| !hit.is_empty());
        let (cpu, hit) = both.max_by_key(|(cpu, _)| cpu.len())?;
        Some(Self {
            p50_us: median(&cpu)?,
            devices: cpu.len() as u64,
            hit_p50_us: median(&hit)?,
        })
    }
}
