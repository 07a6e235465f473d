//! What a person can do first about a verdict.

use epwatch_proto::ReasonCode;

use crate::baseline::Origin;
use crate::cohort::CohortKey;
use crate::signals::PlacementChange;
use crate::verdict::{VerdictClass, backend_code};

/// What to do where all chipsets show the same.
pub(crate) const ON_ALL_CHIPSETS: &str = "Compare MACs and input sizes of the model with those of the \
    version before, and look at what the app runs beside it; nothing points at one chipset.";

/// Returns one or two sentences that say what to do.
#[must_use]
pub(crate) fn next_step(
    key: &CohortKey,
    class: VerdictClass,
    cpu_ops: &[String],
    change: Option<&PlacementChange>,
    previous_version: Option<&str>,
    commonest_code: Option<&(String, u64)>,
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
            let began_within = change.is_some_and(|change| change.origin == Origin::SameVersion);
            let roll_back = match previous_version {
                _ if began_within => {
                    " It came without a new version of the model: look for updates of \
                                      firmware, system or app on these devices."
                        .to_owned()
                }
                Some(previous) => {
                    format!(" Until that is fixed, keep version {previous} on {chipset}.")
                }
                None => String::new(),
            };
            format!(
                "Ask why the NPU of {chipset} refuses {ops}: `epwatch inspect MODEL --soc {chipset}` \
                 gives the reason of each node.{roll_back}"
            )
        }
        VerdictClass::NpuStartFailure => {
            let code = change.and_then(backend_code).map(|(code, _)| code);
            let code = code.or_else(|| known_code(commonest_code?));
            let what = match code {
                Some(ReasonCode::BackendLibraryMissing | ReasonCode::NativeLibraryNotDeclared) => {
                    "that the app packages the NPU's back-end library"
                }
                Some(ReasonCode::SocModelUnknown) => {
                    "the soc_model option: this runtime does not know it"
                }
                Some(ReasonCode::EpTooOldForOrt) => {
                    "that the QNN plugin is new enough for ONNX Runtime"
                }
                Some(ReasonCode::EpcontextIncompatible | ReasonCode::EpcontextWithoutEp) => {
                    "that the precompiled model was made for this chipset and runtime"
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
        VerdictClass::IntermittentFallback => format!(
            "Look for sessions that are made again on {chipset} (a DSP restart, memory pressure) and for \
             inputs that take another path; the devices' placements tell if runs move between them."
        ),
        VerdictClass::WrongOutputs => format!(
            "Keep the model off the NPU of {chipset} with a directive (`epwatch directive`) if its \
             answers matter; then run the golden input there with inner outputs exposed to find the \
             first op that differs."
        ),
        VerdictClass::CvSpike => format!(
            "Look at what else runs on {chipset} at the same time, and at the performance mode the \
             session asks for; the latency chart by device shows whether all runs spread or some jump."
        ),
    }
}

/// The code, if it is one that has a step of its own.
fn known_code((code, _): &(String, u64)) -> Option<ReasonCode> {
    let known = [
        ReasonCode::BackendLibraryMissing,
        ReasonCode::NativeLibraryNotDeclared,
        ReasonCode::SocModelUnknown,
        ReasonCode::EpTooOldForOrt,
        ReasonCode::EpcontextIncompatible,
        ReasonCode::EpcontextWithoutEp,
    ];
    known.into_iter().find(|known| known.as_str() == code)
}
