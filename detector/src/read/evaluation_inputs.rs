//! Inputs of one evaluation: the data that its models share, and the reader of their windows.

use std::collections::BTreeMap;
use std::sync::Arc;

use epwatch_model::{Installation, ModelKey, VersionOnChipset};
use jiff::Timestamp;

use crate::judge::baseline::BaselineLatency;
use crate::judge::certified::Certified;
use crate::judge::hash::{HashMap, HashSet};
use crate::judge::sybil_resistance::Senders;
use crate::judge::verdict::CpuNodes;

use super::arrivals::NewInstallations;
use super::census::Census;
use super::device_baselines::{BaselineRequest, DeviceBaselines};
use super::error::SourceError;
use super::event_log::WindowEvents;
use super::history::HistoryByModel;
use super::model_windows::{FoundModel, ModelWindows};
use super::reader::{Beginning, ReportReader, WindowsAsked, apps_of};
use super::reporting::{Reporting, reporting};
use super::span::Span;
use super::succession::Succession;

/// Inputs of one evaluation.
#[derive(Debug)]
pub struct EvaluationInputs {
    reader: Arc<dyn ReportReader>,
    span: Span,
    max_votes: usize,
    census: Arc<Census>,
    certified: Certified,
    events: WindowEvents,
    history: Arc<HistoryByModel>,
    /// Models with reports in the window, in order. They include models that only failed to start.
    pub models: Vec<FoundModel>,
    /// New installations that vote.
    pub arrivals: NewInstallations,
}

impl EvaluationInputs {
    pub(super) fn of(
        begun: Beginning,
        history: Arc<HistoryByModel>,
        span: Span,
        max_votes: usize,
    ) -> Self {
        let census = begun.census;
        let arrivals = census.arrivals(&span);
        let events = census.events.of_window(&span, &arrivals);
        let mut models = census.models(&span);
        for (model, cohorts) in events.failing() {
            if !models.iter().any(|found| found.model == *model) {
                models.push(FoundModel {
                    model: model.clone(),
                    cohorts,
                    sessions: 0,
                });
            }
        }
        models.sort_by(|a, b| a.model.cmp(&b.model));
        Self {
            reader: begun.reader,
            span,
            max_votes,
            census,
            certified: begun.certified,
            events,
            history,
            models,
            arrivals,
        }
    }

    /// Returns how many devices reported, for each app and version that may lack devices.
    #[must_use]
    pub fn reporting(&self) -> Vec<Reporting> {
        reporting(&self.census, &self.span)
    }

    /// Reads the windows of some models of the same or of neighbouring apps. A model fails alone if it has more votes
    /// than the bound, or an impossible histogram.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn windows(
        &self,
        models: &[FoundModel],
    ) -> Result<HashMap<ModelKey, Result<ModelWindows, SourceError>>, SourceError> {
        let asked = WindowsAsked {
            models,
            span: &self.span,
            arrivals: &self.arrivals,
            max_votes: self.max_votes,
        };
        let mut found = self.reader.windows(asked).await?;
        let apps = apps_of(models.iter().map(|found| &found.model));
        let mut census = self.census.of_apps(&apps, &self.span);
        let windows = models.iter().map(|FoundModel { model, .. }| {
            let cohorts = found.remove(model).unwrap_or_else(|| Ok(Vec::new()));
            let windows = cohorts.map(|mut cohorts| {
                self.events.attach(model, &mut cohorts, &self.span);
                let census = census.remove(model).unwrap_or_default();
                ModelWindows {
                    model: model.clone(),
                    cohorts,
                    census: census.placements,
                    versions: census.versions,
                    certified: self.certified.of(model),
                    earlier: self.history.get(model).cloned().unwrap_or_default(),
                }
            });
            (model.clone(), windows)
        });
        Ok(windows.collect())
    }

    /// Returns a version's merged clean latency on a chipset before the window and before `until`, by input shape.
    pub(crate) async fn latency_before(
        &self,
        version: &VersionOnChipset,
        until: Timestamp,
    ) -> Result<BTreeMap<Arc<str>, BaselineLatency>, SourceError> {
        let before = self.span.before(until);
        let histograms = self.reader.histograms(version, before).await?;
        let latencies = histograms.into_iter().filter_map(|(shape_key, histogram)| {
            let latency = BaselineLatency {
                n: histogram.n(),
                p50_us: histogram.quantile(0.5)?,
                p95_us: histogram.quantile(0.95)?,
            };
            Some((shape_key, latency))
        });
        Ok(latencies.collect())
    }

    /// Returns baselines from before the window, for devices of some versions of a model on chipsets.
    pub(crate) async fn device_baselines(
        &self,
        wanted: &[VersionOnChipset],
        asked: BaselineRequest,
    ) -> Result<HashMap<VersionOnChipset, DeviceBaselines>, SourceError> {
        self.reader
            .device_baselines(wanted, asked, &self.span)
            .await
    }

    /// Returns the versions that the devices of a version on a chipset now have.
    pub(crate) fn succession(&self, version: &VersionOnChipset) -> Succession {
        self.census.succession(version, &self.span)
    }

    /// Returns the senders of some devices of a model's app in the window. Only devices of pages are read, because an
    /// app may have millions of others.
    pub(crate) async fn senders(
        &self,
        model: &ModelKey,
        devices: &HashSet<Installation>,
    ) -> Result<Senders, SourceError> {
        let senders = self.reader.senders(model.app(), devices, &self.span);
        let senders = senders.await?;
        let (established, is_any) = self.census.established(&model.app_id, devices, &self.span);
        Ok(Senders::new(senders, established, !is_any))
    }

    /// Returns the nodes on the CPU that should not be there, for some fingerprints.
    pub(crate) async fn cpu_nodes(
        &self,
        model: &ModelKey,
        model_version: &str,
        fingerprints: &[u64],
    ) -> Result<CpuNodes, SourceError> {
        let version = (model, model_version);
        self.reader.cpu_nodes(version, fingerprints).await
    }
}
