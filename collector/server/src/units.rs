//! Durations and sizes as people write them in a config file: `"30s"`, `"64MiB"`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Implements serde's traits by `Display` and `FromStr`.
#[macro_export]
macro_rules! serde_as_text {
    ($($name:ty),+) => {$(
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )+};
}

/// A length of time: a whole number and `ms`, `s`, `m`, `h` or `d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(pub Duration);

/// A number of bytes: a whole number and `B`, `KiB`, `MiB` or `GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// Text that is not a [`Period`] or [`ByteSize`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, found {found:?}")]
pub struct UnitError {
    expected: &'static str,
    found: String,
}

const PERIOD_UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];
const SIZE_UNITS: [(&str, u64); 4] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

fn parse(text: &str, units: &[(&str, u64)], expected: &'static str) -> Result<u64, UnitError> {
    let amount = || {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit())?;
        let (number, unit) = text.split_at(digits);
        let (_, factor) = units.iter().find(|(name, _)| *name == unit.trim())?;
        number.parse::<u64>().ok()?.checked_mul(*factor)
    };
    amount().ok_or_else(|| UnitError {
        expected,
        found: text.to_owned(),
    })
}

/// Writes with the largest unit that leaves a whole number.
fn write(f: &mut fmt::Formatter<'_>, amount: u64, units: &[(&str, u64)]) -> fmt::Result {
    let fits = |factor: u64| amount.is_multiple_of(factor) && (amount > 0 || factor == 1);
    let (unit, factor) = units
        .iter()
        .find(|(_, factor)| fits(*factor))
        .expect("one unit is 1");
    write!(f, "{}{unit}", amount / factor)
}

impl FromStr for Period {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let expected = "a duration like \"500ms\", \"30s\", \"5m\", \"1h\" or \"14d\"";
        let millis = parse(text, &PERIOD_UNITS, expected)?;
        Ok(Self(Duration::from_millis(millis)))
    }
}

impl FromStr for ByteSize {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let expected = "a size like \"512B\", \"64KiB\", \"64MiB\" or \"8GiB\"";
        parse(text, &SIZE_UNITS, expected).map(Self)
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(
            f,
            u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX),
            &PERIOD_UNITS,
        )
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, self.0, &SIZE_UNITS)
    }
}

serde_as_text!(Period, ByteSize);

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check<T: FromStr<Err = UnitError> + ToString>(text: &str, expected: Option<&str>) {
        let parsed = text.parse::<T>().ok().map(|value| value.to_string());
        assert_eq!(parsed.as_deref(), expected, "{text:?}");
    }

    #[test]
    fn durations_are_read_and_written() {
        check::<Period>("30s", Some("30s"));
        check::<Period>(" 1500 ms ", Some("1500ms"));
        check::<Period>("120s", Some("2m"));
        check::<Period>("14d", Some("14d"));
        check::<Period>("0ms", Some("0ms"));
        for wrong in [
            "",
            "30",
            "s",
            "-1s",
            "1.5s",
            "1w",
            "99999999999999999999s",
            "30s 1m",
        ] {
            check::<Period>(wrong, None);
        }
    }

    #[test]
    fn sizes_are_read_and_written() {
        check::<ByteSize>("64MiB", Some("64MiB"));
        check::<ByteSize>("1024KiB", Some("1MiB"));
        check::<ByteSize>("7B", Some("7B"));
        for wrong in ["", "64", "64MB", "64mib", "1e3B", "18446744073709551615GiB"] {
            check::<ByteSize>(wrong, None);
        }
    }
}
