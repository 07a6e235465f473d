//! The host's settings: consent and network.
//!
//! Callers only change this state, under locks that are never held across I/O. The SDK's thread acts on it later: it
//! opens the folder, or wipes it and asks for deletion. Calls are counted, so that consent withdrawn and given again
//! at once still wipes the earlier data.
//!
//! The caller also applies the change to the core, and keeps the core locked during both steps. The SDK's thread locks
//! the core before it acts. So the thread never wipes and reopens the folder before the caller has changed the core.
//! Otherwise the caller would remove the new installation again.

use std::sync::{
    Mutex, MutexGuard, PoisonError, TryLockError,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use crate::{core::Core, lock::lock, random_stream, time::Now, upload::budget::NetworkKind};

/// The latest values, and how often they were set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConsentState {
    pub(crate) is_given: bool,
    /// Calls after which earlier data has to be forgotten.
    pub(crate) n_forget_calls: u64,
    /// Changes of consent.
    pub(crate) n_changes: u64,
    /// Calls that gave consent, whether or not it was given before.
    pub(crate) n_given_calls: u64,
    /// The network that uploads would take.
    pub(crate) network: NetworkKind,
}

/// The values that callers set and the SDK's thread reads.
#[derive(Debug)]
pub(crate) struct ConsentSwitch {
    state: Mutex<ConsentState>,
    /// A copy of the state's consent, for a child of a fork.
    is_given: AtomicBool,
}

impl ConsentSwitch {
    pub(crate) fn new(is_given: bool) -> Self {
        let state = ConsentState {
            is_given,
            n_forget_calls: 0,
            n_changes: 0,
            n_given_calls: 0,
            network: NetworkKind::default(),
        };
        Self {
            state: Mutex::new(state),
            is_given: AtomicBool::new(is_given),
        }
    }

    /// Returns consent and network for a child of a fork. A thread that does not exist in the child may hold the lock;
    /// the network is then not known.
    pub(crate) fn at_fork(&self) -> (bool, NetworkKind) {
        let network = match self.state.try_lock() {
            Ok(state) => state.network,
            Err(TryLockError::Poisoned(state)) => PoisonError::into_inner(state).network,
            Err(TryLockError::WouldBlock) => NetworkKind::default(),
        };
        (self.is_given(), network)
    }

    /// Whether consent is given, without a lock.
    pub(crate) fn is_given(&self) -> bool {
        self.is_given.load(Relaxed)
    }

    pub(crate) fn state(&self) -> ConsentState {
        *self.lock()
    }

    /// Sets consent; returns whether it changed.
    ///
    /// `false` always forgets: an earlier process may have been killed before its wipe.
    pub(crate) fn set(&self, is_given: bool) -> bool {
        let mut state = self.lock();
        match is_given {
            true => state.n_given_calls += 1,
            false => state.n_forget_calls += 1,
        }
        if state.is_given == is_given {
            return false;
        }
        state.is_given = is_given;
        self.is_given.store(is_given, Relaxed);
        state.n_changes += 1;
        true
    }

    /// Does the same as [`Self::set`], and starts or ends recording.
    pub(crate) fn set_and_record(&self, is_given: bool, core: &Mutex<Core>, now: Now) {
        let mut core = lock(core);
        let is_new = self.set(is_given);
        core.set_recording(is_given);
        if is_new && !is_given {
            core.forget(random_stream(), 0, now);
        }
    }

    /// Forgets earlier data and keeps consent as it is.
    pub(crate) fn reset(&self, core: &Mutex<Core>, now: Now) {
        let mut core = lock(core);
        self.forget();
        core.forget(random_stream(), 0, now);
    }

    pub(crate) fn set_network(&self, network: NetworkKind) {
        self.lock().network = network;
    }

    pub(crate) fn forget(&self) {
        self.lock().n_forget_calls += 1;
    }

    fn lock(&self) -> MutexGuard<'_, ConsentState> {
        lock(&self.state)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::TryLockError,
        thread,
        time::{Duration, Instant},
    };

    use super::*;
    use crate::{config::CoreConfig, host::device::simulated_device};

    /// The test stops each caller at the lock of the state. By then the caller must hold the core's lock.
    #[test]
    fn the_core_is_held_from_a_change_to_its_effect() {
        let now = Now::simulated(Duration::ZERO, 1_800_000_000_000);
        let config = CoreConfig::new("app", simulated_device("SM8650")).unwrap();
        let core = Mutex::new(Core::new(config, random_stream(), now));
        let consent = ConsentSwitch::new(true);
        let says: [&(dyn Fn() + Sync); 3] = [
            &|| consent.reset(&core, now),
            &|| consent.set_and_record(false, &core, now),
            &|| consent.set_and_record(true, &core, now),
        ];
        for say in says {
            thread::scope(|s| {
                let _state = consent.lock();
                s.spawn(say);
                let max_wait = Instant::now() + Duration::from_secs(10);
                while !matches!(core.try_lock(), Err(TryLockError::WouldBlock)) {
                    assert!(Instant::now() < max_wait, "nobody holds the core");
                    thread::yield_now();
                }
            });
        }
        assert_eq!(consent.state().n_forget_calls, 2);
    }

    #[test]
    fn withdrawn_and_given_again_still_forgets() {
        let consent = ConsentSwitch::new(true);
        assert!(!consent.set(true));
        assert!(consent.set(false));
        assert!(consent.set(true));
        let state = consent.state();
        assert_eq!(
            (state.is_given, state.n_forget_calls, state.n_changes),
            (true, 1, 2)
        );
        consent.forget();
        assert_eq!(consent.state().n_forget_calls, 2);
        assert_eq!(consent.state().n_changes, 2);
    }

    #[test]
    fn a_start_without_consent_forgets_nothing_and_saying_so_does() {
        let consent = ConsentSwitch::new(false);
        assert_eq!(consent.state().n_forget_calls, 0);
        assert!(!consent.set(false));
        let state = consent.state();
        assert_eq!(
            (state.is_given, state.n_forget_calls, state.n_changes),
            (false, 1, 0)
        );
    }
}
