//! Compares our numbers with the numbers of other implementations, read from `tests/fixtures` (made by the scripts in
//! it).

use epwatch_stats::beta_binomial::{BetaPrior, ln_pmf, ln_upper_tail};
use epwatch_stats::order_stat::median_bound_rank;
use epwatch_stats::{Bucket, Moments, RangeHistogram, dip, mixture, valley};
use hdrhistogram::Histogram;
use serde::Deserialize;

#[derive(Deserialize)]
struct Dataset {
    name: String,
    values: Vec<f64>,
    mean: Option<f64>,
    sd: Option<f64>,
    dip: Option<f64>,
    p: Option<f64>,
}

#[derive(Deserialize)]
struct References {
    sample_dips: Vec<SampleDip>,
    histogram_dips: Vec<HistogramDip>,
    beta_binomial: Vec<BetaBinomial>,
    median_ranks: Vec<MedianRank>,
    mixtures: Vec<MixtureFit>,
}

#[derive(Deserialize)]
struct SampleDip {
    values: Vec<f64>,
    dip: f64,
}

#[derive(Deserialize)]
struct HistogramDip {
    buckets: Vec<(f64, f64, u64)>,
    dip: f64,
}

#[derive(Deserialize)]
struct BetaBinomial {
    k: u64,
    n: u64,
    alpha: f64,
    beta: f64,
    ln_pmf: f64,
    ln_tail: f64,
}

#[derive(Deserialize)]
struct MedianRank {
    n: usize,
    z: f64,
    rank: usize,
}

#[derive(Deserialize)]
struct MixtureFit {
    dataset: String,
    weight_slow: f64,
    mean_ln: [f64; 2],
    sd_ln: [f64; 2],
    llr: f64,
}

fn datasets() -> Vec<Dataset> {
    serde_json::from_str(include_str!("../fixtures/datasets.json")).expect("the fixture parses")
}

fn dataset(name: &str) -> Dataset {
    datasets()
        .into_iter()
        .find(|set| set.name == name)
        .expect("the fixture has the set")
}

fn references() -> References {
    serde_json::from_str(include_str!("../fixtures/references.json")).expect("the fixture parses")
}

#[track_caller]
fn close(what: &str, got: f64, expected: f64, tolerance: f64) {
    assert!(
        (got - expected).abs() <= tolerance,
        "{what}: {got} against {expected}"
    );
}

#[test]
fn nist_certified_means_and_deviations_are_reproduced() {
    let mut checked = 0;
    for set in datasets() {
        let (Some(mean), Some(sd)) = (set.mean, set.sd) else {
            continue;
        };
        let moments: Moments = set.values.iter().copied().collect();
        close(&set.name, moments.mean().unwrap() / mean, 1.0, 1e-14);
        // Michelso's and Mavro's decimals are off by 1e-13 of their spread once in binary.
        close(&set.name, moments.sd().unwrap() / sd, 1.0, 1e-12);
        checked += 1;
    }
    assert_eq!(checked, 3);
}

#[test]
fn published_dips_are_reproduced() {
    let mut checked = 0;
    for set in datasets() {
        let Some(expected) = set.dip else { continue };
        close(
            &set.name,
            dip::of_sample(&set.values).unwrap(),
            expected,
            1e-15,
        );
        if let Some(p) = set.p {
            let got = dip::p_value(expected, set.values.len() as u64).unwrap();
            close(&set.name, got, p, 0.005);
        }
        checked += 1;
    }
    assert_eq!(checked, 5);
}

#[test]
fn sample_dips_agree_with_diptest_for_tied_and_untied_values() {
    let cases = references().sample_dips;
    assert!(cases.len() > 40);
    for case in cases {
        let what = format!("n = {}: {:?}", case.values.len(), case.values);
        close(
            &what,
            dip::of_sample(&case.values).unwrap(),
            case.dip,
            1e-14,
        );
    }
}

#[test]
fn histogram_dips_agree_with_the_definition_solved_as_a_linear_programme() {
    let cases = references().histogram_dips;
    assert!(cases.len() > 30);
    for case in cases {
        let buckets = case.buckets.iter().map(|&(low_us, high_us, count)| Bucket {
            low_us,
            high_us,
            count,
        });
        let histogram = RangeHistogram::from_buckets(buckets).unwrap();
        let what = format!("{:?}", case.buckets);
        close(
            &what,
            dip::of_histogram(&histogram).unwrap(),
            case.dip,
            1e-8,
        );
    }
}

#[test]
fn beta_binomial_agrees_with_sixty_digits() {
    let cases = references().beta_binomial;
    assert!(cases.len() > 25);
    for case in cases {
        let BetaBinomial {
            k, n, alpha, beta, ..
        } = case;
        let prior = BetaPrior::new(alpha, beta).unwrap();
        let what = format!("k {k} n {n} alpha {alpha} beta {beta}");
        // The tolerance is relative to the probability down to 1e-100, and below that to its logarithm.
        let tolerance = |ln: f64| 1e-12 * (ln.abs() / 230.0).max(1.0);
        close(
            &what,
            ln_pmf(k, n, prior),
            case.ln_pmf,
            tolerance(case.ln_pmf),
        );
        close(
            &what,
            ln_upper_tail(k, n, prior),
            case.ln_tail,
            tolerance(case.ln_tail),
        );
    }
}

/// Exact up to 1,000 devices; the approximation beyond may be one rank off, never more.
#[test]
fn median_ranks_agree_with_the_binomial() {
    for case in references().median_ranks {
        let rank = median_bound_rank(case.n, case.z).unwrap_or(0);
        let allowed = usize::from(case.n > 1000);
        let off = rank.abs_diff(case.rank);
        assert!(
            off <= allowed,
            "n {} z {}: {rank} against {}",
            case.n,
            case.z,
            case.rank
        );
    }
}

/// Values in the buckets that the SDK records with: 2 significant digits, 1 us to 60 s.
fn recorded(values: impl IntoIterator<Item = u64>) -> (Histogram<u64>, RangeHistogram) {
    let mut hdr = Histogram::new_with_bounds(1, 60_000_000, 2).expect("sound bounds");
    for value in values {
        hdr.record(value).expect("below 60 s");
    }
    let buckets = hdr.iter_recorded().map(|entry| {
        let value = entry.value_iterated_to();
        Bucket {
            low_us: hdr.lowest_equivalent(value) as f64,
            high_us: hdr.next_non_equivalent(value) as f64,
            count: entry.count_at_value(),
        }
    });
    let sparse = RangeHistogram::from_buckets(buckets.collect::<Vec<_>>()).expect("hdr buckets");
    (hdr, sparse)
}

/// Old Faithful in microseconds; EM on the raw values must lead to the same two components.
fn faithful(name: &str) -> (Vec<f64>, RangeHistogram) {
    let values: Vec<f64> = dataset(name)
        .values
        .iter()
        .map(|minutes| minutes * 1e6 / 2.0)
        .collect();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "below 5e7"
    )]
    let (_, histogram) = recorded(values.iter().map(|value| *value as u64));
    (values, histogram)
}

#[test]
fn mixtures_agree_with_em_on_the_raw_values() {
    let cases = references().mixtures;
    assert_eq!(cases.len(), 2);
    for case in cases {
        let (values, histogram) = faithful(&case.dataset);
        let n = values.len() as u64;
        let fit = mixture::fit(&histogram, n).unwrap();
        let name = &case.dataset;
        close(name, fit.slow.weight, case.weight_slow, 0.01);
        close(name, fit.log_likelihood_ratio / case.llr, 1.0, 0.05);
        let unit = 5e5f64.ln();
        for (got, mean_ln, sd_ln) in [(fit.fast, 0, 0), (fit.slow, 1, 1)]
            .map(|(got, mean, sd)| (got, case.mean_ln[mean] + unit, case.sd_ln[sd]))
        {
            close(name, got.mean_ln, mean_ln, 0.01);
            close(name, got.sd_ln, sd_ln, 0.01);
        }
    }
}

#[test]
fn old_faithful_has_its_known_valley() {
    let (_, histogram) = faithful("faithful_eruptions");
    let valley = valley::deepest(&histogram, 272).unwrap();
    // Modes near 1.9 and 4.4 minutes, the valley near 3, in units of half a second.
    let minutes = [valley.fast_mode_us, valley.at_us, valley.slow_mode_us].map(|us| us / 5e5);
    close("fast mode", minutes[0], 1.9, 0.15);
    close("bottom", minutes[1], 3.0, 0.3);
    close("slow mode", minutes[2], 4.4, 0.25);
    assert!(valley.depth > 0.6, "{valley:?}");
}

/// Every bucket edge of the recorder's histogram is used, and its quantiles agree within one bucket.
#[test]
fn quantiles_agree_with_the_hdr_histogram_within_a_bucket() {
    let values = (1..4000u64).map(|i| 1 + (i * i * 7919) % 50_000_000);
    let (hdr, sparse) = recorded(values);
    assert_eq!(sparse.n(), hdr.len());
    for step in 0..=100 {
        let q = f64::from(step) / 100.0;
        let ours = sparse.quantile(q).unwrap();
        let theirs = hdr.value_at_quantile(q);
        let (low, high) = (
            hdr.lowest_equivalent(theirs),
            hdr.next_non_equivalent(theirs),
        );
        assert!(
            (low as f64..=high as f64).contains(&ours),
            "q {q}: {ours} not in [{low}, {high}]"
        );
    }
}

#[test]
fn estimated_moments_hold_the_cv_of_a_recorded_series() {
    let values: Vec<u64> = (0..20_000u64).map(|i| 8_000 + (i * 7919) % 1_000).collect();
    let exact: Moments = values.iter().map(|value| *value as f64).collect();
    let (_, sparse) = recorded(values);
    let estimated = sparse.estimated_moments().unwrap();
    close(
        "mean",
        estimated.mean().unwrap() / exact.mean().unwrap(),
        1.0,
        1e-3,
    );
    close("cv", estimated.cv().unwrap(), exact.cv().unwrap(), 3e-4);
}
