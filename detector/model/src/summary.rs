//! Verdicts and incidents as JSON lines for programs, for `epwatch replay` and the store. The names are a
//! contract: fields are added, never changed.

use serde::Serialize;

use crate::class::{Severity, VerdictClass};
use crate::incident::{Incident, State};
use crate::late_runs::LateRuns;
use crate::signal::Signal;
use crate::verdict::CohortVerdict;

/// The verdict on one cohort window.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
#[expect(
    missing_docs,
    reason = "keys of a JSON line; the others are clear from their name"
)]
pub struct VerdictSummary {
    pub window_end: String,
    pub app: String,
    pub environment: String,
    pub model: String,
    pub version: String,
    pub chipset: String,
    /// Hash of one firmware; empty for the whole chipset.
    pub firmware: String,
    pub verdict: VerdictClass,
    pub severity: Severity,
    pub devices_hit: u64,
    /// Devices seen that could be compared.
    pub devices_compared: u64,
    /// Devices that vote.
    pub devices_seen: u64,
    /// Ratio of median latency to its reference.
    pub latency_ratio: Option<f64>,
    /// Runs beyond the model's deadline; absent without one.
    #[serde(flatten)]
    pub late_runs: LateSummary,
    /// Coefficient of variation of one device's runs, averaged over devices.
    pub cv_within: Option<f64>,
    /// Coefficient of variation of the devices' means.
    pub cv_between: Option<f64>,
    /// Coefficient of variation of all clean runs, with equal weight for each device.
    pub cv: Option<f64>,
    /// Dip of the merged histogram, in [0, 0.25].
    pub dip: Option<f64>,
    /// Chance of such a dip if there is one mode.
    pub dip_p: Option<f64>,
    /// Depth of the valley between two modes, in (0, 1]; absent with one mode.
    pub valley_depth: Option<f64>,
    /// Separation of two lognormal groups (Ashman's D); absent if one group fits as well.
    pub mixture_separation: Option<f64>,
    /// CV rules that fired, by name.
    pub cv_rules: Vec<String>,
    /// Signals that could be computed.
    pub signals: Vec<SignalSummary>,
    /// Op types on the CPU.
    pub cpu_ops: Vec<String>,
    /// Reasons, as sentences.
    pub reasons: Vec<String>,
}

/// A signal of a verdict.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
#[expect(
    missing_docs,
    reason = "keys of a JSON line; the others are clear from their name"
)]
pub struct SignalSummary {
    pub id: String,
    pub value: f64,
    /// Its chance in a healthy cohort.
    pub p: f64,
    pub hits: u64,
    /// Devices that could have been hit.
    pub devices: u64,
}

/// Runs beyond a model's deadline.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[non_exhaustive]
pub struct LateSummary {
    /// The deadline, in milliseconds as in the config.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<f64>,
    /// Share of the clean runs that take longer, in [0, 1].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late_share: Option<f64>,
    /// Late share of the version before, on the chipset in the same window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late_share_of_previous: Option<f64>,
    /// Late share of this version on the other chipsets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late_share_on_others: Option<f64>,
}

impl From<Option<&LateRuns>> for LateSummary {
    fn from(late: Option<&LateRuns>) -> Self {
        let Some(late) = late else {
            return Self::default();
        };
        Self {
            deadline_ms: Some(late.deadline_ms),
            late_share: Some(late.share),
            late_share_of_previous: late.previous_share,
            late_share_on_others: late.other_chipsets,
        }
    }
}

/// An incident as it is now.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
#[expect(
    missing_docs,
    reason = "keys of a JSON line; the others are clear from their name"
)]
pub struct IncidentSummary {
    pub incident: String,
    pub state: State,
    pub severity: Severity,
    pub app: String,
    pub environment: String,
    pub model: String,
    pub version: String,
    /// Chipsets confirmed at that severity.
    pub chipsets: Vec<String>,
    /// Hashes of the firmwares that were judged apart from their chipset.
    pub firmwares: Vec<String>,
    /// The class of its worst cohort.
    pub verdict: Option<VerdictClass>,
    pub devices_hit: u64,
    /// Devices seen that could be compared.
    pub devices_compared: u64,
    pub devices_seen: u64,
    /// Ratio of median latency to its reference, of the worst cohort like all fields below.
    pub latency_ratio: Option<f64>,
    /// Runs beyond the model's deadline; absent without one.
    #[serde(flatten)]
    pub late_runs: LateSummary,
    /// Coefficient of variation of all clean runs, with equal weight for each device.
    pub cv: Option<f64>,
    /// Coefficient of variation of one device's runs, averaged over devices.
    pub cv_within: Option<f64>,
    /// Coefficient of variation of the devices' means.
    pub cv_between: Option<f64>,
    /// Dip of the merged histogram.
    pub dip: Option<f64>,
    /// Op types on the CPU.
    pub cpu_ops: Vec<String>,
    /// Share of the model's MACs on the CPU, in [0, 1].
    pub cpu_macs_share: Option<f64>,
    pub started_at: String,
    /// RFC 3339; absent while it is pending.
    pub fired_at: Option<String>,
    /// RFC 3339; absent unless the incident is mitigated by a directive.
    pub mitigated_at: Option<String>,
    /// RFC 3339; absent until it is over.
    pub resolved_at: Option<String>,
    /// The person who works on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acknowledged_by: Option<String>,
    /// RFC 3339; end of a mute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub muted_until: Option<String>,
    /// The person who ended it, by `resolve` or `accept`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<String>,
    /// The incident that is sent instead, which has the same cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part_of: Option<String>,
}

impl SignalSummary {
    /// Returns a statistic as a signal that counts no devices.
    #[must_use]
    pub fn statistic(id: &str, value: f64) -> Self {
        SignalSummary {
            id: id.to_owned(),
            value,
            p: 1.0,
            hits: 0,
            devices: 0,
        }
    }
}

impl From<&Signal> for SignalSummary {
    fn from(signal: &Signal) -> Self {
        SignalSummary {
            id: signal.id.to_string(),
            value: signal.value,
            p: signal.p,
            hits: signal.hits,
            devices: signal.devices,
        }
    }
}

impl From<&CohortVerdict> for VerdictSummary {
    fn from(verdict: &CohortVerdict) -> Self {
        let (key, numbers) = (&verdict.key, &verdict.numbers);
        VerdictSummary {
            window_end: verdict.window_end.to_string(),
            app: key.model.app_id.clone(),
            environment: key.model.environment.clone(),
            model: key.model.model_id.clone(),
            version: key.model_version.clone(),
            chipset: key.chipset.clone(),
            firmware: key.firmware.clone().unwrap_or_default(),
            verdict: verdict.class,
            severity: verdict.severity,
            devices_hit: numbers.devices_hit,
            devices_compared: numbers.devices_eligible,
            devices_seen: numbers.devices_seen,
            latency_ratio: numbers.latency_ratio,
            late_runs: numbers.late_runs.as_ref().into(),
            cv_within: verdict.statistics.cv_within,
            cv_between: verdict.statistics.cv_between,
            cv: verdict.statistics.cv,
            dip: verdict.statistics.dip,
            dip_p: verdict.statistics.dip_p,
            valley_depth: verdict.statistics.modes.map(|humps| humps.depth),
            mixture_separation: verdict.statistics.mixture.map(|groups| groups.separation),
            cv_rules: verdict.cv_rules.clone(),
            signals: verdict.signals.iter().map(SignalSummary::from).collect(),
            cpu_ops: verdict.cpu_ops.clone(),
            reasons: verdict.reason_texts().collect(),
        }
    }
}

impl From<&Incident> for IncidentSummary {
    fn from(incident: &Incident) -> Self {
        let lead = incident.lead();
        let statistics = lead.map(|lead| &lead.statistics);
        let (devices_hit, devices_seen) = incident.devices();
        let (model, orders) = (&incident.key.model, &incident.orders);
        IncidentSummary {
            incident: incident.id.clone(),
            state: incident.state,
            severity: incident.severity(),
            app: model.app_id.clone(),
            environment: model.environment.clone(),
            model: model.model_id.clone(),
            version: incident.key.model_version.clone(),
            chipsets: incident.chipsets(),
            firmwares: incident.firmwares(),
            verdict: lead.map(|lead| lead.class),
            devices_hit,
            devices_compared: incident.devices_compared(),
            devices_seen,
            latency_ratio: lead.and_then(|lead| lead.numbers.latency_ratio),
            late_runs: lead.and_then(|lead| lead.numbers.late_runs.as_ref()).into(),
            cv: statistics.and_then(|told| told.cv),
            cv_within: statistics.and_then(|told| told.cv_within),
            cv_between: statistics.and_then(|told| told.cv_between),
            dip: statistics.and_then(|told| told.dip),
            cpu_ops: lead.map(|lead| lead.cpu_ops.clone()).unwrap_or_default(),
            cpu_macs_share: lead.and_then(|lead| lead.cpu_macs_share),
            started_at: incident.started_at.to_string(),
            fired_at: incident.fired_at.map(|at| at.to_string()),
            mitigated_at: incident.mitigated_at.map(|at| at.to_string()),
            resolved_at: incident.resolved_at.map(|at| at.to_string()),
            acknowledged_by: orders.ack.as_ref().map(|ack| ack.who.clone()),
            muted_until: orders.muted_until().map(|until| until.to_string()),
            ended_by: orders.end.as_ref().map(|end| end.who.clone()),
            part_of: incident.part_of.clone(),
        }
    }
}
