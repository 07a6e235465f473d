//! `[page]`: where the page listens, who may read it, and who may order.

use std::net::SocketAddr;
use std::path::PathBuf;

use epwatch_server::AddressBlock;
use serde::{Deserialize, Serialize};
use url::Url;

/// Minimum length of a token. Only the length protects a token: the right one is accepted after any number of wrong
/// ones. 16 random hex digits last millions of years against 10,000 tries a second.
pub(crate) const MIN_TOKEN_BYTES: usize = 16;

/// Config of the built-in page, the section `[page]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PageConfig {
    /// Address of its own. One beyond loopback needs `token_file`.
    pub listen: SocketAddr,
    /// A file with the tokens that readers present, a line each; a token may be limited to apps.
    pub token_file: Option<PathBuf>,
    /// A file with the token of those who may also order: acknowledge, mute, resolve, accept, reopen. Without it nobody
    /// may from the page.
    pub orders_token_file: Option<PathBuf>,
    /// Names in addition to loopback that a request's `Host` may have.
    pub hosts: Vec<String>,
    /// Proxies whose `X-Forwarded-For` names the browser, for the limit of wrong tokens.
    pub trusted_proxies: Vec<AddressBlock>,
    /// Address of the Grafana that has epwatch's dashboards. Pages of incidents and cohorts link it.
    pub grafana: Option<String>,
    /// Multiplies the time limits of a page and of its queries, for tests on a busy machine. The config file has no key
    /// for it.
    #[serde(skip)]
    pub timeout_factor: u32,
}

impl Default for PageConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 4720)),
            token_file: None,
            orders_token_file: None,
            hosts: Vec::new(),
            trusted_proxies: Vec::new(),
            grafana: None,
            timeout_factor: 1,
        }
    }
}

impl PageConfig {
    /// Returns each problem as key and text.
    #[must_use]
    pub fn problems(&self) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        let is_loopback = self.listen.ip().is_loopback();
        if !is_loopback && self.token_file.is_none() {
            let text = format!(
                "{} is not loopback, so page.token_file must name a file with a token, got none",
                self.listen
            );
            problems.push(("listen", text));
        }
        if !is_loopback && self.hosts.is_empty() {
            let text = format!(
                "{} is not loopback, so page.hosts must list the names under which readers open the page",
                self.listen
            );
            problems.push(("listen", text));
        }
        let is_name = |host: &String| {
            !host.is_empty()
                && host
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-._[]:".contains(c))
        };
        for host in self.hosts.iter().filter(|host| !is_name(host)) {
            problems.push((
                "hosts",
                format!("must be names or addresses without a scheme, got {host:?}"),
            ));
        }
        let is_address = |address: &String| {
            let url = Url::parse(address);
            url.is_ok_and(|url| {
                ["http", "https"].contains(&url.scheme())
                    && url.query().is_none()
                    && url.fragment().is_none()
            })
        };
        for address in self.grafana.iter().filter(|address| !is_address(address)) {
            let text = format!(
                "must be an http or https address without a query, as https://grafana.example, got {address:?}"
            );
            problems.push(("grafana", text));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_loopback_needs_a_token_and_names() {
        let keys = |config: PageConfig| -> Vec<&str> {
            config.problems().into_iter().map(|(key, _)| key).collect()
        };
        assert_eq!(keys(PageConfig::default()), [""; 0]);
        let open = PageConfig {
            listen: SocketAddr::from(([0, 0, 0, 0], 4720)),
            ..PageConfig::default()
        };
        assert_eq!(keys(open.clone()), ["listen", "listen"]);
        let closed = PageConfig {
            token_file: Some("/run/secrets/page".into()),
            hosts: vec!["epwatch.example".into()],
            ..open.clone()
        };
        assert_eq!(keys(closed.clone()), [""; 0]);
        let wrong = PageConfig {
            hosts: vec!["https://epwatch.example/".into()],
            ..closed
        };
        assert_eq!(keys(wrong), ["hosts"]);
        let grafana = |address: &str| {
            keys(PageConfig {
                grafana: Some(address.to_owned()),
                ..PageConfig::default()
            })
        };
        assert_eq!(grafana("https://monitor.example/grafana/"), [""; 0]);
        for wrong in [
            "grafana.example",
            "javascript:alert(1)",
            "https://grafana.example/d/x?orgId=1",
        ] {
            assert_eq!(grafana(wrong), ["grafana"], "{wrong}");
        }
    }
}
