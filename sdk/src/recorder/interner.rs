//! Small numbers for a bounded set of texts, so that a run is keyed without allocating.

use std::sync::{Mutex, OnceLock, PoisonError, TryLockError};

/// The number of a text in its [`Names`]. 0 is the empty text: unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct NameId(pub(crate) u8);

impl NameId {
    /// Every text beyond the bound, and the text `other` itself.
    pub(crate) const OTHER: Self = Self(u8::MAX);
    /// The shape of most models, known without looking.
    pub(crate) const STATIC: Self = Self(u8::MAX - 1);
}

/// Text of [`NameId::OTHER`].
pub(crate) const OTHER: &str = epwatch_proto::stratum::OTHER_SHAPE;
/// The key of a model that admits one shape only.
pub(crate) const STATIC: &str = epwatch_proto::stratum::STATIC_SHAPE;

/// Texts seen so far, at most a fixed number of them. Looking one up takes no lock: texts are only
/// ever added.
#[derive(Debug)]
pub(crate) struct Names {
    texts: Box<[OnceLock<Box<str>>]>,
    adding: Mutex<()>,
    max_bytes: usize,
}

impl Names {
    /// At most `max` texts (below 254) of at most `max_bytes` each, longer ones clipped.
    pub(crate) fn new(max: usize, max_bytes: usize) -> Self {
        Self {
            texts: (0..max).map(|_| OnceLock::new()).collect(),
            adding: Mutex::new(()),
            max_bytes,
        }
    }

    /// The number of a text; allocates only when it is new.
    ///
    /// `None` if another thread is adding one at this moment: the caller must not wait.
    #[inline]
    pub(crate) fn try_id(&self, text: &str) -> Option<NameId> {
        match text {
            "" => Some(NameId(0)),
            STATIC => Some(NameId::STATIC),
            OTHER => Some(NameId::OTHER),
            _ => self.found_or_added(text),
        }
    }

    fn found_or_added(&self, text: &str) -> Option<NameId> {
        let may_be_clipped = self.may_be_clipped(text);
        if let Found::At(id) = self.find(text, may_be_clipped) {
            return Some(id);
        }
        let _adding = match self.adding.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            Err(TryLockError::WouldBlock) => return None,
        };
        match self.find(text, may_be_clipped) {
            Found::At(id) => Some(id),
            Found::Place(at) => {
                let clipped = epwatch_proto::clipped(text, self.max_bytes);
                // Nobody else adds, so the place is empty and nobody is waited for.
                let _ = self.texts[at].set(clipped.into());
                Some(number(at))
            }
        }
    }

    /// The text of a number.
    pub(crate) fn text(&self, id: NameId) -> &str {
        match id {
            NameId(0) => "",
            NameId::OTHER => OTHER,
            NameId::STATIC => STATIC,
            NameId(n) => {
                let place = self.texts.get(usize::from(n) - 1);
                place.and_then(OnceLock::get).map_or("", |text| text)
            }
        }
    }

    fn find(&self, text: &str, may_be_clipped: bool) -> Found {
        for (at, place) in self.texts.iter().enumerate() {
            match place.get() {
                Some(known)
                    if &**known == text || may_be_clipped && self.is_clip_of(known, text) =>
                {
                    return Found::At(number(at));
                }
                Some(_) => {}
                None => return Found::Place(at),
            }
        }
        Found::At(NameId::OTHER)
    }

    /// Whether keeping the text would change it; 0xC2 begins control characters among others.
    fn may_be_clipped(&self, text: &str) -> bool {
        let is_suspect = |b: u8| b.is_ascii_control() || b == 0xc2;
        text.len() > self.max_bytes || text.bytes().any(is_suspect)
    }

    /// `known == clipped(text, max_bytes)` without making the text.
    fn is_clip_of(&self, known: &str, text: &str) -> bool {
        let mut known = known.chars();
        let mut len = 0;
        for c in text.chars() {
            let c = if c.is_control() { ' ' } else { c };
            len += c.len_utf8();
            if len > self.max_bytes {
                break;
            }
            if known.next() != Some(c) {
                return false;
            }
        }
        known.next().is_none()
    }
}

enum Found {
    At(NameId),
    /// The first empty place.
    Place(usize),
}

fn number(position: usize) -> NameId {
    NameId(u8::try_from(position + 1).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_beyond_the_bound_are_other() {
        let names = Names::new(2, 4);
        let id = |text| names.try_id(text).unwrap();
        assert_eq!(names.text(id("")), "");
        assert_eq!(names.text(id("a")), "a");
        assert_eq!(names.text(id("long text")), "long");
        assert_eq!(id("long text"), id("long"));
        assert_eq!(id("third"), NameId::OTHER);
        assert_eq!(names.text(id("third")), "other");
        assert_eq!(names.text(id("a")), "a");
        assert_eq!(names.text(id("static")), "static");
        assert_eq!(names.text(NameId(77)), "");
    }

    /// Two series of one stratum would stand in the report otherwise.
    #[test]
    fn the_text_other_is_the_overflow() {
        assert_eq!(Names::new(2, 8).try_id("other"), Some(NameId::OTHER));
    }

    #[test]
    fn threads_that_add_the_same_texts_agree() {
        let names = Names::new(8, 16);
        let ids = || -> Vec<_> {
            let texts = (0..8).map(|n| n.to_string());
            texts
                .map(|text| {
                    loop {
                        if let Some(id) = names.try_id(&text) {
                            break id;
                        }
                    }
                })
                .collect()
        };
        let all = std::thread::scope(|s| {
            let threads: Vec<_> = (0..4).map(|_| s.spawn(ids)).collect();
            threads
                .into_iter()
                .map(|t| t.join().unwrap())
                .collect::<Vec<_>>()
        });
        assert!(all.windows(2).all(|w| w[0] == w[1]), "{all:?}");
        assert!(!all[0].contains(&NameId::OTHER));
    }

    proptest! {
        #[test]
        fn a_text_is_kept_as_a_report_may_hold_it(text in "\\PC{0,12}|[\u{0}-\u{a0}é]{0,12}") {
            let names = Names::new(2, 8);
            let id = names.try_id(&text).unwrap();
            prop_assert_eq!(names.text(id), epwatch_proto::clipped(&text, 8));
            prop_assert_eq!(names.try_id(&text), Some(id));
        }
    }
}
