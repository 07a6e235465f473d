//! The store as one evaluation reads it. One query reads which copies of open buckets do not count.
//! `counted_reports_v1` would compute that again in each query.

use std::sync::Arc;

use clickhouse::query::Query;
use clickhouse::{Client, Row};
use serde::Deserialize;

use super::queries::OPEN_SURPLUS;
use crate::read::error::{SourceError, failed};

/// The view that queries name.
const VIEW: &str = "counted_reports_v1";

/// Maximum number of copies that a query names. If there are more, each query finds them itself. A store accepts a
/// query of 256 KiB, and a copy may take 44 bytes of it, twice.
const MAX_NAMED: usize = 2_500;

/// A copy of an open bucket that does not count, or one with several rows.
#[derive(Debug, Row, Deserialize)]
struct SurplusRow {
    collector_id: u64,
    wal_offset: u64,
    is_repeated: bool,
}

/// Asks a store.
#[derive(Debug, Clone)]
pub(super) struct Counted {
    pub(super) client: Client,
    /// The SQL that replaces the view, once the open buckets were read.
    stand_in: Option<Arc<str>>,
}

impl Counted {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            stand_in: None,
        }
    }

    /// Returns a reader for one evaluation, after a query of the copies of open buckets.
    pub(super) async fn settled(&self) -> Result<Self, SourceError> {
        // An answer without rows and without their types costs nothing more.
        let query = self.plain_query(OPEN_SURPLUS).bind(MAX_NAMED + 1);
        let surplus = query.fetch_all::<SurplusRow>().await;
        let surplus = surplus.map_err(failed("copies of open buckets"))?;
        Ok(Self {
            stand_in: stand_in(&surplus).map(Arc::from),
            ..self.clone()
        })
    }

    pub(super) fn query(&self, sql: &str) -> Query {
        self.on(&self.client, sql)
    }

    /// Returns a query that does not check the type of each value again, because that costs as much as reading it.
    pub(super) fn plain_query(&self, sql: &str) -> Query {
        self.on(&self.client.clone().with_validation(false), sql)
    }

    fn on(&self, client: &Client, sql: &str) -> Query {
        match &self.stand_in {
            None => client.query(sql),
            Some(stand_in) => client.query(&sql.replace(VIEW, stand_in)),
        }
    }
}

/// Returns SQL that counts the same reports as the view, while exactly these copies do not count. A copy with several
/// rows was inserted by hand. Then each query finds the rows itself.
fn stand_in(surplus: &[SurplusRow]) -> Option<String> {
    if surplus.is_empty() {
        return Some("settled_reports_v1".to_owned());
    }
    if surplus.len() > MAX_NAMED || surplus.iter().any(|row| row.is_repeated) {
        return None;
    }
    let named: Vec<String> = surplus
        .iter()
        .map(|row| format!("({},{})", row.collector_id, row.wal_offset))
        .collect();
    Some(format!(
        "(SELECT * FROM settled_reports_v1 WHERE (collector_id, wal_offset) NOT IN ({}))",
        named.join(",")
    ))
}
