//! Times for people: in UTC, with their age.

use jiff::Timestamp;

/// Returns a time such as `13:12:49`, with the date if it is not the date of `now`.
pub(crate) fn clock(at: Timestamp, now: Timestamp) -> String {
    let day = |time: Timestamp| time.strftime("%Y-%m-%d").to_string();
    match day(at) == day(now) {
        true => at.strftime("%H:%M:%S").to_string(),
        false => at.strftime("%Y-%m-%d %H:%M:%S").to_string(),
    }
}

/// Returns a length in its two largest units, such as `2 min 22 s`.
pub(crate) fn length(seconds: i64) -> String {
    let units = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let mut left = seconds.max(0);
    let mut parts = Vec::new();
    for (size, unit) in units {
        if left >= size && parts.len() < 2 {
            parts.push(format!("{} {unit}", left / size));
            left %= size;
        } else if !parts.is_empty() {
            break;
        }
    }
    match parts.is_empty() {
        true => "0 s".to_owned(),
        false => parts.join(" "),
    }
}

/// `4 s ago`.
pub(crate) fn ago(at: Timestamp, now: Timestamp) -> String {
    match now.as_second() - at.as_second() {
        seconds if seconds < 0 => "in the future".to_owned(),
        seconds => format!("{} ago", length(seconds)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short_and_lengths_have_two_units() {
        let now: Timestamp = "2026-11-23T13:15:11Z".parse().unwrap();
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        assert_eq!(clock(at("2026-11-23T13:12:49Z"), now), "13:12:49");
        assert_eq!(
            clock(at("2026-11-22T13:12:49Z"), now),
            "2026-11-22 13:12:49"
        );
        assert_eq!(ago(at("2026-11-23T13:15:07Z"), now), "4 s ago");
        assert_eq!(ago(at("2026-11-23T13:15:12Z"), now), "in the future");
        let lengths = [
            (142, "2 min 22 s"),
            (0, "0 s"),
            (3_600, "1 h"),
            (90_061, "1 d 1 h"),
            (3_601, "1 h"),
        ];
        for (seconds, expected) in lengths {
            assert_eq!(length(seconds), expected);
        }
    }
}
