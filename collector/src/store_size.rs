//! The store's size: bytes of the database on disk, in total and by app, and free bytes of the disk. They are read with
//! the loss ledger. On a cluster they describe the server that answers. An app's bytes are estimated from its part of
//! the rows in `reports`.

use std::collections::HashMap;

use clickhouse::Row;
use serde::Deserialize;

use crate::context::Context;
use crate::store::SinkError;

/// On a cluster the tables of the shards are in a database of their own.
const DISK_BYTES: &str = "SELECT toUInt64(sum(bytes_on_disk)) AS n FROM system.parts \
                          WHERE active AND database IN (currentDatabase(), concat(currentDatabase(), '_shard'))";
const FREE_BYTES: &str = "SELECT toUInt64(min(free_space)) AS n FROM system.disks";

/// The 1,000 apps with the most rows. An app with fewer rows than these is too small to fill its share.
const ROWS_OF_APPS: &str = "SELECT toString(app_id) AS app, count() AS n FROM reports \
                            GROUP BY app_id ORDER BY n DESC LIMIT 1000";

#[derive(Debug, Row, Deserialize)]
struct AppRows {
    app: String,
    n: u64,
}

pub(crate) async fn refresh(context: &Context) -> Result<(), SinkError> {
    let mut found = [0; 2];
    for ((sql, gauge), found) in [
        (DISK_BYTES, &context.metrics.store_disk_bytes),
        (FREE_BYTES, &context.metrics.store_disk_free_bytes),
    ]
    .into_iter()
    .zip(&mut found)
    {
        *found = context
            .sink
            .first::<u64>("system tables", sql)
            .await?
            .unwrap_or(0);
        gauge.set(i64::try_from(*found).unwrap_or(i64::MAX));
    }
    let [bytes, free] = found;
    let apps = context
        .sink
        .fetch::<AppRows>("reports", ROWS_OF_APPS)
        .await?;
    let n_rows: u64 = apps.iter().map(|app| app.n).sum();
    let part = |n: u64| {
        let part = u128::from(bytes) * u128::from(n) / u128::from(n_rows.max(1));
        u64::try_from(part).expect("at most all bytes")
    };
    let sizes: HashMap<String, u64> = apps.into_iter().map(|app| (app.app, part(app.n))).collect();
    context.shares.set_store(sizes, free);
    Ok(())
}
