//! A broken model: even the CPU's EP refuses it, for a reason of the model itself.

use epwatch_manifest::ModelOutline;
use ort::sys::OrtErrorCode;

use crate::{job::Job, session::LoadedRuntime};

/// Why the CPU's EP refuses the model too; `None` if it takes the model, or only lacks a kernel for an op. A model without a
/// kernel there may be valid.
pub(crate) fn broken(job: &Job, runtime: &LoadedRuntime) -> Option<String> {
    let outline = ModelOutline::of(&job.model).ok();
    if let Some(missing) = outline.and_then(|outline| outline.missing_data()) {
        return Some(missing);
    }
    let mut builder = runtime.cpu_builder(job).ok()?;
    let error = builder.commit_from_file(&job.model).err()?;
    let code = OrtErrorCode::from(error.code());
    (code != OrtErrorCode::ORT_NOT_IMPLEMENTED).then(|| broken_by(error.message()))
}

/// Returns the model's problem in one sentence, from an error of ONNX Runtime.
pub fn broken_by(error: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(broken_by(error), expected);
        }
    }
}
