//! The tokens of `page.token_file` or `page.orders_token_file`. A line has one token, followed by the apps that it is
//! limited to, as `app=ID`. A token without an app gives access to all apps. Empty lines and those that begin with `#`
//! are skipped.
//!
//! Only digests are kept and compared, so that the time of a comparison does not depend on the token.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;
use sha2::{Digest as _, Sha256};

use crate::config::MIN_TOKEN_BYTES;
use crate::read::scope::AppScope;

/// Maximum number of tokens in a file.
const MAX_TOKENS: usize = 1_000;

/// The reasons for which tokens cannot be used. The texts do not repeat the file's key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The file cannot be read.
    #[error("failed to read {path}")]
    Read {
        /// Its key in the config.
        key: &'static str,
        /// The path in the config.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A token is so short that it can be guessed, or the file has no token.
    #[error(
        "{path} must hold tokens of {MIN_TOKEN_BYTES} bytes or more, one a line; make them at random"
    )]
    Short {
        /// Its key in the config.
        key: &'static str,
        /// The path in the config.
        path: PathBuf,
    },
    /// A line that is not a token.
    #[error("{path}, line {line}: {problem}")]
    Line {
        /// Its key in the config.
        key: &'static str,
        /// The path in the config.
        path: PathBuf,
        /// Counted from one.
        line: usize,
        /// The expected value.
        problem: &'static str,
    },
    /// Both files share a token, so readers could give orders.
    #[error("must hold other tokens than page.token_file")]
    Same,
}

impl TokenError {
    /// Returns the config key of the file.
    pub(crate) fn key(&self) -> &'static str {
        match self {
            Self::Read { key, .. } | Self::Short { key, .. } | Self::Line { key, .. } => key,
            Self::Same => "page.orders_token_file",
        }
    }
}

/// The digest of a token.
type TokenDigest = [u8; 32];

/// Tokens, each with the apps that its holder may see.
#[derive(Debug, Default)]
pub(crate) struct Tokens(Vec<(TokenDigest, AppScope)>);

pub(crate) fn digest(text: &str) -> TokenDigest {
    Sha256::digest(text).into()
}

impl Tokens {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or a line is not a token.
    pub(crate) fn read(key: &'static str, path: &Path) -> Result<Self, TokenError> {
        let text = epwatch_server::read_secret(path, key);
        let text = text.map_err(|source| TokenError::Read {
            key,
            path: path.to_owned(),
            source,
        })?;
        let short = || TokenError::Short {
            key,
            path: path.to_owned(),
        };
        let mut tokens = Self::default();
        for (at, line) in text.lines().enumerate() {
            let problem = |problem| TokenError::Line {
                key,
                path: path.to_owned(),
                line: at + 1,
                problem,
            };
            let mut words = line.split_whitespace();
            let Some(token) = words.next().filter(|token| !token.starts_with('#')) else {
                continue;
            };
            if token.len() < MIN_TOKEN_BYTES {
                return Err(short());
            }
            let mut apps = BTreeSet::new();
            for word in words {
                let app = word.strip_prefix("app=").filter(|app| !app.is_empty());
                let app = app.and_then(|app| percent_decode_str(app).decode_utf8().ok());
                let expected = "expected app=ID after the token, with a blank in an id as %20";
                apps.insert(app.ok_or_else(|| problem(expected))?.into_owned());
            }
            let digest = digest(token);
            if tokens.0.iter().any(|(other, _)| *other == digest) {
                return Err(problem("this token stands in the file twice"));
            }
            if tokens.0.len() == MAX_TOKENS {
                return Err(problem("a file has at most 1,000 tokens"));
            }
            let scope = match apps.is_empty() {
                true => AppScope::all(),
                false => AppScope::of(apps),
            };
            tokens.0.push((digest, scope));
        }
        match tokens.0.is_empty() {
            true => Err(short()),
            false => Ok(tokens),
        }
    }

    /// Whether one of these tokens is also among `others`.
    pub(crate) fn shares_one_with(&self, others: &Self) -> bool {
        let mut digests = self.0.iter().map(|(digest, _)| digest);
        digests.any(|digest| others.0.iter().any(|(other, _)| other == digest))
    }

    /// Returns the apps that the holder of a token may see; `None` for an unknown token.
    pub(crate) fn scope_of(&self, presented: &str) -> Option<&AppScope> {
        let presented = digest(presented);
        let found = self.0.iter().find(|(digest, _)| *digest == presented);
        found.map(|(_, scope)| scope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Tokens, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        std::fs::write(&path, text).unwrap();
        Tokens::read("page.token_file", &path).map_err(|error| error.to_string())
    }

    #[test]
    fn a_token_is_limited_to_the_apps_of_its_line() {
        let text = "# on-call\nlong-enough-for-all\n\nlong-enough-for-some app=a app=b%20c\n";
        let tokens = read(text).unwrap();
        assert!(tokens.scope_of("long-enough-for-all").unwrap().is_all());
        let some = tokens.scope_of("long-enough-for-some").unwrap();
        assert!(some.has("a") && some.has("b c") && !some.has("b") && !some.is_all());
        assert_eq!(tokens.scope_of("# on-call"), None);
        assert_eq!(tokens.scope_of(""), None);
    }

    /// Windows' editors write the mark, and the first token would be refused for ever.
    #[test]
    fn the_first_token_is_read_without_a_byte_order_mark() {
        let tokens = read("\u{feff}long-enough-for-all\n").unwrap();
        assert!(tokens.scope_of("long-enough-for-all").unwrap().is_all());
    }

    #[test]
    fn a_line_that_is_no_token_is_named() {
        let problem = |text: &str| read(text).unwrap_err();
        for short in ["", "# nothing\n", "short\n"] {
            assert!(problem(short).contains("16 bytes or more"), "{short}");
        }
        let wrong = problem("long-enough-for-all\nlong-enough-for-some apps=a\n");
        assert!(wrong.contains("line 2: expected app=ID"), "{wrong}");
        assert!(problem("long-enough-for-all app=").contains("line 1"));
        let twice = problem("long-enough-for-all\nlong-enough-for-all app=a");
        assert!(
            twice.contains("line 2") && twice.contains("twice"),
            "{twice}"
        );
    }
}
