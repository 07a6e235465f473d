//! Sentences about where the work runs.

use std::fmt;

use crate::baseline::Origin;
use crate::placement::Unit;
use crate::reason::percent;
use crate::signals::TOTAL_FALLBACK_BELOW;

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unit::Macs => "MACs",
            Unit::Nodes => "nodes",
        })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Origin::PreviousVersion => "the previous version on this chipset",
            Origin::Certified => "the certified placement",
            Origin::OtherChipsets => "the median of other chipsets",
            Origin::SameVersion => "this version before on this chipset",
        })
    }
}

pub(super) fn moved_to_cpu(
    f: &mut fmt::Formatter<'_>,
    (hits, devices): (u64, u64),
    npu_shares: Option<(f64, f64)>,
    unit: Unit,
    origin: Origin,
) -> fmt::Result {
    write!(
        f,
        "{hits} of {devices} devices run more on the CPU than {origin}"
    )?;
    if let Some((now, before)) = npu_shares {
        let (now, before) = (percent(now), percent(before));
        write!(f, ": {now} of the {unit} on the NPU instead of {before}")?;
    }
    Ok(())
}

pub(super) fn on_runtime(f: &mut fmt::Formatter<'_>, runtimes: &[String]) -> fmt::Result {
    write!(
        f,
        "all of them run it with another runtime than the reference ({}), which may be why",
        runtimes.join(", ")
    )
}

pub(super) fn new_runtime(f: &mut fmt::Formatter<'_>, runtimes: &[String]) -> fmt::Result {
    write!(
        f,
        "the devices hit have another runtime than the reference ({}), which may only count nodes \
         differently",
        runtimes.join(", ")
    )
}

pub(super) fn hardly_on_npu(f: &mut fmt::Formatter<'_>, off_npu: u64, devices: u64) -> fmt::Result {
    write!(
        f,
        "the model asks for the NPU, which has under {} of the work on {off_npu} of the {devices} \
         devices whose placement could be read; no version before and no certified placement says how \
         much it should have",
        percent(TOTAL_FALLBACK_BELOW)
    )
}
