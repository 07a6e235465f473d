//! A gate's result as in-toto statements: one that generic tools understand, and one that holds the whole document.
//!
//! Statement: <https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md>; test result:
//! <https://github.com/in-toto/attestation/blob/main/spec/predicates/test-result.md>.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::verdict::{CheckResult, GatedFile, GatedModel, Verdict};

/// Type of every statement.
pub const STATEMENT: &str = "https://in-toto.io/Statement/v1";
/// The predicate that generic tools understand.
pub const TEST_RESULT: &str = "https://in-toto.io/attestation/test-result/v0.1";
/// The predicate with the document `epwatch.gate/1` (`gate`) and its time (`made_at`).
pub const GATE: &str = "https://epwatch.dev/attestation/gate/v1";

/// The predicate with a volunteer's report of a device (`epwatch.seen/1`). It holds no result of a gate.
pub const SEEN: &str = "https://epwatch.dev/attestation/seen/v1";

/// Key of the annotation that marks the policy among the files of [`TEST_RESULT`]'s configuration, and files next to a
/// model among the subjects.
const ROLE: &str = "role";
const POLICY: &str = "policy";
const DATA: &str = "data";

/// A statement about model files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Statement {
    /// [`STATEMENT`].
    #[serde(rename = "_type")]
    pub statement: String,
    /// The models that were judged, each followed by the files that it needs next to it.
    pub subject: Vec<Subject>,
    /// [`TEST_RESULT`] or [`GATE`].
    #[serde(rename = "predicateType")]
    pub predicate_type: String,
    /// The content of the statement about the models: the result, or the whole document.
    pub predicate: Value,
}

/// A file by its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// Its path, as given on the command line.
    pub name: String,
    /// The hash by which in-toto finds it.
    pub digest: Digest,
    /// Marks the files next to a model, which hold its tensors or compiled graphs; otherwise `null`.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub annotations: Value,
}

/// An in-toto `DigestSet` with one algorithm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest {
    /// 64 hexadecimal digits.
    pub sha256: String,
}

impl Subject {
    /// A file by its name and SHA-256.
    pub fn new(name: impl Into<String>, sha256: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            digest: Digest {
                sha256: sha256.into(),
            },
            annotations: Value::Null,
        }
    }

    fn is_data(&self) -> bool {
        self.annotations[ROLE] == DATA
    }
}

impl From<&GatedFile> for Subject {
    fn from(file: &GatedFile) -> Self {
        Self::new(&file.path, &file.sha256)
    }
}

/// The model, then its data.
fn subjects(model: &GatedModel) -> impl Iterator<Item = Subject> {
    let data = model.data.iter().map(|file| Subject {
        annotations: json!({ROLE: DATA}),
        ..Subject::from(file)
    });
    std::iter::once(Subject::new(&model.path, &model.sha256)).chain(data)
}

/// Returns the statements [`TEST_RESULT`] and [`GATE`]. `None` without a model, and without a result.
pub fn statements(verdict: &Verdict, made_at: &str) -> Option<[Statement; 2]> {
    let result = match verdict.result {
        CheckResult::Pass if verdict.with(CheckResult::Warn).next().is_some() => "WARNED",
        CheckResult::Pass => "PASSED",
        CheckResult::Fail => "FAILED",
        _ => return None,
    };
    let mut subject: Vec<Subject> = Vec::new();
    let models = verdict.targets.iter().filter_map(|on| on.model.as_ref());
    for file in models.flat_map(subjects) {
        if !subject.contains(&file) {
            subject.push(file);
        }
    }
    let tests = |outcome| -> Vec<String> {
        let each = verdict.with(outcome);
        each.map(|(on, check)| format!("{}/{}", verdict.name_of(on), check.id))
            .collect()
    };
    // A file with several rows is in several targets, and is listed once.
    let policy = verdict.policy.iter().map(Subject::from);
    let policy = policy.map(|file| {
        json!(Subject {
            annotations: json!({ROLE: POLICY}),
            ..file
        })
    });
    let mut configuration: Vec<Value> = policy.collect();
    for file in verdict.targets.iter().flat_map(|on| &on.runs) {
        let file = json!(Subject::from(file));
        if !configuration.contains(&file) {
            configuration.push(file);
        }
    }
    let test_result = json!({
        "result": result,
        "configuration": configuration,
        "passedTests": tests(CheckResult::Pass),
        "warnedTests": tests(CheckResult::Warn),
        "failedTests": tests(CheckResult::Fail),
    });
    let gate = json!({"made_at": made_at, "gate": verdict});
    let of = |predicate_type: &str, predicate| Statement {
        statement: STATEMENT.to_owned(),
        subject: subject.clone(),
        predicate_type: predicate_type.to_owned(),
        predicate,
    };
    let both = [of(TEST_RESULT, test_result), of(GATE, gate)];
    (!subject.is_empty()).then_some(both)
}

/// Contents of a gate's statement, whoever made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims {
    /// [`TEST_RESULT`] or [`GATE`].
    pub predicate_type: String,
    /// Whether the models passed.
    pub is_pass: bool,
    /// Time of the gate as it was written; [`TEST_RESULT`] has none.
    pub made_at: Option<String>,
    /// The models that were judged.
    pub models: Vec<Subject>,
    /// Files next to these models, which hold tensors or compiled graphs. Evidence of older versions has none.
    pub data: Vec<Subject>,
    /// SHA-256 of the policy file; `None` for the default policy.
    pub policy: Option<String>,
}

impl Statement {
    /// Reads the claims.
    ///
    /// # Errors
    /// It is not a statement of a gate.
    pub fn claims(self) -> Result<Claims, String> {
        if self.statement != STATEMENT {
            return Err(format!("its type is not {STATEMENT}"));
        }
        let text = |pointer: &str| {
            let text = self.predicate.pointer(pointer).and_then(Value::as_str);
            text.map(ToOwned::to_owned)
        };
        let (result, policy, made_at) = match &*self.predicate_type {
            TEST_RESULT => {
                let files = self.predicate["configuration"].as_array();
                let policy = files
                    .into_iter()
                    .flatten()
                    .find(|file| file["annotations"][ROLE] == POLICY);
                let policy = policy.and_then(|file| file["digest"]["sha256"].as_str());
                (text("/result"), policy.map(ToOwned::to_owned), None)
            }
            GATE => {
                let made_at = text("/made_at").ok_or("it has no time")?;
                let (result, policy) = (text("/gate/result"), text("/gate/policy/sha256"));
                (result, policy, Some(made_at))
            }
            _ => return Err("its predicate is of another kind".to_owned()),
        };
        let is_pass = match result.as_deref() {
            Some("pass" | "PASSED" | "WARNED") => true,
            Some("fail" | "FAILED") => false,
            _ => return Err("it has no result".to_owned()),
        };
        let (data, models) = self.subject.into_iter().partition(Subject::is_data);
        Ok(Claims {
            is_pass,
            policy,
            made_at,
            predicate_type: self.predicate_type,
            models,
            data,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first file of the configuration is a launch if the gate had no policy file.
    #[test]
    fn a_launch_is_no_policy() {
        let file = |annotations: Value| json!({"name": "a", "digest": {"sha256": "ab"}, "annotations": annotations});
        let of = |configuration: Value| Statement {
            statement: STATEMENT.to_owned(),
            subject: Vec::new(),
            predicate_type: TEST_RESULT.to_owned(),
            predicate: json!({"result": "PASSED", "configuration": configuration}),
        };
        let policy = |configuration| of(configuration).claims().unwrap().policy;
        assert_eq!(policy(json!([file(Value::Null)])), None);
        let both = json!([file(Value::Null), file(json!({ROLE: POLICY}))]);
        assert_eq!(policy(both).as_deref(), Some("ab"));
        assert_eq!(policy(Value::Null), None);
    }
}
