//! The key that `epwatch gate --certify` and `epwatch load` send to a collector. Only a collector on this machine may
//! be used without a key, because it may require none. The user is told which placeholder is sent instead.

use std::net::IpAddr;

use tonic::transport::Uri;

use crate::output::{self, WrongUse};

/// The placeholder for a collector without keys, which accepts any text.
const ANY: &str = "demo-key";

/// Where a key may come from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeySource {
    /// For example `--certify-key`.
    pub(crate) option: &'static str,
    pub(crate) variable: &'static str,
    /// The command that makes such a key.
    pub(crate) made_by: &'static str,
}

impl KeySource {
    /// Returns the key for the collector at `url`.
    pub(crate) fn key(self, url: &str, given: Option<&str>) -> Result<String, WrongUse> {
        let given = given.filter(|key| !key.is_empty());
        let Self {
            option,
            variable,
            made_by,
        } = self;
        match given {
            Some(key) => Ok(key.to_owned()),
            None if is_elsewhere(url) => Err(WrongUse(format!(
                "{url} needs a key: expected {option} or {variable} with one of `{made_by}`"
            ))),
            None => Ok(ANY.to_owned()),
        }
    }

    /// Warns that no key was given. A collector with keys refuses this; a collector without keys accepts it from
    /// anybody.
    pub(crate) fn warn(self, url: &str, given: Option<&str>) {
        if given.is_none_or(str::is_empty) {
            let Self {
                option, variable, ..
            } = self;
            output::remark(format_args!(
                "warning: neither {option} nor {variable} is given, so that `{ANY}` is sent to {url}: only a collector \
                 without keys takes it, and such a one takes it from anybody"
            ));
        }
    }
}

/// Returns false without a host, because the address is refused later with a better reason.
fn is_elsewhere(url: &str) -> bool {
    let uri: Option<Uri> = url.parse().ok();
    uri.as_ref().and_then(Uri::host).is_some_and(|host| {
        let address = host.trim_start_matches('[').trim_end_matches(']');
        let is_loopback = address.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
        host != "localhost" && !is_loopback
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_left_out_for_this_machine_alone() {
        let source = KeySource {
            option: "--certify-key",
            variable: "EPWATCH_CERTIFY_KEY",
            made_by: "epwatch collector key --kind pipeline",
        };
        for (url, is_open) in [
            ("http://127.0.0.1:4717", true),
            ("http://localhost:4717", true),
            ("https://localhost:4717", true),
            ("http://[::1]:4717", true),
            ("https://collector.example:4717", false),
            ("http://10.0.2.2:4717", false),
            ("http://localhost.example:4717", false),
            // The code that reads the address refuses it.
            ("no address", true),
        ] {
            assert_eq!(source.key(url, Some("of-mine")).unwrap(), "of-mine");
            for given in [None, Some("")] {
                let found = source.key(url, given);
                assert_eq!(found.is_ok(), is_open, "{url}: {found:?}");
                if let Err(error) = found {
                    assert!(error.to_string().contains("EPWATCH_CERTIFY_KEY"), "{error}");
                }
            }
        }
    }
}
