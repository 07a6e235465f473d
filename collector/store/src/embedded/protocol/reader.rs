//! Access of third parties (Grafana, `clickhouse-connect`): the same protocol on a loopback port, read-only and
//! with a password.
//!
//! A page in a browser can reach loopback too, so the request must name this machine (`Host`) and contain the password.
//! Only settings that shape an answer are taken from a client. The engine runs the statement under `readonly=1`. The
//! password gives access to the rows of every app.

use std::fmt;
use std::net::SocketAddr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hyper::{HeaderMap, header};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::request::Parameters;
use super::statement::Kind;
use crate::lexer::{TokenKind, tokens};

/// Shorter passwords are refused, because every user of the machine can try passwords on a loopback port.
const MIN_PASSWORD_BYTES: usize = 12;

/// Statements that readers may send; the engine's own classification must agree.
const READING: &[&str] = &[
    "DESC", "DESCRIBE", "EXISTS", "EXPLAIN", "FROM", "SELECT", "SHOW", "WITH",
];

/// Settings of a reader that shape its answer or bound its work. `format_schema` and the template settings are not
/// among them, because they name files.
const SETTINGS: &[&str] = &[
    "date_time_input_format",
    "date_time_output_format",
    "extremes",
    "join_use_nulls",
    "limit",
    "max_block_size",
    "max_bytes_to_read",
    "max_execution_time",
    "max_result_bytes",
    "max_result_rows",
    "max_rows_to_read",
    "max_threads",
    "offset",
    "result_overflow_mode",
    "session_timezone",
    "timeout_before_checking_execution_speed",
    "use_client_time_zone",
];

/// Prefix of further settings that shape the answer.
const OUTPUT_SETTINGS: &str = "output_format_";

/// How many statements of readers may run at the same time, so that the owner does not wait for them.
pub(in crate::embedded) const MAX_STATEMENTS: usize = 4;

/// Longest time of a reader's statement, in seconds. A dashboard repeats its statements.
const MAX_EXECUTION_SECONDS: u64 = 60;

/// Address and password with which third parties read the embedded store.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReaderAccess {
    address: SocketAddr,
    password: String,
}

impl fmt::Debug for ReaderAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReaderAccess({}, ***)", self.address)
    }
}

/// The reason why access for readers would not be safe.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReaderAccessError {
    /// Other machines could connect.
    #[error(
        "{0} is not a loopback address; readers elsewhere come through a proxy with TLS, or use a \
         ClickHouse server as the store"
    )]
    NotLoopback(SocketAddr),
    /// The password is so short that it can be guessed.
    #[error("the password is shorter than {MIN_PASSWORD_BYTES} bytes; make one at random")]
    ShortPassword,
}

impl ReaderAccess {
    /// Lets readers connect to `address` (port 0 means any free port) with `password`, under any user name.
    ///
    /// # Errors
    /// The address is not on loopback, or the password is shorter than 12 bytes.
    pub fn new(
        address: SocketAddr,
        password: impl Into<String>,
    ) -> Result<ReaderAccess, ReaderAccessError> {
        let password = password.into();
        if !address.ip().is_loopback() {
            return Err(ReaderAccessError::NotLoopback(address));
        }
        if password.len() < MIN_PASSWORD_BYTES {
            return Err(ReaderAccessError::ShortPassword);
        }
        Ok(ReaderAccess { address, password })
    }

    pub(in crate::embedded) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Refuses a request that does not name this machine. A page whose name resolves to loopback (DNS rebinding)
    /// sends its own name.
    pub(in crate::embedded) fn check_host(headers: &HeaderMap) -> Result<(), ReaderRefusal> {
        let host = headers
            .get(header::HOST)
            .and_then(|host| host.to_str().ok());
        let host = host.unwrap_or_default();
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let is_here = name.eq_ignore_ascii_case("localhost")
            || name
                .trim_matches(['[', ']'])
                .parse()
                .is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
        is_here.then_some(()).ok_or(ReaderRefusal::Host)
    }

    /// Refuses a request without the password, which may be in any of the protocol's places.
    pub(in crate::embedded) fn check_password(
        &self,
        headers: &HeaderMap,
        parameters: &Parameters,
    ) -> Result<(), ReaderRefusal> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let presented = match (text("authorization"), text("x-clickhouse-key")) {
            (Some(authorization), _) => basic_password(authorization),
            (None, Some(key)) => Some(key.to_owned()),
            (None, None) => parameters.password.clone(),
        };
        let presented = presented.ok_or(ReaderRefusal::NoPassword)?;
        // Digests are compared, so that the time of the comparison does not depend on the password.
        let is_right = Sha256::digest(&presented) == Sha256::digest(&self.password);
        is_right.then_some(()).ok_or(ReaderRefusal::WrongPassword)
    }
}

/// The password of `Basic <base64 of user:password>`.
fn basic_password(authorization: &str) -> Option<String> {
    let (scheme, encoded) = authorization.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = BASE64_STANDARD.decode(encoded.trim()).ok()?;
    let (_, password) = std::str::from_utf8(&decoded).ok()?.split_once(':')?;
    Some(password.to_owned())
}

/// Refuses a statement that does more than read.
pub(in crate::embedded) fn check_statement(sql: &str, kind: &Kind) -> Result<(), ReaderRefusal> {
    let first = tokens(sql).find(|token| token.text != "(");
    let first = first.map_or("", |token| token.text).to_ascii_uppercase();
    if !READING.contains(&first.as_str()) || matches!(kind, Kind::InsertRows { .. }) {
        return Err(ReaderRefusal::NotReading(first));
    }
    // A read of this table sends a signal to every thread of the engine. `merge` finds tables by a pattern, so it is
    // refused too.
    let mut before = "";
    for token in tokens(sql) {
        let text = token.text.to_ascii_lowercase();
        let finds_tables = token.kind == TokenKind::Open && before.eq_ignore_ascii_case("merge");
        if text.contains("stack_trace") || text.contains("\\x") || finds_tables {
            return Err(ReaderRefusal::Threads);
        }
        // This table has the key of the networks' hashes. With the key, addresses could be found by trying.
        if text.contains("network_key") {
            return Err(ReaderRefusal::NetworkKey);
        }
        before = token.text;
    }
    Ok(())
}

/// Applies the limits of readers to a reader's settings. `memory_bytes` is the engine's memory; all readers together
/// get a quarter of it.
pub(in crate::embedded) fn restrict(
    settings: &mut Vec<(String, String)>,
    memory_bytes: u64,
) -> Result<(), ReaderRefusal> {
    for (name, value) in settings.iter_mut() {
        if !SETTINGS.contains(&name.as_str()) && !name.starts_with(OUTPUT_SETTINGS) {
            return Err(ReaderRefusal::Setting(name.clone()));
        }
        if name == "max_execution_time" {
            let asked: f64 = value.parse().unwrap_or(0.0);
            // 0 would mean no time limit.
            let is_within = asked >= 1.0 && asked <= MAX_EXECUTION_SECONDS as f64;
            if !is_within {
                *value = MAX_EXECUTION_SECONDS.to_string();
            }
        }
    }
    if settings
        .iter()
        .all(|(name, _)| name != "max_execution_time")
    {
        let limit = MAX_EXECUTION_SECONDS.to_string();
        settings.push(("max_execution_time".to_owned(), limit));
    }
    let bytes = memory_bytes / 4 / MAX_STATEMENTS as u64;
    settings.push(("max_memory_usage".to_owned(), bytes.to_string()));
    // A summary of many groups goes to the disk instead of failing.
    for name in ["group_by", "sort"] {
        let name = format!("max_bytes_before_external_{name}");
        settings.push((name, (bytes / 2).to_string()));
    }
    // This setting is last. After it nothing can be set, so a SETTINGS clause has no effect either.
    settings.push(("readonly".to_owned(), "1".to_owned()));
    Ok(())
}

/// Why a reader's request is refused; the text carries ClickHouse's code.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::embedded) enum ReaderRefusal {
    #[error(
        "Code: 516. DB::Exception: the Host of the request is not this machine; connect to \
         localhost. (AUTHENTICATION_FAILED)"
    )]
    Host,
    #[error(
        "Code: 194. DB::Exception: no password was presented; it is the one of \
         store.reader.password_file. (REQUIRED_PASSWORD)"
    )]
    NoPassword,
    #[error(
        "Code: 516. DB::Exception: the password is not the one of store.reader.password_file. \
         (AUTHENTICATION_FAILED)"
    )]
    WrongPassword,
    #[error(
        "Code: 164. DB::Exception: {0} is not allowed on this port, which is for reading. \
         (READONLY)"
    )]
    NotReading(String),
    #[error(
        "Code: 497. DB::Exception: system.stack_trace, the function merge and hexadecimal escapes are not allowed on \
         this port. (ACCESS_DENIED)"
    )]
    Threads,
    #[error("Code: 497. DB::Exception: network_key is not for readers. (ACCESS_DENIED)")]
    NetworkKey,
    #[error("Code: 164. DB::Exception: the setting {0} is not allowed on this port. (READONLY)")]
    Setting(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> ReaderAccess {
        ReaderAccess::new("127.0.0.1:0".parse().unwrap(), "correct horse").unwrap()
    }

    #[test]
    fn only_loopback_and_long_passwords_are_taken() {
        let address = "0.0.0.0:8123".parse().unwrap();
        let error = ReaderAccess::new(address, "correct horse");
        assert_eq!(error, Err(ReaderAccessError::NotLoopback(address)));
        let error = ReaderAccess::new("[::1]:8123".parse().unwrap(), "short");
        assert_eq!(error, Err(ReaderAccessError::ShortPassword));
        assert!(!format!("{:?}", access()).contains("horse"));
    }

    #[test]
    fn the_host_must_be_this_machine() {
        let host = |name: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(name) = name {
                headers.insert(header::HOST, name.parse().unwrap());
            }
            ReaderAccess::check_host(&headers)
        };
        for name in [
            "localhost",
            "LocalHost:8123",
            "127.0.0.1:1",
            "127.9.9.9",
            "[::1]:80",
            "[::1]",
        ] {
            assert_eq!(host(Some(name)), Ok(()), "{name}");
        }
        for name in [
            "evil.example:8123",
            "localhost.evil.example",
            "10.0.0.1",
            "",
            "127.0.0.1.x",
        ] {
            assert_eq!(host(Some(name)), Err(ReaderRefusal::Host), "{name}");
        }
        assert_eq!(host(None), Err(ReaderRefusal::Host));
    }

    #[test]
    fn the_password_may_stand_in_three_places() {
        let ask = |header: Option<(&'static str, &str)>, url: &str| {
            let mut headers = HeaderMap::new();
            if let Some((name, value)) = header {
                headers.insert(name, value.parse().unwrap());
            }
            access().check_password(&headers, &Parameters::from_url(url).unwrap())
        };
        let basic = format!("Basic {}", BASE64_STANDARD.encode("any:correct horse"));
        assert_eq!(ask(Some(("authorization", &basic)), ""), Ok(()));
        assert_eq!(ask(Some(("x-clickhouse-key", "correct horse")), ""), Ok(()));
        assert_eq!(ask(None, "user=any&password=correct+horse"), Ok(()));
        let wrong = Err(ReaderRefusal::WrongPassword);
        assert_eq!(ask(Some(("x-clickhouse-key", "correct")), ""), wrong);
        assert_eq!(ask(None, "password="), wrong);
        // If one of two passwords is wrong, a right one in another place does not help.
        let asked = ask(Some(("x-clickhouse-key", "no")), "password=correct+horse");
        assert_eq!(asked, wrong);
        for missing in [None, Some(("authorization", "Bearer x"))] {
            assert_eq!(ask(missing, "user=any"), Err(ReaderRefusal::NoPassword));
        }
    }

    #[test]
    fn no_reader_signals_the_threads_of_the_engine() {
        for (sql, is_read) in [
            ("SELECT * FROM system.stack_trace", false),
            ("SELECT key FROM epwatch.network_key", false),
            ("SELECT key FROM `Network_Key`", false),
            ("SELECT * FROM system.`Stack_Trace`", false),
            ("SELECT count() FROM \"system\".\"\\x73tack_trace\"", false),
            ("SELECT * FROM merge('system', '^stack')", false),
            ("SELECT * FROM MERGE /* */ ('system', 'st.ck')", false),
            ("SELECT merge FROM t.merges WHERE a = 'b'", true),
        ] {
            let refused = check_statement(sql, &Kind::Select);
            assert_eq!(refused.is_ok(), is_read, "{sql}");
        }
    }

    #[test]
    fn settings_are_those_of_answers() {
        let mut settings = vec![("max_execution_time".to_owned(), "0".to_owned())];
        restrict(&mut settings, 1600).unwrap();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let limited = [
            pair("max_execution_time", "60"),
            pair("max_memory_usage", "100"),
            pair("max_bytes_before_external_group_by", "50"),
            pair("max_bytes_before_external_sort", "50"),
            pair("readonly", "1"),
        ];
        assert_eq!(settings, limited);
        for name in [
            "readonly",
            "format_schema",
            "format_template_row",
            "max_memory_usage",
        ] {
            let refused = restrict(&mut vec![pair(name, "0")], 1600);
            assert_eq!(refused, Err(ReaderRefusal::Setting(name.to_owned())));
        }
    }
}
