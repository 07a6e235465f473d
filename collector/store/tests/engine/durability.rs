//! No acknowledged row is lost and no retried row is doubled, however often the child is killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clickhouse::Row;
use epwatch_test_support::until;
use serde::Serialize;

use crate::support::{TestStore, kill, pid_of};

const KILLS: u32 = 5;
const ROWS_PER_BATCH: u64 = 1_000;

#[derive(Row, Serialize)]
struct Record {
    batch: u64,
    row: u64,
    buckets: Vec<u64>,
}

async fn write_batch(client: &clickhouse::Client, batch: u64) -> clickhouse::error::Result<()> {
    let mut insert = client
        .insert::<Record>("r")
        .await?
        .with_setting("insert_deduplication_token", format!("writer-{batch}"))
        .with_timeouts(Some(Duration::from_secs(10)), Some(Duration::from_secs(20)));
    for row in 0..ROWS_PER_BATCH {
        let buckets = vec![batch; 40];
        insert
            .write(&Record {
                batch,
                row,
                buckets,
            })
            .await?;
    }
    insert.end().await
}

#[tokio::test]
async fn a_writer_that_retries_loses_and_doubles_nothing_over_kills() {
    let test = TestStore::start().await;
    test.execute(
        "CREATE TABLE r (batch UInt64, row UInt64, buckets Array(UInt64)) ENGINE = MergeTree \
         ORDER BY (batch, row) SETTINGS non_replicated_deduplication_window = 1000",
    )
    .await;
    let stop = Arc::new(AtomicBool::new(false));
    let client = test.client();
    let writer = tokio::spawn({
        let stop = stop.clone();
        async move {
            let mut n_batches = 0_u64;
            let mut n_retries = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                while write_batch(&client, n_batches).await.is_err() {
                    n_retries += 1;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                n_batches += 1;
            }
            (n_batches, n_retries)
        }
    });
    for _ in 0..KILLS {
        let before = test.count("SELECT count() FROM r").await;
        // Waits for a few more batches, so that the kill comes while the writer is at work.
        until("rows grow", || async {
            let now = test
                .client()
                .query("SELECT count() FROM r")
                .fetch_one::<u64>()
                .await;
            now.is_ok_and(|now| now > before).then_some(())
        })
        .await;
        let pid = pid_of(&test.store).expect("it just answered");
        kill(pid);
        until("the next child is ready", || async {
            pid_of(&test.store).filter(|next| *next != pid)
        })
        .await;
    }
    stop.store(true, Ordering::Relaxed);
    let (n_batches, n_retries) = writer.await.unwrap();
    assert!(n_retries > 0, "no kill met a batch in flight");
    let expected = n_batches * ROWS_PER_BATCH;
    assert_eq!(test.count("SELECT count() FROM r").await, expected);
    assert_eq!(
        test.count("SELECT uniqExact(batch, row) FROM r").await,
        expected
    );
    test.store.stop().await;
}
