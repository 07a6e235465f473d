//! The networks of a fleet's devices, and the key that they report with.

use epwatch_detector::read::recorded::SenderDecision;
use epwatch_detector::{NetworkHash, Sender};
use epwatch_proto::InstallationId;

/// The kind of the key of all devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Keys {
    /// The kind is unknown, as in recordings that lack it, so no device is weighed.
    #[default]
    Unknown,
    /// `own`.
    Own,
    /// `app`: networks and days weigh devices.
    App,
}

/// Number of carriers with few addresses. Next are the networks of each carrier, and the networks at home.
const CARRIERS: u32 = 3;
const OF_CARRIER: u32 = 8;
const WIDE_AT_HOME: u32 = 300;
const OF_WIDE_AT_HOME: u32 = 200;

impl Keys {
    /// Returns the sender's data for a device's reports. A third of the devices use carriers, and the others networks
    /// at home.
    pub(crate) fn mark(self, installation: InstallationId) -> SenderDecision {
        let sender = (self != Self::Unknown).then(|| Sender {
            is_own: self == Self::Own,
            network: Some(network(installation)),
        });
        SenderDecision {
            is_unproven: None,
            sender,
        }
    }
}

fn network(installation: InstallationId) -> NetworkHash {
    let mut bits = u128::from_le_bytes(*installation.as_bytes());
    let mut below = |n: u32| {
        let drawn = bits % u128::from(n);
        bits /= u128::from(n);
        u32::try_from(drawn).unwrap_or_default()
    };
    let (wide, narrow) = match below(3) {
        0 => (below(CARRIERS), below(OF_CARRIER)),
        _ => (CARRIERS + below(WIDE_AT_HOME), below(OF_WIDE_AT_HOME)),
    };
    NetworkHash {
        wide: wide + 1,
        narrow: wide * OF_WIDE_AT_HOME + narrow + 1,
    }
}
