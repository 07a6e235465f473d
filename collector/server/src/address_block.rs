//! A block of addresses in the config: `10.0.0.0/8`, or one address.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

/// A block, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressBlock(IpNet);

/// Text that is not an [`AddressBlock`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected an address like \"10.0.0.7\" or a block like \"10.0.0.0/8\", found {0:?}")]
pub struct AddressBlockError(String);

impl AddressBlock {
    /// Whether an address is in the block. An IPv4 address and its IPv6-mapped form are the same.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.0, address.to_canonical()) {
            (IpNet::V6(block), IpAddr::V4(address)) => block.contains(&address.to_ipv6_mapped()),
            (block, address) => block.contains(&address),
        }
    }
}

impl FromStr for AddressBlock {
    type Err = AddressBlockError;

    fn from_str(text: &str) -> Result<Self, AddressBlockError> {
        let address = || text.parse().map(|address: IpAddr| IpNet::from(address));
        let block = text.parse().or_else(|_| address());
        block
            .map(Self)
            .map_err(|_| AddressBlockError(text.to_owned()))
    }
}

impl fmt::Display for AddressBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

crate::serde_as_text!(AddressBlock);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_hold_what_they_say() {
        let holds = |block: &str, address: &str| {
            let block: AddressBlock = block.parse().unwrap();
            assert_eq!(block.to_string().parse(), Ok(block));
            block.contains(address.parse().unwrap())
        };
        assert!(holds("10.0.0.0/8", "10.200.1.1"));
        assert!(holds("10.0.0.0/8", "::ffff:10.1.1.1"));
        assert!(!holds("10.0.0.0/8", "11.0.0.1"));
        assert!(holds("10.0.0.7", "10.0.0.7") && !holds("10.0.0.7", "10.0.0.8"));
        assert!(holds("0.0.0.0/0", "203.0.113.1") && !holds("0.0.0.0/0", "2001:db8::1"));
        assert!(holds("::/0", "2001:db8::1") && holds("2001:db8::/32", "2001:db8:9::1"));
        for text in [
            "",
            "10.0.0.0/33",
            "::/129",
            "10.0.0/8",
            "proxy",
            "10.0.0.1/",
            "1.1.1.1/-1",
        ] {
            assert!(text.parse::<AddressBlock>().is_err(), "{text}");
        }
    }
}
