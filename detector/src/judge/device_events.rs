//! Events that devices report in addition to latency and placement: golden self-tests, and sessions that
//! could not be created. A cohort may have only failed starts: a version that starts nowhere has no session.

use std::sync::Arc;

use epwatch_model::Installation;

use crate::judge::hash::HashSet;

/// The latest run of a golden input on a device's NPU and CPU.
#[derive(Debug, Clone, PartialEq)]
pub struct GoldenTest {
    pub installation: Installation,
    pub firmware: Arc<str>,
    pub input_id: Arc<str>,
    /// Hash of the NPU's output in hex; empty if there is none.
    pub npu_hash: Arc<str>,
    /// Largest absolute difference that the model's owner accepts.
    pub tolerance: Option<f64>,
    /// Largest absolute difference between NPU and CPU.
    pub max_abs: Option<f64>,
    /// Cosine of the two outputs, -1 to 1.
    pub cosine: Option<f64>,
    /// Whether the largest element is the same.
    pub top1_equal: Option<bool>,
    /// First of several outputs that is off by more than rounding; empty if there is none.
    pub first_off: Arc<str>,
    /// Whether the test completed; one that failed has nothing to compare.
    pub has_run: bool,
    /// Same as [`crate::judge::window::DeviceVote::is_proven`].
    pub is_proven: bool,
}

/// Sessions of one device that requested an NPU and could not be created, for one reason.
#[derive(Debug, Clone, PartialEq)]
pub struct FailedStart {
    pub installation: Installation,
    pub firmware: Arc<str>,
    /// The contract's reason code.
    pub reason: Arc<str>,
    pub count: u64,
    /// Same as [`crate::judge::window::DeviceVote::is_proven`].
    pub is_proven: bool,
}

/// All events of a cohort's devices, ordered by installation.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DeviceEvents {
    /// The latest test in the look-back for each device and input. A device tests once for each firmware and runtime.
    pub tests: Vec<GoldenTest>,
    /// Failed starts of the window only.
    pub failed_starts: Vec<FailedStart>,
}

impl DeviceEvents {
    /// Returns the events of installations that were known before the window.
    #[must_use]
    pub fn proven(&self) -> DeviceEvents {
        self.only(|_, is_proven| is_proven)
    }

    /// Whether any event comes from an installation that was not known before the window.
    #[must_use]
    pub fn has_newcomers(&self) -> bool {
        self.tests.iter().any(|test| !test.is_proven)
            || self.failed_starts.iter().any(|start| !start.is_proven)
    }

    /// Returns the events of devices with one firmware.
    #[must_use]
    pub fn of_firmware(&self, wanted: &str) -> DeviceEvents {
        self.only(|firmware, _| firmware == wanted)
    }

    pub(crate) fn installations(&self) -> impl Iterator<Item = Installation> {
        let tests = self.tests.iter().map(|test| test.installation);
        tests.chain(self.failed_starts.iter().map(|start| start.installation))
    }

    pub(crate) fn without(&self, left_out: &HashSet<Installation>) -> DeviceEvents {
        let mut rest = self.clone();
        rest.tests
            .retain(|test| !left_out.contains(&test.installation));
        rest.failed_starts
            .retain(|start| !left_out.contains(&start.installation));
        rest
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
