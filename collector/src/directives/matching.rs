//! Matches the reports of a call against directive scopes. It decodes only the messages that scopes name.

use bytes::Bytes;
use epwatch_proto::{Chipset, DirectiveScope, v1};
use prost::Message;

use crate::ingest::auth::Scope;

/// The fields of a report that scopes name; prost skips all others, above all series and placements.
#[derive(Clone, PartialEq, prost::Message)]
struct ReportHead {
    #[prost(message, optional, tag = "1")]
    key: Option<KeyHead>,
    #[prost(message, optional, tag = "8")]
    app: Option<v1::App>,
    #[prost(message, optional, tag = "9")]
    device: Option<v1::Device>,
    #[prost(message, repeated, tag = "12")]
    sessions: Vec<SessionHead>,
    #[prost(message, repeated, tag = "15")]
    start_failures: Vec<v1::StartFailure>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct KeyHead {
    #[prost(bytes = "bytes", tag = "1")]
    installation: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SessionHead {
    #[prost(message, optional, tag = "2")]
    model: Option<v1::Model>,
}

/// The values of one report that scopes can name.
#[derive(Debug, Clone, PartialEq)]
struct ReporterFacts {
    app_id: String,
    /// The chipset in two forms: as the device normalised it, which the SDK compares, and as this collector does.
    chipsets: [String; 2],
    firmware: String,
    /// Ids and versions.
    models: Vec<(String, String)>,
}

pub(super) type InstallationBytes = [u8; 16];

/// The distinct values and installations of a call's reports, mostly one of each.
#[derive(Debug, Default)]
pub(super) struct CallReporters {
    facts: Vec<ReporterFacts>,
    pub(super) installations: Vec<InstallationBytes>,
}

impl CallReporters {
    /// Skips reports that are unreadable or beyond the key's scope.
    pub(super) fn read(scope: &Scope, reports: &[Bytes]) -> Self {
        let mut known = Self::default();
        for bytes in reports {
            let Ok(report) = ReportHead::decode(bytes.clone()) else {
                continue;
            };
            let (app, device) = (
                report.app.unwrap_or_default(),
                report.device.unwrap_or_default(),
            );
            if !scope.admits(&app.id, &app.environment) {
                continue;
            }
            let read_here =
                Chipset::normalise(&device.chipset_raw, &device.soc_manufacturer, &device.board);
            let sessions = report.sessions.into_iter().filter_map(|s| s.model);
            let failures = report.start_failures.into_iter().filter_map(|f| f.model);
            let models = sessions.chain(failures).map(|m| (m.id, m.version));
            let mut models: Vec<_> = models.collect();
            models.sort_unstable();
            models.dedup();
            let facts = ReporterFacts {
                app_id: app.id,
                chipsets: [device.chipset, read_here.as_str().to_owned()],
                firmware: device.vendor_fingerprint_hash,
                models,
            };
            if !known.facts.contains(&facts) {
                known.facts.push(facts);
            }
            let installation = report.key.unwrap_or_default().installation;
            if let Ok(installation) = InstallationBytes::try_from(&*installation)
                && !known.installations.contains(&installation)
            {
                known.installations.push(installation);
            }
        }
        known
    }

    /// True if one report matches every field of the scope.
    pub(super) fn is_meant(&self, scope: &DirectiveScope) -> bool {
        let is_meant = |facts: &ReporterFacts| facts.is_on(scope) && facts.runs(scope);
        self.facts.iter().any(is_meant)
    }

    /// True if app and device match, without regard to models: a revocation must reach a device that has not loaded
    /// the model since.
    pub(super) fn may_hold(&self, scope: &DirectiveScope) -> bool {
        self.facts.iter().any(|facts| facts.is_on(scope))
    }
}

fn fits(asked: &str, found: &str) -> bool {
    asked.is_empty() || asked == found
}

impl ReporterFacts {
    fn is_on(&self, scope: &DirectiveScope) -> bool {
        fits(&scope.app_id, &self.app_id)
            && fits(&scope.vendor_fingerprint_hash, &self.firmware)
            && self
                .chipsets
                .iter()
                .any(|found| fits(&scope.chipset, found))
    }

    fn runs(&self, scope: &DirectiveScope) -> bool {
        let names_none = scope.model_id.is_empty() && scope.model_version.is_empty();
        names_none
            || self.models.iter().any(|(id, version)| {
                fits(&scope.model_id, id) && fits(&scope.model_version, version)
            })
    }
}
