//! Random numbers from the operating system.

use epwatch_proto::{SessionUid, StreamId};

/// 64 random bits.
///
/// Where the system has none to give, which no supported platform does after boot, the bits come
/// from the process's hash seeds: ids must differ, not be secret.
pub fn random_u64() -> u64 {
    getrandom::u64().unwrap_or_else(|_| {
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(std::time::Instant::now())
    })
}

/// A new stream's id.
pub fn random_stream() -> StreamId {
    StreamId(random_u64())
}

/// A new session's id: random, not zero.
pub fn random_session_uid() -> SessionUid {
    SessionUid::new(random_u64().max(1)).expect("it is at least 1")
}
