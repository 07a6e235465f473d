//! Who is new: an SDK key ships in an app, so anyone can make up installations.
//!
//! Installations first received in an earlier window have a past; a page must hold on those where
//! there are enough. Newcomers beyond what is usual for the app do not vote at all, and coming back the
//! next day is no proof: a flood stays one for half of the look-back. Further back nobody can tell new
//! installations from those that were away.

use std::collections::BTreeMap;
use std::sync::Arc;

use epwatch_server::{new_installation_limit, usual_number};

use crate::cohort::{App, ModelKey};
use crate::hash::HashSet;
use crate::window::Installation;

use super::span::{Bucket, Span};

/// However small an app is, so many new installations in a window are no flood.
pub const MIN_FLOOD: u64 = 1_000;

/// Newcomers beyond this multiple of the usual number are a flood.
pub const FLOOD_FACTOR: u32 = 3;

/// New installations of each app in a window.
#[derive(Debug, Default)]
pub struct Arrivals(BTreeMap<App, Arc<AppArrivals>>);

/// New installations of one app in a window.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AppArrivals {
    /// First received in the window, or with a flood of a recent one, and few enough to vote.
    pub newcomers: HashSet<Installation>,
    /// First received in the window or in a recent one, beyond what is usual: in the order of receipt,
    /// the last ones.
    pub unproven: HashSet<Installation>,
    /// Windows with more new installations than usual: recent ones, and this one.
    pub(super) floods: Vec<Flood>,
}

/// A window with more new installations than usual.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Flood {
    /// Where it begins and ends, in seconds since 1970.
    pub(super) from_s: i64,
    pub(super) to_s: i64,
    /// So many of them vote.
    pub(super) allowed: usize,
}

impl Arrivals {
    /// Returns the arrivals of a model's app.
    #[must_use]
    pub fn of(&self, model: &ModelKey) -> Option<&Arc<AppArrivals>> {
        self.0
            .get(&(model.app_id.clone(), model.environment.clone()))
    }

    /// Returns the windows whose new installations do not all vote.
    pub(super) fn floods(&self) -> Vec<(App, Flood)> {
        let of_app = |(app, arrivals): (&App, &Arc<AppArrivals>)| {
            let floods = arrivals.floods.clone().into_iter();
            floods.map(|flood| (app.clone(), flood)).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of_app).collect()
    }

    /// Names who was new in a flood, with the time of receipt.
    pub(super) fn name_flooded(
        &mut self,
        app: &App,
        flood: &Flood,
        mut new: Vec<(i64, Installation)>,
    ) {
        new.sort_unstable();
        let Some(arrivals) = self.0.get_mut(app) else {
            return;
        };
        let arrivals = Arc::make_mut(arrivals);
        let beyond = new.split_off(flood.allowed.min(new.len()));
        let installation = |(_, installation)| installation;
        // Whoever came with a flood is as doubtful as on its first day.
        arrivals.newcomers.extend(new.into_iter().map(installation));
        arrivals
            .unproven
            .extend(beyond.into_iter().map(installation));
    }

    /// Counts new installations by the window that they were first received in. Takes each installation of each
    /// app with the bucket of its first receipt.
    pub(super) fn counted<I: Iterator<Item = (Bucket, Installation)>>(
        apps: impl Iterator<Item = (App, I)>,
        span: &Span,
    ) -> Self {
        let apps = apps.map(|(app, first)| {
            let first = first.map(|(bucket, device)| (i64::from(bucket), device));
            (app, Arc::new(arrived(first, span)))
        });
        Arrivals(apps.collect())
    }
}

/// Takes each installation with the bucket in which it was first received, in seconds since 1970.
fn arrived(first: impl Iterator<Item = (i64, Installation)>, span: &Span) -> AppArrivals {
    let start_s = span.start_s();
    let mut newcomers = HashSet::default();
    // Of the windows before, the latest first; nothing in an app's first window.
    let mut counts: Vec<u64> = Vec::new();
    for (at_s, installation) in first {
        if at_s >= start_s {
            newcomers.insert(installation);
            continue;
        }
        let windows_ago = (start_s - 1 - at_s) / window_s(span);
        let windows_ago = usize::try_from(windows_ago).unwrap_or_default();
        if counts.len() <= windows_ago {
            counts.resize(windows_ago + 1, 0);
        }
        counts[windows_ago] += 1;
    }
    let allowed = allowed(&counts);
    let mut floods = floods(&counts, allowed, span);
    if newcomers.len() > allowed {
        // The times of receipt decide, which the census has not.
        newcomers.clear();
        floods.push(Flood {
            from_s: start_s,
            to_s: span.end_s(),
            allowed,
        });
    }
    AppArrivals {
        newcomers,
        unproven: HashSet::default(),
        floods,
    }
}

/// How many new installations of a window vote: all in an app's first window, where everyone is new.
fn allowed(counts: &[u64]) -> usize {
    let limit = usual_number(counts.to_vec())
        .and_then(|usual| new_installation_limit(usual, FLOOD_FACTOR, MIN_FLOOD));
    limit.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX))
}

/// Of the recent half: before that, who was away for a while looks new.
fn floods(counts: &[u64], allowed: usize, span: &Span) -> Vec<Flood> {
    let (start_s, window_s) = (span.start_s(), window_s(span));
    let recent = counts.iter().take(counts.len() / 2).zip(0_i64..);
    recent
        .filter(|(count, _)| **count > allowed as u64)
        .map(|(_, ago)| Flood {
            from_s: start_s - (ago + 1) * window_s,
            to_s: start_s - ago * window_s,
            allowed,
        })
        .collect()
}

fn window_s(span: &Span) -> i64 {
    let window_s = i64::try_from(span.window.as_secs()).unwrap_or(i64::MAX);
    window_s.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    const HOUR_S: i64 = 3_600;

    fn device(number: usize) -> Installation {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&(number as u64).to_be_bytes());
        id
    }

    fn span() -> Span {
        Span {
            end: jiff::Timestamp::from_second(10 * HOUR_S).unwrap(),
            window: Duration::from_secs(3_600),
            lookback: Duration::from_secs(14 * 3_600),
        }
    }

    /// Of so many devices in each bucket, each in one.
    fn found(buckets: &[(i64, usize)]) -> AppArrivals {
        let mut first: Vec<(i64, Installation)> = Vec::new();
        for (at_s, n) in buckets {
            let new = first.len()..first.len() + n;
            first.extend(new.map(|number| (*at_s, device(number))));
        }
        let app = ("camera".to_owned(), "production".to_owned());
        let counted = arrived(first.iter().copied(), &span());
        let mut arrivals = Arrivals(BTreeMap::from([(app.clone(), Arc::new(counted))]));
        for (app, flood) in arrivals.floods() {
            let is_new = |(at_s, _): &&(i64, _)| (flood.from_s..flood.to_s).contains(at_s);
            let new = first.iter().filter(is_new);
            // In the order of receipt, whichever order they are read in.
            let new = new.rev().map(|(at_s, device)| (at_s * 1_000, *device));
            arrivals.name_flooded(&app, &flood, new.collect());
        }
        AppArrivals::clone(&arrivals.0[&app])
    }

    #[test]
    fn in_the_first_window_everyone_is_new_and_votes() {
        let found = found(&[(9 * HOUR_S + 5, 5_000)]);
        assert_eq!((found.newcomers.len(), found.unproven.len()), (5_000, 0));
    }

    #[test]
    fn a_flood_of_newcomers_does_not_vote_beyond_the_usual() {
        let found = found(&[(8 * HOUR_S, 400), (9 * HOUR_S + 1, 10_000)]);
        assert_eq!(
            (found.newcomers.len(), found.unproven.len()),
            (1_200, 8_800)
        );
        assert!(!found.newcomers.contains(&device(0)));
        assert!(found.newcomers.contains(&device(400)), "the first");
        assert!(found.unproven.contains(&device(10_399)), "the last");
    }

    proptest! {
        /// The detector took the median of an even number of windows with its half; the collector rounds down.
        #[test]
        fn no_more_vote_than_three_times_a_median_with_its_half(
            counts in prop::collection::vec(0..100_000_u64, 1..15),
        ) {
            let exact: Vec<f64> = counts.iter().map(|count| *count as f64).collect();
            let median = epwatch_stats::order_stat::median(&exact).unwrap();
            let room = allowed(&counts) as f64;
            prop_assert!(room <= (3.0 * median).max(1_000.0));
            prop_assert!(room + 2.0 > 3.0 * median);
        }
    }

    /// They come again the next hour, and then nothing is new.
    #[test]
    fn a_flood_of_the_hours_before_is_remembered_and_those_who_were_away_are_none() {
        let mut buckets = vec![(HOUR_S, 50_000), (2 * HOUR_S, 20_000)];
        buckets.extend((3..8).map(|hour| (hour * HOUR_S, 100)));
        buckets.push((8 * HOUR_S, 5_000));
        let found = found(&buckets);
        let flood = Flood {
            from_s: 8 * HOUR_S,
            to_s: 9 * HOUR_S,
            allowed: 1_000,
        };
        assert_eq!(found.floods, [flood]);
        assert_eq!(
            (found.newcomers.len(), found.unproven.len()),
            (1_000, 4_000)
        );
    }
}
