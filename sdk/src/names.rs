//! Small numbers for a bounded set of texts, so that a run is keyed without allocating.

use std::sync::RwLock;

/// The number of a text in its [`Names`]. 0 is the empty text: unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct NameId(pub(crate) u8);

impl NameId {
    /// Every text beyond the bound.
    pub(crate) const OTHER: Self = Self(u8::MAX);
    /// The shape of most models, known without looking: it saves a run the lock.
    const STATIC: Self = Self(u8::MAX - 1);
}

/// Text of [`NameId::OTHER`].
pub(crate) const OTHER: &str = "other";
/// The key of a model that admits one shape only.
pub(crate) const STATIC: &str = "static";

/// Texts seen so far, at most a fixed number of them.
#[derive(Debug)]
pub(crate) struct Names {
    texts: RwLock<Vec<String>>,
    max: usize,
    max_bytes: usize,
}

impl Names {
    /// At most `max` texts (below 254) of at most `max_bytes` each, longer ones clipped.
    pub(crate) fn new(max: usize, max_bytes: usize) -> Self {
        Self {
            texts: RwLock::new(Vec::with_capacity(max)),
            max,
            max_bytes,
        }
    }

    /// The number of a text; allocates only when it is new.
    ///
    /// `None` if another thread is adding one at this moment: the caller must not wait.
    pub(crate) fn try_id(&self, text: &str) -> Option<NameId> {
        if text.is_empty() {
            return Some(NameId(0));
        }
        if text == STATIC {
            return Some(NameId::STATIC);
        }
        {
            let texts = self.texts.try_read().ok()?;
            if let Some(id) = self.find(&texts, text) {
                return Some(id);
            }
            if texts.len() >= self.max {
                return Some(NameId::OTHER);
            }
        }
        let mut texts = self.texts.try_write().ok()?;
        if let Some(id) = self.find(&texts, text) {
            return Some(id);
        }
        if texts.len() >= self.max {
            return Some(NameId::OTHER);
        }
        texts.push(epwatch_proto::clipped(text, self.max_bytes));
        Some(number(texts.len()))
    }

    /// The text of a number.
    pub(crate) fn text(&self, id: NameId) -> String {
        match id {
            NameId(0) => String::new(),
            NameId::OTHER => OTHER.to_owned(),
            NameId::STATIC => STATIC.to_owned(),
            NameId(n) => {
                let texts = self.texts.read();
                let texts = texts.unwrap_or_else(std::sync::PoisonError::into_inner);
                texts.get(usize::from(n) - 1).cloned().unwrap_or_default()
            }
        }
    }

    fn find(&self, texts: &[String], text: &str) -> Option<NameId> {
        let same = |known: &String| known == text || self.is_clip_of(known, text);
        let at = texts.iter().position(same)?;
        Some(number(at + 1))
    }

    fn is_clip_of(&self, known: &str, text: &str) -> bool {
        let is_changed = text.len() > self.max_bytes || text.chars().any(char::is_control);
        is_changed && known == epwatch_proto::clipped(text, self.max_bytes)
    }
}

fn number(position: usize) -> NameId {
    NameId(u8::try_from(position).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
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
    }
}
