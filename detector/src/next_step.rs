//! What a person can do first about a verdict.

use epwatch_proto::ReasonCode;

use crate::cohort::CohortKey;
use crate::signals::PlacementChange;
use crate::verdict::{VerdictClass, backend_code};

/// Returns one or two sentences that say what to do.
#[must_use]
pub(crate) fn next_step(
    key: &CohortKey,
    class: VerdictClass,
    cpu_ops: &[String],
    change: Option<&PlacementChange>,
    previous_version: Option<&str>,
) -> String {
    let chipset = &key.chipset;
    match class {
        VerdictClass::TotalFallback
        | VerdictClass::PartialFallback
        | VerdictClass::SomeDevicesFallback => {
            let ops = match cpu_ops {
                [] => "its nodes".to_owned(),
                ops => ops.join(", "),
            };
            let roll_back = previous_version.map_or(String::new(), |previous| {
                format!(" Until that is fixed, keep version {previous} on {chipset}.")
            });
            format!(
                "Ask why the NPU of {chipset} refuses {ops}: `epwatch inspect MODEL --soc {chipset}` \
                 gives the reason of each node.{roll_back}"
            )
        }
        VerdictClass::NpuStartFailure => {
            let what = match change.and_then(backend_code) {
                Some((ReasonCode::BackendLibraryMissing, _)) => {
                    "that the app packages the NPU's back-end library"
                }
                Some((ReasonCode::SocModelUnknown, _)) => {
                    "the soc_model option: this runtime does not know it"
                }
                Some((ReasonCode::EpTooOldForOrt, _)) => {
                    "that the QNN plugin is new enough for ONNX Runtime"
                }
                _ => "backend_path and the vendor's libraries on these devices",
            };
            format!("Check {what}; the SDK's explain() on one of these devices names the cause.")
        }
        VerdictClass::SlowWithoutPlacement => format!(
            "Compare the model with the version before on {chipset}, session by session; if \
             placements are `unavailable` there, move to ONNX Runtime 1.24 or newer to see them."
        ),
        VerdictClass::DataQuality => {
            "Nothing to do for the model; placements compare again once a version has settled on \
             the new runtime."
                .to_owned()
        }
        VerdictClass::ThermalOrLoad => {
            "Nothing to do for the model; look at heat and load of these devices if it lasts."
                .to_owned()
        }
        VerdictClass::NotEnoughData => {
            "Wait for more devices, or certify a placement to compare with.".to_owned()
        }
        VerdictClass::Healthy => String::new(),
        // Their signals are not asked yet.
        VerdictClass::IntermittentFallback => format!(
            "Look for sessions that are made again on {chipset} (a DSP restart, memory pressure) and for \
             inputs that take another path; the devices' placements tell if runs move between them."
        ),
        VerdictClass::WrongOutputs | VerdictClass::CvSpike => String::new(),
    }
}
