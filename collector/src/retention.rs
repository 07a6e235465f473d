//! Makes a store that is there keep its rows as long as the config says now.
//!
//! More days bring nothing back: what the days before let expire is gone, and a summary must not be
//! built again from what is left of it. So the store remembers when its TTL was changed, and from when
//! on its reports were whole then; whoever builds again (`rollup`) asks for that.

use epwatch_store::{MigrateError, StoreTarget, TemplateValues, client, stale_views, ttl_changes};

use crate::schema::MIGRATIONS;

/// The tables that a summary is built from.
const RAW: [&str; 2] = ["reports", "report_copies"];
/// The table that says which copies do not count.
const SURPLUS: &str = "surplus_copies";

/// Returns the statements that change how long rows are kept, in order; none where that is as `values`
/// say. For a store with all migrations; changes nothing.
///
/// # Errors
/// A placeholder has no value, or the store did not answer.
pub async fn changes(
    target: &StoreTarget,
    values: &TemplateValues,
) -> Result<Vec<String>, MigrateError> {
    let mut changes = ttl_changes(target, MIGRATIONS, values).await?;
    // What hides copies goes after them, and stays from before they do.
    changes.sort_by_key(|change| (change.table == SURPLUS) == (change.days < change.days_before));
    let of_raw = changes
        .iter()
        .filter(|change| RAW.contains(&change.table.as_str()));
    let mut statements = Vec::new();
    // Before the TTL itself: if this ends in between, it is only said once more.
    if let Some(change) = of_raw.min_by_key(|change| change.days_before) {
        statements.push(format!(
            "INSERT INTO raw_retention (raw_days, whole_since) \
             SELECT {}, now('UTC') - INTERVAL {} DAY",
            change.days,
            // Whole days expire at once, and the sooner ones are gone first.
            change.days_before.saturating_sub(1)
        ));
    }
    // Some say for how long reports are kept.
    statements.extend(stale_views(target, MIGRATIONS, values).await?);
    statements.extend(changes.into_iter().flat_map(|change| change.statements));
    Ok(statements)
}

/// Runs what [`changes`] says, and returns it.
///
/// # Errors
/// As [`changes`], or the store refused a statement.
pub async fn apply(
    target: &StoreTarget,
    values: &TemplateValues,
) -> Result<Vec<String>, MigrateError> {
    let statements = changes(target, values).await?;
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
