//! Makes a store that is there keep its rows as long as the config says now.
//!
//! More days bring nothing back: what the days before let expire is gone, and a summary must not be
//! built again from what is left of it. So the store remembers when its TTL was changed, and from when
//! on its reports were whole then; whoever builds again (`rollup`) asks for that.

use clickhouse::Row;
use epwatch_store::{
    MigrateError, StoreTarget, TableTtl, TemplateValues, client, stale_views, table_ttls,
};
use serde::Deserialize;

use crate::schema::{MAX_DAYS, MIGRATIONS};

/// The tables that a summary is built from.
const RAW: [&str; 2] = ["reports", "report_copies"];
/// The table that says which copies do not count.
const SURPLUS: &str = "surplus_copies";

fn is_raw(ttl: &TableTtl) -> bool {
    RAW.contains(&ttl.table.as_str())
}

/// Returns the statements that change how long rows are kept, in order; none where that is as `values`
/// say. For a store with all migrations; changes nothing.
///
/// # Errors
/// A placeholder has no value, or the store did not answer.
pub async fn changes(
    target: &StoreTarget,
    values: &TemplateValues,
) -> Result<Vec<String>, MigrateError> {
    let ttls = table_ttls(target, MIGRATIONS, values).await?;
    statements(target, values, ttls).await
}

async fn statements(
    target: &StoreTarget,
    values: &TemplateValues,
    ttls: Vec<TableTtl>,
) -> Result<Vec<String>, MigrateError> {
    let mut statements = Vec::new();
    // Before the TTL itself: if this ends in between, it is only said once more.
    statements.extend(said_of_raw(target, &ttls).await?);
    // Some say for how long reports are kept.
    statements.extend(stale_views(target, MIGRATIONS, values).await?);
    let mut changes: Vec<TableTtl> = ttls.into_iter().filter(TableTtl::differs).collect();
    // What hides copies goes after them, and stays from before they do.
    changes.sort_by_key(|ttl| (ttl.table == SURPLUS) == (ttl.asked_days < ttl.days));
    statements.extend(changes.into_iter().flat_map(|ttl| ttl.statements));
    Ok(statements)
}

/// What writes down for how long reports are kept from now on, where that is not what was said last.
async fn said_of_raw(
    target: &StoreTarget,
    ttls: &[TableTtl],
) -> Result<Option<String>, MigrateError> {
    let Some(least) = ttls
        .iter()
        .filter(|ttl| is_raw(ttl))
        .min_by_key(|ttl| ttl.days)
    else {
        return Ok(None);
    };
    let whole_since = if ttls.iter().any(|ttl| is_raw(ttl) && ttl.differs()) {
        // Whole days expire at once, and the sooner ones are gone first. A time before 1970 would be one to
        // come.
        let days = least.days.saturating_sub(1).min(u32::from(MAX_DAYS));
        format!("now('UTC') - INTERVAL {days} DAY")
    } else {
        // A change that was said and never made took nothing away.
        let said = last_said(target).await?;
        if said.is_none_or(|said| u32::from(said) == least.asked_days) {
            return Ok(None);
        }
        "toDateTime(0, 'UTC')".to_owned()
    };
    Ok(Some(format!(
        "INSERT INTO raw_retention (raw_days, whole_since) SELECT {}, {whole_since}",
        least.asked_days
    )))
}

#[derive(Debug, Row, Deserialize)]
struct RawDays {
    raw_days: u16,
}

/// The days of reports that the store wrote down last, if it did.
async fn last_said(target: &StoreTarget) -> Result<Option<u16>, MigrateError> {
    let unread = |source| MigrateError::Store {
        what: "read for how long reports were to be kept".to_owned(),
        source,
    };
    let exists = client(&target.clone().with_database("system"))
        .query("SELECT count() FROM system.tables WHERE database = ? AND name = 'raw_retention'")
        .bind(target.database())
        .fetch_one::<u64>()
        .await
        .map_err(unread)?;
    if exists == 0 {
        return Ok(None);
    }
    let last = client(target)
        .query("SELECT argMax(raw_retention.raw_days, changed_at) AS raw_days FROM raw_retention HAVING count() > 0")
        .fetch_all::<RawDays>()
        .await
        .map_err(unread)?;
    Ok(last.first().map(|row| row.raw_days))
}

/// Runs what [`changes`] says, and returns it.
///
/// # Errors
/// As [`changes`], or the store refused a statement.
pub async fn apply(
    target: &StoreTarget,
    values: &TemplateValues,
) -> Result<Vec<String>, MigrateError> {
    let ttls = table_ttls(target, MIGRATIONS, values).await?;
    let statements = statements(target, values, ttls).await?;
    let client = client(target);
    for sql in &statements {
        let run = client.query_raw(sql).execute().await;
        run.map_err(|source| MigrateError::Store {
            what: format!("change how long rows are kept: {sql}"),
            source,
        })?;
    }
    if !statements.is_empty() {
        tracing::info!("the store keeps rows as long as the config says now");
    }
    Ok(statements)
}
