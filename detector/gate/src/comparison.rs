//! Pairs of launches on one device, interleaved A B B A: a regression by their ratios, or slow phases.
//!
//! Six pairs decide where their median is far from the limit. They fail far above it with at most one pair that is not
//! slower, and pass far below it. In between six more are measured, and all twelve are judged. Earlier pairs always
//! count, so nothing is repeated until it is green. `tests/it/rates.rs` has how often each answer is wrong.

use epwatch_stats::{SLOW_RUN, order_stat::median};

use crate::{Judged, Launch, bounds, intermittent::SlowPhases};

/// Number of pairs of the first look.
pub const FIRST_PAIRS: usize = bounds::LEAST;
/// Number of pairs that decide where the first look is red or near it.
pub const ALL_PAIRS: usize = 12;
/// The default of a policy's `min_effect`.
pub const DEFAULT_MIN_EFFECT: f64 = 1.15;

/// A regression's lower bound must be above this ratio: the device's own drift is smaller.
const SURELY_SLOWER: f64 = 1.05;
/// Share of false regressions among all that are reported over several devices.
const FALSE_DISCOVERIES: f64 = 0.05;
/// Median of six pairs from which on they fail, for the default `min_effect` and any smaller one. An unchanged model
/// reaches it in 1 of 2,000 comparisons.
const FAR_SLOWER: f64 = 1.25;
/// Among six pairs that fail, this many may be not slower: a governor slows down launches of the baseline too.
const MOST_NOT_SLOWER: usize = 1;
/// Medians below which six pairs pass, and twelve, for the default `min_effect`.
const FAR_BELOW: f64 = 1.05;
const BELOW: f64 = 1.08;

/// A launch of each arm, one after the other on one device.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// The launch of the model that is known to be good.
    pub baseline: Launch,
    /// The launch of the model that is judged.
    pub candidate: Launch,
}

/// All pairs of one device. A gate over several devices has one comparison for each, and fails if any of them fails.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The candidate's median over the baseline's median, pair by pair.
    pub ratios: Vec<f64>,
    /// Their median; 1 without pairs.
    pub ratio: f64,
    /// Lower bound of the true median ratio; `None` below six pairs.
    pub low: Option<f64>,
    /// Upper bound of the true median ratio; `None` below six pairs.
    pub high: Option<f64>,
    /// Chance of at least as many ratios beyond 1.05 if the true median were 1.05 (sign test), adjusted for the number
    /// of devices.
    pub chance: f64,
    /// Slow phases of runs, and launches that are slow as a whole.
    pub intermittent: SlowPhases,
    /// The result by regression and slow phases together.
    pub judged: Judged,
}

impl Comparison {
    /// Judges all pairs measured so far.
    pub fn of(pairs: &[Pair], min_effect: f64) -> Self {
        Self::by(pairs, min_effect, SlowPhases::of)
    }

    /// Returns the result without the explanation, which takes less time.
    pub(crate) fn result(pairs: &[Pair], min_effect: f64) -> Judged {
        Self::by(pairs, min_effect, SlowPhases::without_modes).judged
    }

    fn by(
        pairs: &[Pair],
        min_effect: f64,
        intermittent: impl FnOnce(&[&Launch], &[&Launch]) -> SlowPhases,
    ) -> Self {
        let ratio_of = |pair: &Pair| pair.candidate.median_us() / pair.baseline.median_us();
        let ratios: Vec<f64> = pairs.iter().map(ratio_of).collect();
        let (baseline, candidate): (Vec<&Launch>, Vec<&Launch>) =
            pairs.iter().map(|p| (&p.baseline, &p.candidate)).unzip();
        let mut comparison = Self {
            ratio: median(&ratios).unwrap_or(1.0),
            low: bounds::lower(&ratios),
            high: bounds::upper(&ratios),
            chance: sign_test(&ratios),
            intermittent: intermittent(&baseline, &candidate),
            judged: Judged::Undecided(Some(FIRST_PAIRS)),
            ratios,
        };
        comparison.judged = comparison.judge(min_effect);
        comparison
    }

    /// Judges again as one of several devices, with the chance that [`adjusted_chances`] gives it.
    #[must_use]
    pub fn with_chance(mut self, chance: f64, min_effect: f64) -> Self {
        self.chance = chance;
        self.judged = self.judge(min_effect);
        self
    }

    fn judge(&self, min_effect: f64) -> Judged {
        let slower = self.ratio >= min_effect
            && self.low.is_some_and(|low| low > SURELY_SLOWER)
            && self.chance <= FALSE_DISCOVERIES;
        // Noise is relative: a limit twice as high has margins twice as wide.
        let times = min_effect / DEFAULT_MIN_EFFECT;
        let slow_phases = self.intermittent.judged;
        let is_few = self.ratios.len() < ALL_PAIRS;
        if self.ratios.len() < FIRST_PAIRS {
            Judged::Undecided(Some(FIRST_PAIRS))
        } else if is_few && self.is_far_slower(FAR_SLOWER * times.max(1.0)) {
            Judged::Fail
        } else if is_few && (slow_phases != Judged::Pass || self.ratio >= FAR_BELOW * times) {
            Judged::Undecided(Some(ALL_PAIRS))
        } else if slower || slow_phases == Judged::Fail {
            Judged::Fail
        } else if let Judged::Undecided(pairs) = slow_phases {
            Judged::Undecided(pairs)
        } else if self.ratio < BELOW * times || self.high.is_some_and(|high| high < min_effect) {
            Judged::Pass
        } else {
            Judged::Undecided(self.deciding_pairs(min_effect))
        }
    }

    /// Whether fewer than twelve pairs fail: their median is `far` or more, and at most one is not slower. With several
    /// devices, one of them is that far slower by chance more often. It then also needs the adjusted chance or a larger
    /// ratio.
    fn is_far_slower(&self, far: f64) -> bool {
        let not_slower = self.ratios.iter().filter(|r| **r <= SURELY_SLOWER);
        let is_sure = self.chance <= FALSE_DISCOVERIES.max(sign_test(&self.ratios));
        self.ratio >= far
            && not_slower.count() <= MOST_NOT_SLOWER
            && (is_sure || self.ratio >= SLOW_RUN)
    }

    /// Total number of pairs after which the bound would decide, if the ratios keep their shares.
    fn deciding_pairs(&self, min_effect: f64) -> Option<usize> {
        let slower = self.ratio >= min_effect;
        let is_against = |ratio: &&f64| match slower {
            true => **ratio <= SURELY_SLOWER,
            false => **ratio >= min_effect,
        };
        let against = self.ratios.iter().filter(is_against).count();
        let most = match slower {
            true => FALSE_DISCOVERIES * sign_test(&self.ratios) / self.chance,
            false => 1.0,
        };
        bounds::deciding(against, self.ratios.len(), most)
    }
}

fn sign_test(ratios: &[f64]) -> f64 {
    let beyond = ratios.iter().filter(|r| **r > SURELY_SLOWER).count() as u64;
    bounds::at_least(beyond, ratios.len(), 0.5)
}

/// Chances adjusted for the number of targets, in the order given: a target is reported at a false discovery rate of
/// its adjusted chance. Y. Benjamini and Y. Hochberg, *Controlling the false discovery rate*, JRSS B 57(1), 1995.
pub fn adjusted_chances(chances: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..chances.len()).collect();
    order.sort_by(|a, b| chances[*b].total_cmp(&chances[*a]));
    let mut adjusted = vec![1.0; chances.len()];
    let mut least = 1.0_f64;
    for (from_the_end, at) in order.into_iter().enumerate() {
        let rank = chances.len() - from_the_end;
        least = least.min(chances[at] * chances.len() as f64 / rank as f64);
        adjusted[at] = least;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(ratios: &[f64]) -> Vec<Pair> {
        let launch = |us: f64| {
            #[expect(clippy::cast_possible_truncation, reason = "of tests")]
            #[expect(clippy::cast_sign_loss, reason = "of tests")]
            Launch::new(&[(us * 1e6).round() as u64; 20], 0).unwrap()
        };
        let pair = |ratio: &f64| Pair {
            baseline: launch(1.0),
            candidate: launch(*ratio),
        };
        ratios.iter().map(pair).collect()
    }

    #[track_caller]
    fn check(ratios: &[f64], expected: Judged) {
        let comparison = Comparison::of(&pairs(ratios), DEFAULT_MIN_EFFECT);
        assert_eq!(comparison.judged, expected, "{comparison:?}");
    }

    #[test]
    fn six_pairs_pass_or_ask_for_twelve() {
        check(&[], Judged::Undecided(Some(6)));
        for few in [1, 3, 5] {
            check(&vec![3.0; few], Judged::Undecided(Some(6)));
            check(&vec![1.0; few], Judged::Undecided(Some(6)));
        }
        check(&[1.0; 6], Judged::Pass);
        check(&[1.04; 6], Judged::Pass);
        check(&[1.06; 6], Judged::Undecided(Some(12)));
        check(&[1.2; 6], Judged::Undecided(Some(12)));
        check(&[1.2; 11], Judged::Undecided(Some(12)));
    }

    /// 2.93 times slower in six of six pairs needs no further launch.
    #[test]
    fn six_pairs_far_beyond_the_limit_fail() {
        check(&[2.92, 2.93, 2.93, 2.93, 2.94, 2.95], Judged::Fail);
        check(&[1.26; 6], Judged::Fail);
        check(&[1.26; 11], Judged::Fail);
        check(&[1.24; 6], Judged::Undecided(Some(12)));
        check(&[1.5, 1.5, 1.5, 1.5, 1.5, 1.0], Judged::Fail);
        check(&[1.5, 1.5, 1.5, 1.5, 1.0, 1.0], Judged::Undecided(Some(12)));
    }

    #[test]
    fn another_least_effect_has_margins_of_its_own() {
        let judged = |ratio, min_effect| Comparison::of(&pairs(&[ratio; 6]), min_effect).judged;
        let more = Judged::Undecided(Some(12));
        assert_eq!(judged(1.36, 1.5), Judged::Pass);
        assert_eq!(judged(1.38, 1.5), more);
        assert_eq!(judged(1.62, 1.5), more);
        assert_eq!(judged(1.64, 1.5), Judged::Fail);
        // A small least effect does not turn the noise of six pairs into a regression.
        assert_eq!(judged(1.2, 1.05), more);
        assert_eq!(judged(1.26, 1.05), Judged::Fail);
        assert_eq!(judged(1.0, 1.05), more);
    }

    #[test]
    fn twelve_pairs_are_judged_together() {
        check(&[1.2; 12], Judged::Fail);
        check(&[1.15; 12], Judged::Fail);
        check(&[1.14; 12], Judged::Pass);
        check(&[1.07; 12], Judged::Pass);
        // Six slower pairs alone do not pass, but all thirteen together do.
        let mut mended = vec![1.2; 6];
        mended.extend([1.0; 7]);
        check(&mended, Judged::Pass);
    }

    #[test]
    fn what_lies_between_names_the_pairs_that_decide() {
        // The median is slower, but the bound is the third smallest ratio, which is not.
        let mut ratios = vec![1.3; 9];
        ratios.extend([1.0; 3]);
        check(&ratios, Judged::Undecided(Some(20)));
        let mut ratios = vec![1.3; 15];
        ratios.extend([1.0; 5]);
        check(&ratios, Judged::Fail);
        // Both sides have as many pairs, so no number of pairs decides.
        let mut ratios = vec![1.3; 6];
        ratios.extend([1.0; 6]);
        check(&ratios, Judged::Undecided(None));
        // The median is near the least effect, and not surely below it.
        let mut ratios = vec![1.12; 9];
        ratios.extend([1.3; 3]);
        check(&ratios, Judged::Undecided(Some(20)));
    }

    #[test]
    fn bounds_and_chances_are_those_of_the_sign_test() {
        let comparison = Comparison::of(&pairs(&[1.1, 1.2, 1.3, 1.4, 1.5, 1.6]), 1.15);
        assert_eq!(comparison.low, Some(1.1));
        assert_eq!(comparison.high, Some(1.6));
        assert!((comparison.chance - 1.0 / 64.0).abs() < 1e-12);
        assert!((comparison.ratio - 1.35).abs() < 1e-12);
        assert_eq!(Comparison::of(&[], 1.15).chance, 1.0);
    }

    /// Ten of twelve pairs are slower. One device shows this by chance with 0.02, and among ten devices one often does.
    #[test]
    fn one_of_many_devices_needs_more_pairs() {
        let mut ratios = vec![1.3; 10];
        ratios.extend([1.0; 2]);
        let alone = Comparison::of(&pairs(&ratios), DEFAULT_MIN_EFFECT);
        assert_eq!(alone.judged, Judged::Fail);
        let chances = [vec![alone.chance], vec![0.9; 9]].concat();
        let chance = adjusted_chances(&chances)[0];
        let among = alone.with_chance(chance, DEFAULT_MIN_EFFECT);
        assert_eq!(among.judged, Judged::Undecided(Some(18)), "{among:?}");
        // Six pairs of one of ten devices: 1.5 times may be chance, three times is not.
        for (ratio, expected) in [(1.5, Judged::Undecided(Some(12))), (3.0, Judged::Fail)] {
            let six = Comparison::of(&pairs(&[ratio; 6]), DEFAULT_MIN_EFFECT);
            assert_eq!(six.judged, Judged::Fail);
            let chance = 10.0 * six.chance;
            assert_eq!(six.with_chance(chance, DEFAULT_MIN_EFFECT).judged, expected);
        }
        // Twelve slower pairs are sure, also among ten devices.
        let sure = Comparison::of(&pairs(&[1.3; 12]), DEFAULT_MIN_EFFECT);
        let sure = sure
            .clone()
            .with_chance(10.0 * sure.chance, DEFAULT_MIN_EFFECT);
        assert_eq!(sure.judged, Judged::Fail);
    }

    #[test]
    fn chances_are_adjusted_for_the_number_of_targets() {
        let adjusted = adjusted_chances(&[0.01, 0.04, 0.03, 0.5]);
        for (ours, expected) in adjusted.iter().zip([0.04, 0.16 / 3.0, 0.16 / 3.0, 0.5]) {
            assert!((ours - expected).abs() < 1e-12, "{adjusted:?}");
        }
        assert!(adjusted_chances(&[]).is_empty());
    }
}
