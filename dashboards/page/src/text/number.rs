//! Numbers for people: three significant digits, and a unit after a thin space.
//!
//! Every number of a page passes [`shown`], which refuses NaN and infinity.

/// The text of a number that is absent or not finite.
pub(crate) const NONE: &str = "\u{2013}";

/// Separates a number from its unit.
const THIN: char = '\u{202f}';

/// Shares below 1 but above this are shown as nearly 1; [`NEARLY_ZERO`] does the same for 0.
const NEARLY_ONE: f64 = 0.995;
const NEARLY_ZERO: f64 = 0.005;

/// Returns a finite number, without the sign of a negative zero.
pub(crate) fn finite(value: Option<f64>) -> Option<f64> {
    value
        .filter(|value| value.is_finite())
        .map(|value| value + 0.0)
}

fn shown(value: Option<f64>, text: impl FnOnce(f64) -> String) -> String {
    finite(value).map_or_else(|| NONE.to_owned(), text)
}

/// Returns three significant digits: `181`, `60.5`, `9.04`.
fn three_digits(value: f64) -> String {
    match value.abs() {
        large if large >= 99.95 => format!("{value:.0}"),
        middle if middle >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A latency, given in microseconds: `60.5 ms`.
pub(crate) fn ms(us: Option<f64>) -> String {
    shown(us, |us| format!("{}{THIN}ms", three_digits(us / 1000.0)))
}

/// A latency without its unit.
pub(crate) fn bare_ms(us: Option<f64>) -> String {
    shown(us, |us| three_digits(us / 1000.0))
}

/// A ratio: `4.0×`.
pub(crate) fn times(ratio: Option<f64>) -> String {
    shown(ratio, |ratio| format!("{ratio:.1}\u{d7}"))
}

/// Minimum ratio that is called slower, because it is shown as more than 1.0.
const SLOWER: f64 = 1.05;

/// A ratio in words: `4.0 times slower`. `None` for a ratio that is not called slower.
pub(crate) fn times_slower(ratio: Option<f64>) -> Option<String> {
    let ratio = finite(ratio).filter(|ratio| *ratio >= SLOWER)?;
    Some(format!("{ratio:.1} times slower"))
}

/// A coefficient of variation, a ratio as in notifications, tables and JSON: `0.177`.
pub(crate) fn cv(cv: Option<f64>) -> String {
    shown(cv, |cv| format!("{cv:.3}"))
}

/// A share in `[0, 1]`: `26 %`. A share that only rounds to 100 or 0 is marked as such.
pub(crate) fn share(share: Option<f64>) -> String {
    shown(share, |share| {
        let (sign, percent) = match share {
            share if (NEARLY_ONE..1.0).contains(&share) => (">\u{202f}", 99.0),
            share if share > 0.0 && share < NEARLY_ZERO => ("<\u{202f}", 1.0),
            share => ("", share * 100.0),
        };
        format!("{sign}{percent:.0}{THIN}%")
    })
}

/// A count with a comma between thousands.
pub(crate) fn count(n: impl Into<i128>) -> String {
    let n: i128 = n.into();
    let digits = n.unsigned_abs().to_string();
    let mut text = String::from(if n < 0 { "\u{2212}" } else { "" });
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count for a sentence, in words up to twelve.
pub(crate) fn in_words(n: usize) -> String {
    const WORDS: [&str; 13] = [
        "no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
        "eleven", "twelve",
    ];
    WORDS
        .get(n)
        .map_or_else(|| count(n as i128), |word| (*word).to_owned())
}

/// A count with its noun: `one device`, `3 devices`.
pub(crate) fn of_them(n: u64, noun: &str) -> String {
    match n {
        1 => format!("1 {noun}"),
        n => format!("{} {noun}s", count(n)),
    }
}

/// A chance in `[0, 1]`, as "one in n".
pub(crate) fn chance(p: Option<f64>) -> String {
    shown(p, |p| match p {
        p if p < 1e-9 => "1 in a billion or less".to_owned(),
        p if p > 0.5 => "not surprising".to_owned(),
        p => {
            let one_in = 1.0 / p;
            let unit = 10f64.powf(one_in.log10().floor() - 1.0).max(1.0);
            let rounded = (one_in / unit).round() * unit;
            let digits = format!("{rounded:.0}");
            format!("1 in {}", digits.parse().map_or(digits, |n: i64| count(n)))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        let cases = [
            (ms(Some(60_500.0)), "60.5\u{202f}ms"),
            (ms(Some(181_400.0)), "181\u{202f}ms"),
            (ms(Some(9_996.0)), "10.0\u{202f}ms"),
            (ms(Some(840.0)), "0.84\u{202f}ms"),
            (times(Some(3.96)), "4.0\u{d7}"),
            (share(Some(0.26)), "26\u{202f}%"),
            (share(Some(1.0)), "100\u{202f}%"),
            (share(Some(0.9991)), ">\u{202f}99\u{202f}%"),
            (share(Some(0.001)), "<\u{202f}1\u{202f}%"),
            (share(Some(-0.0)), "0\u{202f}%"),
            (count(1_789_100_u64), "1,789,100"),
            (count(-70_i64), "\u{2212}70"),
            (chance(Some(1e-12)), "1 in a billion or less"),
            (chance(Some(0.0014)), "1 in 710"),
            (chance(Some(1.0)), "not surprising"),
            (in_words(3), "three"),
            (in_words(1300), "1,300"),
        ];
        for (got, expected) in cases {
            assert_eq!(got, expected);
        }
    }

    #[test]
    fn a_ratio_in_words_has_the_digits_of_the_table() {
        let words = |ratio| times_slower(Some(ratio));
        assert_eq!(words(3.96).as_deref(), Some("4.0 times slower"));
        assert_eq!(words(1.05).as_deref(), Some("1.1 times slower"));
        assert_eq!(words(1.049), None);
        assert_eq!(words(f64::NAN), None);
        assert_eq!(times_slower(None), None);
    }

    #[test]
    fn what_is_no_number_is_a_dash() {
        for value in [
            None,
            Some(f64::NAN),
            Some(f64::INFINITY),
            Some(f64::NEG_INFINITY),
        ] {
            for text in [
                ms(value),
                times(value),
                share(value),
                chance(value),
                bare_ms(value),
            ] {
                assert_eq!(text, NONE);
            }
        }
    }
}
