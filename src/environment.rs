//! Names of environment variables. A typing error in a name would silently leave a default in force, so unknown names
//! are refused.

use std::collections::BTreeSet;

use strsim::damerau_levenshtein;

use crate::config::{PREFIX, SECTIONS};
use crate::output::WrongUse;

/// Variables outside of the config. docs/configure.md lists those that a user may set.
const OWN: &[&str] = &[
    "EPWATCH_CACHE",
    "EPWATCH_CONFIG",
    "EPWATCH_CERTIFY_KEY",
    "EPWATCH_LOAD_KEY",
    "EPWATCH_LOG",
    "EPWATCH_LOG_FORMAT",
    // Variables of an app with the SDK, in the same shell: its example program, and the Python package.
    "EPWATCH_ENDPOINT",
    "EPWATCH_KEY",
    "EPWATCH_APP",
    "EPWATCH_CONSENT",
    "EPWATCH_ENVIRONMENT",
    "EPWATCH_FOLDER",
    // Variables of Grafana's provisioning, in the same environment file.
    "EPWATCH_CLICKHOUSE_HOST",
    "EPWATCH_CLICKHOUSE_PASSWORD",
    "EPWATCH_CLICKHOUSE_PORT",
    "EPWATCH_CLICKHOUSE_USER",
    "EPWATCH_PROMETHEUS_URL",
    // Variables of this repository's build and its tests, which start the command.
    "EPWATCH_BLESS",
    "EPWATCH_NIGHTLY",
    "EPWATCH_REVISION",
    "EPWATCH_SKIP",
];
const OWN_PREFIXES: &[&str] = &["EPWATCH_BENCH_", "EPWATCH_TEST_"];

/// The config file with every key, commented out or not.
const EXAMPLE: &str = include_str!("../epwatch.example.toml");

/// Refuses unknown variables of this product, all at once and each with the nearest known name.
pub(crate) fn check(names: impl Iterator<Item = String>) -> Result<(), WrongUse> {
    let unknown = names.filter(|name| name.starts_with(PREFIX) && !is_known(name));
    let unknown: BTreeSet<String> = unknown.collect();
    let problems: Vec<String> = unknown.iter().map(|name| problem(name)).collect();
    match problems.is_empty() {
        true => Ok(()),
        false => Err(WrongUse(problems.join("\n"))),
    }
}

fn is_known(name: &str) -> bool {
    let key = name.strip_prefix(PREFIX).unwrap_or_default();
    let section = key.split("__").next().unwrap_or_default();
    // The config itself refuses a key that is unknown in its section.
    SECTIONS.contains(&section.to_ascii_lowercase().as_str())
        || OWN.contains(&name)
        || OWN_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || is_of_kubernetes(name)
}

/// Whether Kubernetes sets the variable in each container next to a Service of that name: `X_SERVICE_HOST`,
/// `X_SERVICE_PORT`, `X_SERVICE_PORT_GRPC`, `X_PORT`, `X_PORT_4717_TCP_ADDR`.
fn is_of_kubernetes(name: &str) -> bool {
    let is_port = |(_, rest): (&str, &str)| {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        digits > 0 && rest[digits..].starts_with('_')
    };
    ["_SERVICE_HOST", "_SERVICE_PORT", "_PORT"]
        .iter()
        .any(|end| name.ends_with(end))
        || name.contains("_SERVICE_PORT_")
        || name.split_once("_PORT_").is_some_and(is_port)
}

fn problem(name: &str) -> String {
    let letters = |name: &str| name.replace('_', "");
    let mut known: Vec<String> = config_variables();
    known.extend(OWN[..5].iter().map(|name| (*name).to_owned()));
    let distance = |known: &String| damerau_levenshtein(&letters(name), &letters(known));
    let nearest = known.iter().min_by_key(|known| distance(known));
    // At most one typing error in four letters still counts as the same word.
    match nearest.filter(|nearest| distance(nearest) * 4 <= name.len() - PREFIX.len()) {
        Some(nearest) => format!("{name}: is not a variable of epwatch; did you mean {nearest}?"),
        None => format!(
            "{name}: is not a variable of epwatch; a key of the config is {PREFIX}COLLECTOR__LISTEN and the like"
        ),
    }
}

/// Returns the variables of all config keys.
fn config_variables() -> Vec<String> {
    let mut section = String::new();
    let mut variables = Vec::new();
    for line in EXAMPLE.lines() {
        let line = line.strip_prefix("# ").unwrap_or(line);
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._".contains(c);
        let name = line.trim_matches(['[', ']']);
        if name.len() < line.len() && name.chars().all(is_name) {
            section = format!("{name}.");
        } else if let Some((key, _)) = line.split_once(" = ")
            && key.chars().all(is_name)
        {
            let path = format!("{section}{key}").replace('.', "__");
            variables.push(format!("{PREFIX}{}", path.to_ascii_uppercase()));
        }
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_name(name: &str, expected: &str) {
        let said =
            check([name.to_owned()].into_iter()).map_or_else(|error| error.0, |()| String::new());
        assert_eq!(said.is_empty(), expected.is_empty(), "{name}: {said}");
        assert!(said.starts_with(name) || said.is_empty(), "{said}");
        assert!(said.contains(expected), "{said}");
    }

    #[test]
    fn a_slip_in_a_name_is_refused_with_the_nearest_one() {
        check_name(
            "EPWATCH_COLLECTOR_LISTEN",
            "mean EPWATCH_COLLECTOR__LISTEN?",
        );
        check_name(
            "EPWATCH_COLLECTOR_WAL_MAX_BYTE",
            "mean EPWATCH_COLLECTOR__WAL__MAX_BYTES?",
        );
        check_name(
            "EPWATCH_STORE_READER_LISTEN",
            "mean EPWATCH_STORE__READER__LISTEN?",
        );
        check_name("EPWATCH_LOGS", "mean EPWATCH_LOG?");
        check_name("EPWATCH_DATADIR", "mean EPWATCH_DATA_DIR?");
        check_name(
            "EPWATCH_SOMETHING_ELSE",
            "is not a variable of epwatch; a key",
        );
        check_name("EPWATCH_REPORT", "is not a variable");
    }

    #[test]
    fn variables_of_others_pass() {
        for name in [
            "PATH",
            "EPWATCH_DATA_DIR",
            "EPWATCH_COLLECTOR__NO_SUCH_KEY",
            "EPWATCH_CACHE",
            "EPWATCH_TEST_ROLE",
            "EPWATCH_SERVICE_HOST",
            "EPWATCH_COLLECTOR_SERVICE_PORT",
            "EPWATCH_COLLECTOR_SERVICE_PORT_GRPC",
            "EPWATCH_COLLECTOR_PORT",
            "EPWATCH_COLLECTOR_PORT_4717_TCP_ADDR",
        ] {
            check_name(name, "");
        }
    }

    #[test]
    fn the_config_s_keys_are_variables() {
        let variables = config_variables();
        assert!(variables.len() > 60, "{variables:?}");
        for name in [
            "EPWATCH_DATA_DIR",
            "EPWATCH_STORE__CLICKHOUSE",
            "EPWATCH_COLLECTOR__TLS__CERT_FILE",
        ] {
            assert!(variables.iter().any(|variable| variable == name), "{name}");
        }
    }
}
