//! Selects the buckets that are read at once.

use clickhouse::query::Query;

use crate::read::span::Bucket;

/// Number of reports that are read at once, so that a query that fails loses little.
const MAX_READ: u64 = 1_000_000;

/// Binds the buckets and the start of the first one.
pub(super) fn of_buckets(query: Query, buckets: &[Bucket]) -> Query {
    query.bind(buckets).bind(buckets.first())
}

/// Cuts buckets into portions of neighbours that are read at once, by their numbers of reports. A portion has at least
/// one bucket.
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
