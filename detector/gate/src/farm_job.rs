//! Failed jobs of Qualcomm AI Hub: whose fault a failure is, by its type. The types are
//! `JobFailureType` of qai-hub 0.56.0.

use crate::verdict::{Check, CheckResult};

/// Name of the check.
const ID: &str = "job";
/// Longest reason that a report repeats.
const SHOWN_REASON: usize = 300;

/// Whose fault a failed job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// The model does not compile or run on the phone. That is a result of the gate.
    Model,
    /// The request is wrong for any phone.
    Request,
    /// The service or the phone failed, so nothing is known about the model.
    Service,
}

/// A job that failed for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedJob {
    /// For example `jabc123`.
    pub id: String,
    /// `compile` or `inference`.
    pub kind: String,
    /// The service's number for the failure.
    pub failure: i64,
    /// AI Hub's own text about the failure; may be empty.
    pub reason: String,
    /// Number of times that the job was started.
    pub tries: usize,
}

impl FailedJob {
    /// Whose fault it is, and what that means.
    fn class(&self) -> (Blame, &'static str) {
        use Blame::{Model, Request, Service};
        match self.failure {
            3 => (Model, "the service does not support this model there"),
            3000 => (Model, "something is wrong with the model"),
            3050 => (Model, "a tool of QNN failed on the model"),
            12001 => (Model, "the phone ran out of memory"),
            13003 => (Model, "the model cannot be used there"),
            13000 => (Request, "the inputs do not fit the model"),
            13001 => (
                Request,
                "an option is wrong; see --compile-options and --profile-options",
            ),
            13002 => (Request, "the model file is corrupt"),
            13050 => (Request, "the model was compiled for another version of QNN"),
            13051 => (Request, "the model was compiled for another DSP"),
            1000..2000 => (Service, "an error of the service; its support has the job"),
            2001 => (
                Service,
                "the profiler crashed; if it does so again, look for the model's fault in the job's log",
            ),
            2003 => (Service, "a job that it depends on gave nothing"),
            2000..2100 => (Service, "the runtime failed"),
            2100..2300 => (Service, "a cloud service failed"),
            12000 => (Service, "it took longer than the service allows"),
            12102 => (Service, "the service throttles; try again later"),
            20_000..30_000 => (Service, "a service was not available; try again later"),
            _ => (Service, "a failure that this program does not know"),
        }
    }

    /// Whose fault it is.
    pub fn blame(&self) -> Blame {
        self.class().0
    }

    /// Describes the failure in a sentence.
    pub fn in_words(&self) -> String {
        let Self {
            id,
            kind,
            failure,
            tries,
            ..
        } = self;
        let times = match tries {
            0 | 1 => String::new(),
            n => format!(" {n} times"),
        };
        let reason: String = self.reason.chars().take(SHOWN_REASON).collect();
        let said = match reason.is_empty() {
            true => String::new(),
            false => format!("; AI Hub says: {reason}"),
        };
        let meaning = self.class().1;
        format!("the {kind} job {id} failed{times} ({failure}): {meaning}{said}")
    }

    /// The job as a check of the candidate. A baseline that cannot be measured leaves nothing to compare with.
    pub fn check(&self, is_baseline: bool) -> Check {
        let (result, of) = match (self.blame(), is_baseline) {
            (Blame::Model, false) => (CheckResult::Fail, ""),
            (_, false) => (CheckResult::Undecided, ""),
            (_, true) => (CheckResult::Undecided, "of the baseline "),
        };
        Check::new(ID, result, format!("{of}{}", self.in_words()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(failure: i64) -> FailedJob {
        FailedJob {
            id: "j1".to_owned(),
            kind: "compile".to_owned(),
            failure,
            reason: "QNN_COMMON_ERROR".to_owned(),
            tries: 1,
        }
    }

    #[test]
    fn a_model_is_blamed_for_its_own_failures_alone() {
        for (failure, blame) in [
            (0, Blame::Service),
            (2, Blame::Service),
            (3, Blame::Model),
            (1001, Blame::Service),
            (2001, Blame::Service),
            (2200, Blame::Service),
            (3000, Blame::Model),
            (3050, Blame::Model),
            (12000, Blame::Service),
            (12001, Blame::Model),
            (12102, Blame::Service),
            (13000, Blame::Request),
            (13003, Blame::Model),
            (13051, Blame::Request),
            (21000, Blame::Service),
            (99999, Blame::Service),
            (-1, Blame::Service),
        ] {
            assert_eq!(failed(failure).blame(), blame, "{failure}");
        }
    }

    #[test]
    fn a_failed_job_of_the_baseline_fails_nothing() {
        let check = failed(3050).check(false);
        assert_eq!(check.result, CheckResult::Fail);
        assert_eq!(
            check.why,
            "the compile job j1 failed (3050): a tool of QNN failed on the model; AI Hub says: QNN_COMMON_ERROR"
        );
        let check = failed(3050).check(true);
        assert_eq!(check.result, CheckResult::Undecided);
        assert!(
            check.why.starts_with("of the baseline the compile job j1"),
            "{}",
            check.why
        );
    }
}
