//! Number of devices that report, window by window, for each app and each version of its models. The numbers come from
//! the census, which has an app even if none of its reports arrived in the window. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use epwatch_model::ModelKey;

use crate::read::interner::{TextId, Texts};

use super::census::{AppCensus, Census, DeviceCounter};
use super::span::Span;

/// A week, so that weekends are compared with weekends.
const WEEK: Duration = Duration::from_secs(7 * 86_400);

/// Number of windows before the judged one in which a lack of devices still matters, because an incident ends after
/// three clean windows.
const RECENT_WINDOWS: usize = 4;

/// Devices are not counted one by one if their bytes are at least this share of the usual ones. A device takes one to
/// three bytes.
const AS_MANY_BYTES: f64 = 0.75;

/// The devices that reported for an app, or a version of one of its models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reporting {
    /// App and environment; the model's name is empty for the whole app.
    pub model: ModelKey,
    /// Model version; empty for the whole app.
    pub version: String,
    /// Number of devices by window: the judged window first, then earlier ones, the latest first.
    pub windows: Vec<u64>,
    /// Devices of earlier windows that reported in the judged one, under any version.
    pub still_here: u64,
    /// Installations of the app that reported in the judged window, and in none before it. Those without a vote count too.
    pub new_here: u64,
    /// Index in `windows` of the window a week before.
    pub week_before: usize,
}

impl Reporting {
    /// Returns the expected number of devices: the median or the number a week before, whichever is lower.
    #[must_use]
    pub fn usual(&self) -> u64 {
        usual(&self.windows, self.week_before)
    }

    /// Whether the numbers are for the app as a whole.
    #[must_use]
    pub fn is_of_app(&self) -> bool {
        self.model.model_id.is_empty() && self.version.is_empty()
    }

    /// Whether one of the latest windows before the judged one lacked devices.
    #[must_use]
    pub fn lacked(&self, share: f64) -> bool {
        let limit = share * self.usual() as f64;
        let recent = self.windows.iter().skip(1).take(RECENT_WINDOWS);
        recent.into_iter().any(|n| (*n as f64) < limit)
    }
}

fn usual(windows: &[u64], week_before: usize) -> u64 {
    let mut earlier: Vec<u64> = windows.iter().skip(1).copied().collect();
    earlier.sort_unstable();
    let median = earlier.get(earlier.len() / 2).copied().unwrap_or(0);
    median.min(windows.get(week_before).copied().unwrap_or(0))
}

/// Packed devices by the number of windows before the judged one.
type ByWindow<'a> = Vec<(usize, &'a [u8])>;

/// Returns the numbers of each app and version that may lack devices; none if the look-back has no week before the
/// window.
pub(super) fn reporting(census: &Census, span: &Span) -> Vec<Reporting> {
    let window_s = span.window.as_secs().max(1);
    let n_windows = usize::try_from(span.lookback.as_secs() / window_s).unwrap_or(usize::MAX);
    let week_before = (WEEK.as_secs() + window_s / 2) / window_s;
    let week_before = usize::try_from(week_before).unwrap_or(usize::MAX);
    if week_before == 0 || week_before >= n_windows {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (app, of_app) in census.apps() {
        found.extend(of_one_app(
            app,
            of_app,
            &census.texts,
            span,
            n_windows,
            week_before,
        ));
    }
    found
}

fn of_one_app(
    (app_id, environment): (TextId, TextId),
    app: &AppCensus,
    texts: &Texts,
    span: &Span,
    n_windows: usize,
    week_before: usize,
) -> Vec<Reporting> {
    let window_s = i64::try_from(span.window.as_secs())
        .unwrap_or(i64::MAX)
        .max(1);
    let mut all: ByWindow<'_> = Vec::new();
    let mut versions: BTreeMap<(TextId, TextId), ByWindow<'_>> = BTreeMap::new();
    for (bucket, group, bytes) in app.proven(span) {
        let back = (span.end_s() - 1 - i64::from(bucket)).div_euclid(window_s);
        let Ok(back) = usize::try_from(back) else {
            continue;
        };
        if back >= n_windows {
            continue;
        }
        all.push((back, bytes));
        if let Some(version) = group {
            versions.entry(version).or_default().push((back, bytes));
        }
    }
    let may_lack = |slices: &ByWindow<'_>| {
        let mut sums = vec![0; n_windows];
        for (back, bytes) in slices {
            sums[*back] += bytes.len() as u64;
        }
        let limit = AS_MANY_BYTES * usual(&sums, week_before) as f64;
        let recent = sums.iter().take(1 + RECENT_WINDOWS);
        recent.into_iter().any(|bytes| (*bytes as f64) < limit)
    };
    let versions = versions
        .into_iter()
        .map(|(version, of)| (Some(version), of));
    let asked = std::iter::once((None, all.clone())).chain(versions);
    let asked: Vec<_> = asked.filter(|(_, slices)| may_lack(slices)).collect();
    if asked.is_empty() {
        return Vec::new();
    }
    let mut counter = DeviceCounter::of(app.n_devices());
    let mut is_here = vec![false; app.n_devices()];
    let here = all.iter().copied().filter(|(back, _)| *back == 0);
    counter.each(&here.collect::<Vec<_>>(), |_, device| {
        is_here[device as usize] = true;
    });
    // If a whole fleet gets new ids at once, it has more new installations than may vote, so unproven ones count too.
    let mut all_ids = all;
    all_ids.extend(app.unproven(span).filter_map(|(bucket, bytes)| {
        let back = (span.end_s() - 1 - i64::from(bucket)).div_euclid(window_s);
        let back = usize::try_from(back).ok()?;
        (back < n_windows).then_some((back, bytes))
    }));
    // Each device is passed with its first window in the list, so the oldest window comes first.
    all_ids.sort_by_key(|(back, _)| std::cmp::Reverse(*back));
    let mut new_here = 0;
    counter.each(&all_ids, |back, _| new_here += u64::from(back == 0));
    let counted = asked.into_iter().map(|(version, mut slices)| {
        slices.sort_by_key(|(back, _)| *back);
        let mut windows = vec![0; n_windows];
        for of_window in slices.chunk_by(|a, b| a.0 == b.0) {
            counter.each(of_window, |back, _| windows[back] += 1);
        }
        let before = slices.partition_point(|(back, _)| *back == 0);
        let mut still_here = 0;
        counter.each(&slices[before..], |_, device| {
            still_here += u64::from(is_here[device as usize]);
        });
        let (model, version) = version.unwrap_or((TextId::EMPTY, TextId::EMPTY));
        Reporting {
            model: texts.model_key((app_id, environment, model)),
            version: texts.get(version).to_string(),
            windows,
            still_here,
            new_here,
            week_before,
        }
    });
    counted.collect()
}
