//! Durations as people write them in a config file: `"30s"`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A length of time: a whole number and `ms`, `s`, `m`, `h` or `d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(pub Duration);

/// Text that is no [`Period`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a duration like \"500ms\", \"30s\", \"5m\", \"1h\" or \"14d\", found {found:?}")]
pub struct PeriodError {
    found: String,
}

const UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

impl FromStr for Period {
    type Err = PeriodError;

    fn from_str(text: &str) -> Result<Self, PeriodError> {
        let parsed = || {
            let trimmed = text.trim();
            let (number, unit) = trimmed.split_at(trimmed.find(|c: char| !c.is_ascii_digit())?);
            let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit.trim())?;
            number.parse::<u64>().ok()?.checked_mul(*factor)
        };
        let millis = parsed().ok_or_else(|| PeriodError {
            found: text.to_owned(),
        })?;
        Ok(Period(Duration::from_millis(millis)))
    }
}

/// Writes with the largest unit that leaves a whole number.
impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        let fits = |factor: u64| millis.is_multiple_of(factor) && (millis > 0 || factor == 1);
        let (unit, factor) = UNITS
            .iter()
            .find(|(_, factor)| fits(*factor))
            .expect("one unit is 1");
        write!(f, "{}{unit}", millis / factor)
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_as_people_do() {
        for (text, millis) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("24h", 86_400_000),
            ("14d", 1_209_600_000),
        ] {
            let period: Period = text.parse().unwrap();
            assert_eq!(period.0, Duration::from_millis(millis));
            assert_eq!(period.to_string().parse(), Ok(period));
        }
        for text in [
            "",
            "s",
            "5",
            "1.5s",
            "5 years",
            "-1s",
            "99999999999999999999s",
        ] {
            assert!(text.parse::<Period>().is_err(), "{text}");
        }
    }
}
