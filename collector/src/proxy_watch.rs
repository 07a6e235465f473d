//! Detects that uploads with public keys come from one private address only, which is then a proxy that the config does
//! not name. Behind such a proxy the limits by network do not work. So one request can use up an app's names, and
//! made-up installations can cause a page.
//!
//! Only uploads reveal it, not the start. So the finding is written into the WAL's folder. The next start on an address
//! beyond loopback is refused until the config says what the address is ([`check`]). Nothing is refused while the
//! collector runs, because devices that had to retry for hours would fill their spools.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use epwatch_server::{Problems, replace_file};
use parking_lot::Mutex;

use crate::config::CollectorConfig;

/// The file in the WAL's folder that has this address.
const FILE: &str = "unnamed-proxy";
/// From this many reports on, the one address counts as a proxy; fewer may be a trial with one device.
const ENOUGH: u64 = 100;
const KEY: &str = "new_installations.trusted_proxies";

/// The senders of reports with public keys so far.
#[derive(Debug, Default, PartialEq, Eq)]
enum Senders {
    #[default]
    None,
    /// All reports so far came from this private address; with their number.
    One(IpAddr, u64),
    /// Many reports came from this address only, and the finding is written down.
    Found(IpAddr),
    /// Several addresses, or a known network.
    Several,
}

/// The finding after one more report.
#[derive(Debug, PartialEq, Eq)]
enum Finding {
    Nothing,
    /// All reports come from this address.
    Proxy(IpAddr),
    /// An earlier finding no longer holds.
    Over,
}

impl Senders {
    fn add(&mut self, private_peer: Option<IpAddr>, n_reports: u64) -> Finding {
        match (&mut *self, private_peer) {
            (Self::None, Some(peer)) => *self = Self::One(peer, n_reports),
            (Self::One(peer, n), Some(also)) if *peer == also => *n += n_reports,
            (Self::Found(peer), Some(also)) if *peer == also => return Finding::Nothing,
            (Self::Several, _) => return Finding::Nothing,
            _ => {
                *self = Self::Several;
                return Finding::Over;
            }
        }
        match *self {
            Self::One(peer, n) if n >= ENOUGH => {
                *self = Self::Found(peer);
                Finding::Proxy(peer)
            }
            _ => Finding::Nothing,
        }
    }
}

/// Watches the uploads of one collector.
#[derive(Debug)]
pub(crate) struct ProxyWatch {
    file: PathBuf,
    senders: Mutex<Senders>,
    /// True once nothing more can be found.
    is_over: AtomicBool,
}

impl ProxyWatch {
    /// Returns a watch. It is active if the port is on an address beyond loopback and the config does not name the
    /// proxies.
    pub(crate) fn new(config: &CollectorConfig, listen: SocketAddr) -> Self {
        let is_watching = is_in_question(config, listen);
        Self {
            file: config.wal.dir.join(FILE),
            senders: Mutex::default(),
            is_over: AtomicBool::new(!is_watching),
        }
    }

    /// Counts reports that came with a public key; `private_peer` is `None` from a known network.
    pub(crate) fn note(&self, private_peer: Option<IpAddr>, n_reports: usize) {
        if self.is_over.load(Relaxed) || n_reports == 0 {
            return;
        }
        match self.senders.lock().add(private_peer, n_reports as u64) {
            Finding::Nothing => {}
            Finding::Proxy(peer) => {
                tracing::error!(
                    %peer,
                    "all reports with public keys come from one private address, so no network weighs them: one request \
                     can use up an app's names, and made-up installations page. Name the proxy in \
                     new_installations.trusted_proxies, or set it to [] if there is none; the next start asks for it"
                );
                self.write(move |file| replace_file(file, peer.to_string().as_bytes()));
            }
            Finding::Over => {
                self.is_over.store(true, Relaxed);
                self.write(forget);
            }
        }
    }

    fn write(&self, write: impl FnOnce(&Path) -> io::Result<()> + Send + 'static) {
        let file = self.file.clone();
        tokio::task::spawn_blocking(move || {
            if let Err(error) = write(&file) {
                tracing::warn!(%error, file = %file.display(), "failed to write down where uploads come from");
            }
        });
    }
}

fn forget(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn is_in_question(config: &CollectorConfig, listen: SocketAddr) -> bool {
    !listen.ip().is_loopback() && config.new_installations.trusted_proxies.is_none()
}

/// Refuses a start after a finding, unless the config sets `trusted_proxies`. Changes nothing.
///
/// # Errors
/// The problem of `trusted_proxies`.
pub(crate) fn check(config: &CollectorConfig) -> Result<(), Problems> {
    if !is_in_question(config, config.listen) || !config.has_public_keys() {
        return Ok(());
    }
    let Ok(peer) = fs::read_to_string(config.wal.dir.join(FILE)) else {
        return Ok(());
    };
    let peer = peer.trim();
    let text = format!(
        "must be set: all reports with public keys came from {peer}, so networks do not weigh devices. If that is a proxy, \
         set [\"{peer}\"] or its block, and let it send X-Forwarded-For. If it is not a proxy, set [] and accept that one \
         request can use up an app's names and that made-up installations page"
    );
    Err(Problems::one(KEY.to_owned(), text))
}

/// Forgets a finding that the config answers. Without an answer, warns at a start that [`check`] did not refuse.
pub(crate) fn begin(config: &CollectorConfig) {
    if config.new_installations.trusted_proxies.is_some() {
        // A file that cannot be removed matters only if the setting is removed later.
        let _ = forget(&config.wal.dir.join(FILE));
    } else if is_in_question(config, config.listen) && config.has_public_keys() {
        tracing::warn!(
            "new_installations.trusted_proxies is not set: if a proxy or load balancer is in front of the collector, all \
             devices have its address, one request can use up an app's names (they become __other__), and made-up \
             installations page. Name it, or set [] if devices connect themselves"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_reports_from_one_private_address_are_a_proxy_s() {
        let [one, other] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(|ip| Some(IpAddr::from(ip)));
        let mut senders = Senders::default();
        assert_eq!(senders.add(one, ENOUGH - 1), Finding::Nothing);
        assert_eq!(senders.add(one, 1), Finding::Proxy(one.unwrap()));
        assert_eq!(senders.add(one, 1_000), Finding::Nothing, "once");
        assert_eq!(
            senders.add(None, 1),
            Finding::Over,
            "a network is known after all"
        );
        assert_eq!(senders.add(one, 1_000), Finding::Nothing);
        for second in [other, None] {
            let mut senders = Senders::default();
            assert_eq!(senders.add(one, 10), Finding::Nothing);
            assert_eq!(senders.add(second, 10), Finding::Over);
            assert_eq!(senders.add(one, 1_000), Finding::Nothing);
        }
    }
}
