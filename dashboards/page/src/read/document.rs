//! The document of an incident, as the detector stored it.

use epwatch_model::{CohortVerdict, Incident, IncidentCohort, Orders, read_document};
use epwatch_proto::error_chain;
use serde::Serialize;

/// An incident's data beyond its row.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct IncidentDocument {
    /// `None` without a document, or if another version of epwatch made it.
    #[serde(flatten)]
    pub(crate) incident: Option<Incident>,
    /// Whether another version of epwatch wrote the document, so it is not shown.
    pub(crate) is_of_another_version: bool,
}

impl IncidentDocument {
    pub(crate) fn read(text: &str) -> Self {
        if text.is_empty() {
            return Self::default();
        }
        match read_document(text) {
            Ok(incident) => Self {
                incident: Some(incident),
                is_of_another_version: false,
            },
            Err(error) => {
                let error = error_chain(&error);
                tracing::warn!(error, "an incident is shown without its document");
                Self {
                    incident: None,
                    is_of_another_version: true,
                }
            }
        }
    }

    /// Returns the versions that the incident is about: the row's own version, and the versions of its parts.
    pub(crate) fn versions<'a>(&'a self, own: &'a str) -> Vec<&'a str> {
        let incident = self.incident.as_ref();
        incident.map_or_else(|| vec![own], Incident::versions)
    }

    /// Returns the fault-free versions that the incident's devices run by now.
    pub(crate) fn moved(&self) -> Option<String> {
        self.incident.as_ref()?.moved()
    }

    /// Returns how many of the clean windows that it needs the incident has.
    pub(crate) fn progress(&self) -> Option<String> {
        Some(self.incident.as_ref()?.progress())
    }

    pub(crate) fn cohorts(&self) -> &[IncidentCohort] {
        self.incident
            .as_ref()
            .map_or(&[], |incident| &incident.cohorts)
    }

    /// Returns the orders that the detector has carried out.
    pub(crate) fn orders(&self) -> Orders {
        let incident = self.incident.as_ref();
        incident.map_or_else(Orders::default, |incident| incident.orders.clone())
    }

    /// Returns the verdict on the worst cohort.
    pub(crate) fn lead(&self) -> Option<&CohortVerdict> {
        self.incident.as_ref()?.lead()
    }

    /// Returns the verdict on a chipset with all its firmwares.
    pub(crate) fn of_chipset(&self, chipset: &str) -> Option<&CohortVerdict> {
        let mut verdicts = self.cohorts().iter().map(|cohort| &cohort.verdict);
        verdicts.find(|verdict| verdict.key.chipset == chipset && verdict.key.firmware.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_of_another_version_is_known_as_such() {
        for (text, is_of_another) in [
            ("", false),
            ("{}", true),
            (r#"{"version": 1, "news": 2}"#, true),
            (r#"{"version": 2, "news": 2}"#, true),
        ] {
            let document = IncidentDocument::read(text);
            assert_eq!(document.is_of_another_version, is_of_another, "{text}");
            assert_eq!(document.incident, None);
        }
    }
}
