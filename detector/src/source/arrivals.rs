//! Who is new: an SDK key ships in an app, so anyone can make up installations.
//!
//! Installations first received in an earlier window have a past; a page must hold on those where
//! there are enough. Newcomers beyond what is usual for the app do not vote at all.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cohort::ModelKey;
use crate::hash::HashSet;
use crate::window::Installation;

use super::Span;
use super::rows::ArrivalRow;

/// However small an app is, so many new installations in a window are no flood.
pub const MIN_FLOOD: u64 = 1_000;

/// Newcomers beyond this multiple of the usual number are a flood.
pub const FLOOD_FACTOR: f64 = 3.0;

/// New installations of each app in a window.
#[derive(Debug, Default)]
pub struct Arrivals(BTreeMap<(String, String), Arc<AppArrivals>>);

/// New installations of one app in a window.
#[derive(Debug, Default, PartialEq)]
pub struct AppArrivals {
    /// First received in the window, and few enough to vote.
    pub newcomers: HashSet<Installation>,
    /// First received in the window, beyond what is usual: in the order of receipt, the last ones.
    pub unproven: HashSet<Installation>,
}

impl Arrivals {
    /// Returns the arrivals of a model's app.
    #[must_use]
    pub fn of(&self, model: &ModelKey) -> Option<&Arc<AppArrivals>> {
        self.0
            .get(&(model.app_id.clone(), model.environment.clone()))
    }

    pub(super) fn from_rows(rows: Vec<ArrivalRow>, span: &Span) -> Self {
        let mut by_app: BTreeMap<(String, String), Vec<Arrived>> = BTreeMap::new();
        for row in rows {
            by_app
                .entry((row.app_id, row.environment))
                .or_default()
                .push((row.at_ms, row.installation, row.devices));
        }
        let apps = by_app.into_iter();
        Arrivals(
            apps.map(|(app, first)| (app, Arc::new(arrived(first, span))))
                .collect(),
        )
    }
}

/// When, who, and how many; devices of earlier windows need no name.
type Arrived = (i64, Installation, u64);

fn arrived(mut first: Vec<Arrived>, span: &Span) -> AppArrivals {
    first.sort_unstable();
    let start_ms = span.start_s().saturating_mul(1_000);
    let split = first.partition_point(|(at, _, _)| *at < start_ms);
    let (earlier, new) = first.split_at(split);
    let allowed = usual_number(earlier, start_ms, span).map_or(usize::MAX, |usual| {
        let limit = (FLOOD_FACTOR * usual).max(MIN_FLOOD as f64);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and saturating"
        )]
        let limit = limit as usize;
        limit
    });
    let (newcomers, unproven) = new.split_at(allowed.min(new.len()));
    AppArrivals {
        newcomers: newcomers.iter().map(|(_, device, _)| *device).collect(),
        unproven: unproven.iter().map(|(_, device, _)| *device).collect(),
    }
}

/// Median number of new installations over the windows before; `None` in an app's first window,
/// where everyone is new.
fn usual_number(earlier: &[Arrived], start_ms: i64, span: &Span) -> Option<f64> {
    let (first, _, _) = earlier.first()?;
    let window_ms = i64::try_from(span.window.as_millis()).ok()?.max(1);
    let windows_ago = |at: i64| (start_ms - 1 - at).max(0) / window_ms;
    let n = usize::try_from(windows_ago(*first)).ok()? + 1;
    let mut counts = vec![0_u64; n];
    for (at, _, devices) in earlier {
        if let Some(slot) = usize::try_from(windows_ago(*at))
            .ok()
            .and_then(|ago| counts.get_mut(ago))
        {
            *slot += devices;
        }
    }
    let counts: Vec<f64> = counts.into_iter().map(|count| count as f64).collect();
    epwatch_stats::order_stat::median(&counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const HOUR_MS: i64 = 3_600_000;

    fn device(number: usize) -> Installation {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&(number as u64).to_be_bytes());
        id
    }

    fn span() -> Span {
        Span {
            end: jiff::Timestamp::from_second(10 * 3_600).unwrap(),
            window: Duration::from_secs(3_600),
            lookback: Duration::from_secs(14 * 3_600),
        }
    }

    #[test]
    fn in_the_first_window_everyone_is_new_and_votes() {
        let first = (0..5_000)
            .map(|n| (9 * HOUR_MS + 5, device(n), 1))
            .collect();
        let found = arrived(first, &span());
        assert_eq!((found.newcomers.len(), found.unproven.len()), (5_000, 0));
    }

    #[test]
    fn a_flood_of_newcomers_does_not_vote_beyond_the_usual() {
        let mut first: Vec<_> = (0..400).map(|n| (8 * HOUR_MS, device(n), 1)).collect();
        first.extend((400..10_400).map(|n| (9 * HOUR_MS + 1, device(n), 1)));
        let found = arrived(first, &span());
        assert_eq!(
            (found.newcomers.len(), found.unproven.len()),
            (1_200, 8_800)
        );
        assert!(!found.newcomers.contains(&device(0)));
    }

    /// The store names only the new ones and counts the others.
    #[test]
    fn devices_that_were_new_before_may_be_counted_instead_of_named() {
        let new = (400..3_000).map(|n| (9 * HOUR_MS + 1, device(n), 1));
        let mut named: Vec<_> = (0..400).map(|n| (8 * HOUR_MS + 7, device(n), 1)).collect();
        named.extend(new.clone());
        let mut counted = vec![(9 * HOUR_MS - 1, [0; 16], 400)];
        counted.extend(new);
        assert_eq!(arrived(named, &span()), arrived(counted, &span()));
    }
}
