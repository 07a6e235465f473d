use crate::verdict::Outcome;

/// Result of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judged {
    /// The rule is kept.
    Pass,
    /// The rule is broken.
    Fail,
    /// The launches allow either. Holds the number of launches, or pairs, in total that would decide if further ones
    /// are like these; `None` if no number would.
    Undecided(Option<usize>),
}

impl Judged {
    /// The result as a report has it.
    pub(crate) fn outcome(self) -> Outcome {
        match self {
            Self::Pass => Outcome::Pass,
            Self::Fail => Outcome::Fail,
            Self::Undecided(_) => Outcome::Undecided,
        }
    }

    /// What would decide, as the end of a sentence; empty if it is decided.
    pub(crate) fn hint(self, of: &str) -> String {
        match self {
            Self::Pass | Self::Fail => String::new(),
            Self::Undecided(Some(n)) => {
                format!("; {n} {of} in total would decide, with these among them")
            }
            Self::Undecided(None) => format!("; more {of} like these would not decide"),
        }
    }
}
