//! Small sets without an allocation, for one pass of the validator.

use std::fmt;

use super::CheckedMessage;

/// The last valid message of its kind. Equal bytes are not checked again.
pub(crate) struct Last<'a, M: CheckedMessage>(Option<(&'a [u8], M::Kept<'a>)>);

impl<M: CheckedMessage> Default for Last<'_, M> {
    fn default() -> Self {
        Self(None)
    }
}

impl<M: CheckedMessage> fmt::Debug for Last<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Last").finish_non_exhaustive()
    }
}

impl<'a, M: CheckedMessage<Kept<'a>: Copy>> Last<'a, M> {
    #[inline]
    pub(crate) fn check(&mut self, bytes: &'a [u8]) -> Option<M::Kept<'a>> {
        match self.0 {
            Some((last, kept)) if last == bytes => Some(kept),
            _ => {
                let kept = M::check(bytes)?;
                self.0 = Some((bytes, kept));
                Some(kept)
            }
        }
    }
}

/// Up to `N` entries. More are left to the full parser, whose sets take any number in less than quadratic time.
#[derive(Debug)]
pub(crate) struct Few<T, const N: usize> {
    entries: [T; N],
    len: usize,
}

impl<T: Copy + Default + PartialEq, const N: usize> Default for Few<T, N> {
    fn default() -> Self {
        Self {
            entries: [T::default(); N],
            len: 0,
        }
    }
}

impl<T: Copy + PartialEq, const N: usize> Few<T, N> {
    /// Adds an entry; `None` if the set has it already, or is full.
    #[inline]
    pub(crate) fn add(&mut self, entry: T) -> Option<()> {
        if self.entries().contains(&entry) {
            return None;
        }
        *self.entries.get_mut(self.len)? = entry;
        self.len += 1;
        Some(())
    }

    /// Adds an entry unless the set has it; `None` if the set is full.
    #[inline]
    pub(crate) fn note(&mut self, entry: T) -> Option<()> {
        if self.entries().contains(&entry) {
            return Some(());
        }
        self.add(entry)
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    #[inline]
    pub(crate) fn entries(&self) -> &[T] {
        &self.entries[..self.len]
    }
}

/// Enum values by their numbers, each at most once.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct EnumNumbers(u64);

impl EnumNumbers {
    #[inline]
    pub(crate) fn add(&mut self, number: i32) -> Option<()> {
        let bit = 1_u64.checked_shl(u32::try_from(number).ok()?)?;
        let is_first = self.0 & bit == 0;
        self.0 |= bit;
        is_first.then_some(())
    }
}
