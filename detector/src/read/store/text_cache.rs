//! Numbers of the texts of a block. A block holds each of its texts once, so a text is found by its address.

use crate::read::interner::{TextId, Texts};

/// Number of texts per column that are found by address alone.
const SLOTS: usize = 64;

/// Numbers of the latest texts, by column. A cache is valid for one block only.
pub(super) struct TextCache<'a>(Vec<[Option<(&'a str, TextId)>; SLOTS]>);

impl<'a> TextCache<'a> {
    pub(super) fn of_columns(n_columns: usize) -> Self {
        Self(vec![[None; SLOTS]; n_columns])
    }

    /// Returns the numbers of a row's texts, which are in consecutive columns from `first` on.
    pub(super) fn ids<const N: usize>(
        &mut self,
        first: usize,
        row: [&'a str; N],
        texts: &mut Texts,
    ) -> [TextId; N] {
        std::array::from_fn(|nth| self.id(first + nth, row[nth], texts))
    }

    fn id(&mut self, column: usize, text: &'a str, texts: &mut Texts) -> TextId {
        let slot = &mut self.0[column][(text.as_ptr().addr() / 4) % SLOTS];
        if let Some((known, id)) = slot
            && std::ptr::eq(*known, text)
        {
            return *id;
        }
        let id = texts.id(text);
        *slot = Some((text, id));
        id
    }
}
