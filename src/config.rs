//! Reads the config file and the environment into a config struct, and names the source of each mistake in it.
//!
//! Each component owns its section and validates it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use epwatch_server::{MAX_LISTED, Problems, read_config_text};
use serde::de::DeserializeOwned;
use serde_path_to_error::Segment;
use strsim::damerau_levenshtein;
use toml::{Table, Value};

/// Prefix of this product's variables. `EPWATCH_COLLECTOR__WAL__MAX_BYTES` is the config key `collector.wal.max_bytes`.
pub(crate) const PREFIX: &str = "EPWATCH_";

/// The config file's sections and top-level keys, which variables may set.
pub(crate) const SECTIONS: &[&str] = &["data_dir", "store", "collector", "detector", "page"];

/// A config that cannot be used. The text names file or variable, key and the expected value.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("failed to read config {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The file cannot be parsed. The text omits the faulty line, which may have a secret.
    #[error("failed to parse config {path}, line {line}: {problem}")]
    Parse {
        path: PathBuf,
        line: usize,
        problem: String,
    },
    #[error("failed to use the config:\n  {}", problems.join("\n  "))]
    Problems {
        /// The problems, each as `source: key: problem`.
        problems: Vec<String>,
    },
}

/// The file, variables and options that set the values of a config, for error texts.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    file: Option<(PathBuf, Table)>,
    /// Keys, each with the variable or option that set it.
    set: Vec<(String, String)>,
}

impl Sources {
    /// Notes that the option `name` set `key`.
    pub(crate) fn note(&mut self, key: &str, name: &str) {
        self.set.push((key.to_owned(), name.to_owned()));
    }

    /// Returns `Ok` if nothing is wrong, else all problems, each with the source of its value.
    pub(crate) fn refuse(&self, problems: &Problems) -> Result<(), ConfigError> {
        if problems.0.is_empty() {
            return Ok(());
        }
        let listed = problems.0.iter().take(MAX_LISTED);
        let mut named: Vec<String> = listed.map(|p| self.name(&p.key, &p.text)).collect();
        if let Some(more @ 1..) = problems.0.len().checked_sub(MAX_LISTED) {
            named.push(format!("and {more} more"));
        }
        Err(ConfigError::Problems { problems: named })
    }

    /// Returns `source: key: text`. The source set the key, a part of it, or a section around it.
    fn name(&self, full_key: &str, text: &str) -> String {
        // A source sets a list as a whole, so the index is dropped. After a space there may be a name that is not a
        // key.
        let key = full_key.split(['[', ' ']).next().unwrap_or_default();
        let set = |is_meant: &dyn Fn(&str) -> bool| {
            let found = self.set.iter().rev().find(|(key, _)| is_meant(key));
            found.map(|(_, name)| name.clone())
        };
        let in_file = || {
            let (path, table) = self.file.as_ref()?;
            let mut parts = key.split('.');
            let first = table.get(parts.next()?);
            parts.try_fold(first?, |value, part| value.get(part))?;
            Some(path.display().to_string())
        };
        let source = set(&|set| is_within(key, set))
            .or_else(in_file)
            .or_else(|| set(&|set| is_within(set, key)))
            .unwrap_or_else(|| "default".to_owned());
        format!("{source}: {full_key}: {text}")
    }
}

/// Whether `key` is `section` or in it.
fn is_within(key: &str, section: &str) -> bool {
    let rest = key.strip_prefix(section);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Reads the file, replaces values by the environment's, and parses the result into `T`, whose defaults fill the rest.
///
/// Reads only variables that name one of `sections`. Others, such as `EPWATCH_CACHE`, are not part of the config.
pub(crate) fn load<T: DeserializeOwned>(
    file: Option<&Path>,
    env: impl Iterator<Item = (String, String)>,
    sections: &[&str],
) -> Result<(T, Sources), ConfigError> {
    let mut table = match file {
        Some(path) => read(path)?,
        None => Table::new(),
    };
    let mut sources = Sources {
        file: file.map(|path| (path.to_owned(), table.clone())),
        set: Vec::new(),
    };
    let mut problems = Vec::new();
    for (name, text) in env {
        let Some(key) = name.strip_prefix(PREFIX) else {
            continue;
        };
        let key: Vec<String> = key.split("__").map(str::to_ascii_lowercase).collect();
        if !sections.contains(&key[0].as_str()) {
            continue;
        }
        match insert(&mut table, &key, value_of(&text)) {
            Ok(()) => sources.note(&key.join("."), &name),
            Err(problem) => problems.push(format!("{name}: {}: {problem}", key.join("."))),
        }
    }
    match parse(Value::Table(table), &sources, &mut problems) {
        Some(config) if problems.is_empty() => Ok((config, sources)),
        _ => Err(ConfigError::Problems { problems }),
    }
}

/// Parses `value`, and reports the unknown keys and wrong types in it. A deserialiser stops at the first problem, so
/// each bad entry is removed and the rest parsed again, up to [`MAX_LISTED`] problems.
fn parse<T: DeserializeOwned>(
    mut value: Value,
    sources: &Sources,
    problems: &mut Vec<String>,
) -> Option<T> {
    let mut taken_out: Vec<String> = Vec::new();
    // Number of entries removed from a list, by the list's key.
    let mut entries: HashMap<String, usize> = HashMap::new();
    loop {
        if problems.len() >= MAX_LISTED {
            problems.push("and perhaps more: the rest was not read".to_owned());
            return None;
        }
        let error = match serde_path_to_error::deserialize(value.clone()) {
            Ok(config) => return Some(config),
            Err(error) => error,
        };
        let key = key_of(error.path(), &entries);
        // If a key is missing because it was removed before, it is not a new problem.
        let is_left_over = taken_out.iter().any(|taken| is_within(taken, &key));
        if !is_left_over {
            let text = match value_at(&value, error.path()) {
                // The error of the address parser shows neither the value nor an example.
                Some(Value::String(found)) if error.inner().message().contains(NO_ADDRESS) => {
                    format!(
                        "expected an address such as 127.0.0.1:4717 or 0.0.0.0:4717, got {found:?}"
                    )
                }
                _ => explained(error.inner().message()),
            };
            problems.push(sources.name(&key, &text));
        }
        if !take_out(&mut value, error.path()) {
            return None;
        }
        if key.ends_with(']')
            && let Some((list, _)) = key.rsplit_once('[')
        {
            *entries.entry(list.to_owned()).or_default() += 1;
        }
        taken_out.push(key);
    }
}

/// Returns a path as the file has it. Entries of a list are parsed in order, so removed entries were before the
/// remaining ones.
fn key_of(path: &serde_path_to_error::Path, entries: &HashMap<String, usize>) -> String {
    let mut text = String::new();
    for segment in path {
        match segment {
            Segment::Map { key } if text.is_empty() => text.push_str(key),
            Segment::Map { key } => text.push_str(&format!(".{key}")),
            Segment::Seq { index } => {
                let before = entries.get(&text).copied().unwrap_or(0);
                text.push_str(&format!("[{}]", index + before));
            }
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    text
}

/// Returns a deserialiser's message with the nearest of the expected names, and with the range of a number instead of its
/// type.
fn explained(message: &str) -> String {
    const RANGES: [(&str, &str); 3] = [("u8", "255"), ("u16", "65535"), ("u32", "4294967295")];
    if let Some((begin, kind)) = message.rsplit_once(", expected ")
        && let Some((_, most)) = RANGES.iter().find(|(name, _)| *name == kind)
    {
        return format!("{begin}, expected a whole number from 0 to {most}");
    }
    let unknown = ["unknown field `", "unknown variant `"];
    let rest = unknown.iter().find_map(|begin| message.strip_prefix(begin));
    let Some((name, expected)) = rest.and_then(|rest| rest.split_once('`')) else {
        return message.to_owned();
    };
    // The message has its names between backticks.
    let known = expected.split('`').skip(1).step_by(2);
    match nearest(name, known) {
        Some(near) => format!("{message}; did you mean `{near}`?"),
        None => message.to_owned(),
    }
}

/// Returns the known name with at most one typing error in four letters, or with the same words in another order.
fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let words = |name: &str| {
        let mut words: Vec<String> = name.split('_').map(str::to_owned).collect();
        words.sort_unstable();
        words
    };
    let letters = |name: &str| name.replace('_', "");
    let away = |known: &str| match words(known) == words(name) {
        true => 0,
        false => damerau_levenshtein(&letters(name), &letters(known)),
    };
    let near = known.map(|known| (away(known), known)).min()?;
    (near.0 * 4 <= name.len()).then_some(near.1)
}

/// The error text of `std::net::SocketAddr`.
const NO_ADDRESS: &str = "invalid socket address syntax";

fn value_at<'v>(value: &'v Value, path: &serde_path_to_error::Path) -> Option<&'v Value> {
    path.iter().try_fold(value, |at, segment| match segment {
        Segment::Map { key } => at.get(key.as_str()),
        Segment::Seq { index } => at.get(*index),
        Segment::Enum { .. } | Segment::Unknown => None,
    })
}

/// Removes the value at `path`; `false` if there is none.
fn take_out(value: &mut Value, path: &serde_path_to_error::Path) -> bool {
    let segments: Vec<&Segment> = path.iter().collect();
    let Some((last, parents)) = segments.split_last() else {
        return false;
    };
    let mut at = value;
    for segment in parents {
        let next = match segment {
            Segment::Map { key } => at.get_mut(key.as_str()),
            Segment::Seq { index } => at.get_mut(*index),
            Segment::Enum { .. } | Segment::Unknown => None,
        };
        let Some(next) = next else { return false };
        at = next;
    }
    match (last, at) {
        (Segment::Map { key }, Value::Table(table)) => table.remove(key).is_some(),
        (Segment::Seq { index }, Value::Array(list)) if *index < list.len() => {
            list.remove(*index);
            true
        }
        _ => false,
    }
}

fn read(path: &Path) -> Result<Table, ConfigError> {
    let text = read_config_text(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    text.parse()
        .map_err(|error: toml::de::Error| ConfigError::Parse {
            path: path.to_owned(),
            line: error.span().map_or(1, |span| {
                text[..span.start.min(text.len())].matches('\n').count() + 1
            }),
            problem: error.message().to_owned(),
        })
}

/// A variable's text is TOML where it parses as a number, a bool or an array, else a string.
fn value_of(text: &str) -> Value {
    let parsed = format!("v = {text}")
        .parse::<Table>()
        .ok()
        .and_then(|mut t| t.remove("v"));
    match parsed {
        Some(
            value @ (Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Array(_)),
        ) => value,
        _ => Value::String(text.to_owned()),
    }
}

fn insert(table: &mut Table, key: &[String], value: Value) -> Result<(), String> {
    let (last, path) = key.split_last().expect("split gives at least one part");
    let mut table = table;
    for part in path {
        table = table
            .entry(part.clone())
            .or_insert_with(|| Value::Table(Table::new()))
            .as_table_mut()
            .ok_or_else(|| format!("`{part}` is a value, not a section"))?;
    }
    table.insert(last.clone(), value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq, serde::Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Config {
        collector: Collector,
    }

    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Collector {
        listen: String,
        n: u32,
    }

    impl Default for Collector {
        fn default() -> Self {
            Self {
                listen: "here".to_owned(),
                n: 1,
            }
        }
    }

    #[test]
    fn a_file_that_does_not_parse_prints_no_line_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("epwatch.toml");
        std::fs::write(&path, "[store]\npassword = S3CR3T\n").unwrap();
        let error = read(&path).unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(
            text.contains("line 2") && !text.contains("S3CR3T"),
            "{text}"
        );
    }

    #[test]
    fn a_slip_in_a_key_is_refused_with_the_nearest_one() {
        let near = "did you mean `listen`?";
        check("[collector]\nlistn = \"x\"", &[], Err(near));
        check("", &[("EPWATCH_COLLECTOR__LISTEM", "x")], Err(near));
        let known = ["http_listen", "listen", "wal"];
        let nearest = |name| nearest(name, known.into_iter());
        assert_eq!(nearest("listen_http"), Some("http_listen"));
        assert_eq!(nearest("httplisten"), Some("http_listen"));
        assert_eq!(nearest("retention"), None);
    }

    #[test]
    fn a_number_out_of_range_is_refused_with_the_range() {
        let message = "invalid value: integer `99999`, expected u16";
        let expected = "invalid value: integer `99999`, expected a whole number from 0 to 65535";
        assert_eq!(explained(message), expected);
    }

    #[track_caller]
    fn check(file: &str, env: &[(&str, &str)], expected: Result<(&str, u32), &str>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("epwatch.toml");
        std::fs::write(&path, file).unwrap();
        let env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        match (load::<Config>(Some(&path), env, &["collector"]), expected) {
            (Ok((config, _)), Ok((listen, n))) => {
                assert_eq!(
                    config.collector,
                    Collector {
                        listen: listen.to_owned(),
                        n
                    }
                );
            }
            (Err(error), Err(text)) => {
                let chain = format!("{:#}", anyhow::Error::from(error));
                assert!(chain.contains(text), "{chain}");
            }
            (got, _) => panic!("expected {expected:?}, got {got:?}"),
        }
    }

    #[test]
    fn environment_replaces_file_and_file_replaces_defaults() {
        check("", &[], Ok(("here", 1)));
        check("[collector]\nn = 2", &[], Ok(("here", 2)));
        check(
            "[collector]\nn = 2",
            &[("EPWATCH_COLLECTOR__N", "3")],
            Ok(("here", 3)),
        );
        check(
            "",
            &[("EPWATCH_COLLECTOR__LISTEN", "127.0.0.1:1")],
            Ok(("127.0.0.1:1", 1)),
        );
        check(
            "",
            &[("EPWATCH_CACHE", "/x"), ("PATH", "/y")],
            Ok(("here", 1)),
        );
    }

    #[test]
    fn wrong_keys_are_named() {
        check(
            "[collector]\nm = 2",
            &[],
            Err("collector.m: unknown field `m`"),
        );
        check("[collector]\nn = -2", &[], Err("collector.n"));
        check("[collector", &[], Err("failed to parse config"));
        check(
            "",
            &[("EPWATCH_COLLECTOR__NN", "3")],
            Err("unknown field `nn`"),
        );
        check("", &[("EPWATCH_COLLECTOR", "3")], Err("collector"));
        check("", &[("EPWATCH_COLLECTOR__N__X", "3")], Err("collector.n"));
    }

    /// Each problem costs a pass over the file, so a file with a hundred thousand would take hours.
    #[test]
    fn a_file_of_unknown_keys_is_named_by_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("epwatch.toml");
        let lines = (0..10_000).map(|n| format!("k{n} = 1\n"));
        std::fs::write(&path, lines.collect::<String>()).unwrap();
        let error = load::<Config>(Some(&path), std::iter::empty(), &[]).unwrap_err();
        let ConfigError::Problems { problems } = error else {
            panic!("{error}");
        };
        assert_eq!(problems.len(), MAX_LISTED + 1);
        assert!(problems[MAX_LISTED].starts_with("and perhaps more"));

        let mut found = Problems::default();
        for at in 0..MAX_LISTED + 3 {
            found.push(format!("keys[{at}]"), "is there twice");
        }
        let text = Sources::default().refuse(&found).unwrap_err().to_string();
        assert!(
            text.ends_with("keys[19]: is there twice\n  and 3 more"),
            "{text}"
        );
    }

    #[derive(Debug, Default, serde::Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Wide {
        #[serde(rename = "collector")]
        _collector: Collector,
        #[serde(rename = "channel")]
        _channels: Vec<Channel>,
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Channel {
        #[serde(rename = "url")]
        _url: String,
    }

    #[test]
    fn all_unknown_keys_and_wrong_types_are_reported_at_once_with_their_source() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("epwatch.toml");
        let file = "[collector]\nm = 2\nn = -2\nlisten = \"x\"\n[[channel]]\n[[channel]]\nurl = 1\n\
                    [[channel]]\nurl = \"a\"\nul = \"b\"\n[[channel]]\nurl = \"c\"\n[other]\n";
        std::fs::write(&path, file).unwrap();
        let env = [("EPWATCH_COLLECTOR__LISTEN", "7"), ("EPWATCH_OTHER", "1")];
        let env = env.map(|(name, text)| (name.to_owned(), text.to_owned()));
        let error = load::<Wide>(Some(&path), env.into_iter(), &["collector"]).unwrap_err();
        let ConfigError::Problems { mut problems } = error else {
            panic!("{error}");
        };
        problems.sort();
        let expected = [
            "FILE: channel[0]: missing field `url`",
            "FILE: channel[1].url: ",
            "FILE: channel[2].ul: unknown field `ul`",
            "FILE: collector.m: unknown field `m`",
            "FILE: collector.n: ",
            "FILE: other: unknown field `other`",
            "EPWATCH_COLLECTOR__LISTEN: collector.listen: ",
        ];
        let file = path.display().to_string();
        assert_eq!(problems.len(), expected.len(), "{problems:#?}");
        for (problem, expected) in problems.iter().zip(expected) {
            let expected = expected.replace("FILE", &file);
            assert!(problem.starts_with(&expected), "{problem}, not {expected}");
        }
    }
}
