//! Sentences about latency.

use std::fmt;

use crate::reason::{latency, percent};
use crate::signals::SpeedReference;

impl fmt::Display for SpeedReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SpeedReference::SameVersion => "devices of the same version that kept their placement",
            SpeedReference::PreviousVersion => "devices still on the previous version",
            SpeedReference::OwnPast => "the same devices before",
            SpeedReference::BaselineWindow => "this chipset before this window",
        })
    }
}

pub(super) fn slower(
    f: &mut fmt::Formatter<'_>,
    (slower, compared, hits): (u64, u64, u64),
    (p50_us, reference_p50_us): (f64, f64),
    reference: SpeedReference,
) -> fmt::Result {
    if slower == compared {
        write!(f, "all {compared} of those")?;
    } else {
        write!(f, "{slower} of those {compared}")?;
    }
    if compared < hits {
        f.write_str(" that ran often enough to compare")?;
    }
    write!(
        f,
        " are slower: median latency {} against {} of {reference}",
        latency(p50_us),
        latency(reference_p50_us),
    )
}

pub(super) fn not_slower(f: &mut fmt::Formatter<'_>, slower: u64, compared: u64) -> fmt::Result {
    if 2 * slower <= compared {
        f.write_str("latency did not follow: ")?;
    }
    write!(
        f,
        "of those devices that ran often enough to compare, {slower} of {compared} are slower"
    )?;
    if 2 * slower > compared {
        f.write_str(", too few to be sure of it yet")?;
    }
    Ok(())
}

pub(super) fn intermittent(
    f: &mut fmt::Formatter<'_>,
    (hits, devices): (u64, u64),
    slow_share: Option<f64>,
    shape_is_known: bool,
) -> fmt::Result {
    write!(
        f,
        "{hits} of {devices} devices are slow in some of their runs and as fast as before in the others"
    )?;
    if let Some(share) = slow_share {
        let share = percent(share);
        write!(f, ": {share} of the runs take over twice their earlier p95")?;
    }
    if !shape_is_known {
        f.write_str("; input shapes are not known, so larger inputs may be why")?;
    }
    Ok(())
}
