//! Addresses that the app key and reports may go to.

use std::net::Ipv6Addr;

use epwatch_proto::clipped;

use super::error::ConfigError;

/// Accepts `https` to any host, and `http` to this host, or to any host if plaintext is allowed. The address may have
/// only scheme, host and port, because anything else would be ignored later.
pub(crate) fn check_endpoint(endpoint: &str, plaintext_allowed: bool) -> Result<(), ConfigError> {
    let wrong = || ConfigError::Endpoint(clipped(endpoint, 64));
    let (scheme, rest) = endpoint.split_once("://").ok_or_else(wrong)?;
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    let host = host_of(authority).ok_or_else(wrong)?;
    match scheme {
        "https" => Ok(()),
        "http" if plaintext_allowed || is_loopback(host) => Ok(()),
        "http" => Err(ConfigError::Plaintext(clipped(endpoint, 64))),
        _ => Err(wrong()),
    }
}

/// The host of `HOST` or `HOST:PORT`; `None` if it is neither.
fn host_of(authority: &str) -> Option<&str> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(v6) => {
            let (host, port) = v6.split_once(']')?;
            host.parse::<Ipv6Addr>().ok()?;
            (host, port)
        }
        None => {
            let (host, port) = authority.split_at(authority.find(':').unwrap_or(authority.len()));
            let is_fine = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c);
            if host.is_empty() || !host.chars().all(is_fine) {
                return None;
            }
            (host, port)
        }
    };
    let Some(digits) = port.strip_prefix(':') else {
        return port.is_empty().then_some(host);
    };
    let is_number = digits.bytes().all(|digit| digit.is_ascii_digit());
    let port = digits
        .parse::<u16>()
        .ok()
        .filter(|port| is_number && *port > 0);
    port.map(|_| host)
}

/// Checks the form only. The certificate is parsed when a connection is made.
pub(crate) fn check_root_certificate(pem: &str) -> Result<(), ConfigError> {
    let is_pem = pem
        .split_once("-----BEGIN CERTIFICATE-----")
        .is_some_and(|(_, rest)| rest.contains("-----END CERTIFICATE-----"));
    match is_pem {
        true => Ok(()),
        false => Err(ConfigError::RootCertificate),
    }
}

fn is_loopback(host: &str) -> bool {
    let is_loopback_address = host
        .parse::<std::net::IpAddr>()
        .is_ok_and(|address| address.is_loopback());
    host == "localhost" || is_loopback_address
}
