//! Orders of people, as in the store and in an incident's document, and the size of a fault that an order ended.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::named;

named! {
    /// Kind of a person's order.
    pub enum OrderKind {
        /// Somebody works on the incident.
        Ack = "ack",
        /// Channels are silent until a time.
        Mute = "mute",
        /// The incident is over; the same fault notifies again if it grows by half, or after a clean window.
        Resolve = "resolve",
        /// The state is intended; it becomes this version's reference.
        Accept = "accept",
        /// There was never a fault. The incident ends as with a resolve, and counts as a false alarm.
        False = "false",
        /// Cancels the orders that are in force.
        Reopen = "reopen",
    }
}

impl OrderKind {
    /// Returns what an order that ends an incident means from then on, as a part of a sentence.
    #[must_use]
    pub fn effect(self) -> &'static str {
        match self {
            OrderKind::Accept => {
                "accepted: this version is quiet until it gets worse, and the next one is compared with it"
            }
            OrderKind::False => {
                "called false: nothing was wrong; the same finding is quiet until it grows by half, or comes back after a \
                 clean window"
            }
            _ => {
                "the same fault is quiet until it grows by half, or comes back after a clean window"
            }
        }
    }
}

/// One order, as the store has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// Its number among the orders of its incident.
    pub n: u64,
    /// The effect that the person asks for.
    pub kind: OrderKind,
    /// Name of the person who ordered it.
    pub who: String,
    /// When it was ordered.
    pub at: Timestamp,
    /// End of a mute.
    pub until: Option<Timestamp>,
    /// The person's reason.
    pub why: String,
}

/// The orders of an incident that are in force.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Orders {
    /// Number of the last order that was handed in.
    pub last: u64,
    /// The person who works on it.
    pub ack: Option<Order>,
    /// The mute that keeps channels silent, while it is in force.
    pub mute: Option<Order>,
    /// Whether the incident was ever muted. An Alertmanager may then have a silence for it.
    pub was_muted: bool,
    /// The order (resolve, accept or false) that ended the incident.
    pub end: Option<Order>,
    /// The size of the ended fault, while it stays quiet.
    pub hold: Option<Hold>,
    /// The news that the last order caused.
    pub news: Option<OrderNews>,
}

/// News of an incident that an order caused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderNews {
    /// The number of the incident's latest news at that time.
    pub news: u64,
    /// Kind of the order. A mute that expires counts as a reopen.
    pub kind: OrderKind,
}

/// The size of a fault when a person ended it, or when it was repaired.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hold {
    /// Devices hit, over its chipsets.
    pub devices_hit: u64,
    /// The fault's effect by chipset. A chipset is removed at its first clean window, or when it gets worse than
    /// accepted.
    pub chipsets: BTreeMap<String, HeldEffect>,
    /// Chipsets that were removed at a clean window.
    pub cleared: BTreeSet<String>,
    /// End of a recent window in which the version was judged; updated about once a day.
    pub seen_until: Timestamp,
    /// End of the first window in which a recovered fault notifies again, whether or not it grew or was clean before.
    /// `None` for a fault that a person ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// The effect of a fault on a chipset: the worst of its firmwares.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldEffect {
    /// Ratio of median latency to its reference.
    pub latency_ratio: Option<f64>,
    /// Share of the work on the CPU, in [0, 1].
    pub cpu_share: Option<f64>,
}

impl Orders {
    /// Whether channels are silent at this time.
    #[must_use]
    pub fn is_muted(&self, now: Timestamp) -> bool {
        self.muted_until().is_some_and(|until| until > now)
    }

    /// Returns the end of the mute, which may be past.
    #[must_use]
    pub fn muted_until(&self) -> Option<Timestamp> {
        self.mute.as_ref()?.until
    }
}
