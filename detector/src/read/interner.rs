//! Numbers for values that occur in many rows, in the order of their first occurrence.

use std::hash::Hash;
use std::sync::Arc;

use epwatch_model::ModelKey;
use epwatch_proto::device::runtime_name;

use crate::judge::hash::HashMap;

/// Values and their numbers.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct TextId(u32);

/// Every text once. A known text is found without a copy.
#[derive(Debug, Clone)]
pub(crate) struct Texts {
    ids: HashMap<Arc<str>, TextId>,
    texts: Vec<Arc<str>>,
    /// Names of runtimes, by the versions of ORT and EP.
    runtimes: HashMap<(TextId, TextId), TextId>,
}

impl TextId {
    /// The number of the empty text.
    pub(crate) const EMPTY: TextId = TextId(0);

    pub(crate) fn number(self) -> u32 {
        self.0
    }

    /// Returns the text that has this [`Self::number`].
    pub(crate) fn of_number(number: u32) -> Self {
        Self(number)
    }
}

impl Default for Texts {
    fn default() -> Self {
        let mut texts = Self {
            ids: HashMap::default(),
            texts: Vec::new(),
            runtimes: HashMap::default(),
        };
        assert_eq!(texts.id(""), TextId::EMPTY);
        texts
    }
}

impl Texts {
    /// Returns the numbers of a model's app, environment and name.
    pub(crate) fn model(&mut self, model: &ModelKey) -> (TextId, TextId, TextId) {
        (
            self.id(&model.app_id),
            self.id(&model.environment),
            self.id(&model.model_id),
        )
    }

    /// Returns the numbers of a model's app, environment and name if the texts are known.
    pub(crate) fn known_model(&self, model: &ModelKey) -> Option<(TextId, TextId, TextId)> {
        Some((
            self.known(&model.app_id)?,
            self.known(&model.environment)?,
            self.known(&model.model_id)?,
        ))
    }

    pub(crate) fn known(&self, text: &str) -> Option<TextId> {
        self.ids.get(text).copied()
    }

    /// Returns the number of a runtime's name.
    pub(crate) fn runtime(&mut self, ort_version: TextId, ep_version: TextId) -> TextId {
        if let Some(name) = self.runtimes.get(&(ort_version, ep_version)) {
            return *name;
        }
        let name = self.id(&runtime_name(self.get(ort_version), self.get(ep_version)));
        self.runtimes.insert((ort_version, ep_version), name);
        name
    }

    pub(crate) fn model_key(
        &self,
        (app, environment, model): (TextId, TextId, TextId),
    ) -> ModelKey {
        ModelKey::of((self.get(app), self.get(environment)), self.get(model))
    }

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

    pub(crate) fn n(&self) -> usize {
        self.texts.len()
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
