//! Addresses that the app key and reports may go to.

use epwatch_proto::clipped;

use super::error::ConfigError;

/// Accepts `https` to any host, and `http` to this host or if it is allowed.
pub(crate) fn check_endpoint(endpoint: &str, plaintext_allowed: bool) -> Result<(), ConfigError> {
    let wrong = || ConfigError::Endpoint(clipped(endpoint, 64));
    let (scheme, rest) = endpoint.split_once("://").ok_or_else(wrong)?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.is_empty() || authority.contains(['@', ' ']) {
        return Err(wrong());
    }
    match scheme {
        "https" => Ok(()),
        "http" if plaintext_allowed || is_loopback(authority) => Ok(()),
        "http" => Err(ConfigError::Plaintext(clipped(endpoint, 64))),
        _ => Err(wrong()),
    }
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

fn is_loopback(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    let is_loopback_address = host
        .parse::<std::net::IpAddr>()
        .is_ok_and(|address| address.is_loopback());
    host == "localhost" || is_loopback_address
}
