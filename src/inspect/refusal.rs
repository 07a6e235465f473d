//! Distinguishes a broken model from a chipset's refusal, if no chipset has a session. Even the CPU's EP refuses a
//! broken model.

use epwatch_engines::QnnVersion;
use epwatch_manifest::{CompiledElsewhere, ModelOutline};
use epwatch_run::{broken_by, lacks_custom_ops, needs_custom_ops};

use super::{
    answer::{Answer, Failed},
    chipset::SocModel,
};

/// ONNX Runtime's status if an EP has no kernel for an op. The model itself may be valid.
pub(super) const NOT_IMPLEMENTED: i32 = 9;

/// Why a model has no session on any chipset.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// For whatever chipset.
    Broken(String),
    /// The model's ops are in a library that was not given.
    NeedsLibrary(String),
}

/// Returns the refusal that the model's own data explains.
pub(super) fn by_outline(outline: &ModelOutline) -> Option<Refusal> {
    outline.missing_data().map(Refusal::Broken)
}

/// Returns the refusal that the error of the CPU's EP explains.
pub(super) fn by_cpu(error: &str, outline: Option<&ModelOutline>, has_library: bool) -> Refusal {
    let Some(ops) = outline.and_then(|outline| outline.missing_ops(error)) else {
        return Refusal::Broken(broken_by(error));
    };
    match has_library {
        true => Refusal::Broken(format!("{}; {}", broken_by(error), lacks_custom_ops(&ops))),
        false => Refusal::NeedsLibrary(needs_custom_ops(&ops)),
    }
}

/// Returns the answer for a precompiled graph that was not compiled for this chipset alone.
pub(super) fn of_precompiled(soc: &SocModel, outline: &ModelOutline) -> Option<Answer> {
    Some(match outline.precompiled()?.elsewhere(soc.qnn_id?)? {
        CompiledElsewhere::ForAnother { error, way_out } => Answer::Failed(Failed {
            way_out: Some(way_out.to_owned()),
            ..Failed::without_reason(error)
        }),
        CompiledElsewhere::Unnamed { error } => Answer::Unproven(error.to_owned()),
    })
}

/// The refusal of a graph that a newer QNN compiled; `None` if that is not the cause. QNN loads graphs of older versions.
pub(super) fn by_newer_qnn(error: &str, outline: &ModelOutline, qnn: QnnVersion) -> Option<Failed> {
    let compiled_by = outline.precompiled()?.sdk?;
    let (theirs, ours) = (minor(&compiled_by)?, minor(qnn.sdk())?);
    (theirs > ours).then(|| Failed {
        way_out: Some(format!(
            "Compile it with QNN {ours} or an older one, or ship QNN {theirs} in the app and judge with --qnn-version {theirs}.",
            ours = ours.text(),
            theirs = theirs.text(),
        )),
        ..Failed::without_reason(format!(
            "QNN {compiled_by} compiled the graph, and QNN {} refuses it: {}",
            qnn.sdk(),
            error.trim().trim_end_matches('.')
        ))
    })
}

/// Major and minor number of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Minor(u32, u32);

impl Minor {
    fn text(self) -> String {
        format!("{}.{}", self.0, self.1)
    }
}

fn minor(version: &str) -> Option<Minor> {
    let mut parts = version.split('.');
    let mut number = || parts.next()?.parse().ok();
    Some(Minor(number()?, number()?))
}

/// Returns the way out of a session that QNN refused because of its inputs.
pub(super) fn way_out(error: &str, outline: &ModelOutline) -> Option<String> {
    let input = outline.empty_input()?;
    let is_told = error.contains("zero graph inputs") || error.contains("input tensors");
    is_told.then(|| {
        format!("{input}, so that it has no elements: export the model without the empty cache, or with a length of 1 or more.")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        assert!(minor("2.51.0") > minor("2.47.0"));
        assert!(minor("2.9.0") < minor("2.47.0"));
        assert_eq!(minor("2"), None);
        assert_eq!(minor("a.b"), None);
    }
}
