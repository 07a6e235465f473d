//! How many files this process may have open. A connection is one; the WAL and the store need some at any
//! time, or acks stop for everybody.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What is kept for all but devices that are served: segments, checkpoint and other files of the WAL, connections
/// to the store, the operator's pages; and connections that were told to go and are not gone yet, which have half
/// of it at most.
const RESERVE: u64 = 256;

/// Returns how many connections may be open at once, at most `max`. Raises this process's soft limit of
/// open files for that, as far as the hard one allows; says so where that is too little.
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

/// Raises the soft limit to `wanted`, or to the hard one if that is lower. Returns what holds then.
fn raise(wanted: u64) -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // `None` is no limit.
    let Some(current) = current.filter(|current| *current < wanted) else {
        return current.unwrap_or(u64::MAX);
    };
    let raised = maximum.map_or(wanted, |maximum| maximum.min(wanted));
    let limit = Rlimit {
        current: Some(raised),
        maximum,
    };
    // Refused by a sandbox, perhaps: then it stays as it is.
    setrlimit(Resource::Nofile, limit).map_or(current, |()| raised)
}

fn connections_within(limit: u64) -> usize {
    // Where there are few files at all, half of them: those that leave are half as many then, and the last
    // quarter is for the WAL and the store.
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
