//! Changes the retention of an existing store to the retention of the config.
//!
//! A longer retention does not restore expired rows, and a summary must not be rebuilt from the rest of its reports. So
//! `raw_retention` records each change and the time from which reports were complete; the roll-up reads it.
//!
//! A shorter retention removes rows for good. So it is applied only if the config sets it. Otherwise the store keeps
//! its retention.

use epwatch_store::{
    MigrateError, StoreTarget, TableTtl, TemplateValues, client, stale_views, table_ttls,
};
use futures::future::BoxFuture;

use crate::schema::{MAX_DAYS, MIGRATIONS, MIN_RAW_DAYS, Retention};

/// Tables that summaries are built from.
const RAW: [&str; 2] = ["reports", "report_copies"];
/// The tables of copies and rows that do not count.
const SURPLUS: [&str; 2] = ["surplus_copies", "repeated_rows"];

/// Retention of a config or a store; `None` means unset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Days {
    /// Days of reports.
    pub raw: Option<u16>,
    /// Days of summaries, verdicts and incidents.
    pub rollup: Option<u16>,
}

impl Days {
    /// Returns these days. Unset days are taken from `kept`, then from the default.
    #[must_use]
    pub fn over(self, kept: Days) -> Retention {
        let default = Retention::default();
        // A store with fewer days than devices need is raised to the minimum.
        let kept_raw = kept.raw.map(|days| days.max(MIN_RAW_DAYS));
        let raw_days = self.raw.or(kept_raw).unwrap_or(default.raw_days);
        let rollup_days = self.rollup.or(kept.rollup).unwrap_or(default.rollup_days);
        Retention {
            raw_days,
            rollup_days: rollup_days.max(raw_days),
        }
    }
}

/// Returns the retention of a store: the longest if tables differ, unset if there are no tables.
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

/// Returns the statements, in order, that change the retention to `values`; none if it matches. The store must have all
/// migrations. Changes nothing itself.
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
    // The record comes before the TTL itself, so that after an interruption it is only repeated.
    statements.extend(said_of_raw(target, &ttls).await?);
    // Some views contain the retention of reports.
    statements.extend(stale_views(target, MIGRATIONS, values).await?);
    let mut changes: Vec<TableTtl> = ttls.into_iter().filter(TableTtl::differs).collect();
    // The rows that hide copies must expire after the copies. So their TTL changes last when days are shortened, and
    // first when they are extended.
    changes.sort_by_key(|ttl| SURPLUS.contains(&ttl.table.as_str()) == (ttl.asked_days < ttl.days));
    statements.extend(changes.into_iter().flat_map(|ttl| ttl.statements));
    Ok(statements)
}

/// The row of `raw_retention` for the new retention, if it differs from the last one.
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
        // Whole days expire at once, the oldest first. The limit avoids a time before 1970, which would wrap into the
        // future.
        let days = least.days.saturating_sub(1).min(u32::from(MAX_DAYS));
        format!("now('UTC') - INTERVAL {days} DAY")
    } else {
        // A change that was recorded but never made has removed nothing.
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

/// `raw_days` of the last row of `raw_retention`.
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
        .fetch_all::<u16>()
        .await
        .map_err(unread)?;
    Ok(last.first().copied())
}

/// Runs the statements of [`changes`] and returns them.
///
/// # Errors
/// The errors of [`changes`], or the store refused a statement.
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
