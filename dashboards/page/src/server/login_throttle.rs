//! Limits wrong tokens. For each address, ten a minute are answered as wrong, and further ones with 429. A right token
//! is not counted.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Maximum number of wrong tokens of a peer in a minute.
const MAX_TRIES: u32 = 10;

const MINUTE: Duration = Duration::from_secs(60);

/// Maximum number of peers with a count of their own; all further peers share one count.
const MAX_PEERS: usize = 1024;

/// Wrong tokens by peer.
#[derive(Debug, Default)]
pub(crate) struct LoginThrottle {
    peers: HashMap<IpAddr, (Instant, u32)>,
    others: Option<(Instant, u32)>,
}

impl LoginThrottle {
    /// Whether a peer's wrong token is answered as wrong; otherwise it gets 429.
    pub(crate) fn may_try(&self, peer: IpAddr, now: Instant) -> bool {
        let of_peer = self.peers.get(&peer).or(self.others.as_ref());
        of_peer.is_none_or(|(since, n)| now.duration_since(*since) >= MINUTE || *n < MAX_TRIES)
    }

    /// Counts a wrong token.
    pub(crate) fn failed(&mut self, peer: IpAddr, now: Instant) {
        let is_over = |since: &Instant| now.duration_since(*since) >= MINUTE;
        if self.peers.len() >= MAX_PEERS && !self.peers.contains_key(&peer) {
            self.peers.retain(|_, (since, _)| !is_over(since));
        }
        let is_full = self.peers.len() >= MAX_PEERS && !self.peers.contains_key(&peer);
        let entry = match is_full {
            true => self.others.get_or_insert((now, 0)),
            false => self.peers.entry(peer).or_insert((now, 0)),
        };
        if is_over(&entry.0) {
            *entry = (now, 0);
        }
        entry.1 += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn ten_wrong_tokens_a_minute_and_no_more() {
        let (peer, other) = (
            IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
            IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
        );
        let start = Instant::now();
        let mut tries = LoginThrottle::default();
        for _ in 0..10 {
            assert!(tries.may_try(peer, start));
            tries.failed(peer, start);
        }
        assert!(!tries.may_try(peer, start));
        assert!(tries.may_try(other, start));
        assert!(tries.may_try(peer, start + MINUTE));
    }

    /// Memory stays bounded, and a flood of addresses does not reset the limit.
    #[test]
    fn many_peers_share_one_count() {
        let start = Instant::now();
        let mut tries = LoginThrottle::default();
        for n in 0..2_000_u32 {
            tries.failed(IpAddr::V4(Ipv4Addr::from(n)), start);
        }
        assert_eq!(tries.peers.len(), MAX_PEERS);
        assert!(!tries.may_try(IpAddr::V4(Ipv4Addr::from(5_000)), start));
    }
}
