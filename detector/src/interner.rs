//! Numbers for what comes again in many rows, in the order it was first met.

use std::hash::Hash;
use std::sync::Arc;

use crate::hash::HashMap;

/// Things and their numbers.
#[derive(Debug, Clone)]
pub(crate) struct Interner<T> {
    ids: HashMap<T, u32>,
    items: Vec<T>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self {
            ids: HashMap::default(),
            items: Vec::new(),
        }
    }
}

impl<T: Clone + Eq + Hash> Interner<T> {
    pub(crate) fn id(&mut self, item: T) -> u32 {
        if let Some(id) = self.ids.get(&item) {
            return *id;
        }
        let id = next_id(self.items.len());
        self.items.push(item.clone());
        self.ids.insert(item, id);
        id
    }

    pub(crate) fn items(&self) -> &[T] {
        &self.items
    }

    pub(crate) fn into_items(self) -> Vec<T> {
        self.items
    }
}

/// The number of one of [`Texts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TextId(u32);

/// Every text once; a known one is found without a copy.
#[derive(Debug, Clone, Default)]
pub(crate) struct Texts {
    ids: HashMap<Arc<str>, TextId>,
    texts: Vec<Arc<str>>,
}

impl Texts {
    pub(crate) fn id(&mut self, text: &str) -> TextId {
        if let Some(id) = self.ids.get(text) {
            return *id;
        }
        let id = TextId(next_id(self.texts.len()));
        let text: Arc<str> = text.into();
        self.texts.push(text.clone());
        self.ids.insert(text, id);
        id
    }

    pub(crate) fn get(&self, TextId(id): TextId) -> &Arc<str> {
        &self.texts[id as usize]
    }

    pub(crate) fn shared(&mut self, text: &str) -> Arc<str> {
        let id = self.id(text);
        self.get(id).clone()
    }
}

pub(crate) fn next_id(known: usize) -> u32 {
    u32::try_from(known).expect("memory ends before the numbers do")
}
