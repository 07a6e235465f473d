//! Devices that are slow in some of their runs.
//!
//! `Tail`: at least 3 to 40 % of a device's runs lie beyond twice its own earlier p95, and far out. Far out means that
//! most runs beyond 1.4 x are beyond 2 x, whereas contention and heat end earlier. `NearTail`: runs beyond 1.4 x (and
//! 1.6 x its median), if almost no run of the cohort lies just below. A run at twice its latency is at 1.8 x its p95,
//! and contention and heat slow runs down by any factor up to that. `Moved`: the median moved by 1.6 x while the fast
//! runs are as fast as before. All three signals add up a device's runs over placements, because they look for runs
//! that move between placements.

use std::collections::BTreeMap;

use epwatch_model::{Installation, Signal, SignalId, TAIL_PERCENTS};

use crate::judge::baseline::Baseline;
use crate::judge::hash::{HashMap, HashSet};
use crate::judge::tally::Tally;
use crate::judge::window::{AgainstSelf, DeviceVote, MIN_RUNS_HIGH};

use super::limits::{Limits, counted_signal, is_enough};

/// Share of healthy devices with a moved median.
pub(crate) const MOVED_RATE: f64 = 0.01;

/// Share of the devices that must be hit.
pub(crate) const MIN_SHARE: f64 = 0.02;

/// Minimum share of the runs beyond 1.4 x that must be beyond 2 x.
const FAR_OUT: f64 = 0.5;

/// Minimum share of a device's runs that are as fast as before: its p10 is unchanged.
const STILL_FAST: f64 = 0.1;

/// Runs beyond the limit of `NearTail` are a group only if few runs lie between 1.2 x and the limit: at most this
/// fraction. The measured fraction is 0.8 under contention by 1.2 to 1.9 x and 1.3 under heat of up to 2.2 x. With runs
/// at twice the latency it is 0.1.
const MOST_BETWEEN: f64 = 0.4;

/// Minimum share of a device's runs within 1.4 times its earlier p95 that rules out a slow-down of all runs. `Tail`
/// counts a device that is slower in all of its runs only if half of them are beyond twice the p95. Then almost no run
/// is within 1.4 times.
const FAST_TOO: f64 = 0.3;

/// If the slow-down goes on, the share of slow runs in the window is at least this fraction of the share with earlier
/// runs added. The fraction is a half if the slow-down began long ago, more if it began now, and nearly zero after a
/// repair.
const GOES_ON: f64 = 0.25;

/// The result of one of the three signals.
#[derive(Debug, Clone, PartialEq)]
pub struct Intermittent {
    /// Value: share of the devices hit. Threshold: for `Tail` and `NearTail` the share of a device's runs, for `Moved` the ratio of
    /// medians.
    pub signal: Signal,
    pub hit_devices: HashSet<Installation>,
    /// Counts at every share tested: the history of later versions.
    pub tallies: Vec<Signal>,
    /// Median over the devices hit of the share of their runs beyond the limit. The limit is 2 x their p95 for `Tail`,
    /// 1.4 x for `NearTail`, and 1.6 x their median for `Moved`.
    pub slow_share: Option<f64>,
    /// Whether the input shape of most of the devices hit is known.
    pub shape_is_known: bool,
    /// Whether most of the devices hit have enough runs within 1.4 times their earlier p95.
    pub has_fast_runs_too: bool,
}

impl Intermittent {
    /// Returns the id of the deciding share's tally in the history.
    pub(crate) fn past_id(&self) -> SignalId {
        if self.signal.id == SignalId::Moved {
            return SignalId::Moved;
        }
        let percent = TAIL_PERCENTS
            .into_iter()
            .map(|(percent, _)| percent)
            .find(|percent| f64::from(*percent) / 100.0 >= self.signal.threshold);
        beyond(self.signal.id, percent.unwrap_or(TAIL_PERCENTS[0].0))
    }
}

/// A device's runs compared with its own past, over all placements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct DeviceRuns {
    pub(crate) against: AgainstSelf,
    /// The runs of the window alone, without earlier runs that were added to have enough.
    own: AgainstSelf,
    shape_is_known: bool,
}

impl DeviceRuns {
    fn tail(&self) -> f64 {
        let far_out = self.against.beyond_2x >= FAR_OUT * self.against.beyond_1_4x;
        if far_out {
            self.against.beyond_2x / self.against.n
        } else {
            0.0
        }
    }

    /// Returns the share of the runs beyond the limit of `NearTail`, and the share just below the limit. `None` if too
    /// few runs are as fast as before.
    fn near_and_between(&self) -> Option<(f64, f64)> {
        let AgainstSelf { n, as_fast, .. } = self.against;
        let near = near_tail(self.against);
        let between = (self.against.beyond_1_2x - near).max(0.0);
        (as_fast >= STILL_FAST * n).then_some((near / n, between / n))
    }

    /// Returns the share of the runs that `Tail` or `NearTail` counts.
    fn slow(&self, id: SignalId) -> f64 {
        match id {
            SignalId::NearTail => self.near_and_between().map_or(0.0, |(near, _)| near),
            _ => self.tail(),
        }
    }

    fn has_fast_runs_too(&self) -> bool {
        // Only the window's own runs are tested, because the earlier runs that fill up a device's few runs are fast.
        self.own.beyond_1_4x <= (1.0 - FAST_TOO) * self.own.n
    }

    fn has_moved(&self) -> bool {
        let AgainstSelf {
            n,
            beyond_median,
            as_fast,
            ..
        } = self.against;
        beyond_median >= 0.5 * n && as_fast >= STILL_FAST * n
    }
}

/// Returns the runs beyond the limit of `NearTail`. The limit is the median's if few earlier runs were slow, and the
/// p95's if many were.
fn near_tail(runs: AgainstSelf) -> f64 {
    runs.beyond_1_4x.min(runs.beyond_median)
}

/// Returns the id of the tally of `Tail` or `NearTail` at a share of runs.
fn beyond(id: SignalId, percent: u16) -> SignalId {
    match id {
        SignalId::NearTail => SignalId::NearTailBeyond(percent),
        _ => SignalId::TailBeyond(percent),
    }
}

/// Runs of a device with a firmware and an input shape.
type RunsByShape<'a> = Vec<((Installation, &'a str, &'a str), DeviceRuns)>;

/// Returns the runs of each device, firmware and input shape with enough of them, over placements.
pub(crate) fn runs_by_shape<'a>(
    votes: impl IntoIterator<Item = &'a DeviceVote>,
) -> RunsByShape<'a> {
    // The map is ordered, so that the first of equal parts always wins.
    let mut parts: BTreeMap<(Installation, &str, &str), [AgainstSelf; 2]> = BTreeMap::new();
    for vote in votes {
        let Some(latency) = &vote.latency else {
            continue;
        };
        let Some(against) = latency.against_self else {
            continue;
        };
        let own = latency.own_against_self.as_deref().copied();
        let key = (vote.installation, &*vote.firmware, &*vote.shape_key);
        let slot = parts.entry(key).or_default();
        *slot = [
            slot[0].added(against),
            slot[1].added(own.unwrap_or(against)),
        ];
    }
    let enough = parts
        .into_iter()
        .filter(|(_, [against, _])| against.n >= MIN_RUNS_HIGH as f64);
    let runs = enough.map(|(key, [against, own])| {
        let runs = DeviceRuns {
            against,
            own,
            shape_is_known: is_known(key.2),
        };
        (key, runs)
    });
    runs.collect()
}

/// Returns each device's worst (firmware, input shape): the one with the longest tail.
pub(crate) fn runs_of_devices<'a>(
    votes: impl IntoIterator<Item = &'a DeviceVote>,
) -> HashMap<Installation, DeviceRuns> {
    let by_shape = runs_by_shape(votes);
    let mut devices: HashMap<Installation, DeviceRuns> = HashMap::default();
    devices.reserve(by_shape.len());
    for ((device, _, _), runs) in by_shape {
        let rank = |runs: &DeviceRuns| {
            let near = runs.slow(SignalId::NearTail);
            (runs.has_moved(), runs.tail(), near, runs.against.n)
        };
        let slot = devices.entry(device).or_insert(runs);
        if rank(&runs) > rank(slot) {
            *slot = runs;
        }
    }
    devices
}

/// `Tail` or `NearTail`, as `kind` says: devices with slow runs; `None` if no device has a baseline.
///
/// `NearTail` does not fire before the fleet has its own rates, because sessions on big and little cores are two groups
/// of runs as well. Neither does it fire if input shapes are not known, because shapes form groups too.
pub(super) fn tails(
    kind: SignalId,
    devices: &HashMap<Installation, DeviceRuns>,
    baseline: &Baseline,
    limits: &Limits,
) -> Option<Intermittent> {
    let tallies = TAIL_PERCENTS.map(|(percent, rate)| {
        let (id, share) = (beyond(kind, percent), f64::from(percent) / 100.0);
        let tally = Tally::of(devices.values(), |runs| runs.slow(kind) >= share);
        (share, baseline.chance(id, rate, tally), row(id, tally))
    });
    let least = tallies.iter().rev().min_by(|a, b| a.1.total_cmp(&b.1));
    let (share, p) = least.map(|(share, p, _)| (*share, *p))?;
    let p = (p * TAIL_PERCENTS.len() as f64).min(1.0);
    let hit = |runs: &DeviceRuns| runs.slow(kind) >= share;
    let mut found = found(kind, p, share, limits, devices, hit)?;
    if kind == SignalId::NearTail && found.signal.fires {
        let is_known = baseline.rates.has(found.past_id()) && found.shape_is_known;
        found.signal.fires = is_known && are_apart(devices);
    }
    found.tallies = tallies.map(|(_, _, row)| row).into();
    Some(found)
}

/// Whether the slow runs of `NearTail` are a group of their own, over all devices. The devices hit alone were chosen
/// for their slow runs.
fn are_apart(devices: &HashMap<Installation, DeviceRuns>) -> bool {
    let mut all: Vec<(&Installation, &DeviceRuns)> = devices.iter().collect();
    // Sorted, because sums of fractions depend on the order.
    all.sort_unstable_by_key(|(device, _)| **device);
    let shares = all.iter().filter_map(|(_, runs)| runs.near_and_between());
    let (near, between) = shares.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    between <= MOST_BETWEEN * near
}

/// `Moved`: devices whose median moved while their fast runs stayed; `None` if no device has a baseline.
pub(super) fn moved_medians(
    devices: &HashMap<Installation, DeviceRuns>,
    baseline: &Baseline,
    limits: &Limits,
) -> Option<Intermittent> {
    let (id, hit) = (SignalId::Moved, DeviceRuns::has_moved);
    let p = baseline.chance(id, MOVED_RATE, Tally::of(devices.values(), hit));
    found(id, p, 1.6, limits, devices, hit)
}

/// Whether the devices hit are slow in the window's own runs too. If a device has few runs in the window, earlier ones
/// are added, and after a repair only the earlier ones are slow.
fn goes_on<'a>(id: SignalId, hit: impl Iterator<Item = &'a DeviceRuns>) -> bool {
    let (mut all, mut own) = (AgainstSelf::default(), AgainstSelf::default());
    for runs in hit {
        all = all.added(runs.against);
        own = own.added(runs.own);
    }
    // Without hits there are no runs to compare.
    all.n <= 0.0 || slow_share(id, own) >= GOES_ON * slow_share(id, all)
}

/// Returns the share of the runs that the signal counts as slow.
fn slow_share(id: SignalId, runs: AgainstSelf) -> f64 {
    match id {
        SignalId::Moved => runs.beyond_median / runs.n,
        SignalId::NearTail => near_tail(runs) / runs.n,
        _ => runs.beyond_2x / runs.n,
    }
}

/// Whether a shape key stands for one input shape.
pub(crate) fn is_known(shape_key: &str) -> bool {
    !shape_key.is_empty() && shape_key != epwatch_proto::stratum::OTHER_SHAPE
}

/// Counts the devices of `votes` that are hit by the criterion of `found`.
pub(crate) fn tally_of<'a>(
    found: &Signal,
    votes: impl IntoIterator<Item = &'a DeviceVote>,
) -> Tally {
    Tally::of(runs_of_devices(votes).values(), |runs| is_hit(found, runs))
}

/// Whether a device's runs are hit by the criterion of `found`.
pub(crate) fn is_hit(found: &Signal, runs: &DeviceRuns) -> bool {
    match found.id {
        SignalId::Moved => runs.has_moved(),
        id => runs.slow(id) >= found.threshold,
    }
}

fn row(id: SignalId, tally: Tally) -> Signal {
    counted_signal(id, tally, 1.0, 0.0, false)
}

fn found(
    id: SignalId,
    p: f64,
    threshold: f64,
    limits: &Limits,
    devices: &HashMap<Installation, DeviceRuns>,
    hit: impl Fn(&DeviceRuns) -> bool,
) -> Option<Intermittent> {
    let tally = Tally::of(devices.values(), &hit);
    if tally.devices == 0 {
        return None;
    }
    let mut hit: Vec<(&Installation, &DeviceRuns)> =
        devices.iter().filter(|(_, runs)| hit(runs)).collect();
    // Sorted, because sums of fractions depend on the order.
    hit.sort_unstable_by_key(|(device, _)| **device);
    let shares: Vec<f64> = hit
        .iter()
        .map(|(_, runs)| slow_share(id, runs.against))
        .collect();
    let known = hit.iter().filter(|(_, runs)| runs.shape_is_known).count();
    let fast_too = hit.iter().filter(|(_, runs)| runs.has_fast_runs_too());
    let fast_too = fast_too.count();
    let still = goes_on(id, hit.iter().map(|(_, runs)| *runs));
    let fires = is_enough(tally, MIN_SHARE) && p <= limits.p_latency && still;
    Some(Intermittent {
        signal: counted_signal(id, tally, p, threshold, fires),
        shape_is_known: 2 * known >= hit.len(),
        has_fast_runs_too: 2 * fast_too > hit.len(),
        hit_devices: hit.into_iter().map(|(device, _)| *device).collect(),
        tallies: Vec::new(),
        slow_share: epwatch_stats::order_stat::median(&shares),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::base_rates::BaseRates;
    use crate::judge::tally::BaseRate;
    use crate::judge::window::CohortWindow;
    use crate::testing::{Fleet, noisy};

    /// The day after a repair. It has too few runs of its own, and the earlier runs were slow.
    #[test]
    fn runs_that_were_added_are_not_slow_by_themselves() {
        let limits = Limits::for_windows_a_day(1_000.0);
        let fires = |window: &CohortWindow| {
            let found = tails(
                SignalId::Tail,
                &runs_of_devices(&window.votes),
                &Baseline::default(),
                &limits,
            )
            .unwrap();
            found.signal.fires
        };
        let mut window = noisy(0.5);
        assert!(fires(&window));
        let mut own_runs = |slow: f64| {
            for vote in &mut window.votes {
                let latency = vote.latency.as_mut().unwrap();
                latency.own_against_self = latency.against_self.map(|all| {
                    let own = AgainstSelf {
                        n: all.n / 5.0,
                        beyond_2x: all.beyond_2x / 5.0 * slow,
                        ..all
                    };
                    Box::new(own)
                });
            }
            fires(&window)
        };
        assert!(own_runs(0.5), "it has just begun");
        assert!(!own_runs(0.05));
    }

    /// A fleet whose devices have these shares of 50 runs beyond 1.2 and 1.4 times their p95.
    fn with_slow_runs(beyond_1_2x: f64, beyond_1_4x: f64) -> CohortWindow {
        let mut window = Fleet::default().window();
        for vote in &mut window.votes {
            let latency = vote.latency.as_mut().unwrap();
            latency.against_self = Some(AgainstSelf {
                n: 50.0,
                beyond_1_2x: 50.0 * beyond_1_2x,
                beyond_1_4x: 50.0 * beyond_1_4x,
                beyond_2x: 1.0,
                beyond_median: 50.0 * beyond_1_4x,
                as_fast: 30.0,
            });
        }
        window
    }

    #[test]
    fn runs_at_twice_the_latency_are_a_group_of_their_own_and_contended_runs_are_not() {
        let limits = Limits::for_windows_a_day(1_000.0);
        let rate = BaseRate {
            rate: 0.03,
            strength: 100.0,
        };
        let ids = TAIL_PERCENTS.map(|(percent, _)| SignalId::NearTailBeyond(percent));
        let known = Baseline {
            rates: BaseRates(ids.map(|id| (id, rate)).into()),
            ..Baseline::default()
        };
        let fires = |window: &CohortWindow, baseline: &Baseline| {
            let runs = runs_of_devices(&window.votes);
            let far = tails(SignalId::Tail, &runs, baseline, &limits).unwrap();
            assert!(!far.signal.fires);
            let near = tails(SignalId::NearTail, &runs, baseline, &limits).unwrap();
            near.signal.fires
        };
        let twice = with_slow_runs(0.16, 0.15);
        assert!(fires(&twice, &known));
        assert!(!fires(&with_slow_runs(0.27, 0.15), &known), "contention");
        assert!(!fires(&twice, &Baseline::default()), "no rates of its own");
        let mut unknown = twice;
        for vote in &mut unknown.votes {
            vote.shape_key = "".into();
        }
        assert!(!fires(&unknown, &known), "shapes");
    }

    /// The order of a hash map changes with its seed, but the result must not.
    #[test]
    fn among_equally_slow_shapes_the_same_one_decides_each_time() {
        let mut window = noisy(1.0);
        let of_other_shape: Vec<DeviceVote> = window
            .votes
            .iter()
            .map(|vote| DeviceVote {
                shape_key: "".into(),
                ..vote.clone()
            })
            .collect();
        window.votes.extend(of_other_shape);
        for _ in 0..5 {
            let devices = runs_of_devices(&window.votes);
            assert!(devices.values().all(|runs| !runs.shape_is_known));
        }
    }
}
