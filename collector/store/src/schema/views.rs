//! Views of a store whose text differs from the migrations.
//!
//! A killed runner may leave an older view behind if another runner was ahead of it. A runner with other values leaves
//! a different view. Both are found by the checksum of its text that each view has.

use std::collections::BTreeMap;

use futures::future::BoxFuture;

use super::cluster::Made;
use super::error::{MigrateError, unread};
use super::plan::spread;
use super::template::{Migration, Migrations, TemplateValues, mark_at_end, render_all, view_name};
use crate::client::{StoreTarget, client};

/// Returns the statements that replace the views of `target` whose text does not match `values`. The store must have
/// all migrations. Changes nothing.
///
/// # Errors
/// The list, a placeholder or a statement is wrong, or the store did not answer.
pub fn stale_views<'a>(
    target: &'a StoreTarget,
    migrations: Migrations<'a>,
    values: &'a TemplateValues,
) -> BoxFuture<'a, Result<Vec<String>, MigrateError>> {
    Box::pin(async move {
        let mut made = Made::default();
        let mut last = BTreeMap::new();
        for (migration, statements) in render_all(migrations, values)? {
            for statement in statements {
                let name = view_name(&statement).map(str::to_owned);
                let is_as = mark_at_end(&statement).map(str::to_owned);
                let of = (migration.version, migration.name);
                let spread = spread(values, target.database(), &mut made, of, statement)?;
                if let Some(name) = name {
                    last.insert(name, (is_as, spread));
                }
            }
        }
        let stored = stored_views(target).await?;
        let stale = last.into_iter().filter(|(name, (is_as, _))| {
            let found = stored.get(name);
            found.is_some() && found != is_as.as_ref()
        });
        Ok(stale.flat_map(|(_, (_, spread))| spread).collect())
    })
}

/// Returns the comments of the existing views by name.
pub(super) async fn stored_views(
    target: &StoreTarget,
) -> Result<BTreeMap<String, String>, MigrateError> {
    let views = client(&target.clone().with_database("system"))
        .query("SELECT name, comment FROM system.tables WHERE database = ? AND engine = 'View'")
        .bind(target.database())
        .fetch_all::<(String, String)>()
        .await
        .map_err(unread)?;
    Ok(views.into_iter().collect())
}

/// Returns the first migration whose view, unless a later one replaces it, differs from `stored`, the comments of
/// views by name.
pub(super) fn first_stale(
    rendered: &[(&Migration, Vec<String>)],
    stored: &BTreeMap<String, String>,
) -> Option<u32> {
    let mut last = BTreeMap::new();
    for (migration, statements) in rendered {
        for statement in statements {
            if let Some(name) = view_name(statement) {
                last.insert(name, (migration.version, mark_at_end(statement)));
            }
        }
    }
    let stale = last
        .into_iter()
        .filter(|(name, (_, mark))| stored.get(*name).map(String::as_str) != *mark);
    stale.map(|(_, (version, _))| version).min()
}
