//! An incident as programs read it: what the webhook sends, and PagerDuty's details.

use jiff::Timestamp;
use serde::Serialize;

use crate::incident::Incident;

use super::{description, summary};

/// An incident's facts. Names are stable; more may be added.
#[derive(Debug, Serialize)]
pub(super) struct Document {
    id: String,
    state: &'static str,
    severity: &'static str,
    verdict: Option<String>,
    cause: &'static str,
    app: String,
    environment: String,
    model: String,
    version: String,
    chipsets: Vec<String>,
    firmwares: Vec<String>,
    started_at: Timestamp,
    fired_at: Option<Timestamp>,
    mitigated_at: Option<Timestamp>,
    resolved_at: Option<Timestamp>,
    devices_hit: u64,
    devices_seen: u64,
    /// p50 of the devices hit over what they are compared with.
    latency_ratio: Option<f64>,
    cv_within: Option<f64>,
    cv_between: Option<f64>,
    dip: Option<f64>,
    /// Chance of the deciding count in a healthy cohort.
    p: Option<f64>,
    cpu_ops: Vec<String>,
    cpu_macs_share: Option<f64>,
    next_step: String,
    summary: String,
    description: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    dashboard: Option<String>,
}

impl Document {
    pub(super) fn of(incident: &Incident, dashboard: Option<String>) -> Self {
        let lead = incident.lead();
        let told = incident.headline.as_ref().map(|headline| headline.class);
        let class = told.or(lead.map(|lead| lead.class));
        let (devices_hit, devices_seen) = incident.devices();
        let model = &incident.key.model;
        Self {
            id: incident.id.clone(),
            state: incident.state.as_str(),
            severity: incident.severity().as_str(),
            verdict: class.map(|class| class.to_string()),
            cause: incident.key.cause.as_str(),
            app: model.app_id.clone(),
            environment: model.environment.clone(),
            model: model.model_id.clone(),
            version: incident.key.model_version.clone(),
            chipsets: incident.chipsets(),
            firmwares: incident.firmwares(),
            started_at: incident.started_at,
            fired_at: incident.fired_at,
            mitigated_at: incident.mitigated_at,
            resolved_at: incident.resolved_at,
            devices_hit,
            devices_seen,
            latency_ratio: lead.and_then(|lead| lead.numbers.latency_ratio),
            cv_within: lead.and_then(|lead| lead.statistics.cv_within),
            cv_between: lead.and_then(|lead| lead.statistics.cv_between),
            dip: lead.and_then(|lead| lead.statistics.dip),
            p: lead.map(|lead| lead.p),
            cpu_ops: lead.map(|lead| lead.cpu_ops.clone()).unwrap_or_default(),
            cpu_macs_share: lead.and_then(|lead| lead.cpu_macs_share),
            next_step: lead.map(|lead| lead.next_step.clone()).unwrap_or_default(),
            summary: summary(incident),
            description: description(incident),
            dashboard,
        }
    }
}

/// The dashboard at `base` with the incident's app, model and chipsets as variables.
pub(super) fn dashboard_link(base: Option<&str>, incident: &Incident) -> Option<String> {
    let model = &incident.key.model;
    let mut variables = vec![
        ("var-app", model.app_id.clone()),
        ("var-environment", model.environment.clone()),
        ("var-model", model.model_id.clone()),
    ];
    let chipsets = incident.chipsets().into_iter();
    variables.extend(chipsets.map(|chipset| ("var-chipset", chipset)));
    let link = url::Url::parse_with_params(base?, variables).ok()?;
    Some(link.into())
}
