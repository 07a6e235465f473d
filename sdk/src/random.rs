//! Random numbers of the operating system.

use epwatch_proto::{SessionUid, StreamId};

/// Returns 64 random bits.
///
/// If the system has none, which happens on no supported platform after boot, the bits come from the process's hash
/// seeds. The ids made from them must differ, but need not be secret.
pub fn random_u64() -> u64 {
    getrandom::u64().unwrap_or_else(|_| {
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(std::time::Instant::now())
    })
}

/// Returns a new stream's id.
pub fn random_stream() -> StreamId {
    StreamId(random_u64())
}

/// Returns a new session's id.
pub fn random_session_uid() -> SessionUid {
    SessionUid::new(random_u64().max(1)).expect("it is at least 1")
}
