//! App keys in the config and in the keys file, by their hash. `ingest/auth.rs` looks up each call's key here.
//!
//! A key is `epw_` and 64 hexadecimal digits of 256 random bits, so one SHA-256 hides it for good. Slow hashes are for
//! passwords that people choose. Errors never print a key or a hash.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::Path;

use epwatch_proto::{hex, unhex};
use epwatch_server::{Problem, Problems, read_config_text};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The most keys of one collector, in its config and its keys file together.
pub(crate) const MAX_KEYS: usize = 4_096;
const PREFIX: &str = "epw_";

/// Warning of a start without a key in force, and of a check before it.
pub(crate) const NO_KEY_IN_FORCE: &str =
    "no app key is in force, so every device is refused; `epwatch collector key` makes one";

/// SHA-256 of a key.
pub(crate) type KeyHash = [u8; 32];

/// The holder of a key. This decides how far its reports are trusted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyKind {
    /// It ships in an app, so it is public. It may upload and delete, and the votes of its devices are limited.
    #[default]
    App,
    /// The operator's own machines have it, such as robots or a lab. It may upload and delete, and its devices are
    /// trusted.
    Own,
    /// A release pipeline has it. It may store manifests and certified placements, and may not upload reports.
    Pipeline,
}

impl KeyKind {
    /// The name in configs.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::App => "app",
            Self::Own => "own",
            Self::Pipeline => "pipeline",
        }
    }
}

/// One app key, and what it admits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AppKeyConfig {
    /// The key's label in metrics, never the key itself. Keys without a name are counted together.
    pub name: String,
    /// SHA-256 of the key, 64 hexadecimal digits. `epwatch collector key` makes a key and its hash.
    pub sha256: String,
    /// The one app whose reports the key admits, or `*`. Required, because a key that ships in an app is public and
    /// must not admit other apps by an oversight.
    pub app: String,
    /// The one environment whose reports the key admits, or `*`. Empty is `production` for a key of kind `app`, and any
    /// environment for other kinds. With an app's key, a person who unpacks the app could otherwise make up any number
    /// of environments, each with cohorts of its own.
    pub environment: String,
    /// The kind of the key, which says who has it.
    pub kind: KeyKind,
    /// True refuses the key, with an error that says so.
    pub revoked: bool,
}

/// A valid entry with the hash of its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyEntry {
    pub(crate) config: AppKeyConfig,
    pub(crate) hash: KeyHash,
}

/// A new key. The command prints the secret once; only the hash is kept.
#[derive(Clone, PartialEq, Eq)]
pub struct NewKey {
    /// The app sends it as `authorization: Bearer <secret>`.
    pub secret: String,
    /// The value of `sha256` in the config.
    pub sha256: String,
}

impl std::fmt::Debug for NewKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewKey")
            .field("secret", &"***")
            .finish_non_exhaustive()
    }
}

impl NewKey {
    /// Makes a key from the system's random source.
    ///
    /// # Errors
    /// The system has no random source.
    pub fn random() -> std::io::Result<Self> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
        Ok(Self::of(format!("{PREFIX}{}", hex(&bytes))))
    }

    /// Returns the key for a secret of the operator's choice.
    #[must_use]
    pub fn of(secret: String) -> Self {
        let sha256 = hex(&hash_of(&secret));
        Self { secret, sha256 }
    }
}

pub(crate) fn hash_of(secret: &str) -> KeyHash {
    Sha256::digest(secret.as_bytes()).into()
}

impl AppKeyConfig {
    /// Returns the environment that the key admits, or `*`.
    pub(crate) fn admitted_environment(&self) -> &str {
        match (self.environment.as_str(), self.kind) {
            ("", KeyKind::App) => "production",
            ("", _) => "*",
            (environment, _) => environment,
        }
    }

    /// Returns the hash of the key; `None` if `sha256` is not a hash.
    fn hash(&self) -> Option<KeyHash> {
        unhex(&self.sha256)?.try_into().ok()
    }
}

/// Entries are read one by one, so that one mistake does not hide another.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct KeysFile {
    keys: Vec<toml::Spanned<toml::Table>>,
}

fn too_many() -> String {
    format!("must be at most {MAX_KEYS} keys")
}

/// Checks entries one by one; `section` is the prefix of the problems' keys.
fn check_entries(section: &str, keys: &[AppKeyConfig], problems: &mut Problems) -> Vec<KeyEntry> {
    let mut entries = Vec::with_capacity(keys.len());
    let mut seen = HashSet::new();
    problems.check(section, keys.len() <= MAX_KEYS, too_many);
    for (index, key) in keys.iter().take(MAX_KEYS).enumerate() {
        let at = |field: &str| format!("{section}[{index}].{field}");
        match key.hash() {
            Some(hash) if seen.insert(hash) => entries.push(KeyEntry {
                config: key.clone(),
                hash,
            }),
            Some(_) => problems.push(
                at("sha256"),
                "is there twice; a key proves one app and environment",
            ),
            None => problems.push(
                at("sha256"),
                "must be the SHA-256 of the key as 64 hexadecimal digits",
            ),
        }
        let names = [
            ("app", &key.app, 1, 128),
            ("environment", &key.environment, 0, 32),
            ("name", &key.name, 0, 64),
        ];
        for (name, value, min, max) in names {
            let fits = (min..=max).contains(&value.len()) && !value.chars().any(char::is_control);
            problems.check(&at(name), fits, || {
                format!("must have {min} to {max} bytes; `*` means any")
            });
        }
    }
    entries
}

/// Reads a keys file.
///
/// # Errors
/// Every problem, with the file's name in the key. No entry of the file is usable then.
pub(crate) fn read_keys_file(path: &Path) -> Result<Vec<KeyEntry>, Problems> {
    let mut problems = Problems::default();
    let section = format!("keys_file {}: keys", path.display());
    let text = read_config_text(path)
        .map_err(|error| Problems::one("keys_file", format!("{}: {error}", path.display())))?;
    let mut lines = LineCounter::default();
    let mut line_of = |at: usize| lines.line_of(&text, at);
    // The parser's own display quotes the line, which may hold a secret by mistake.
    let file: KeysFile = toml::from_str(&text).map_err(|error| {
        let line = error.span().map_or(0, |span| line_of(span.start));
        let text = format!("{} (line {line})", error.message());
        Problems::one(format!("keys_file {}", path.display()), text)
    })?;
    if file.keys.len() > MAX_KEYS {
        return Err(Problems::one(section, too_many()));
    }
    let mut keys = Vec::with_capacity(file.keys.len());
    for (index, entry) in file.keys.into_iter().enumerate() {
        let line = line_of(entry.span().start);
        match entry.into_inner().try_into::<AppKeyConfig>() {
            Ok(key) => keys.push(key),
            Err(error) => {
                let text = format!("{} (entry at line {line})", error.message());
                problems.push(format!("{section}[{index}]"), text);
                // An empty entry takes its place, so that the numbers of later entries stay right. It is not checked
                // further.
                keys.push(AppKeyConfig::default());
            }
        }
    }
    let mut found = Problems::default();
    let entries = check_entries(&section, &keys, &mut found);
    let unread: HashSet<&str> = problems.0.iter().map(|of| of.key.as_str()).collect();
    let is_read = |of: &Problem| {
        let entry = of.key.rsplit_once('.').map(|(entry, _)| entry);
        entry.is_none_or(|entry| !unread.contains(entry))
    };
    found.0.retain(is_read);
    problems.0.extend(found.0);
    problems.into_result().map(|()| entries)
}

/// Counts lines up to ascending places of a text, each line once.
#[derive(Debug)]
struct LineCounter {
    at: usize,
    line: usize,
}

impl Default for LineCounter {
    fn default() -> Self {
        Self { at: 0, line: 1 }
    }
}

impl LineCounter {
    fn line_of(&mut self, text: &str, at: usize) -> usize {
        if at < self.at {
            *self = Self::default();
        }
        let passed = text.as_bytes().get(self.at..at).unwrap_or_default();
        self.line += passed.iter().filter(|byte| **byte == b'\n').count();
        self.at = at;
        self.line
    }
}

/// Refuses keys of the file that the config itself has too, because each may be for another app.
///
/// # Errors
/// Each such entry, with the file's name in the key.
pub(crate) fn check_distinct(
    inline: &[KeyEntry],
    of_file: &[KeyEntry],
    file: &Path,
) -> Result<(), Problems> {
    let known: HashSet<KeyHash> = inline.iter().map(|entry| entry.hash).collect();
    let mut problems = Problems::default();
    for (index, _) in of_file
        .iter()
        .enumerate()
        .filter(|(_, entry)| known.contains(&entry.hash))
    {
        let key = format!("keys_file {}: keys[{index}].sha256", file.display());
        problems.push(
            key,
            "is also in collector.keys; a key proves one app and environment",
        );
    }
    problems.into_result()
}

/// Returns the keys of the config itself, which passed [`check`].
pub(crate) fn inline(keys: &[AppKeyConfig]) -> Vec<KeyEntry> {
    check_entries("keys", keys, &mut Problems::default())
}

pub(super) fn check(
    keys: &[AppKeyConfig],
    keys_file: Option<&Path>,
    listen: SocketAddr,
    problems: &mut Problems,
) {
    let is_open = keys.is_empty() && keys_file.is_none();
    problems.check("keys", !is_open || listen.ip().is_loopback(), || {
        format!("without an app key only a loopback address may listen, not {listen}; `epwatch collector key` makes one")
    });
    let inline = check_entries("keys", keys, problems);
    if let Some(path) = keys_file {
        let of_file = read_keys_file(path);
        let distinct = of_file.and_then(|of_file| check_distinct(&inline, &of_file, path));
        problems.0.extend(distinct.err().unwrap_or_default().0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CollectorConfig;

    fn key(sha256: &str, app: &str) -> AppKeyConfig {
        AppKeyConfig {
            sha256: sha256.to_owned(),
            app: app.to_owned(),
            ..AppKeyConfig::default()
        }
    }

    #[test]
    fn every_mistake_of_a_keys_file_is_named() {
        let digits = "0123456789abcdef".repeat(4);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        let entry = |rest: &str| format!("[[keys]]\n{rest}\n");
        for (text, expected) in [
            (
                entry("shaa256 = \"S3CR3T\"")
                    + &entry("sha256 = \"no\"\napp = \"a\"")
                    + &entry("kind = \"robot\""),
                vec![
                    "[0]: unknown field `shaa256`",
                    "(entry at line 1)",
                    "[2]: unknown variant `robot`",
                    "(entry at line 6)",
                    "[1].sha256: must be the SHA-256",
                ],
            ),
            (
                entry(&format!("sha256 = \"{digits}\"")),
                vec!["[0].app: must have 1 to 128 bytes"],
            ),
            ("[[keys]]\nsha256 = \n".to_owned(), vec!["(line 2)"]),
            (
                "keyz = 1".to_owned(),
                vec!["unknown field `keyz`", "(line 1)"],
            ),
        ] {
            std::fs::write(&path, &text).unwrap();
            let problems = read_keys_file(&path).unwrap_err();
            let told: Vec<String> = problems.0.iter().map(ToString::to_string).collect();
            let told = told.join("\n");
            for part in expected {
                assert!(told.contains(part), "{part}: {told}");
            }
            assert!(!told.contains("S3CR3T"), "{told}");
        }
        let whole = entry(&format!("sha256 = \"{digits}\"\napp = \"a\""));
        std::fs::write(&path, whole).unwrap();
        assert_eq!(read_keys_file(&path).unwrap().len(), 1);
    }

    #[test]
    fn lines_are_counted_in_any_order() {
        let (text, mut lines) = ("a\nb\n\nc", LineCounter::default());
        let found = [0, 2, 5, 5, 1, 99].map(|at| lines.line_of(text, at));
        assert_eq!(found, [1, 2, 4, 4, 1, 1]);
    }

    /// Each entry of a file of 4 MiB names its line, and counting from its beginning would take minutes.
    #[test]
    fn many_entries_are_refused_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        std::fs::write(&path, "[[keys]]\nshaa256 = 1\n".repeat(MAX_KEYS + 1)).unwrap();
        let problems = read_keys_file(&path).unwrap_err();
        let [problem] = &problems.0[..] else {
            panic!("{problems}")
        };
        assert_eq!(problem.text, too_many());
        std::fs::write(&path, "[[keys]]\nshaa256 = 1\n".repeat(MAX_KEYS)).unwrap();
        let problems = read_keys_file(&path).unwrap_err();
        assert_eq!(problems.0.len(), MAX_KEYS);
        let last = problems.0.last().unwrap().to_string();
        assert!(last.contains("(entry at line 8191)"), "{last}");
    }

    /// Otherwise the order of two lists would decide which app the key is for.
    #[test]
    fn a_key_of_the_config_may_not_be_in_the_keys_file_too() {
        let digits = "0123456789abcdef".repeat(4);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        let entry = |digits: &str| format!("[[keys]]\nsha256 = \"{digits}\"\napp = \"b\"\n");
        std::fs::write(&path, entry(&"0".repeat(64)) + &entry(&digits)).unwrap();
        let config = CollectorConfig {
            keys: vec![key(&digits.to_uppercase(), "a")],
            keys_file: Some(path),
            ..CollectorConfig::default()
        };
        let problems = config.validate().unwrap_err().to_string();
        let expected = "keys.toml: keys[1].sha256: is also in collector.keys";
        assert!(problems.contains(expected), "{problems}");
    }

    #[test]
    fn app_keys_are_checked_one_by_one() {
        let digits = "0123456789abcdef".repeat(4);
        let config = CollectorConfig {
            keys: vec![
                key(&digits, "a"),
                key(&digits.to_uppercase(), "a"),
                key("my-secret-by-mistake", ""),
            ],
            ..CollectorConfig::default()
        };
        let problems = config.validate().unwrap_err();
        let keys: Vec<&str> = problems.0.iter().map(|p| p.key.as_str()).collect();
        assert_eq!(keys, ["keys[1].sha256", "keys[2].sha256", "keys[2].app"]);
        let texts = problems.to_string();
        assert!(
            !texts.contains("my-secret"),
            "what may be a key is not printed"
        );
    }

    /// A key that ships in an app never admits more than that app's reports, whichever field is omitted.
    #[test]
    fn an_entry_must_name_its_app_and_is_public_by_default() {
        let digits = "0123456789abcdef".repeat(4);
        let entry: AppKeyConfig = toml::from_str(&format!("sha256 = \"{digits}\"")).unwrap();
        assert_eq!(entry.kind, KeyKind::App);
        assert_eq!(entry.admitted_environment(), "production");
        for (kind, environment, admitted) in [
            (KeyKind::App, "*", "*"),
            (KeyKind::App, "staging", "staging"),
            (KeyKind::Own, "", "*"),
            (KeyKind::Pipeline, "", "*"),
        ] {
            let entry = AppKeyConfig {
                kind,
                environment: environment.to_owned(),
                ..AppKeyConfig::default()
            };
            assert_eq!(entry.admitted_environment(), admitted);
        }
        let mut problems = Problems::default();
        check_entries("keys", &[entry], &mut problems);
        let keys: Vec<&str> = problems.0.iter().map(|p| p.key.as_str()).collect();
        assert_eq!(keys, ["keys[0].app"]);
    }

    #[test]
    fn a_new_key_is_random_and_hides_its_secret() {
        let made = NewKey::random().unwrap();
        assert_ne!(NewKey::random().unwrap(), made);
        assert!(!format!("{made:?}").contains(&made.secret));
    }

    #[test]
    fn an_invalid_keys_file_is_reported_by_file_and_line_without_its_text() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        let check = |text: &str, expected: &str| {
            std::fs::write(&path, text).unwrap();
            let problems = read_keys_file(&path).unwrap_err();
            let text = problems.to_string();
            assert!(
                text.contains("keys.toml") && text.contains(expected),
                "{text}"
            );
            assert!(!text.contains("epw_5ec3e7"), "{text}");
        };
        check("[[keys]]\nsecret = \"epw_5ec3e7\"", "unknown field");
        check("[[keys]]\n\nsha256 = epw_5ec3e7", "line 3");
        check("[[keys]]\nsha256 = \"epw_5ec3e7\"", "keys[0].sha256");
        std::fs::write(&path, "").unwrap();
        assert_eq!(read_keys_file(&path).unwrap(), []);
    }
}
