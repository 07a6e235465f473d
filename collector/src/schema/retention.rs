//! Makes a store that is there keep its rows as long as the config says now.
//!
//! More days bring nothing back: what the days before let expire is gone, and a summary must not be
//! built again from what is left of it. So the store remembers when its TTL was changed, and from when
//! on its reports were whole then; whoever builds again (`rollup`) asks for that.
//!
//! Fewer days remove rows for good, so only days that somebody chose do: where none are asked for, the
//! store's stay.

use clickhouse::Row;
use epwatch_store::{
    MigrateError, StoreTarget, TableTtl, TemplateValues, client, stale_views, table_ttls,
};
use futures::future::BoxFuture;
use serde::Deserialize;

use crate::schema::{MAX_DAYS, MIGRATIONS, MIN_RAW_DAYS, Retention};

/// The tables that a summary is built from.
const RAW: [&str; 2] = ["reports", "report_copies"];
/// The table that says which copies do not count.
const SURPLUS: &str = "surplus_copies";

/// Days that somebody chose, or that a store has; `None` of what is left open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Days {
    /// Those of reports.
    pub raw: Option<u16>,
    /// Those of summaries, verdicts and incidents.
    pub rollup: Option<u16>,
}

impl Days {
    /// Returns these; what is left open is as in `kept`, or the default where that is open too.
    #[must_use]
    pub fn over(self, kept: Days) -> Retention {
        let default = Retention::default();
        // One that was made when fewer were allowed is brought to what devices need.
        let kept_raw = kept.raw.map(|days| days.max(MIN_RAW_DAYS));
        let raw_days = self.raw.or(kept_raw).unwrap_or(default.raw_days);
        let rollup_days = self.rollup.or(kept.rollup).unwrap_or(default.rollup_days);
        Retention {
            raw_days,
            rollup_days: rollup_days.max(raw_days),
        }
    }
}

/// Returns for how many days a store keeps its rows: of tables that differ, the most. Open where it has
/// no tables yet.
///
/// # Errors
/// A placeholder has no value, or the store did not answer.
pub async fn kept(
    target: &StoreTarget,
    values: impl Fn(Retention) -> TemplateValues,
) -> Result<Days, MigrateError> {
    let default = Retention::default();
    let ttls = table_ttls(target, MIGRATIONS, &values(default)).await?;
    let most = |is_one: &dyn Fn(&TableTtl) -> bool| {
        let days = ttls.iter().filter(|ttl| is_one(ttl)).map(|ttl| ttl.days);
        days.max()
            .map(|days| u16::try_from(days).unwrap_or(u16::MAX))
    };
    Ok(Days {
        raw: most(&is_raw),
        rollup: most(&|ttl| ttl.asked_days == u32::from(default.rollup_days)),
    })
}

fn is_raw(ttl: &TableTtl) -> bool {
    RAW.contains(&ttl.table.as_str())
}

/// Returns the statements that change how long rows are kept, in order; none where that is as `values`
/// say. For a store with all migrations; changes nothing.
///
/// # Errors
/// A placeholder has no value, or the store did not answer.
pub fn changes<'a>(
    target: &'a StoreTarget,
    values: &'a TemplateValues,
) -> BoxFuture<'a, Result<Vec<String>, MigrateError>> {
    Box::pin(async move {
        let ttls = table_ttls(target, MIGRATIONS, values).await?;
        statements(target, values, ttls).await
    })
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
pub fn apply<'a>(
    target: &'a StoreTarget,
    values: &'a TemplateValues,
) -> BoxFuture<'a, Result<Vec<String>, MigrateError>> {
    Box::pin(async move {
        let ttls = table_ttls(target, MIGRATIONS, values).await?;
        for ttl in ttls.iter().filter(|ttl| ttl.differs()) {
            let (table, from, to) = (&ttl.table, ttl.days, ttl.asked_days);
            tracing::info!(table, from, to, "days that rows are kept are changed");
        }
        let statements = statements(target, values, ttls).await?;
        let client = client(target);
        for sql in &statements {
            let run = client.query_raw(sql).execute().await;
            run.map_err(|source| MigrateError::Store {
                what: format!("change how long rows are kept: {sql}"),
                source,
            })?;
        }
        Ok(statements)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(
        asked: (Option<u16>, Option<u16>),
        kept: (Option<u16>, Option<u16>),
        expected: (u16, u16),
    ) {
        let of = |(raw, rollup)| Days { raw, rollup };
        let (raw_days, rollup_days) = expected;
        let expected = Retention {
            raw_days,
            rollup_days,
        };
        assert_eq!(of(asked).over(of(kept)), expected, "{asked:?} {kept:?}");
    }

    #[test]
    fn days_that_nobody_chose_are_the_stores() {
        let nothing = (None, None);
        check(nothing, nothing, (14, 396));
        check(nothing, (Some(30), Some(60)), (30, 60));
        check((Some(14), None), (Some(30), Some(60)), (14, 60));
        check((None, Some(396)), (Some(30), Some(60)), (30, 396));
        check(nothing, (Some(7), Some(60)), (14, 60));
        check((None, Some(20)), (Some(30), Some(60)), (30, 30));
    }
}
