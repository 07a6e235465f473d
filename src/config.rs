//! The config file and the environment over the defaults. Each component owns its part; here they
//! are only read and put together.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::{Table, Value};

/// Environment variables under this prefix override the file: `EPWATCH_COLLECTOR__WAL__MAX_BYTES`
/// is `collector.wal.max_bytes`.
const ENV_PREFIX: &str = "EPWATCH_";

/// A config that cannot be used. The text names file or variable, key and what was expected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("failed to read config {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("failed to parse config {path}")]
    Parse {
        path: PathBuf,
        #[source]
        source: Box<toml::de::Error>,
    },
    #[error("failed to use config from {origin}: {key}: {problem}")]
    Value {
        origin: String,
        key: String,
        problem: String,
    },
    #[error("failed to use config from {origin}:\n  {}", problems.join("\n  "))]
    Problems {
        origin: String,
        problems: Vec<String>,
    },
}

/// Where a config came from, for error texts.
pub(crate) fn origin(file: Option<&Path>) -> String {
    match file {
        Some(path) => format!("{} and {ENV_PREFIX}* variables", path.display()),
        None => format!("{ENV_PREFIX}* variables"),
    }
}

/// Reads the file, lays the environment over it and parses the result into `T`, whose own
/// defaults fill the rest.
///
/// Only variables that name one of `sections` are looked at: other programs' variables, and our
/// own such as `EPWATCH_CACHE`, are none of the config's business.
pub(crate) fn load<T: DeserializeOwned>(
    file: Option<&Path>,
    env: impl Iterator<Item = (String, String)>,
    sections: &[&str],
) -> Result<T, ConfigError> {
    let mut table = match file {
        Some(path) => read(path)?,
        None => Table::new(),
    };
    for (name, text) in env {
        let Some(key) = name.strip_prefix(ENV_PREFIX) else {
            continue;
        };
        let key: Vec<String> = key.split("__").map(str::to_ascii_lowercase).collect();
        if sections.contains(&key[0].as_str()) {
            insert(&mut table, &key, value_of(&text)).map_err(|problem| ConfigError::Value {
                origin: name.clone(),
                key: key.join("."),
                problem,
            })?;
        }
    }
    serde_path_to_error::deserialize(Value::Table(table)).map_err(|error| ConfigError::Value {
        origin: origin(file),
        key: error.path().to_string(),
        problem: error.inner().message().to_owned(),
    })
}

fn read(path: &Path) -> Result<Table, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    text.parse().map_err(|source| ConfigError::Parse {
        path: path.to_owned(),
        source: Box::new(source),
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

    #[track_caller]
    fn check(file: &str, env: &[(&str, &str)], expected: Result<(&str, u32), &str>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("epwatch.toml");
        std::fs::write(&path, file).unwrap();
        let env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        match (load::<Config>(Some(&path), env, &["collector"]), expected) {
            (Ok(config), Ok((listen, n))) => {
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
    fn environment_lies_over_file_over_defaults() {
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
}
