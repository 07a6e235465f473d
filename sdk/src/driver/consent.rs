//! What the host says: whether its users agree, and what uploads may cost.
//!
//! Callers only say what they wish, under locks that are never held across I/O; the SDK's own
//! thread makes it so (`engine.rs`): begins, or wipes and asks for deletion. Wishes are counted,
//! so that consent that was withdrawn and given again at once still wipes what was before.
//!
//! What a wish means for the core is done by the caller, and the core stays locked from the one to
//! the other. The SDK's thread takes the core before it makes a wish true: so it never forgets and
//! opens anew before the caller has forgotten, who would take the new installation away again.

use std::sync::{Mutex, MutexGuard};

use crate::{core::Core, lock::lock, random_stream, time::Now, upload::budget::NetworkKind};

/// What is wished now, and how often it came to that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) is_given: bool,
    /// Times that what was recorded until then had to be forgotten.
    pub(crate) n_forget: u64,
    /// Times that consent was given or withdrawn.
    pub(crate) n_changes: u64,
    /// Times that the host said that it is given, whether or not it was.
    pub(crate) n_told: u64,
    /// The network that uploads would take, as the host says.
    pub(crate) network: NetworkKind,
}

/// The switch.
#[derive(Debug)]
pub(crate) struct Consent(Mutex<Wish>);

impl Consent {
    pub(crate) fn new(is_given: bool) -> Self {
        Self(Mutex::new(Wish {
            is_given,
            n_forget: 0,
            n_changes: 0,
            n_told: 0,
            network: NetworkKind::default(),
        }))
    }

    pub(crate) fn wish(&self) -> Wish {
        *self.lock()
    }

    /// `false` if it was so before.
    ///
    /// To say that it is not given always forgets: an earlier process may have been killed before
    /// it came to that.
    pub(crate) fn set(&self, is_given: bool) -> bool {
        let mut wish = self.lock();
        match is_given {
            true => wish.n_told += 1,
            false => wish.n_forget += 1,
        }
        if wish.is_given == is_given {
            return false;
        }
        wish.is_given = is_given;
        wish.n_changes += 1;
        true
    }

    /// As [`Self::set`], and recording begins or ends with it.
    pub(crate) fn tell(&self, is_given: bool, core: &Mutex<Core>, now: Now) {
        let mut core = lock(core);
        let is_new = self.set(is_given);
        core.set_recording(is_given);
        if is_new && !is_given {
            core.forget(random_stream(), 0, now);
        }
    }

    /// What was recorded until now is to be forgotten, whether or not consent is given.
    pub(crate) fn reset(&self, core: &Mutex<Core>, now: Now) {
        let mut core = lock(core);
        self.forget();
        core.forget(random_stream(), 0, now);
    }

    pub(crate) fn set_network(&self, network: NetworkKind) {
        self.lock().network = network;
    }

    pub(crate) fn forget(&self) {
        self.lock().n_forget += 1;
    }

    fn lock(&self) -> MutexGuard<'_, Wish> {
        lock(&self.0)
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
    use crate::{config::CoreConfig, host::device::DeviceFacts};

    /// Whoever says something is stopped at the wish, and has the core by then.
    #[test]
    fn the_core_is_held_from_a_wish_to_what_it_means() {
        let now = Now::simulated(Duration::ZERO, 1_800_000_000_000);
        let config = CoreConfig::new("app", DeviceFacts::simulated("SM8650")).unwrap();
        let core = Mutex::new(Core::new(config, random_stream(), now));
        let consent = Consent::new(true);
        let says: [&(dyn Fn() + Sync); 3] = [
            &|| consent.reset(&core, now),
            &|| consent.tell(false, &core, now),
            &|| consent.tell(true, &core, now),
        ];
        for say in says {
            thread::scope(|s| {
                let _wish = consent.lock();
                s.spawn(say);
                let patience = Instant::now() + Duration::from_secs(10);
                while !matches!(core.try_lock(), Err(TryLockError::WouldBlock)) {
                    assert!(Instant::now() < patience, "nobody holds the core");
                    thread::yield_now();
                }
            });
        }
        assert_eq!(consent.wish().n_forget, 2);
    }

    #[test]
    fn withdrawn_and_given_again_still_forgets() {
        let consent = Consent::new(true);
        assert!(!consent.set(true));
        assert!(consent.set(false));
        assert!(consent.set(true));
        let wish = consent.wish();
        assert_eq!((wish.is_given, wish.n_forget, wish.n_changes), (true, 1, 2));
        consent.forget();
        assert_eq!(consent.wish().n_forget, 2);
        assert_eq!(consent.wish().n_changes, 2);
    }

    #[test]
    fn a_start_without_consent_forgets_nothing_and_saying_so_does() {
        let consent = Consent::new(false);
        assert_eq!(consent.wish().n_forget, 0);
        assert!(!consent.set(false));
        let wish = consent.wish();
        assert_eq!(
            (wish.is_given, wish.n_forget, wish.n_changes),
            (false, 1, 0)
        );
    }
}
