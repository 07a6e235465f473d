//! A device's calibration, from launches of one model that is compared with itself. It says how often a gate would call
//! that model slower, and which slowdown a gate finds. Limits have a floor: below it, the same model fails.
//!
//! Gates are drawn from the recorded pairs in blocks of neighbours (A B B A). Launches near to each other share the device's
//! state (H. R. Künsch, *The jackknife and the bootstrap for general stationary observations*, Ann. Stat. 17, 1989). Each is
//! judged by the rules of [`Comparison`]. The seed is fixed.

use epwatch_stats::SLOW_RUN;
use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::{
    Judged, Launch,
    arms::{in_order, without_throttled},
    bounds,
    comparison::{ALL_PAIRS, Comparison, DEFAULT_MIN_EFFECT, FIRST_PAIRS, Pair},
    files::{LaunchesError, MeasuredFile, check_targets},
    groups::UNNAMED,
    limits::{FailsBy, cost, floor, floor_bound},
    mistakes::Mistake,
    policy::{LatencyLimits, LoadLimits, Policy},
    run::RunTarget,
    verdict::Target,
};

/// Name and version of the document.
pub const SCHEMA: &str = "epwatch.calibration/1";
/// Minimum number of recorded pairs from which gates of twelve pairs can be drawn.
pub const LEAST_PAIRS: usize = 12;

/// Number of neighbouring pairs that are drawn together.
const BLOCK: usize = 2;
/// Number of gates that are drawn for each reported share.
const GATES: u32 = 200;
/// Slowdowns that are tried.
const EFFECTS: [f64; 7] = [1.1, 1.15, 1.2, 1.3, 1.5, 2.0, 3.0];
/// Numbers of pairs that are tried, to find how many a gate needs for the slowdown [`ASKED`].
const PAIRS: [usize; 6] = [ALL_PAIRS, 18, 24, 36, 48, 96];
/// The slowdown that a gate of `pairs_for` pairs finds.
const ASKED: f64 = 1.2;
/// Share of gates that must find a slowdown.
const POWER: f64 = 0.95;
/// Share of gates in which a limit may fail a healthy model.
const FREE_OF_COST: f64 = 0.01;
const SEED: u64 = 46;

/// Slowdowns that a device can decide.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// [`SCHEMA`].
    pub schema: String,
    /// Where and with what it was measured.
    pub of: CalibratedOn,
    /// Pairs of launches that were judged.
    pub pairs: usize,
    /// Launches in each gate for which the floors hold.
    pub launches: usize,
    /// Share of gates over an unchanged model that are red, and that are undecided.
    pub unchanged: DrawnGates,
    /// Shares of red gates over slower models, by their slowdown.
    pub slower: Vec<SlowerModel>,
    /// Smallest slowdown that 95 % of gates of six to twelve pairs find; `None` if they find none of the slowdowns that
    /// were tried.
    pub decides: Option<f64>,
    /// Pairs with which 95 % of gates find a slowdown of 1.2 times; `None` if not even 96 pairs are enough.
    pub pairs_for: Option<usize>,
    /// Floors of limits.
    pub floors: Vec<Floor>,
}

/// Device, model and runtime of a calibration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "the names say it")]
pub struct CalibratedOn {
    pub chipset: Option<String>,
    pub device: Option<String>,
    pub firmware: Option<String>,
    pub runtime: Option<String>,
    pub model_sha256: Option<String>,
}

/// Shares of gates that were drawn.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the names say it")]
pub struct DrawnGates {
    pub red: f64,
    pub undecided: f64,
}

/// Share of red gates over a model with one slowdown.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlowerModel {
    /// Its slowdown.
    pub times: f64,
    /// Share of red gates.
    pub red: f64,
    /// Share of red gates with one further block, in which other programs slow the baseline to twice its time.
    pub least_red: f64,
}

/// Floor of a limit: below it, the calibrated model itself fails in more than 1 % of gates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Floor {
    /// The policy's key, for example `latency.median_ms`.
    pub key: String,
    /// The floor in the key's unit; `None` if even the largest measured number would fail too often.
    pub floor: Option<f64>,
    /// Upper bound of the floor, right in 19 of 20 calibrations; `None` if the launches are too few to say.
    pub at_most: Option<f64>,
}

impl Calibration {
    /// Judges the launches of one model on one device, which took turns.
    ///
    /// # Errors
    /// The launches are of several devices, have too few runs, or too few of them were on a cool device.
    pub fn of_files(
        mut candidate: Vec<MeasuredFile>,
        mut baseline: Vec<MeasuredFile>,
        policy: &Policy,
    ) -> Result<Self, LaunchesError> {
        check_targets(candidate.iter().chain(&baseline))?;
        in_order(&mut candidate, &mut baseline);
        let (now, before) = without_throttled(&candidate, &baseline);
        let launch = |one: &MeasuredFile| -> Result<Launch, LaunchesError> {
            let read = Launch::new(&one.run.runs_us, one.run.warmup.unwrap_or(0));
            read.map_err(|error| LaunchesError::Launch {
                file: one.file.path.clone(),
                error,
            })
        };
        let mut pairs = Vec::new();
        for (now, before) in now.iter().zip(&before) {
            pairs.push(Pair {
                candidate: launch(now)?,
                baseline: launch(before)?,
            });
        }
        if pairs.len() < LEAST_PAIRS {
            return Err(LaunchesError::FewPairs(pairs.len()));
        }
        let loads: Vec<f64> = now
            .iter()
            .chain(&before)
            .filter_map(|one| Some(one.run.load_us? / 1_000.0))
            .collect();
        let first = candidate.first().map(|one| &one.run.target);
        let of = first.map(CalibratedOn::from).unwrap_or_default();
        Ok(Self::of(&pairs, &loads, of, policy))
    }

    /// Judges pairs of launches. Load times are in milliseconds.
    pub fn of(pairs: &[Pair], loads_ms: &[f64], of: CalibratedOn, policy: &Policy) -> Self {
        let limits = &policy.latency;
        let min_effect = limits.min_effect.unwrap_or(DEFAULT_MIN_EFFECT);
        let drawn = |times, n, disturbed| {
            Drawn {
                pairs,
                min_effect,
                disturbed,
            }
            .gates(times, n)
        };
        let slower: Vec<SlowerModel> = EFFECTS
            .iter()
            .filter(|times| **times >= min_effect)
            .map(|times| SlowerModel {
                times: *times,
                red: drawn(*times, None, 0).red,
                least_red: drawn(*times, None, 1).red,
            })
            .collect();
        let launches = limits.launches.map_or(FIRST_PAIRS, |n| n as usize);
        let is_found = |model: &&SlowerModel| model.least_red >= POWER;
        let decides = slower.iter().find(is_found).map(|model| model.times);
        Self {
            schema: SCHEMA.to_owned(),
            of,
            pairs: pairs.len(),
            launches,
            unchanged: drawn(1.0, None, 0),
            decides,
            pairs_for: PAIRS
                .into_iter()
                .find(|n| drawn(ASKED, Some(*n), 1).red >= POWER),
            slower,
            floors: floors(pairs, loads_ms, limits, launches),
        }
    }

    /// Limits of a policy that lie below the floor of this device. Each is a mistake that a report names.
    pub fn below_floor(&self, latency: &LatencyLimits, load: &LoadLimits) -> Vec<Mistake> {
        let limits = [
            ("latency.median_ms", latency.median_ms),
            ("latency.p95_ms", latency.p95_ms),
            ("latency.cv_max", latency.cv_max),
            (
                "latency.max_late",
                latency.deadline_ms.map(|_| latency.max_late()),
            ),
            ("load.cold_ms", load.cold_ms),
        ];
        let mut found = Vec::new();
        for floor in &self.floors {
            let limit = limits.iter().find(|(key, _)| *key == floor.key);
            let Some(limit) = limit.and_then(|(_, limit)| *limit) else {
                continue;
            };
            let Some(least) = floor.floor else {
                continue;
            };
            if limit < least {
                found.push(Mistake::below_calibration(
                    &floor.key,
                    limit,
                    least,
                    floor.at_most,
                ));
            }
        }
        let min_effect = latency.min_effect.unwrap_or(DEFAULT_MIN_EFFECT);
        let is_fine = self
            .decides
            .is_some_and(|decides| decides <= ASKED.max(min_effect));
        let asked = latency.launches.map(|n| n as usize);
        let is_followed = self
            .pairs_for
            .zip(asked)
            .is_some_and(|(n, asked)| asked >= n);
        if !is_fine && !is_followed {
            found.push(Mistake::no_power(self.decides, ASKED, self.pairs_for));
        }
        found
    }

    /// Adds mistakes to a report of launches: each limit below this device's floor, or that the calibration is of
    /// another device.
    pub fn note(&self, target: &mut Target, latency: &LatencyLimits, load: &LoadLimits) {
        if target.latency.is_none() {
            return;
        }
        let of = &self.of;
        let parts = [
            ("chipset", &of.chipset, &other_chipset(of, &target.chipset)),
            ("device", &of.device, &target.device),
            ("firmware", &of.firmware, &target.firmware),
            ("runtime", &of.runtime, &target.runtime),
        ];
        let other = parts.into_iter().find_map(|(what, ours, theirs)| {
            let (ours, theirs) = (ours.as_ref()?, theirs.as_ref()?);
            (ours != theirs).then(|| format!("{what} {ours} against {theirs}"))
        });
        match other {
            Some(what) => target.mistakes.push(Mistake::other_calibration(&what)),
            None => target.mistakes.extend(self.below_floor(latency, load)),
        }
    }

    /// The calibration for a terminal.
    pub fn in_words(&self) -> String {
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let mut lines = vec![
            format!(
                "{} pairs of launches of one model; {GATES} gates drawn of them for each number",
                self.pairs
            ),
            format!(
                "unchanged   {} of gates are red, {} undecided",
                percent(self.unchanged.red),
                percent(self.unchanged.undecided)
            ),
        ];
        for slower in &self.slower {
            lines.push(format!(
                "{:<4} times  {} red",
                slower.times,
                percent(slower.red)
            ));
        }
        lines.push(match self.decides {
            Some(times) => format!("a gate of 6 to 12 pairs decides from {times} times on"),
            None => "a gate of 6 to 12 pairs decides none of these slowdowns".to_owned(),
        });
        lines.push(match self.pairs_for {
            Some(pairs) => format!("{ASKED} times needs {pairs} pairs: latency.launches = {pairs}"),
            None => format!("{ASKED} times is not found by 96 pairs either"),
        });
        let launches = self.launches;
        lines.push(format!("floors of limits, over {launches} launches:"));
        for Floor {
            key,
            floor,
            at_most,
        } in &self.floors
        {
            let number =
                |value: &Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.3}"));
            let bound = match at_most {
                Some(most) => format!("at most {most:.3}"),
                None => "too few launches for a bound".to_owned(),
            };
            lines.push(format!("  {key:<18} {} ({bound})", number(floor)));
        }
        lines.join("\n")
    }
}

/// The chipset in a target's name, if it differs from the chipset of the calibration. With several devices, the name
/// continues with the device.
fn other_chipset(of: &CalibratedOn, name: &str) -> Option<String> {
    let rest = name.strip_prefix(of.chipset.as_deref()?);
    let is_same = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', ',']));
    (!is_same && name != UNNAMED).then(|| name.to_owned())
}

impl From<&RunTarget> for CalibratedOn {
    fn from(target: &RunTarget) -> Self {
        Self {
            chipset: target.chipset.clone(),
            device: target.device.clone(),
            firmware: target.firmware.clone(),
            runtime: target.runtime.clone(),
            model_sha256: target.model_sha256.clone(),
        }
    }
}

/// Gates that are drawn from pairs.
struct Drawn<'a> {
    pairs: &'a [Pair],
    min_effect: f64,
    /// Number of further blocks that were not recorded. Each stands for a burst of other programs that slows the
    /// baseline.
    disturbed: usize,
}

/// How much other programs slow a baseline in a block that was not recorded.
const DISTURBED: f64 = 2.0;

impl Drawn<'_> {
    /// Draws and judges gates over a model that is `times` slower. A gate has n pairs, or first six and then twelve.
    fn gates(&self, times: f64, n: Option<usize>) -> DrawnGates {
        let mut rng = Rng::with_seed(SEED);
        let slower: Vec<Pair> = self
            .pairs
            .iter()
            .map(|pair| Pair {
                baseline: pair.baseline.clone(),
                candidate: pair.candidate.times(times),
            })
            .collect();
        let (mut red, mut undecided) = (0, 0);
        for _ in 0..GATES {
            let gate = self.gate(&slower, &mut rng, n.unwrap_or(ALL_PAIRS));
            match self.judged(&gate, n.is_none()) {
                Judged::Pass => {}
                Judged::Fail => red += 1,
                Judged::Undecided(_) => undecided += 1,
            }
        }
        let share = |n: u32| f64::from(n) / f64::from(GATES);
        DrawnGates {
            red: share(red),
            undecided: share(undecided),
        }
    }

    /// Draws n pairs in blocks of neighbours.
    fn gate(&self, slower: &[Pair], rng: &mut Rng, n: usize) -> Vec<Pair> {
        let blocks = slower.chunks_exact(BLOCK).len();
        let mut gate = Vec::with_capacity(n + BLOCK);
        while gate.len() < n {
            let block = rng.usize(..blocks + self.disturbed);
            let at = BLOCK * (block % blocks);
            gate.extend_from_slice(&slower[at..at + BLOCK]);
            if block >= blocks {
                for pair in gate.iter_mut().rev().take(BLOCK) {
                    pair.baseline = pair.baseline.times(DISTURBED);
                }
            }
        }
        gate.truncate(n);
        gate
    }

    fn judged(&self, gate: &[Pair], is_sequential: bool) -> Judged {
        let judged = |pairs: &[Pair]| Comparison::result(pairs, self.min_effect);
        match is_sequential.then(|| judged(&gate[..FIRST_PAIRS])) {
            None | Some(Judged::Undecided(_)) => judged(gate),
            Some(decided) => decided,
        }
    }
}

fn floors(pairs: &[Pair], loads_ms: &[f64], limits: &LatencyLimits, launches: usize) -> Vec<Floor> {
    let all: Vec<&Launch> = pairs
        .iter()
        .flat_map(|pair| [&pair.baseline, &pair.candidate])
        .collect();
    let each =
        |of: &dyn Fn(&Launch) -> f64| -> Vec<f64> { all.iter().map(|launch| of(launch)).collect() };
    let mut found = vec![
        floor_of(
            "latency.median_ms",
            &each(&|l| l.median_us() / 1_000.0),
            launches,
            FailsBy::Bound,
        ),
        floor_of(
            "latency.p95_ms",
            &each(&|l| l.quantile_us(0.95) / 1_000.0),
            launches,
            FailsBy::Bound,
        ),
        floor_of(
            "latency.cv_max",
            &each(&Launch::cv),
            launches,
            FailsBy::Median,
        ),
    ];
    if let Some(ms) = limits.deadline_ms {
        let late = each(&|l| l.share_beyond(1_000.0 * ms));
        found.push(floor_of(
            "latency.max_late",
            &late,
            launches,
            FailsBy::Bound,
        ));
    }
    if !loads_ms.is_empty() {
        found.push(floor_of("load.cold_ms", loads_ms, launches, FailsBy::Bound));
    }
    found
}

fn floor_of(key: &str, healthy: &[f64], launches: usize, by: FailsBy) -> Floor {
    // Launches that are slow as a whole fail no limit of the CV.
    let whole = match by {
        FailsBy::Bound => floor_of_whole(healthy, launches).unwrap_or(0.0),
        FailsBy::Median => 0.0,
    };
    Floor {
        key: key.to_owned(),
        floor: floor(healthy, launches, by).map(|least| least.max(whole)),
        at_most: floor_bound(healthy, launches, by).map(|most| most.max(whole)),
    }
}

/// The smallest limit for which two launches of a gate are beyond 1.7 times the limit in at most 1 % of gates. Two such
/// launches also fail the limit.
fn floor_of_whole(healthy: &[f64], launches: usize) -> Option<f64> {
    let shrunk: Vec<f64> = healthy.iter().map(|value| value / SLOW_RUN).collect();
    let free = |limit: &f64| {
        let share = cost(&shrunk, *limit, 1, FailsBy::Bound).unwrap_or(1.0);
        bounds::at_least(2, launches, share) <= FREE_OF_COST
    };
    let limits = shrunk.iter().copied().filter(free);
    limits.min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 200 recorded pairs of launches of one small convolution on ONNX Runtime's CPU EP. Compilers ran on the same two cores.
    const RECORDED: &str = include_str!("../tests/fixtures/launches.csv");

    fn recorded() -> Vec<Pair> {
        let launch = |line: &str| {
            let runs: Vec<u64> = line.split(',').map(|us| us.parse().unwrap()).collect();
            Launch::new(&runs, 3).unwrap()
        };
        let launches: Vec<Launch> = RECORDED.lines().map(launch).collect();
        let pairs = launches.chunks_exact(2).map(|both| Pair {
            baseline: both[0].clone(),
            candidate: both[1].clone(),
        });
        pairs.collect()
    }

    fn calibrated(pairs: &[Pair]) -> Calibration {
        Calibration::of(pairs, &[], CalibratedOn::default(), &Policy::default())
    }

    #[test]
    fn of_gates_over_an_unchanged_model_one_in_a_hundred_is_red_at_most() {
        let pairs = recorded();
        assert_eq!(pairs.len(), 200);
        let found = calibrated(&pairs);
        assert!(found.unchanged.red <= 0.01, "{found:?}");
        // Most gates are green, so the rule does not just stay undecided.
        assert!(found.unchanged.undecided <= 0.1, "{found:?}");
        let one = |times: f64| {
            found
                .slower
                .iter()
                .find(|slower| slower.times == times)
                .unwrap()
        };
        assert!(
            one(3.0).red >= one(1.2).red && one(2.0).red >= POWER,
            "{found:?}"
        );
    }

    #[test]
    fn advice_that_was_followed_is_not_repeated() {
        let mut found = calibrated(&recorded()[..60]);
        (found.decides, found.pairs_for) = (Some(1.5), Some(24));
        let ids = |launches| {
            let latency = LatencyLimits {
                launches,
                ..LatencyLimits::default()
            };
            let found = found.below_floor(&latency, &LoadLimits::default());
            found.iter().map(|mistake| mistake.id).collect::<Vec<_>>()
        };
        assert_eq!(ids(None), ["little_power"]);
        assert_eq!(ids(Some(12)), ["little_power"]);
        assert_eq!(ids(Some(24)), [""; 0]);
    }

    #[test]
    fn a_calibration_of_another_chipset_is_named() {
        let of = |chipset: Option<&str>| CalibratedOn {
            chipset: chipset.map(str::to_owned),
            ..CalibratedOn::default()
        };
        let other = |chipset, name| other_chipset(&of(chipset), name);
        for name in ["SM8650", "SM8650 Galaxy S24, firmware f1", UNNAMED] {
            assert_eq!(other(Some("SM8650"), name), None, "{name}");
            assert_eq!(other(None, name), None, "{name}");
        }
        for name in ["SM8635", "SM8650P"] {
            assert_eq!(other(Some("SM8650"), name).as_deref(), Some(name));
        }
    }

    /// The gates are drawn from pairs that the calibration has not seen.
    #[test]
    fn what_a_calibration_calls_decidable_is_red_elsewhere_too() {
        let pairs = recorded();
        let (mut red, mut gates) = (0.0, 0);
        for at in 0..3 {
            let own = 60 * at..60 * (at + 1);
            let found = calibrated(&pairs[own.clone()]);
            let others = [&pairs[..own.start], &pairs[own.end..]].concat();
            let drawn = |times, n| {
                Drawn {
                    pairs: &others,
                    min_effect: DEFAULT_MIN_EFFECT,
                    disturbed: 0,
                }
                .gates(times, n)
                .red
            };
            let decided = found.decides.map(|times| drawn(times, None));
            let asked = found.pairs_for.map(|n| drawn(ASKED, Some(n)));
            for share in decided.into_iter().chain(asked) {
                red += share;
                gates += 1;
            }
        }
        assert!(gates >= 3, "nothing is decidable: {gates}");
        assert!(red / f64::from(gates) >= POWER, "{red} of {gates}");
    }

    #[test]
    fn limits_below_the_floor_are_named() {
        let pairs = recorded();
        let policy =
            Policy::parse("[latency]\nmedian_ms = 1.0\ncv_max = 0.08\np95_ms = 500.0\n").unwrap();
        let found = Calibration::of(&pairs[..40], &[3.0; 80], CalibratedOn::default(), &policy);
        let ids = |policy: &Policy| -> Vec<String> {
            let notes = found.below_floor(&policy.latency, &policy.load);
            notes
                .into_iter()
                .filter(|note| note.id == "limit_below_floor")
                .map(|note| note.why)
                .collect()
        };
        let named = ids(&policy);
        assert_eq!(named.len(), 2, "{named:?}");
        assert!(
            named[0].starts_with("latency.median_ms = 1 is below this device's floor of "),
            "{named:?}"
        );
        assert!(named[1].starts_with("latency.cv_max = 0.08"), "{named:?}");
        let none = Policy::parse("[latency]\nmedian_ms = 50.0\n[load]\ncold_ms = 4.0\n").unwrap();
        assert!(ids(&none).is_empty());
        for floor in &found.floors {
            assert!(
                floor.at_most.is_none_or(|most| Some(most) >= floor.floor),
                "{floor:?}"
            );
        }
        let text = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<Calibration>(&text).unwrap(), found);
    }
}
