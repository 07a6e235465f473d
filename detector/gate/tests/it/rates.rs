//! How often six pairs, twelve, and six that twelve follow are red and green, on two assumed noises: a table of
//! `docs/gate-proof.md`. `EPWATCH_BLESS=1` writes it from 20,000 models per cell, and `EPWATCH_SEED=N` draws other
//! models. Without these the test compares fewer models with the table, and the table with its goals.

use epwatch_gate::{
    Judged,
    comparison::{ALL_PAIRS, Comparison, DEFAULT_MIN_EFFECT, FIRST_PAIRS, Pair},
};
use fastrand::Rng;
use statrs::distribution::{Beta, Binomial, ContinuousCDF, DiscreteCDF};

use crate::device::{AnyPhone, Change, pairs};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/gate-proof.md");
const BEGIN: &str = "<!-- rates -->\n";
const END: &str = "<!-- end of rates -->\n";
/// Number of models for each cell of the table, and for each cell in a test.
const MODELS: u64 = 20_000;
const MODELS_OF_A_TEST: u64 = 500;
/// Chance below which a count contradicts the table. The test has 36 counts.
const CONTRADICTS: f64 = 1e-6;

const NOISES: [&str; 2] = ["any phone", "one phone"];
const CHANGES: [f64; 4] = [1.0, 1.1, 1.2, 1.5];
const PAIRS: [&str; 3] = ["6", "12", "6, then 12"];
/// Columns of the table: change and answer.
const COLUMNS: [(&str, usize, usize); 6] = [
    ("unchanged: red", 0, RED),
    ("unchanged: green", 0, GREEN),
    ("+10 %: red", 1, RED),
    ("+20 %: green", 2, GREEN),
    ("+20 %: red", 2, RED),
    ("+50 %: red", 3, RED),
];
const RED: usize = 0;
const GREEN: usize = 1;

/// Red and green answers by number of pairs and by change.
type Counts = [[[u64; 2]; CHANGES.len()]; PAIRS.len()];

fn pairs_of(noise: usize, rng: &mut Rng, times: f64) -> Vec<Pair> {
    match noise {
        0 => AnyPhone::new(rng).pairs(rng, times, ALL_PAIRS),
        _ => pairs(rng, Change::All(times), ALL_PAIRS),
    }
}

fn counts(noise: usize, seed: u64, models: u64) -> Counts {
    let mut counts = Counts::default();
    for (change, times) in CHANGES.iter().enumerate() {
        let mut rng = Rng::with_seed(seed + 10 * noise as u64 + change as u64);
        for _ in 0..models {
            let pairs = pairs_of(noise, &mut rng, *times);
            let judged = |n: usize| Comparison::of(&pairs[..n], DEFAULT_MIN_EFFECT).judged;
            let (six, twelve) = (judged(FIRST_PAIRS), judged(ALL_PAIRS));
            let both = match six {
                Judged::Undecided(_) => twelve,
                decided => decided,
            };
            for (row, judged) in [six, twelve, both].into_iter().enumerate() {
                counts[row][change][RED] += u64::from(judged == Judged::Fail);
                counts[row][change][GREEN] += u64::from(judged == Judged::Pass);
            }
        }
    }
    counts
}

/// The 95 % interval of a rate (C. J. Clopper and E. S. Pearson, 1934).
fn interval(count: u64, of: u64) -> [f64; 2] {
    let (k, n) = (count as f64, of as f64);
    let at = |a: f64, b: f64, q: f64| Beta::new(a, b).unwrap().inverse_cdf(q);
    let low = (count > 0).then(|| at(k, n - k + 1.0, 0.025));
    let high = (count < of).then(|| at(k + 1.0, n - k, 0.975));
    [low.unwrap_or(0.0), high.unwrap_or(1.0)]
}

fn rendered(each: &[Counts]) -> String {
    let mut text = format!(
        "\n{MODELS} models a cell: percent, and in brackets the interval of 95 %. *One phone* has the noise above. *Any phone* differs \
         from model to\nmodel. Launches: offset 2 to 8 %, up to 10 % of them 1.2 to 1.5 x, up to 25 % drifting by 5 to 30 %. Runs: noise \
         2 to 10 % with AR(1)\n0.2 to 0.8, 0.2 to 3 % of them 1.4 to 5 x. A launch has 25 to 100 runs, of which 3 are cold.\n\n"
    );
    let heads: Vec<&str> = COLUMNS.iter().map(|(name, ..)| *name).collect();
    text.push_str(&format!("| noise, pairs | {} |\n", heads.join(" | ")));
    text.push_str(&format!("| --- |{}\n", " ---: |".repeat(COLUMNS.len())));
    for (noise, counts) in NOISES.iter().zip(each) {
        for (pairs, of_pairs) in PAIRS.iter().zip(counts) {
            text.push_str(&format!("| {noise}, {pairs} |"));
            for (_, change, answer) in COLUMNS {
                let count = of_pairs[change][answer];
                let [low, high] = interval(count, MODELS).map(|share| 100.0 * share);
                let share = 100.0 * count as f64 / MODELS as f64;
                text.push_str(&format!(" {share:.2} ({low:.2} to {high:.2}) |"));
            }
            text.push('\n');
        }
    }
    text.push('\n');
    text
}

/// The intervals of the table's cells, as shares, by row and column.
fn documented(table: &str) -> Vec<Vec<[f64; 2]>> {
    let rows = table
        .lines()
        .filter(|line| line.contains(" to ") && line.starts_with("| "));
    let cell = |cell: &str| {
        let (_, bounds) = cell.split_once('(')?;
        let (low, high) = bounds.trim_end().strip_suffix(')')?.split_once(" to ")?;
        Some([low, high].map(|bound| bound.parse::<f64>().unwrap() / 100.0))
    };
    rows.map(|row| row.split('|').filter_map(cell).collect())
        .collect()
}

/// Goals of the rule, on both noises, for the pessimistic end of each interval.
#[track_caller]
fn check_goals(table: &[Vec<[f64; 2]>]) {
    assert_eq!(table.len(), NOISES.len() * PAIRS.len());
    for rows in table.chunks(PAIRS.len()) {
        for row in rows {
            assert!(row[0][1] <= 0.002, "false red: {row:?}");
        }
        assert!(rows[2][1][0] >= 0.98, "unchanged, green: {rows:?}");
        assert!(rows[2][3][1] <= 0.02, "false green at +20 %: {rows:?}");
        assert!(rows[0][5][0] >= 0.95, "red at +50 % in six pairs: {rows:?}");
    }
}

/// The document's text before the table, the table, and the text after it. The test of the other table writes the same
/// file.
fn document() -> [String; 3] {
    let document = std::fs::read_to_string(DOCUMENT).unwrap();
    let (head, rest) = document.split_once(BEGIN).unwrap();
    let (written, tail) = rest.split_once(END).unwrap();
    [head, written, tail].map(str::to_owned)
}

/// Whether so many of the models contradict the interval of the table.
fn contradicts(count: u64, [low, high]: [f64; 2]) -> bool {
    let law = |share: f64| Binomial::new(share, MODELS_OF_A_TEST).unwrap();
    let too_many = count > 0 && law(high).sf(count - 1) < CONTRADICTS;
    too_many || law(low).cdf(count) < CONTRADICTS
}

#[test]
fn rates_of_wrong_answers_are_those_that_are_documented() {
    let seed = std::env::var("EPWATCH_SEED").map(|seed| seed.parse::<u64>().unwrap());
    if std::env::var_os("EPWATCH_BLESS").is_some() {
        let seed = seed.unwrap_or(1_934);
        let text = rendered(&[counts(0, seed, MODELS), counts(1, seed, MODELS)]);
        let [head, _, tail] = document();
        std::fs::write(DOCUMENT, [&head, BEGIN, &text, END, &tail].concat()).unwrap();
        check_goals(&documented(&text));
        return;
    }
    let [_, written, _] = document();
    let table = documented(&written);
    check_goals(&table);
    let seed = seed.unwrap_or(7_001);
    for (noise, rows) in table.chunks(PAIRS.len()).enumerate() {
        let counts = counts(noise, seed, MODELS_OF_A_TEST);
        for (of_pairs, row) in counts.iter().zip(rows) {
            for ((name, change, answer), cell) in COLUMNS.iter().zip(row) {
                let count = of_pairs[*change][*answer];
                assert!(
                    !contradicts(count, *cell),
                    "{name} on {}: {count} of {MODELS_OF_A_TEST}, not {cell:?}",
                    NOISES[noise]
                );
            }
        }
    }
}
