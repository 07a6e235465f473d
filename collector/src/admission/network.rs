//! The network that a request comes from: the first 24 bits of an IPv4 address, or 48 of an IPv6 one. Around it is a
//! wider network, of 16 or 32 bits. Longer prefixes are never kept. The WAL and the store get only a hash of it, under
//! a key that the store keeps.
//!
//! Loopback and private addresses have no network: a proxy or a test sends from there. `X-Forwarded-For` counts only
//! from a proxy that the config trusts.

use std::net::IpAddr;

use epwatch_proto::{hex, unhex};
use epwatch_server::{AddressBlock, forwarded_for, is_trusted};
use hyper::HeaderMap;
use sha2::{Digest, Sha256};

use crate::config::NewInstallationsConfig;

/// This bit is set in networks of IPv4.
const V4: u64 = 1 << 56;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Network(u64);

/// The key of the hashes that stand for networks in the WAL and the store.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct NetworkKey([u8; NetworkKey::BYTES]);

impl std::fmt::Debug for NetworkKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NetworkKey(***)")
    }
}

impl NetworkKey {
    const BYTES: usize = 32;

    /// Makes a key from the system's random source.
    pub(crate) fn random() -> std::io::Result<Self> {
        let mut bytes = [0; Self::BYTES];
        getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
        Ok(Self(bytes))
    }

    pub(crate) fn from_hex(digits: &str) -> Option<Self> {
        Some(Self(unhex(digits)?.try_into().ok()?))
    }

    pub(crate) fn to_hex(&self) -> String {
        hex(&self.0)
    }

    /// Returns the hashes of a network at both widths; never 0. All inputs have the same length, so a hash cannot be
    /// extended to a longer input.
    pub(crate) fn hashes(&self, network: Network) -> [u32; 2] {
        let hash = |width: u8, bits: u64| {
            let hashed = Sha256::new()
                .chain_update(self.0)
                .chain_update([width])
                .chain_update(bits.to_le_bytes())
                .finalize();
            u32::from_le_bytes([hashed[0], hashed[1], hashed[2], hashed[3]]).max(1)
        };
        [hash(0, network.0), hash(1, network.wide().0)]
    }
}

impl Network {
    /// Returns the network of 16 or 32 bits around it.
    pub(crate) fn wide(self) -> Self {
        match self.0 & V4 != 0 {
            true => Self(self.0 & !0xff),
            false => Self(self.0 & !0xffff),
        }
    }

    /// `None` for addresses that are not public.
    pub(crate) fn of(address: IpAddr) -> Option<Self> {
        match address.to_canonical() {
            IpAddr::V4(v4) => {
                let [a, b, c, _] = v4.octets();
                let is_shared = a == 100 && b & 0b1100_0000 == 64;
                let is_public = !(v4.is_private()
                    || v4.is_loopback()
                    || v4.is_link_local()
                    || v4.is_unspecified()
                    || v4.is_broadcast()
                    || is_shared);
                is_public.then(|| Self(V4 | u64::from_be_bytes([0, 0, 0, 0, 0, a, b, c])))
            }
            IpAddr::V6(v6) => {
                let is_public = !(v6.is_loopback()
                    || v6.is_unspecified()
                    || v6.is_unique_local()
                    || v6.is_unicast_link_local());
                let [a, b, c, ..] = v6.segments();
                let bits = u64::from(a) << 32 | u64::from(b) << 16 | u64::from(c);
                is_public.then_some(Self(bits))
            }
        }
    }
}

/// Finds the network of a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Origins {
    trusted_proxies: Vec<AddressBlock>,
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    /// Nothing is known about it: the stream has no socket.
    #[cfg_attr(
        not(any(test, feature = "fuzzing")),
        expect(dead_code, reason = "of tests")
    )]
    Unknown,
    /// The address has no network.
    Private(IpAddr),
    /// A device, or a proxy that is not trusted.
    Device(Network),
    /// A trusted proxy: the request's headers name the device's address.
    Proxy,
}

impl Peer {
    /// The address of a peer without a network.
    pub(crate) fn private(self) -> Option<IpAddr> {
        match self {
            Peer::Private(address) => Some(address),
            _ => None,
        }
    }
}

impl Origins {
    pub(crate) fn new(config: &NewInstallationsConfig) -> Self {
        Self {
            trusted_proxies: config.trusted_proxies.clone().unwrap_or_default(),
        }
    }

    pub(crate) fn peer(&self, address: IpAddr) -> Peer {
        if is_trusted(address, &self.trusted_proxies) {
            return Peer::Proxy;
        }
        Network::of(address).map_or(Peer::Private(address), Peer::Device)
    }

    pub(crate) fn of_request(&self, peer: Peer, headers: &HeaderMap) -> Option<Network> {
        match peer {
            Peer::Unknown | Peer::Private(_) => None,
            Peer::Device(network) => Some(network),
            Peer::Proxy => Network::of(forwarded_for(headers, &self.trusted_proxies)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Option<Network> {
        Network::of(text.parse().unwrap())
    }

    #[test]
    fn devices_of_one_prefix_are_in_one_network() {
        assert_eq!(network("198.51.100.7"), network("198.51.100.250"));
        assert_eq!(network("198.51.100.7"), network("::ffff:198.51.100.9"));
        assert_ne!(network("198.51.100.7"), network("198.51.101.7"));
        assert_eq!(network("2001:db8:7:1::1"), network("2001:db8:7:ffff::9"));
        assert_ne!(network("2001:db8:7::1"), network("2001:db8:8::1"));
        for text in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.7.7",
            "100.64.0.1",
            "169.254.0.1",
            "0.0.0.0",
            "::1",
            "::",
            "fd00::1",
            "fe80::1",
            "::ffff:10.0.0.1",
        ] {
            assert_eq!(network(text), None, "{text}");
        }
    }

    /// Equal prefixes have equal hashes under one key; without the key a hash reveals nothing.
    #[test]
    fn networks_are_hashed_with_a_key_at_both_widths() {
        let key = NetworkKey([7; 32]);
        let hashes = |text| key.hashes(network(text).unwrap());
        let (one, beside) = (hashes("198.51.100.7"), hashes("198.51.101.7"));
        assert_eq!(one, hashes("198.51.100.9"));
        assert!(one[0] != beside[0] && one[1] == beside[1]);
        assert_ne!(one[1], hashes("198.52.100.7")[1]);
        let (one, beside) = (hashes("2001:db8:7::1"), hashes("2001:db8:8::1"));
        assert!(one[0] != beside[0] && one[1] == beside[1]);
        assert_ne!(one[1], hashes("2001:db9:7::1")[1]);
        let other = NetworkKey([8; 32]);
        assert_ne!(
            other.hashes(network("198.51.100.7").unwrap()),
            hashes("198.51.100.7")
        );
        assert_eq!(NetworkKey::from_hex(&key.to_hex()), Some(key.clone()));
        assert_eq!(NetworkKey::from_hex("07"), None);
        assert!(!format!("{key:?}").contains('7'));
    }

    #[track_caller]
    fn check(peer: &str, forwarded: &[&str], expected: Option<&str>) {
        let origins = Origins {
            trusted_proxies: vec!["10.0.0.0/8".parse().unwrap()],
        };
        let mut headers = HeaderMap::new();
        for value in forwarded {
            headers.append("x-forwarded-for", value.parse().unwrap());
        }
        let peer = origins.peer(peer.parse().unwrap());
        let expected = expected.map(|text| network(text).unwrap());
        assert_eq!(origins.of_request(peer, &headers), expected);
    }

    #[test]
    fn only_a_trusted_proxy_names_the_device() {
        check("203.0.113.9", &["198.51.100.1"], Some("203.0.113.9"));
        check("192.168.1.1", &["198.51.100.1"], None);
        check("10.0.0.2", &["198.51.100.1"], Some("198.51.100.1"));
        check("10.0.0.2", &[], None);
    }

    /// The device's own entries stand before the proxy's.
    #[test]
    fn a_device_cannot_choose_its_network() {
        let invented = ["192.0.2.1, 192.0.2.2, 198.51.100.1, 10.0.0.3"];
        check("10.0.0.2", &invented, Some("198.51.100.1"));
        check(
            "10.0.0.2",
            &["192.0.2.1", "198.51.100.1"],
            Some("198.51.100.1"),
        );
        check("10.0.0.2", &["192.0.2.1, nonsense"], None);
        check("10.0.0.2", &["198.51.100.1:4711"], Some("198.51.100.1"));
        check("10.0.0.2", &["[2001:db8::7]:4711"], Some("2001:db8::7"));
        check("10.0.0.2", &["10.0.0.3, 10.0.0.4"], None);
        check("10.0.0.2", &["\u{e9}, 198.51.100.1"], None);
    }
}
