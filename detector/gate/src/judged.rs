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
