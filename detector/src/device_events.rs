//! What devices tell beside latency and placement: golden self-tests, and sessions that could not be
//! made. A cohort may consist of the latter alone: a version that starts nowhere has no session.

use std::sync::Arc;

use crate::cohort::Installation;

/// The latest run of a golden input on a device's NPU and CPU.
#[derive(Debug, Clone, PartialEq)]
pub struct GoldenTest {
    pub installation: Installation,
    pub firmware: Arc<str>,
    pub input_id: Arc<str>,
    /// Hash of the NPU's output in hex; empty: none was taken.
    pub npu_hash: Arc<str>,
    /// Greatest absolute difference that the model's owner accepts.
    pub tolerance: Option<f64>,
    /// Greatest absolute difference between NPU and CPU.
    pub max_abs: Option<f64>,
    /// Cosine of the two outputs, -1 to 1.
    pub cosine: Option<f64>,
    /// Whether the largest element is the same.
    pub top1_equal: Option<bool>,
    /// Whether it came to an end: what failed compares nothing.
    pub has_run: bool,
    /// As [`crate::window::DeviceVote::is_proven`].
    pub is_proven: bool,
}

/// Sessions of one device that were asked onto an NPU and could not be made, for one reason.
#[derive(Debug, Clone, PartialEq)]
pub struct FailedStart {
    pub installation: Installation,
    pub firmware: Arc<str>,
    /// The contract's reason code.
    pub reason: Arc<str>,
    pub count: u64,
    /// As [`crate::window::DeviceVote::is_proven`].
    pub is_proven: bool,
}

/// Everything of the kind that a cohort's devices told, in the order of their installations.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DeviceEvents {
    /// One for each device and input: the latest one of the look-back, since a device tests once for
    /// each firmware and runtime.
    pub tests: Vec<GoldenTest>,
    /// Of the window.
    pub failed_starts: Vec<FailedStart>,
}

impl DeviceEvents {
    /// Returns what installations known before the window told.
    #[must_use]
    pub fn proven(&self) -> DeviceEvents {
        self.only(|_, is_proven| is_proven)
    }

    /// Whether installations told some of it that were not known before the window.
    #[must_use]
    pub fn has_newcomers(&self) -> bool {
        self.tests.iter().any(|test| !test.is_proven)
            || self.failed_starts.iter().any(|start| !start.is_proven)
    }

    /// Returns what devices with one firmware told.
    #[must_use]
    pub fn of_firmware(&self, wanted: &str) -> DeviceEvents {
        self.only(|firmware, _| firmware == wanted)
    }

    fn only(&self, keep: impl Fn(&str, bool) -> bool) -> DeviceEvents {
        let tests = self.tests.iter();
        let starts = self.failed_starts.iter();
        DeviceEvents {
            tests: tests
                .filter(|test| keep(&test.firmware, test.is_proven))
                .cloned()
                .collect(),
            failed_starts: starts
                .filter(|start| keep(&start.firmware, start.is_proven))
                .cloned()
                .collect(),
        }
    }
}
