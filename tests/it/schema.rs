//! The store's SQL functions agree with the contract's Rust.

use clickhouse::Row;
use epwatch_collector::schema::Retention;
use serde::Deserialize;

use crate::support::Store;

#[derive(Debug, PartialEq, Row, Deserialize)]
struct Edges {
    index: u64,
    low_us: u64,
    high_us: u64,
}

/// `tests/fixtures/wire/bucket_edges.csv` was made with the crate `hdrhistogram`.
#[tokio::test(flavor = "multi_thread")]
async fn bucket_edges_are_those_of_the_histogram() {
    let expected: Vec<Edges> = include_str!("../fixtures/wire/bucket_edges.csv")
        .lines()
        .skip(1)
        .map(|line| {
            let fields: Vec<u64> = line.split(',').map(|f| f.parse().unwrap()).collect();
            Edges {
                index: fields[0],
                low_us: fields[1],
                high_us: fields[2],
            }
        })
        .collect();
    let store = Store::start().await;
    let sql = "SELECT number AS index, epwatch_bucket_low_us(number) AS low_us,
        epwatch_bucket_high_us(number) AS high_us FROM numbers(?)";
    let got: Vec<Edges> = store
        .client()
        .query(sql)
        .bind(expected.len() as u64)
        .fetch_all()
        .await
        .unwrap();
    assert_eq!(got, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn migrating_twice_changes_nothing() {
    let store = Store::start().await;
    assert_eq!(store.migrate(Retention::default()).await, Vec::<u32>::new());
}
