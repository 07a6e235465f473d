//! The references that a cohort's placements and latencies are compared with.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::placement::{Placement, PlacementMethod, WorkUnit};

/// Where a reference placement comes from, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The previous version on the same chipset, in the window or before.
    PreviousVersion,
    /// Certified by a lab for this model and chipset.
    Certified,
    /// The median over at least two other chipsets with the same version.
    OtherChipsets,
    /// The same version on this chipset before the window. It is used if nothing else is comparable. It shows what
    /// changed, not whether the earlier placement was right.
    SameVersion,
}

/// A placement, or a share of one, to compare with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PlacementReference {
    /// A whole placement.
    Placement {
        /// Where it comes from; decides which reference counts.
        origin: Origin,
        /// Where the model ran.
        placement: Placement,
    },
    /// Only the NPU's share of the work. Chipsets place differently by design, so small differences mean nothing.
    MedianShare {
        /// How the placements behind it were read.
        method: PlacementMethod,
        /// The NPU's share of the work, in [0, 1].
        npu_share: f64,
        /// Whether the share is of MACs or of nodes.
        unit: WorkUnit,
        /// How many chipsets it comes from.
        chipsets: usize,
    },
}

impl PlacementReference {
    /// Returns where it comes from.
    #[must_use]
    pub fn origin(&self) -> Origin {
        match self {
            Self::Placement { origin, .. } => *origin,
            Self::MedianShare { .. } => Origin::OtherChipsets,
        }
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

/// The reference of devices with a worse placement, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpeedReference {
    /// Devices of the same version with the old placement, same window.
    SameVersion,
    /// Devices still on the previous version, same window.
    PreviousVersion,
    /// The devices' own past.
    OwnPast,
    /// The previous version before the window; without one, this version.
    BaselineWindow,
    /// Launches that were measured for the certificate.
    Certified,
}

impl SpeedReference {
    /// Whether momentary heat and load cancel out, because both sides ran in the same window.
    #[must_use]
    pub fn is_concurrent(self) -> bool {
        matches!(
            self,
            SpeedReference::SameVersion | SpeedReference::PreviousVersion
        )
    }
}

impl fmt::Display for SpeedReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SpeedReference::SameVersion => "devices of the same version that kept their placement",
            SpeedReference::PreviousVersion => "devices still on the previous version",
            SpeedReference::OwnPast => "the same devices before",
            SpeedReference::BaselineWindow => "this chipset before this window",
            SpeedReference::Certified => "the launches of its certificate",
        })
    }
}
