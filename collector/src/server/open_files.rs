//! Divides the limit of open files between connections and the rest of the collector. Each connection is a file. If no
//! files are left for the WAL and the store, acks stop for all devices. `collector.rs` calls this once, before the port
//! opens.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Number of files that are not for served connections. These are the files of the WAL, connections to the store and to
/// the admin endpoint, and draining connections. The draining connections take half of the reserve at most.
const RESERVE: u64 = 256;

/// Returns how many connections may be open at once, at most `max`. Raises the soft limit of open files as far as the
/// hard limit allows, and logs a warning if this is too little.
pub(crate) fn room_for_connections(max: usize) -> usize {
    let limit = raise(max as u64 + RESERVE);
    let room = connections_within(limit).min(max);
    if room < max {
        tracing::warn!(
            connections.max = max,
            room,
            limit,
            "fewer connections than connections.max: this process may not open so many files; raise its hard \
             limit (LimitNOFILE= of a systemd unit, `ulimit -Hn`, `docker run --ulimit nofile=`), or lower \
             connections.max"
        );
    }
    room
}

/// Raises the soft limit to `wanted`, or to the hard limit if that is lower. Returns the limit in force.
fn raise(wanted: u64) -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // `None` means that the system sets no limit.
    let Some(current) = current.filter(|current| *current < wanted) else {
        return current.unwrap_or(u64::MAX);
    };
    let raised = maximum.map_or(wanted, |maximum| maximum.min(wanted));
    let limit = Rlimit {
        current: Some(raised),
        maximum,
    };
    // A sandbox may refuse this; the limit then stays.
    setrlimit(Resource::Nofile, limit).map_or(current, |()| raised)
}

fn connections_within(limit: u64) -> usize {
    // If the limit is low, connections get half of the files. Draining connections may take another quarter; the last
    // quarter stays for the WAL and the store.
    let room = limit.saturating_sub(RESERVE).max(limit / 2);
    usize::try_from(room).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_is_kept_from_connections() {
        assert_eq!(connections_within(u64::MAX), usize::MAX - 256);
        assert_eq!(connections_within(16_640), 16_384);
        assert_eq!(connections_within(1_024), 768);
        assert_eq!(connections_within(100), 50);
    }
}
