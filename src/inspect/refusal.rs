//! Distinguishes a broken model from a chipset's refusal, if no chipset has a session. Even the CPU's EP refuses a
//! broken model.

use epwatch_engines::QnnVersion;
use epwatch_manifest::{CompiledElsewhere, ModelOutline};
use epwatch_run::{lacks_custom_ops, needs_custom_ops};

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
        return Refusal::Broken(plain(error));
    };
    match has_library {
        true => Refusal::Broken(format!("{}; {}", plain(error), lacks_custom_ops(&ops))),
        false => Refusal::NeedsLibrary(needs_custom_ops(&ops)),
    }
}

/// Returns the model's problem in one sentence.
fn plain(error: &str) -> String {
    too_new(error).unwrap_or_else(|| sentence(error))
}

/// Returns a sentence about a model version that is too new, with the newest that this ONNX Runtime accepts.
fn too_new(error: &str) -> Option<String> {
    // "Opset 99 is under development [..] Current official support for domain ai.onnx is till opset 26."
    if let Some((before, rest)) = error.split_once(" is under development") {
        let opset = last_number(before)?;
        let (_, rest) = rest.split_once("support for domain ")?;
        let (domain, newest) = rest.split_once(" is till opset ")?;
        let newest = first_number(newest)?;
        return Some(format!(
            "it has opset {opset} of {domain}, and this ONNX Runtime takes {newest} at most; export it with opset {newest} or an older one"
        ));
    }
    let (_, rest) = error.split_once("Unsupported model IR version: ")?;
    let (_, newest) = rest.split_once("max supported IR version: ")?;
    let (version, newest) = (first_number(rest)?, first_number(newest)?);
    Some(format!(
        "it has IR version {version}, and this ONNX Runtime takes {newest} at most; save it with an older release of the onnx package, or set ir_version to {newest}"
    ))
}

fn first_number(text: &str) -> Option<&str> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    Some(&text[..end]).filter(|digits| !digits.is_empty())
}

fn last_number(text: &str) -> Option<&str> {
    let start = text
        .rfind(|c: char| !c.is_ascii_digit())
        .map_or(0, |at| at + 1);
    text.get(start..).filter(|digits| !digits.is_empty())
}

/// Returns ONNX Runtime's message without its prefixes: the path, the source line, and the C++ signature.
fn sentence(error: &str) -> String {
    let mut text = match error.split_once(" failed:") {
        Some((before, rest)) if before.starts_with("Load model from ") => rest,
        _ => error,
    };
    let place = [".cc:", ".h:"].iter().find_map(|mark| {
        let (_, rest) = text.split_once(mark)?;
        let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        rest.strip_prefix(' ')
    });
    if let Some(rest) = place {
        // The function is one word, or a signature with its parameters.
        let one_word = rest.split_once(' ').map_or("", |(_, rest)| rest);
        text = match rest.split_once('(') {
            Some((function, _)) if function.contains("::") => after_parameters(rest),
            _ => one_word,
        };
    }
    let text = text.trim();
    let text = text.strip_prefix("Fatal error: ").unwrap_or(text);
    let text = text
        .strip_prefix("This is an invalid model. ")
        .unwrap_or(text);
    let text = text.strip_prefix("Error: ").unwrap_or(text);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the text after the first balanced parentheses.
fn after_parameters(text: &str) -> &str {
    let mut depth = 0_u32;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 1 => return &text[at + 1..],
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    text
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

    #[test]
    fn an_error_is_its_sentence() {
        for (error, expected) in [
            (
                "Load model from /a b/m.onnx failed:/src/core/graph/model.cc:256 ns::Model::Model(ns::Proto&&, const \
                 std::basic_string<char>&, f(int)) Unsupported model IR version: 99, max supported IR version: 13\n",
                "it has IR version 99, and this ONNX Runtime takes 13 at most; save it with an older release of the onnx \
                 package, or set ir_version to 13",
            ),
            (
                "Load model from m.onnx failed:/src/h.h:58 void ns::f(int) ONNX Runtime only *guarantees* support. Opset 99 is \
                 under development and support for this is limited. Current official support for domain ai.onnx.ml is till \
                 opset 5.",
                "it has opset 99 of ai.onnx.ml, and this ONNX Runtime takes 5 at most; export it with opset 5 or an older one",
            ),
            (
                "x.cc:1 ns::f(int) Something is under development.",
                "Something is under development.",
            ),
            ("x.cc:1 ns::f(int) no such thing", "no such thing"),
            (
                "Deserialize tensor w failed.tensorprotoutils.cc:1876 GetExtData External initializer: w offset: 1",
                "External initializer: w offset: 1",
            ),
            (
                "Load model from m.onnx failed:This is an invalid model. Error: the graph is not acyclic.",
                "the graph is not acyclic.",
            ),
            (
                "Load model from m.onnx failed:Fatal error: com.microsoft:Foo(-1) is not a registered function/op",
                "com.microsoft:Foo(-1) is not a registered function/op",
            ),
            ("plain", "plain"),
            ("x.cc:1 ns::f((", "ns::f(("),
        ] {
            assert_eq!(plain(error), expected);
        }
    }
}
