//! Judges files and checks the results, for several files of tests.

use epwatch_gate::{
    launches::{JudgedBy, JudgedLaunches, LaunchesError, MeasuredFile, judged},
    macs::ModelMacs,
    policy::Policy,
    read::{ReadOptions, read},
    verdict::{Check, CheckResult, GatedFile, GatedModel},
};

/// The inputs by which files are judged.
#[derive(Default)]
pub(crate) struct By<'a> {
    pub(crate) policy: &'a str,
    /// The SHA-256 of MODEL is `hash of ` and this text.
    pub(crate) model: Option<&'a str>,
    /// The same of the model of the baseline's launches.
    pub(crate) before: Option<&'a str>,
    pub(crate) macs: Option<&'a ModelMacs>,
    pub(crate) chipset: Option<&'a str>,
}

impl By<'_> {
    pub(crate) fn judge(
        &self,
        candidate: Vec<MeasuredFile>,
        baseline: Vec<MeasuredFile>,
    ) -> Result<JudgedLaunches, LaunchesError> {
        let file = |model: &str, path: &str| GatedModel {
            path: path.to_owned(),
            sha256: format!("hash of {model}"),
            data: Vec::new(),
        };
        let model = self.model.map(|model| file(model, "m.onnx"));
        let before = self.before.map(|model| file(model, "before.onnx"));
        let by = JudgedBy {
            is_on_cpu: false,
            policy: &Policy::parse(self.policy).unwrap(),
            model: model.as_ref(),
            before: before.as_ref(),
            macs: self.macs,
            chipset: self.chipset,
        };
        judged(candidate, baseline, by)
    }
}

/// Judges files by a policy alone.
pub(crate) fn judge(
    candidate: Vec<MeasuredFile>,
    baseline: Vec<MeasuredFile>,
    policy: &str,
) -> Result<JudgedLaunches, LaunchesError> {
    let by = By {
        policy,
        ..By::default()
    };
    by.judge(candidate, baseline)
}

/// A limit of the median alone.
pub(crate) const MEDIAN: &str = "[latency]\nmedian_ms = 10";

/// Judges files by a policy, without a baseline.
#[track_caller]
pub(crate) fn alone(candidate: Vec<MeasuredFile>, policy: &str) -> JudgedLaunches {
    judge(candidate, Vec::new(), policy).unwrap()
}

/// A file of this content; its hash is the content itself.
pub(crate) fn files(content: &str) -> Vec<MeasuredFile> {
    let runs = read(content.as_bytes(), ReadOptions::default()).unwrap();
    let file = GatedFile {
        path: "a.json".to_owned(),
        sha256: content.to_owned(),
    };
    let each = runs.into_iter().map(|run| MeasuredFile {
        file: file.clone(),
        run,
    });
    each.collect()
}

#[track_caller]
pub(crate) fn check(judged: &JudgedLaunches, id: &str, result: CheckResult) -> Check {
    let checks = &judged.targets[0].checks;
    let found = checks.iter().find(|check| check.id == id);
    let found = found.unwrap_or_else(|| panic!("{checks:#?}"));
    assert_eq!(found.result, result, "{found:#?}");
    found.clone()
}

#[track_caller]
pub(crate) fn check_mistake(judged: &JudgedLaunches, id: &str) {
    let mistakes = &judged.targets[0].mistakes;
    assert!(
        mistakes.iter().any(|mistake| mistake.id == id),
        "{mistakes:#?}"
    );
}

#[track_caller]
pub(crate) fn check_refused(judged: Result<JudgedLaunches, LaunchesError>, says: &str) {
    let error = judged.unwrap_err().to_string();
    assert!(error.contains(says), "{error}");
}
