//! Selects devices without which a page must also hold. Pure: it takes devices with their networks and age, and returns
//! the devices to leave out.
//!
//! A key that ships in an app is public, so its installations can be made up. Days and networks cannot be made up as
//! cheaply. So a page on such devices must also hold without the networks that bring most votes. *Established* devices
//! were admitted in the first part of the look-back; the largest networks of established devices are left out. Many
//! more networks of newer devices are left out. Devices of an `own` key are trusted as they are. A device whose network
//! is unknown is not left out: behind a proxy that the config does not name, every device's network is unknown.

use std::cmp::Reverse;

use epwatch_model::Installation;

use crate::judge::hash::{HashMap, HashSet};

/// An established device was admitted within this first part of the look-back: at least ten of fourteen days ago.
pub(crate) const ESTABLISHED_IN_FIRST: (u32, u32) = (2, 7);

/// With fewer established devices than this, the largest network is left out only if [`ENOUGH`] remain, so that a small
/// fleet pages too.
const FEW_ESTABLISHED: usize = 10;

/// Number of devices that a page needs.
const ENOUGH: usize = 5;

/// Minimum number of networks from which few established devices must come.
const MIN_NETWORKS: usize = 3;

/// Of the networks of established devices, one in so many is left out, at both widths.
const OF_ESTABLISHED: Widths = Widths {
    narrow: 4,
    wide: 10,
};

/// Number of networks of newer devices that are left out if the app has established ones.
const OF_NEWER: Widths = Widths {
    narrow: 200,
    wide: 8,
};

/// If the app has no established device, one in so many networks is left out.
const OF_NEW_APP: usize = 2;

/// Numbers for networks of both widths: IPv4 /24 and /16, IPv6 /48 and /32.
#[derive(Debug, Clone, Copy)]
struct Widths {
    narrow: usize,
    wide: usize,
}

/// A network at both widths, each as a hash with a key that the collector keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetworkHash {
    /// Hash of the IPv4 /24 or IPv6 /48.
    pub narrow: u32,
    /// Hash of the IPv4 /16 or IPv6 /32.
    pub wide: u32,
}

/// The sender of a device's reports in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sender {
    /// All of its reports came with a key of kind `own`.
    pub is_own: bool,
    /// The network that its reports came from, the first by hash if there are several; `None` if it is unknown.
    pub network: Option<NetworkHash>,
}

/// The senders of one app's devices.
#[derive(Debug, Default)]
pub(crate) struct Senders {
    of: HashMap<Installation, Sender>,
    established: HashSet<Installation>,
    /// No device of a public key is established in any environment of the app.
    app_is_new: bool,
}

/// Devices without which a page must also hold, and their counts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Weighed {
    /// Devices that are left out.
    pub(crate) left_out: HashSet<Installation>,
    /// Devices of public keys.
    pub(crate) public: u64,
    /// Devices that may be made up: devices of public keys, and devices of a recording that names no kind of key.
    pub(crate) not_own: u64,
    /// Devices of public keys whose network is unknown.
    pub(crate) unweighed: u64,
}

impl Senders {
    /// Takes the senders of a window; `established` are the app's devices that were admitted long ago.
    pub(crate) fn new(
        of: impl IntoIterator<Item = (Installation, Sender)>,
        established: HashSet<Installation>,
        app_is_new: bool,
    ) -> Self {
        Self {
            of: of.into_iter().collect(),
            established,
            app_is_new,
        }
    }

    pub(crate) fn app_is_new(&self) -> bool {
        self.app_is_new
    }

    /// Selects the devices of a cohort without which a page must hold. A device may be in `devices` more than once.
    pub(crate) fn weigh(&self, devices: impl Iterator<Item = Installation>) -> Weighed {
        let mut weighed = Weighed::default();
        let (mut established, mut newer) = (Vec::new(), Vec::new());
        let devices: HashSet<Installation> = devices.collect();
        for device in devices {
            // A device from an older recording has no kind of key.
            let sender = self.of.get(&device);
            weighed.not_own += u64::from(sender.is_none_or(|sender| !sender.is_own));
            let Some(sender) = sender.filter(|sender| !sender.is_own) else {
                continue;
            };
            weighed.public += 1;
            match sender.network {
                None => weighed.unweighed += 1,
                Some(network) if self.established.contains(&device) => {
                    established.push((device, network));
                }
                Some(network) => newer.push((device, network)),
            }
        }
        leave_out_established(&established, &mut weighed.left_out);
        self.leave_out_newer(&newer, &mut weighed.left_out);
        weighed
    }

    fn leave_out_newer(
        &self,
        devices: &[(Installation, NetworkHash)],
        left_out: &mut HashSet<Installation>,
    ) {
        let wide = sizes(devices, left_out, |network| network.wide);
        let n = match self.app_is_new {
            true => wide.len().div_ceil(OF_NEW_APP),
            false => OF_NEWER.wide,
        };
        leave_out(devices, &wide, n, |network| network.wide, left_out);
        let narrow = sizes(devices, left_out, |network| network.narrow);
        let n = match self.app_is_new {
            true => narrow.len().div_ceil(OF_NEW_APP),
            false => OF_NEWER.narrow,
        };
        leave_out(devices, &narrow, n, |network| network.narrow, left_out);
    }
}

fn leave_out_established(
    devices: &[(Installation, NetworkHash)],
    left_out: &mut HashSet<Installation>,
) {
    let narrow = sizes(devices, left_out, |network| network.narrow);
    if devices.len() < FEW_ESTABLISHED {
        if narrow.len() < MIN_NETWORKS {
            left_out.extend(devices.iter().map(|(device, _)| *device));
            return;
        }
        let mut largest = HashSet::default();
        leave_out(devices, &narrow, 1, |network| network.narrow, &mut largest);
        if devices.len() - largest.len() >= ENOUGH {
            left_out.extend(largest);
        }
        return;
    }
    let wide = sizes(devices, left_out, |network| network.wide);
    let n = (wide.len() / OF_ESTABLISHED.wide).max(1);
    leave_out(devices, &wide, n, |network| network.wide, left_out);
    // Wide networks come first, because the owner of one has any number of narrow networks in it.
    let rest = sizes(devices, left_out, |network| network.narrow);
    let n = (narrow.len() / OF_ESTABLISHED.narrow).max(1);
    leave_out(devices, &rest, n, |network| network.narrow, left_out);
}

/// Returns the networks of the devices that are not left out, the one with most devices first.
fn sizes(
    devices: &[(Installation, NetworkHash)],
    left_out: &HashSet<Installation>,
    of: impl Fn(&NetworkHash) -> u32,
) -> Vec<u32> {
    let mut sizes: HashMap<u32, usize> = HashMap::default();
    for (device, network) in devices {
        if !left_out.contains(device) {
            *sizes.entry(of(network)).or_default() += 1;
        }
    }
    let mut networks: Vec<(u32, usize)> = sizes.into_iter().collect();
    networks.sort_unstable_by_key(|(network, size)| (Reverse(*size), *network));
    networks.into_iter().map(|(network, _)| network).collect()
}

fn leave_out(
    devices: &[(Installation, NetworkHash)],
    largest_first: &[u32],
    n: usize,
    of: impl Fn(&NetworkHash) -> u32,
    left_out: &mut HashSet<Installation>,
) {
    let gone: HashSet<u32> = largest_first.iter().take(n).copied().collect();
    let of_gone = devices.iter().filter(|(_, at)| gone.contains(&of(at)));
    left_out.extend(of_gone.map(|(device, _)| *device));
}

#[cfg(test)]
mod tests;
