//! Buckets by how many reports count in them, and which of them are read at once.

use clickhouse::Row;
use clickhouse::query::Query;
use serde::Deserialize;

use crate::read::span::Bucket;

/// Reports that are read at once, so that a query that fails loses little.
const MAX_READ: u64 = 1_000_000;

/// A bucket with the copies that count in it.
#[derive(Debug, Row, Deserialize)]
pub(super) struct BucketRow {
    pub(super) bucket: Bucket,
    pub(super) reports: u64,
    /// Which they are, in one number.
    pub(super) copies: u64,
}

/// Binds buckets and the first of them.
pub(super) fn of_buckets(query: Query, buckets: &[Bucket]) -> Query {
    query.bind(buckets).bind(buckets.first())
}

/// Cuts buckets into what is read at once: neighbours, and at least one of them.
pub(super) fn portions(wanted: &[BucketRow]) -> Vec<&[BucketRow]> {
    let mut portions = Vec::new();
    let (mut from, mut reports) = (0, 0);
    for (at, row) in wanted.iter().enumerate() {
        if at > from && reports + row.reports > MAX_READ {
            portions.push(&wanted[from..at]);
            (from, reports) = (at, 0);
        }
        reports += row.reports;
    }
    if from < wanted.len() {
        portions.push(&wanted[from..]);
    }
    portions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_read_in_portions_and_a_large_one_alone() {
        let of = |bucket, reports| BucketRow {
            bucket,
            reports,
            copies: 0,
        };
        let wanted = [
            of(1, MAX_READ / 2),
            of(2, MAX_READ / 2),
            of(3, 3 * MAX_READ),
            of(4, 1),
            of(5, 1),
        ];
        let portions: Vec<Vec<Bucket>> = portions(&wanted)
            .into_iter()
            .map(|some| some.iter().map(|row| row.bucket).collect())
            .collect();
        assert_eq!(portions, [vec![1, 2], vec![3], vec![4, 5]]);
    }
}
