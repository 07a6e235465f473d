//! String interner with a fixed capacity, so that a run's key needs no allocation.

use std::sync::{Mutex, OnceLock, PoisonError, TryLockError};

/// Id of a text in its [`Interner`]. 0 is the empty text, which means unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct TextId(pub(crate) u8);

impl TextId {
    /// All texts beyond the capacity, and the text `other` itself.
    pub(crate) const OTHER: Self = Self(u8::MAX);
    /// The shape of most models, which needs no lookup.
    pub(crate) const STATIC: Self = Self(u8::MAX - 1);
}

/// Text of [`TextId::OTHER`].
pub(crate) const OTHER: &str = epwatch_proto::stratum::OTHER_SHAPE;
/// Shape key of a model with a fixed input shape.
pub(crate) const STATIC: &str = epwatch_proto::stratum::STATIC_SHAPE;

/// Texts in the order in which they were added. A lookup takes no lock, because texts are only ever added.
#[derive(Debug)]
pub(crate) struct Interner {
    texts: Box<[OnceLock<Box<str>>]>,
    adding: Mutex<()>,
    max_bytes: usize,
}

impl Interner {
    /// Holds at most `max` texts (below 254). A text is clipped to `max_bytes`.
    pub(crate) fn new(max: usize, max_bytes: usize) -> Self {
        Self {
            texts: (0..max).map(|_| OnceLock::new()).collect(),
            adding: Mutex::new(()),
            max_bytes,
        }
    }

    /// Returns the id of a text; allocates only for a new one.
    ///
    /// Returns `None` if another thread is adding a text at this moment, because the caller must not wait.
    #[inline]
    pub(crate) fn try_intern(&self, text: &str) -> Option<TextId> {
        match text {
            "" => Some(TextId(0)),
            STATIC => Some(TextId::STATIC),
            OTHER => Some(TextId::OTHER),
            _ => self.intern_text(text),
        }
    }

    fn intern_text(&self, text: &str) -> Option<TextId> {
        let may_be_clipped = self.may_be_clipped(text);
        if let Slot::At(id) = self.slot(text, may_be_clipped) {
            return Some(id);
        }
        let _adding = match self.adding.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            Err(TryLockError::WouldBlock) => return None,
        };
        match self.slot(text, may_be_clipped) {
            Slot::At(id) => Some(id),
            Slot::Place(at) => {
                let clipped = epwatch_proto::clipped(text, self.max_bytes);
                // Only this thread is adding a text, so the slot is empty and `set` does not wait.
                let _ = self.texts[at].set(clipped.into());
                Some(number(at))
            }
        }
    }

    pub(crate) fn text(&self, id: TextId) -> &str {
        match id {
            TextId(0) => "",
            TextId::OTHER => OTHER,
            TextId::STATIC => STATIC,
            TextId(n) => {
                let place = self.texts.get(usize::from(n) - 1);
                place.and_then(OnceLock::get).map_or("", |text| text)
            }
        }
    }

    fn slot(&self, text: &str, may_be_clipped: bool) -> Slot {
        for (at, place) in self.texts.iter().enumerate() {
            match place.get() {
                Some(known)
                    if &**known == text || may_be_clipped && self.is_clip_of(known, text) =>
                {
                    return Slot::At(number(at));
                }
                Some(_) => {}
                None => return Slot::Place(at),
            }
        }
        Slot::At(TextId::OTHER)
    }

    /// Whether clipping could change the text. 0xC2 begins control characters, among others.
    fn may_be_clipped(&self, text: &str) -> bool {
        let is_suspect = |b: u8| b.is_ascii_control() || b == 0xc2;
        text.len() > self.max_bytes || text.bytes().any(is_suspect)
    }

    /// `known == clipped(text, max_bytes)` without an allocation.
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

enum Slot {
    At(TextId),
    /// Index of the first empty slot.
    Place(usize),
}

fn number(position: usize) -> TextId {
    TextId(u8::try_from(position + 1).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_beyond_the_bound_are_other() {
        let names = Interner::new(2, 4);
        let id = |text| names.try_intern(text).unwrap();
        assert_eq!(names.text(id("")), "");
        assert_eq!(names.text(id("a")), "a");
        assert_eq!(names.text(id("long text")), "long");
        assert_eq!(id("long text"), id("long"));
        assert_eq!(id("third"), TextId::OTHER);
        assert_eq!(names.text(id("third")), "other");
        assert_eq!(names.text(id("a")), "a");
        assert_eq!(names.text(id("static")), "static");
        assert_eq!(names.text(TextId(77)), "");
    }

    /// If `other` had an id of its own, a report would hold two series of one stratum.
    #[test]
    fn the_text_other_is_the_overflow() {
        assert_eq!(Interner::new(2, 8).try_intern("other"), Some(TextId::OTHER));
    }

    #[test]
    fn threads_that_add_the_same_texts_agree() {
        let names = Interner::new(8, 16);
        let ids = || -> Vec<_> {
            let texts = (0..8).map(|n| n.to_string());
            texts
                .map(|text| {
                    loop {
                        if let Some(id) = names.try_intern(&text) {
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
        assert!(!all[0].contains(&TextId::OTHER));
    }

    proptest! {
        #[test]
        fn a_text_is_kept_as_a_report_may_hold_it(text in "\\PC{0,12}|[\u{0}-\u{a0}é]{0,12}") {
            let names = Interner::new(2, 8);
            let id = names.try_intern(&text).unwrap();
            prop_assert_eq!(names.text(id), epwatch_proto::clipped(&text, 8));
            prop_assert_eq!(names.try_intern(&text), Some(id));
        }
    }
}
