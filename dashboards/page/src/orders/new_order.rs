//! An order as a person gives it, and the checks of its texts.

use std::time::Duration;

use epwatch_model::OrderKind;
use epwatch_server::Period;

/// A mute that is forgotten must not hide a fault for longer than a month.
pub(crate) const MAX_MUTE: Duration = Duration::from_secs(30 * 86_400);

/// Longest name of a person, in characters.
pub(crate) const MAX_WHO: usize = 64;

/// Longest reason, in characters.
pub(crate) const MAX_WHY: usize = 500;

/// An order as a person gives it, unchecked.
#[derive(Debug, Clone)]
pub struct NewOrder {
    /// The incident's id.
    pub incident: String,
    /// What the person orders, for example an acknowledgement.
    pub kind: OrderKind,
    /// The person who orders it.
    pub who: String,
    /// The person's reason, for whoever is on call next.
    pub why: String,
    /// Length of a mute.
    pub mute_for: Option<Duration>,
    /// Number of the last order that the person saw; `None` if it is to be read now.
    pub seen: Option<u64>,
    /// `command` or `page`.
    pub source: &'static str,
}

/// A field of an order that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
pub struct BadField {
    /// `who`, `why` or `for`.
    pub field: &'static str,
    /// The expected form of the field, and the form that was found.
    pub problem: String,
}

impl NewOrder {
    /// Returns the order with its texts trimmed.
    ///
    /// # Errors
    /// A text is empty, too long, or has control characters; a length is missing, too long, or given for an order other
    /// than a mute.
    pub(crate) fn checked(self) -> Result<Self, BadField> {
        let bad = |problem: String| {
            Err(BadField {
                field: "for",
                problem,
            })
        };
        match (self.kind, self.mute_for) {
            (OrderKind::Mute, None) => {
                return bad("is missing: how long, for example 8h or 7d".to_owned());
            }
            (OrderKind::Mute, Some(length)) if length.is_zero() || length > MAX_MUTE => {
                let (most, length) = (Period(MAX_MUTE), Period(length));
                return bad(format!("must be above 0s and at most {most}, got {length}"));
            }
            (OrderKind::Mute, Some(_)) | (_, None) => {}
            (kind, Some(_)) => return bad(format!("is only of a mute; {kind} has no end")),
        }
        Ok(Self {
            who: text("who", &self.who, MAX_WHO)?,
            why: text("why", &self.why, MAX_WHY)?,
            ..self
        })
    }
}

/// Returns the trimmed text, if it fits on one line.
pub(super) fn text(field: &'static str, text: &str, max: usize) -> Result<String, BadField> {
    let text = text.trim();
    let n = text.chars().count();
    let problem = if text.is_empty() {
        "must not be empty".to_owned()
    } else if n > max {
        format!("must have at most {max} characters, got {n}")
    } else if text.chars().any(char::is_control) {
        "must be one line without control characters".to_owned()
    } else {
        return Ok(text.to_owned());
    };
    Err(BadField { field, problem })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(kind: OrderKind, days: Option<u64>, who: &str, why: &str) -> Result<String, String> {
        let order = NewOrder {
            incident: "a-1".to_owned(),
            kind,
            who: who.to_owned(),
            why: why.to_owned(),
            mute_for: days.map(|days| Duration::from_secs(days * 86_400)),
            seen: None,
            source: "command",
        };
        let checked = order.checked();
        checked
            .map(|order| format!("{}: {}", order.who, order.why))
            .map_err(|bad| bad.to_string())
    }

    #[track_caller]
    fn refused(result: Result<String, String>, expected: &str) {
        let error = result.unwrap_err();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn texts_are_one_line_each() {
        use OrderKind::Ack;
        let taken = order(
            Ack,
            None,
            " Ada ",
            "'; DROP TABLE incidents; -- \u{202e}<script>",
        );
        assert_eq!(
            taken.unwrap(),
            "Ada: '; DROP TABLE incidents; -- \u{202e}<script>"
        );
        refused(order(Ack, None, "", "on it"), "who must not be empty");
        refused(order(Ack, None, "Ada", " \t"), "why must not be empty");
        refused(order(Ack, None, "Ada", "a\nb"), "one line");
        refused(order(Ack, None, "A\0", "b"), "who must be one line");
        let long = "\u{e9}".repeat(501);
        refused(
            order(Ack, None, "Ada", &long),
            "at most 500 characters, got 501",
        );
        assert!(order(Ack, None, "Ada", &long[2..]).is_ok());
    }

    #[test]
    fn only_a_mute_has_a_length_and_it_is_at_most_thirty_days() {
        use OrderKind::{Mute, Resolve};
        assert!(order(Mute, Some(30), "Ada", "x").is_ok());
        refused(order(Mute, Some(31), "Ada", "x"), "at most 30d, got 31d");
        refused(order(Mute, Some(0), "Ada", "x"), "above 0s");
        refused(order(Mute, None, "Ada", "x"), "for is missing");
        refused(order(Resolve, Some(1), "Ada", "x"), "only of a mute");
    }
}
