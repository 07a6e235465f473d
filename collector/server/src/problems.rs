//! Mistakes in a config. All are reported at once, each with its key.

use std::fmt;
use std::ops::RangeInclusive;

/// One mistake in a config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Path of the key below the component's section, for example `wal.max_bytes`.
    pub key: String,
    /// The mistake, and the right form.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.text)
    }
}

/// The mistakes in one config, in the order of its checks.
#[derive(Debug, Clone, Default, PartialEq, Eq, thiserror::Error)]
pub struct Problems(pub Vec<Problem>);

/// The most mistakes that a text lists. A file of 4 MiB could otherwise fill a terminal or a log.
pub const MAX_LISTED: usize = 20;

/// Writes the mistakes in one line, separated by semicolons.
impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.0.iter().take(MAX_LISTED).enumerate() {
            let separator = if at == 0 { "" } else { "; " };
            write!(f, "{separator}{problem}")?;
        }
        match self.0.len().saturating_sub(MAX_LISTED) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl Problems {
    /// Returns problems with a single mistake.
    #[must_use]
    pub fn one(key: impl Into<String>, text: impl Into<String>) -> Self {
        let mut problems = Self::default();
        problems.push(key, text);
        problems
    }

    /// Adds a mistake.
    pub fn push(&mut self, key: impl Into<String>, text: impl Into<String>) {
        self.0.push(Problem {
            key: key.into(),
            text: text.into(),
        });
    }

    /// Adds a mistake unless the value is right.
    pub fn check(&mut self, key: &str, is_right: bool, text: impl FnOnce() -> String) {
        if !is_right {
            self.push(key, text());
        }
    }

    /// Adds a mistake unless the value is in the range.
    pub fn check_range<T: PartialOrd + fmt::Display>(
        &mut self,
        key: &str,
        value: &T,
        range: RangeInclusive<T>,
    ) {
        self.check(key, range.contains(value), || {
            format!("must be {} to {}", range.start(), range.end())
        });
    }

    /// Returns `Ok` if nothing is wrong.
    ///
    /// # Errors
    /// All mistakes, in the order of the checks.
    pub fn into_result(self) -> Result<(), Self> {
        if self.0.is_empty() { Ok(()) } else { Err(self) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ByteSize;

    #[test]
    fn every_mistake_is_in_the_text() {
        let mut problems = Problems::default();
        problems.check("right", true, || unreachable!());
        problems.check_range("wal.max_bytes", &ByteSize(1), ByteSize(2)..=ByteSize(1024));
        problems.check_range("names", &3, 1..=3);
        assert_eq!(problems.clone().into_result(), Err(problems.clone()));
        problems.push("keys", "must not be empty");
        let text = "wal.max_bytes: must be 2B to 1KiB; keys: must not be empty";
        assert_eq!(problems.to_string(), text);
        assert_eq!(Problems::default().into_result(), Ok(()));
        for at in 0..20 {
            problems.push(format!("keys[{at}]"), "must not be empty");
        }
        let text = problems.to_string();
        assert!(
            text.ends_with("keys[17]: must not be empty; and 2 more"),
            "{text}"
        );
    }
}
