//! Which buckets are read at once.

use clickhouse::query::Query;

use crate::read::span::Bucket;

/// Reports that are read at once, so that a query that fails loses little.
const MAX_READ: u64 = 1_000_000;

/// Binds buckets and the first of them.
pub(super) fn of_buckets(query: Query, buckets: &[Bucket]) -> Query {
    query.bind(buckets).bind(buckets.first())
}

/// Cuts buckets, of which each has so many reports, into what is read at once: neighbours, and at least one of them.
pub(super) fn portions<B>(wanted: &[B], reports_of: impl Fn(&B) -> u64) -> Vec<&[B]> {
    let mut portions = Vec::new();
    let (mut from, mut reports) = (0, 0);
    for (at, bucket) in wanted.iter().enumerate() {
        let n = reports_of(bucket);
        if at > from && reports + n > MAX_READ {
            portions.push(&wanted[from..at]);
            (from, reports) = (at, 0);
        }
        reports += n;
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
        let wanted = [
            (1, MAX_READ / 2),
            (2, MAX_READ / 2),
            (3, 3 * MAX_READ),
            (4, 1),
            (5, 1),
        ];
        let portions: Vec<Vec<Bucket>> = portions(&wanted, |(_, reports)| *reports)
            .into_iter()
            .map(|some| some.iter().map(|(bucket, _)| *bucket).collect())
            .collect();
        assert_eq!(portions, [vec![1, 2], vec![3], vec![4, 5]]);
    }
}
