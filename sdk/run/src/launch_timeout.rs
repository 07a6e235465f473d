//! The longest time of one launch.

use std::{fmt, str::FromStr, time::Duration};

/// A length of time of a second or more: a whole number and `ms`, `s`, `m` or `h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchTimeout(pub(crate) Duration);

const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
const LEAST_MS: u64 = 1_000;

impl FromStr for LaunchTimeout {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let millis = || {
            let digits = text.find(|c: char| !c.is_ascii_digit())?;
            let (number, unit) = text.split_at(digits);
            let (_, millis) = UNITS.iter().find(|(name, _)| *name == unit)?;
            number.parse::<u64>().ok()?.checked_mul(*millis)
        };
        let millis = millis().filter(|millis| *millis >= LEAST_MS);
        let millis = millis.ok_or("expected a second or more, for example 90s, 10m or 1h")?;
        Ok(Self(Duration::from_millis(millis)))
    }
}

impl fmt::Display for LaunchTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        let is_whole = |(_, factor): &&(&str, u64)| millis.is_multiple_of(u128::from(*factor));
        let (unit, factor) = UNITS.iter().find(is_whole).unwrap_or(&("ms", 1));
        write!(f, "{}{unit}", millis / u128::from(*factor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_a_second_or_more_and_keeps_its_fraction() {
        for (text, shown) in [
            ("1500ms", "1500ms"),
            ("1s", "1s"),
            ("1000ms", "1s"),
            ("120s", "2m"),
            ("60m", "1h"),
        ] {
            let read: LaunchTimeout = text.parse().unwrap();
            assert_eq!(read.to_string(), shown);
        }
        for text in [
            "0s",
            "999ms",
            "10",
            "1.5s",
            "-1s",
            "",
            "s",
            "99999999999999999h",
        ] {
            text.parse::<LaunchTimeout>().unwrap_err();
        }
    }
}
