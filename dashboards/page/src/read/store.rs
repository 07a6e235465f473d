//! Queries with limits: a few at a time, each with a time-out, a memory limit and a row limit, and all within a budget.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clickhouse::query::Query;
use clickhouse::{Client, RowOwned, RowRead};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use super::budget::QueryBudget;
use super::first_judged::FirstJudged;
use crate::text::name::visible_sentence;

/// Number of queries of a page server that the store runs at once.
const AT_ONCE: usize = 2;

/// Number of queries of a command that the store runs at once: the largest number that a page runs in parallel. A
/// command reads one page.
const AT_ONCE_OF_A_COMMAND: usize = 9;

/// A command waits longer than a page: its reader has no older answer, and no other reader waits for it.
const TIMES_OF_A_COMMAND: u32 = 3;

/// Longest wait until a query may run.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest time of a query, as the store counts it.
const QUERY_SECONDS: u32 = 2;

/// Longest time of a query until its rows are here.
const QUERY_TIMEOUT: Duration = Duration::from_secs(4);

/// Memory of a query.
const QUERY_MEMORY_BYTES: &str = "1000000000";

/// The reasons for which a query returned no rows.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ReadError {
    /// No server answers at the store's address.
    #[error("the store does not answer: {0}")]
    Away(String),
    /// The query takes too long, or more memory than a page may use.
    #[error("the store did not answer in time")]
    Slow,
    /// Too many other queries wait for the store already.
    #[error("too many pages wait for the store")]
    Busy,
    /// The store's schema is not the one that this program reads.
    #[error("the store's schema does not fit this program: {0}")]
    Schema(String),
    /// The store refused the query.
    #[error("the store refused: {0}")]
    Refused(String),
}

impl From<clickhouse::error::Error> for ReadError {
    fn from(error: clickhouse::error::Error) -> Self {
        use clickhouse::error::Error;

        let said = visible_sentence(&epwatch_proto::error_chain(&error));
        match &error {
            Error::TimedOut => Self::Slow,
            Error::Network(_) => Self::Away(said),
            Error::BadResponse(text) => match code(text) {
                // TIMEOUT_EXCEEDED, MEMORY_LIMIT_EXCEEDED, TOO_SLOW.
                Some(159 | 241 | 160) => Self::Slow,
                // UNKNOWN_TABLE, UNKNOWN_DATABASE, UNKNOWN_IDENTIFIER, UNKNOWN_FUNCTION, NO_SUCH_COLUMN_IN_TABLE.
                Some(60 | 81 | 47 | 46 | 16) => Self::Schema(said),
                _ => Self::Refused(said),
            },
            Error::SchemaMismatch(_) | Error::NotEnoughData | Error::InvalidColumnsHeader(_) => {
                Self::Schema(said)
            }
            _ => Self::Refused(said),
        }
    }
}

/// Returns the error code from ClickHouse's text `Code: 60. DB::Exception: ...`.
fn code(text: &str) -> Option<u32> {
    let (_, rest) = text.split_once("Code: ")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// Read access to the store for all pages.
#[derive(Debug)]
pub(crate) struct StoreReader {
    client: Handle,
    permits: Semaphore,
    budget: Mutex<QueryBudget>,
    timeout_factor: u32,
    pub(super) first_judged: FirstJudged,
}

/// Hides the client in debug output, because it has secrets.
struct Handle(Client);

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

impl StoreReader {
    /// Returns the access of a page server, with all time limits multiplied by `timeout_factor`.
    pub(crate) fn new(client: Client, timeout_factor: u32) -> Self {
        Self::with_places(client, AT_ONCE, timeout_factor)
    }

    /// Returns the access of a command, which reads one page.
    pub(crate) fn for_command(client: Client) -> Self {
        Self::with_places(client, AT_ONCE_OF_A_COMMAND, TIMES_OF_A_COMMAND)
    }

    pub(crate) fn with_places(client: Client, at_once: usize, timeout_factor: u32) -> Self {
        Self {
            client: Handle(client),
            permits: Semaphore::new(at_once),
            budget: Mutex::new(QueryBudget::new(timeout_factor, Instant::now())),
            timeout_factor,
            first_judged: FirstJudged::default(),
        }
    }

    pub(crate) fn timeout_factor(&self) -> u32 {
        self.timeout_factor
    }

    /// Returns the rows of a query whose parameters `bind` binds. The SQL must have a `LIMIT` of its own.
    ///
    /// # Errors
    /// The store is unreachable, slow, busy, has another schema, or refuses the query.
    pub(crate) async fn rows<T>(
        &self,
        sql: &'static str,
        bind: impl FnOnce(Query) -> Query,
    ) -> Result<Vec<T>, ReadError>
    where
        T: RowOwned + RowRead,
    {
        let permit = timeout(QUEUE_TIMEOUT * self.timeout_factor, self.permit()).await;
        let Ok(Some(_permit)) = permit else {
            return Err(ReadError::Busy);
        };
        let seconds = QUERY_SECONDS * self.timeout_factor;
        let query = bind(self.client.0.query(sql))
            .with_setting("max_execution_time", seconds.to_string())
            .with_setting("max_memory_usage", QUERY_MEMORY_BYTES);
        let rows = timeout(QUERY_TIMEOUT * self.timeout_factor, query.fetch_all::<T>()).await;
        rows.map_err(|_| ReadError::Slow)?.map_err(ReadError::from)
    }

    /// Waits until the query may run and the budget allows it.
    async fn permit(&self) -> Option<QueryPermit<'_>> {
        let permit = self.permits.acquire().await.ok()?;
        let wait = locked(&self.budget).wait(Instant::now());
        tokio::time::sleep(wait).await;
        Some(QueryPermit {
            _permit: permit,
            budget: &self.budget,
            began: Instant::now(),
        })
    }
}

/// The permission to run one query. Its time is charged even if the caller has stopped waiting for the rows.
struct QueryPermit<'a> {
    _permit: SemaphorePermit<'a>,
    budget: &'a Mutex<QueryBudget>,
    began: Instant,
}

impl Drop for QueryPermit<'_> {
    fn drop(&mut self) {
        locked(self.budget).spend(self.began.elapsed());
    }
}

fn locked(budget: &Mutex<QueryBudget>) -> MutexGuard<'_, QueryBudget> {
    budget.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Binds the two parameters of `(? = 0 OR column = ?)`: without a value the condition always holds.
pub(crate) fn filtered(query: Query, value: Option<&str>) -> Query {
    query
        .bind(u8::from(value.is_some()))
        .bind(value.unwrap_or_default())
}

/// Parts of a page that were not read, by name. Its JSON is the names.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct LeftOut(Vec<LeftOutPart>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct LeftOutPart {
    name: &'static str,
    /// The store did not answer in time, so another try may succeed. Otherwise its query failed.
    is_late: bool,
}

impl serde::Serialize for LeftOut {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|part| part.name))
    }
}

impl LeftOutPart {
    fn how(&self) -> &'static str {
        match self.is_late {
            true => " in time",
            false => " (the log says why)",
        }
    }
}

impl LeftOut {
    /// Returns a part. If it was not read, returns an empty one and records its name.
    pub(crate) fn part<T: Default>(&mut self, name: &'static str, read: Result<T, ReadError>) -> T {
        match read {
            Ok(part) => part,
            Err(error) => {
                tracing::warn!(part = name, %error, "a part of a page is left out");
                let is_late = matches!(error, ReadError::Slow | ReadError::Busy);
                self.0.push(LeftOutPart { name, is_late });
                T::default()
            }
        }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|part| part.name == name)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the words that follow "could not be read" for a part that was left out, and an empty text for other
    /// parts.
    pub(crate) fn how(&self, name: &str) -> &'static str {
        let part = self.0.iter().find(|part| part.name == name);
        part.map_or("", LeftOutPart::how)
    }

    /// Returns a line for each part that was left out, for a terminal.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        let line = |part: &LeftOutPart| format!("could not be read{}: {}", part.how(), part.name);
        self.0.iter().map(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_failed_is_told_apart_from_one_that_is_late() {
        let mut left_out = LeftOut::default();
        let refused = ReadError::Refused("no".to_owned());
        for (name, error) in [("medians", ReadError::Slow), ("latency", refused)] {
            assert_eq!(left_out.part(name, Err::<u8, _>(error)), 0);
        }
        let lines: Vec<String> = left_out.lines().collect();
        let expected = [
            "could not be read in time: medians",
            "could not be read (the log says why): latency",
        ];
        assert_eq!(lines, expected);
        let json = serde_json::to_value(&left_out).unwrap();
        assert_eq!(json, serde_json::json!(["medians", "latency"]));
        assert_eq!(left_out.how("latency"), " (the log says why)");
        assert!(!left_out.has("orders") && left_out.how("orders").is_empty());
    }

    #[test]
    fn errors_of_the_store_are_told_apart() {
        let refused =
            |text: &str| ReadError::from(clickhouse::error::Error::BadResponse(text.to_owned()));
        assert!(matches!(
            refused("Code: 159. DB::Exception: Timeout"),
            ReadError::Slow
        ));
        assert!(matches!(
            refused("Code: 60. DB::Exception: x"),
            ReadError::Schema(_)
        ));
        assert!(matches!(
            refused("Code: 516. DB::Exception: x"),
            ReadError::Refused(_)
        ));
        assert!(matches!(refused("no code"), ReadError::Refused(_)));
        let long = refused(&"x".repeat(5_000)).to_string();
        assert!(long.ends_with("x\u{2026}"), "{}", long.len());
    }
}
