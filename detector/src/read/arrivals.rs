//! Who is new: an SDK key ships in an app, so anyone can make up installations.
//!
//! Installations first received in an earlier window have a past; a page must hold on those where
//! there are enough. Newcomers beyond what is usual for the app do not vote at all, and coming back the
//! next day is no proof: a flood stays one for half of the look-back. Further back nobody can tell new
//! installations from those that were away.

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
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AppArrivals {
    /// First received in the window, or with a flood of a recent one, and few enough to vote.
    pub newcomers: HashSet<Installation>,
    /// First received in the window or in a recent one, beyond what is usual: in the order of receipt,
    /// the last ones.
    pub unproven: HashSet<Installation>,
    /// Recent windows with more new installations than usual.
    pub(super) floods: Vec<Flood>,
}

/// A window before this one with more new installations than usual.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Flood {
    /// Where it begins and ends, in milliseconds since 1970.
    pub(super) from_ms: i64,
    pub(super) to_ms: i64,
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

    /// Returns whether an app has more new installations than vote: then it matters who came first.
    pub(super) fn has_unproven(&self) -> bool {
        self.0.values().any(|app| !app.unproven.is_empty())
    }

    /// Returns the floods of recent windows.
    pub(super) fn floods(&self) -> Vec<((String, String), Flood)> {
        let of_app = |(app, arrivals): (&(String, String), &Arc<AppArrivals>)| {
            let floods = arrivals.floods.clone().into_iter();
            floods.map(|flood| (app.clone(), flood)).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of_app).collect()
    }

    /// Names who was new in a flood, with the time of receipt.
    pub(super) fn name_flooded(
        &mut self,
        app: &(String, String),
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
    let counts = new_by_window(earlier, start_ms, span);
    let allowed = allowed(&counts);
    let (newcomers, unproven) = new.split_at(allowed.min(new.len()));
    AppArrivals {
        newcomers: newcomers.iter().map(|(_, device, _)| *device).collect(),
        unproven: unproven.iter().map(|(_, device, _)| *device).collect(),
        floods: floods(&counts, allowed, start_ms, span),
    }
}

/// How many new installations of a window vote: all in an app's first window, where everyone is new.
fn allowed(counts: &[u64]) -> usize {
    let counts: Vec<f64> = counts.iter().map(|count| *count as f64).collect();
    let usual = epwatch_stats::order_stat::median(&counts);
    usual.map_or(usize::MAX, |usual| {
        let limit = (FLOOD_FACTOR * usual).max(MIN_FLOOD as f64);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and saturating"
        )]
        let limit = limit as usize;
        limit
    })
}

/// New installations of the windows before, the latest first; nothing in an app's first window.
fn new_by_window(earlier: &[Arrived], start_ms: i64, span: &Span) -> Vec<u64> {
    let window_ms = window_ms(span);
    let windows_ago = |at: i64| {
        let ago = (start_ms - 1 - at).max(0) / window_ms;
        usize::try_from(ago).unwrap_or(usize::MAX)
    };
    let Some((first, _, _)) = earlier.first() else {
        return Vec::new();
    };
    let mut counts = vec![0_u64; windows_ago(*first).saturating_add(1)];
    for (at, _, devices) in earlier {
        if let Some(slot) = counts.get_mut(windows_ago(*at)) {
            *slot += devices;
        }
    }
    counts
}

/// Of the recent half: before that, who was away for a while looks new.
fn floods(counts: &[u64], allowed: usize, start_ms: i64, span: &Span) -> Vec<Flood> {
    let window_ms = window_ms(span);
    let recent = counts.iter().take(counts.len() / 2).zip(0_i64..);
    recent
        .filter(|(count, _)| **count > allowed as u64)
        .map(|(_, ago)| Flood {
            from_ms: start_ms - (ago + 1) * window_ms,
            to_ms: start_ms - ago * window_ms,
            allowed,
        })
        .collect()
}

fn window_ms(span: &Span) -> i64 {
    i64::try_from(span.window.as_millis())
        .unwrap_or(i64::MAX)
        .max(1)
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

    /// They come again the next hour, and then nothing is new.
    #[test]
    fn a_flood_of_the_hours_before_is_remembered_and_those_who_were_away_are_none() {
        let mut counted = vec![(HOUR_MS, [0; 16], 50_000), (2 * HOUR_MS, [0; 16], 20_000)];
        counted.extend((3..8).map(|hour| (hour * HOUR_MS, [0; 16], 100)));
        counted.push((8 * HOUR_MS, [0; 16], 5_000));
        let found = arrived(counted, &span());
        let flood = Flood {
            from_ms: 8 * HOUR_MS,
            to_ms: 9 * HOUR_MS,
            allowed: 1_000,
        };
        assert_eq!(found.floods, std::slice::from_ref(&flood));

        let app = ("camera".to_owned(), "production".to_owned());
        let mut arrivals = Arrivals(BTreeMap::from([(app.clone(), Arc::new(found))]));
        let new = (0..5_000).map(|n| (8 * HOUR_MS + 1, device(n))).rev();
        arrivals.name_flooded(&app, &flood, new.collect());
        let found = &arrivals.0[&app];
        assert_eq!(
            (found.newcomers.len(), found.unproven.len()),
            (1_000, 4_000)
        );
    }
}
