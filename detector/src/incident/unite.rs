//! Incidents with one cause: a fault that lives on in the next version, or one driver that slows several models of an
//! app. The first of them is sent, the others are parts of it and stay quiet as long as it says enough.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::reason::Reason;
use crate::verdict::CohortVerdict;

use super::model::{Incident, IncidentKey};

/// Makes incidents that fire now parts of an earlier one, and releases parts that it no longer covers. Returns the
/// incidents that changed.
pub(super) fn unite(
    incidents: &mut BTreeMap<IncidentKey, Incident>,
    now: Timestamp,
) -> Vec<IncidentKey> {
    let mut changed = Vec::new();
    for key in incidents.keys().cloned().collect::<Vec<_>>() {
        let incident = &incidents[&key];
        // People who were told of an incident stay told of it.
        let fires_now = incident.fired_at == Some(now) && incident.delivered.is_empty();
        if !incident.state.is_notified() || !(fires_now || incident.part_of.is_some()) {
            continue;
        }
        let whole = incidents.values().find(|other| {
            let same = incident.part_of.is_none() || incident.part_of.as_ref() == Some(&other.id);
            same && other.covers(incident) && other.has_cause_of(incident, incidents)
        });
        let (id, name) = (whole.map(|whole| whole.id.clone()), incident.name());
        let whole = whole.map(|whole| whole.key.clone());
        if incident.part_of == id {
            continue;
        }
        if let Some(whole) = whole.and_then(|key| incidents.get_mut(&key)) {
            whole.parts.insert(name);
            changed.push(whole.key.clone());
        }
        if let Some(incident) = incidents.get_mut(&key) {
            incident.part_of = id;
            // Nothing of it was sent, so its growth is not news.
            incident.superseded = None;
            changed.push(key);
        }
    }
    changed
}

impl Incident {
    /// Returns model and version.
    fn name(&self) -> String {
        format!("{} {}", self.key.model.model_id, self.key.model_version)
    }

    /// Whether this incident's notifications already have all facts of the other one: as severe, on these chipsets.
    fn covers(&self, other: &Incident) -> bool {
        let (app, of) = (&self.key.model, &other.key.model);
        let same_app = (&app.app_id, &app.environment) == (&of.app_id, &of.environment);
        let order = |one: &Incident| (one.fired_at, Reverse(one.severity()), one.key.clone());
        let chipsets = self.chipsets();
        self.state.is_notified()
            && self.part_of.is_none()
            && same_app
            && self.key.cause == other.key.cause
            && order(self) < order(other)
            && self.severity() >= other.severity()
            && other
                .chipsets()
                .iter()
                .all(|chipset| chipsets.contains(chipset))
    }

    fn has_cause_of(&self, other: &Incident, all: &BTreeMap<IncidentKey, Incident>) -> bool {
        if self.key.model != other.key.model {
            return self.slows_all_models()
                || other.slows_all_models()
                || self.same_firmware(other);
        }
        // The version before is this incident or a part of it, or both follow the same version.
        let mut before = all.values().filter(|one| {
            let is_in = one.id == self.id || one.part_of.as_ref() == Some(&self.id);
            is_in && one.key.model == other.key.model
        });
        let follows = other.lead().and_then(|lead| lead.follows.as_deref());
        before.any(|one| {
            let its = one.lead().and_then(|lead| lead.follows.as_deref());
            follows == Some(&*one.key.model_version) || (follows.is_some() && follows == its)
        })
    }

    fn reasons(&self) -> impl Iterator<Item = &Reason> {
        self.lead()
            .into_iter()
            .flat_map(|lead: &CohortVerdict| &lead.reasons)
    }

    /// Whether its devices are slower with their other models as well.
    fn slows_all_models(&self) -> bool {
        self.reasons().any(|reason| {
            matches!(
                reason,
                Reason::PeerControl { slowed: true, .. }
                    | Reason::CohortControl { .. }
                    | Reason::PeersMoved { .. }
            )
        })
    }

    fn same_firmware(&self, other: &Incident) -> bool {
        let firmware = |reason: &Reason| match reason {
            Reason::Firmware { firmware, .. } => Some(firmware.clone()),
            _ => None,
        };
        let own = self.reasons().find_map(firmware);
        own.is_some() && own == other.reasons().find_map(firmware)
    }
}
