//! The sender of a request that came through proxies, by `X-Forwarded-For`.

use std::net::IpAddr;

use hyper::HeaderMap;

use crate::address_block::AddressBlock;

const FORWARDED_FOR: &str = "x-forwarded-for";

/// Returns the address that a trusted proxy saw; `None` if the header names none.
///
/// Each proxy appends the address it saw. Read from the end, the first address that is not trusted is the sender. The
/// entries before it may be made up, because the sender wrote them.
#[must_use]
pub fn forwarded_for(headers: &HeaderMap, trusted_proxies: &[AddressBlock]) -> Option<IpAddr> {
    let lists = headers.get_all(FORWARDED_FOR).iter();
    let texts: Vec<&str> = lists.map_while(|list| list.to_str().ok()).collect();
    if texts.len() < headers.get_all(FORWARDED_FOR).iter().count() {
        return None;
    }
    for text in texts.iter().rev().flat_map(|list| list.rsplit(',')) {
        let address = read_address(text.trim())?;
        if !is_trusted(address, trusted_proxies) {
            return Some(address);
        }
    }
    None
}

/// Whether an address is one of these proxies.
#[must_use]
pub fn is_trusted(address: IpAddr, trusted_proxies: &[AddressBlock]) -> bool {
    trusted_proxies.iter().any(|block| block.contains(address))
}

/// Reads an address, with or without a port.
fn read_address(text: &str) -> Option<IpAddr> {
    let with_port = || {
        let socket: std::net::SocketAddr = text.parse().ok()?;
        Some(socket.ip())
    };
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    bare.unwrap_or(text).parse().ok().or_else(with_port)
}
