//! Gauges of the store's size: bytes of the database on disk, and free bytes of the disk. Read with the loss ledger; on a
//! cluster they are those of the server that answers.

use crate::parts::Parts;
use crate::store::SinkError;

/// Tables of a cluster's shards lie in a database of their own.
const DISK_BYTES: &str = "SELECT toUInt64(sum(bytes_on_disk)) AS n FROM system.parts \
                          WHERE active AND database IN (currentDatabase(), concat(currentDatabase(), '_shard'))";
const FREE_BYTES: &str = "SELECT toUInt64(min(free_space)) AS n FROM system.disks";

pub(crate) async fn refresh(parts: &Parts) -> Result<(), SinkError> {
    for (sql, gauge) in [
        (DISK_BYTES, &parts.metrics.store_disk_bytes),
        (FREE_BYTES, &parts.metrics.store_disk_free_bytes),
    ] {
        if let Some(n) = parts.sink.first::<u64>("system tables", sql).await? {
            gauge.set(i64::try_from(n).unwrap_or(i64::MAX));
        }
    }
    Ok(())
}
