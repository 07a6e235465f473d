//! A collector's decisions about the sender of a report, as bytes before its rows.

use crate::judge::sybil_resistance::{NetworkHash, Sender};
use crate::read::packed::rows;
use crate::read::varint;

/// A collector's decisions about the sender of a report, if there are any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SenderDecision {
    /// Whether the installation was unproven; `None` if no collector decided that.
    pub is_unproven: Option<bool>,
    /// The sender; `None` if no collector recorded it.
    pub sender: Option<Sender>,
}

const DECIDED: u8 = 1;
const UNPROVEN: u8 = 2;
const SENT: u8 = 4;
const OWN: u8 = 8;
const FROM_NETWORK: u8 = 16;

impl SenderDecision {
    pub(super) fn pack(self, to: &mut Vec<u8>) {
        let network = self.sender.and_then(|sender| sender.network);
        let flags = [
            (self.is_unproven.is_some(), DECIDED),
            (self.is_unproven == Some(true), UNPROVEN),
            (self.sender.is_some(), SENT),
            (self.sender.is_some_and(|sender| sender.is_own), OWN),
            (network.is_some(), FROM_NETWORK),
        ];
        let set = flags.into_iter().filter(|(is_set, _)| *is_set);
        to.push(set.map(|(_, flag)| flag).sum());
        if let Some(NetworkHash { narrow, wide }) = network {
            varint::push(to, narrow.into());
            varint::push(to, wide.into());
        }
    }

    pub(super) fn take(from: &mut &[u8]) -> Self {
        let flags = rows::byte(from);
        let has = |flag| flags & flag != 0;
        let network = has(FROM_NETWORK).then(|| NetworkHash {
            narrow: rows::number(from),
            wide: rows::number(from),
        });
        let sender = Sender {
            is_own: has(OWN),
            network,
        };
        Self {
            is_unproven: has(DECIDED).then(|| has(UNPROVEN)),
            sender: has(SENT).then_some(sender),
        }
    }
}
