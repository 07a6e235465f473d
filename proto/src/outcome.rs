//! Outcomes of reports. Every report ends in exactly one of these, and they are the values of the
//! label `outcome` in metrics and in the loss ledger.

use crate::wire_enum::wire_enum;

wire_enum! {
    /// Outcome of a report.
    pub enum Outcome: Outcome {
        /// Durable here for the first time.
        Stored = Stored "stored",
        /// The same key with the same bytes was seen before; this counts as an ack.
        Duplicate = Duplicate "duplicate",
        /// A field is missing, out of bounds or contradicts another.
        RefusedMalformed = RefusedMalformed "refused_malformed",
        /// The encoded report exceeds the limit.
        RefusedTooLarge = RefusedTooLarge "refused_too_large",
        /// The same key was stored with other bytes.
        RefusedConflict = RefusedConflict "refused_conflict",
        /// A scheme, algorithm or enum value that this collector does not know.
        RefusedUnsupported = RefusedUnsupported "refused_unsupported",
        /// The report names another app or environment than the key proves.
        RefusedWrongApp = RefusedWrongApp "refused_wrong_app",
        /// The installation was deleted.
        RefusedDeleted = RefusedDeleted "refused_deleted",
        /// A quota is used up.
        RefusedQuota = RefusedQuota "refused_quota",
        /// Too much in flight, or the WAL is full.
        RefusedOverloaded = RefusedOverloaded "refused_overloaded",
        /// The WAL could not be written.
        RefusedStorage = RefusedStorage "refused_storage",
    }
}

impl Outcome {
    /// The value of the metric label `outcome`.
    pub fn label(self) -> &'static str {
        self.as_str()
    }

    /// Whether the collector has the report: the device deletes its copy.
    pub fn is_ack(self) -> bool {
        matches!(self, Self::Stored | Self::Duplicate)
    }

    /// Whether the same bytes may be accepted later: the device keeps its copy.
    pub fn retryable(self) -> bool {
        matches!(
            self,
            Self::RefusedQuota | Self::RefusedOverloaded | Self::RefusedStorage
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ParseError;

    #[test]
    fn each_problem_ends_in_its_outcome() {
        let malformed = ParseError::malformed("n", "1 or more", 0);
        assert_eq!(malformed.outcome(), Outcome::RefusedMalformed);
        let large = ParseError::too_large("report", 10, 11);
        assert_eq!(large.outcome(), Outcome::RefusedTooLarge);
        let newer = ParseError::unsupported("hist_scheme", "1", 9);
        assert_eq!(newer.outcome(), Outcome::RefusedUnsupported);
    }

    #[test]
    fn an_ack_is_never_retried() {
        for outcome in Outcome::ALL {
            assert!(!(outcome.is_ack() && outcome.retryable()), "{outcome}");
        }
    }
}
