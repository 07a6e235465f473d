use crate::verdict::CheckResult;

/// Result of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judged {
    /// The rule is kept.
    Pass,
    /// The rule is broken.
    Fail,
    /// The launches allow either result. Holds the total number of launches or pairs that would decide, if further ones
    /// are like these; `None` if no number would.
    Undecided(Option<usize>),
}

impl Judged {
    /// The result as an outcome in a report.
    pub(crate) fn outcome(self) -> CheckResult {
        match self {
            Self::Pass => CheckResult::Pass,
            Self::Fail => CheckResult::Fail,
            Self::Undecided(_) => CheckResult::Undecided,
        }
    }

    /// The number of launches that would decide, as the end of a sentence; empty if the result is decided.
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
