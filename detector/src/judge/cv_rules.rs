//! Threshold rules on the coefficient of variation of all runs, from the config. There are none by default, because on
//! healthy fleets they fire in most windows. A replay counts how often.

use epwatch_model::{CohortVerdict, Reason, Severity, VerdictClass};
use epwatch_server::Problems;
use serde::{Deserialize, Serialize};

/// One rule. It fires if every limit that is set is exceeded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CvRule {
    /// Name in replays and reasons.
    pub name: String,
    /// Limits the rule to one app.
    #[serde(default)]
    pub app: Option<String>,
    /// Limits the rule to one environment.
    #[serde(default)]
    pub environment: Option<String>,
    /// Fires above this coefficient of variation, for example 0.15.
    #[serde(default)]
    pub cv_above: Option<f64>,
    /// Fires above this multiple of the mean over earlier windows: of the previous version on the
    /// chipset, else of the same version.
    #[serde(default)]
    pub cv_above_baseline_times: Option<f64>,
    /// Severity of the verdict; `none` only counts the rule in replays.
    #[serde(default = "ticket")]
    pub severity: Severity,
}

fn ticket() -> Severity {
    Severity::Ticket
}

/// Returns rules that every replay counts, so that their cost is measured before they are switched on.
#[must_use]
pub(crate) fn stock() -> Vec<CvRule> {
    let rule = |name: &str, cv_above, cv_above_baseline_times| CvRule {
        name: name.to_owned(),
        app: None,
        environment: None,
        cv_above,
        cv_above_baseline_times,
        severity: Severity::None,
    };
    vec![
        rule("cv_above_0.15", Some(0.15), None),
        rule("cv_above_1.5_times_baseline", None, Some(1.5)),
    ]
}

impl CvRule {
    fn is_for(&self, verdict: &CohortVerdict) -> bool {
        let holds = |wanted: &Option<String>, text: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == text)
        };
        let model = &verdict.key.model;
        holds(&self.app, &model.app_id) && holds(&self.environment, &model.environment)
    }

    /// Whether every limit is exceeded. A limit relative to a missing baseline counts as not exceeded.
    fn fires(&self, cv: f64, baseline: Option<f64>) -> bool {
        let above = self.cv_above.is_none_or(|limit| cv > limit);
        let times = self.cv_above_baseline_times;
        let risen = times.is_none_or(|times| baseline.is_some_and(|before| cv > times * before));
        above && risen
    }
}

/// Applies rules to a whole cohort's verdict. `baseline` is the CV of earlier windows.
pub(crate) fn apply(rules: &[CvRule], verdict: &mut CohortVerdict, baseline: Option<f64>) {
    let Some(cv) = verdict.statistics.cv else {
        return;
    };
    for rule in rules {
        if !rule.is_for(verdict) || !rule.fires(cv, baseline) {
            continue;
        }
        verdict.cv_rules.push(rule.name.clone());
        if rule.severity == Severity::None {
            continue;
        }
        verdict.reasons.push(Reason::CvRule {
            name: rule.name.clone(),
            cv,
            limit: rule.cv_above,
            baseline: rule.cv_above_baseline_times.and(baseline),
        });
        if rule.severity > verdict.severity {
            verdict.severity = rule.severity;
            verdict.class = VerdictClass::CvSpike;
        }
    }
}

/// Adds the problems of the rules, by key.
pub(crate) fn check(rules: &[CvRule], problems: &mut Problems) {
    let is_limit = |limit: Option<f64>| limit.is_none_or(|limit| limit.is_finite() && limit > 0.0);
    for (at, rule) in rules.iter().enumerate() {
        let mut check = |key: &str, is_right: bool, text: &str| {
            let key = format!("cv_rules[{at}].{key}");
            problems.check(&key, is_right, || text.to_owned());
        };
        check("name", !rule.name.is_empty(), "must not be empty");
        let times = rule.cv_above_baseline_times;
        check(
            "cv_above",
            rule.cv_above.is_some() || times.is_some(),
            "or cv_above_baseline_times must be given",
        );
        check(
            "cv_above",
            is_limit(rule.cv_above),
            "must be above 0, for example 0.15 for 15 %",
        );
        check(
            "cv_above_baseline_times",
            is_limit(times),
            "must be above 0, for example 1.5",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fleet, judged, reference};

    fn rule(cv_above: Option<f64>, times: Option<f64>, severity: Severity) -> CvRule {
        CvRule {
            name: "mine".into(),
            app: Some("camera".into()),
            environment: None,
            cv_above,
            cv_above_baseline_times: times,
            severity,
        }
    }

    fn applied(rule: CvRule, usual: f64) -> CohortVerdict {
        let mut verdict = judged(&Fleet::default().window(), None, &reference());
        apply(&[rule], &mut verdict, Some(usual));
        verdict
    }

    #[test]
    fn a_limit_or_a_multiple_of_the_baseline_makes_a_ticket() {
        for rule in [
            rule(Some(0.05), None, Severity::Ticket),
            rule(None, Some(1.5), Severity::Ticket),
        ] {
            let verdict = applied(rule, 0.03);
            let found = (verdict.class, verdict.severity);
            assert_eq!(found, (VerdictClass::CvSpike, Severity::Ticket));
            assert_eq!(verdict.cv_rules, ["mine"]);
        }
    }

    #[test]
    fn a_rule_that_only_counts_changes_no_verdict() {
        let verdict = applied(rule(Some(0.05), None, Severity::None), 0.03);
        assert_eq!(verdict.class, VerdictClass::Healthy);
        assert_eq!(verdict.cv_rules, ["mine"]);
    }

    #[test]
    fn both_limits_must_be_exceeded_and_other_apps_are_spared() {
        let both = rule(Some(0.05), Some(10.0), Severity::Page);
        assert_eq!(applied(both, 0.03).cv_rules, Vec::<String>::new());
        let mut other = rule(Some(0.05), None, Severity::Page);
        other.app = Some("mail".into());
        assert_eq!(applied(other, 0.03).class, VerdictClass::Healthy);
    }

    #[test]
    fn rules_without_a_sound_limit_are_refused() {
        let problems = |rules: &[CvRule]| {
            let mut problems = Problems::default();
            check(rules, &mut problems);
            problems.0
        };
        let keys = |rule| {
            let problems = problems(&[rule]).into_iter();
            problems.map(|problem| problem.key).collect::<Vec<_>>()
        };
        assert_eq!(
            keys(rule(None, None, Severity::Page)),
            ["cv_rules[0].cv_above"]
        );
        assert_eq!(
            keys(rule(Some(0.1), Some(f64::NAN), Severity::Page)),
            ["cv_rules[0].cv_above_baseline_times"]
        );
        assert!(problems(&stock()).is_empty());
    }
}
