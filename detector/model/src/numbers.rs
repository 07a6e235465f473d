//! Latencies, shares and chances as text for people.

/// Formats a latency: microseconds below a millisecond, else milliseconds.
#[must_use]
pub fn latency(us: f64) -> String {
    match us {
        us if us < 1_000.0 => format!("{us:.0} us"),
        us if us < 100_000.0 => format!("{:.1} ms", us / 1_000.0),
        us => format!("{:.0} ms", us / 1_000.0),
    }
}

/// Formats a number of things.
#[must_use]
pub fn counted(n: u64, thing: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{n} {thing}{plural}")
}

/// Formats a difference of outputs, in the model's own unit, with three digits.
#[must_use]
pub fn difference(value: f64) -> String {
    match value.abs() {
        0.0 | 0.001..1_000.0 => format!("{value:.3}"),
        _ => format!("{value:.2e}"),
    }
}

/// Formats a share as a percentage.
#[must_use]
pub fn percent(share: f64) -> String {
    // A difference of shares may be slightly negative, and `-0` must not be printed.
    let percent = share.max(0.0) * 100.0 + 0.0;
    match percent {
        p if p > 0.0 && p < 1.0 => format!("{p:.1} %"),
        p if p > 99.0 && p < 100.0 => format!("{p:.1} %"),
        p => format!("{p:.0} %"),
    }
}

/// Formats a chance: `1 in 2,000`, or a bound for the very small and the large.
#[must_use]
pub fn chance(p: f64) -> String {
    if p < 1e-9 {
        return "under 1 in a billion".to_owned();
    }
    if p > 0.5 {
        return "to be expected".to_owned();
    }
    let one_in = 1.0 / p;
    // More than two digits would be false precision.
    let unit = 10f64.powf(one_in.log10().floor() - 1.0).max(1.0);
    let digits = format!("{:.0}", (one_in / unit).round() * unit);
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("1 in {grouped}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(
            (latency(812.4), latency(8_249.0)),
            ("812 us".into(), "8.2 ms".into())
        );
        assert_eq!(latency(240_400.0), "240 ms");
        assert_eq!(
            (percent(0.004), percent(0.26)),
            ("0.4 %".into(), "26 %".into())
        );
        assert_eq!(
            (percent(1.0), percent(0.999)),
            ("100 %".into(), "99.9 %".into())
        );
        let chances = [0.9, 0.2, 1.0 / 2_683_438.0, 1e-12].map(chance);
        let expected = [
            "to be expected",
            "1 in 5",
            "1 in 2,700,000",
            "under 1 in a billion",
        ];
        assert_eq!(chances, expected);
    }
}
