//! Reading reports: one trait, for the store's views and for a recording. Both give the same rows for the
//! same reports, so everything after them is one code.

use std::sync::Arc;

use futures::future::BoxFuture;
use jiff::Timestamp;

use crate::cohort::{App, Installation, ModelKey};
use crate::hash::HashMap;
use crate::verdict::CpuNodes;
use crate::window::CohortWindow;

use super::arrivals::{Arrivals, Flood};
use super::census::{Census, ModelCensus};
use super::certified::Certified;
use super::reported::{StartRow, TestRow};
use super::rows::HistogramRow;
use super::span::PastSpan;
use super::usual::Usual;
use super::{Asked, FoundModel, HeldLookBack, SelvesBefore, SourceError, Span, VersionHistory};

/// An answer that may take a while.
pub(super) type Answer<'a, T> = BoxFuture<'a, Result<T, SourceError>>;

/// Reads reports for windows.
pub(super) trait ReportReader: Send + Sync {
    /// Returns when the first and the last report were received; `None` without any.
    fn received(&self) -> Answer<'_, Option<(Timestamp, Timestamp)>>;

    /// Returns a reader for one evaluation, with the same answers: what its queries share is read once.
    fn prepared<'a>(&'a self, span: &'a Span) -> Answer<'a, Arc<dyn ReportReader>>;

    /// Reads what an evaluation begins with.
    fn begin<'a>(&'a self, span: &'a Span) -> Answer<'a, Beginning>;

    /// Returns which devices reported in the look-back, and with which placement.
    fn census<'a>(&'a self, span: &'a Span) -> Answer<'a, Arc<Census>>;

    /// Returns which installations of an app were first received in a window, with their times of receipt in
    /// milliseconds since 1970.
    fn arrivals_in<'a>(
        &'a self,
        app: &'a App,
        flood: &'a Flood,
        span: &'a Span,
    ) -> Answer<'a, Vec<(i64, Installation)>>;

    /// Reads the windows of some models of the same or of neighbouring apps, and their past.
    fn windows<'a>(&'a self, asked: WindowsAsked<'a>) -> Answer<'a, FoundWindows>;

    /// Returns a version's merged clean histograms on a chipset in a span of seconds, by input shape.
    fn histograms<'a>(
        &'a self,
        version: &'a VersionOnChipset,
        span_s: (i64, i64),
    ) -> Answer<'a, Vec<HistogramRow>>;

    /// Returns what the devices of some versions on chipsets were used to before the window.
    fn selves_before<'a>(
        &'a self,
        wanted: &'a [VersionOnChipset],
        asked: Asked,
        span: &'a Span,
    ) -> Answer<'a, HashMap<VersionOnChipset, SelvesBefore>>;

    /// Returns the nodes on the CPU that should not be there, by fingerprint.
    fn cpu_nodes<'a>(
        &'a self,
        version: (&'a ModelKey, &'a str),
        fingerprints: &'a [u64],
    ) -> Answer<'a, CpuNodes>;

    /// Returns what earlier windows usually had.
    fn usual(&self, past: PastSpan) -> Answer<'_, Arc<Usual>>;

    /// Reads ahead what a later evaluation needs of earlier windows.
    fn look_ahead(&self, _past: PastSpan) -> Answer<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Returns what is held of the look-back between evaluations; `None` if nothing is: reports are in
    /// memory.
    fn held_look_back(&self) -> BoxFuture<'_, Option<HeldLookBack>> {
        Box::pin(async { None })
    }
}

/// What an evaluation begins with.
pub(super) struct Beginning {
    /// Answers for this evaluation, as [`ReportReader::prepared`].
    pub(super) reader: Arc<dyn ReportReader>,
    pub(super) reported: (Vec<TestRow>, Vec<StartRow>),
    pub(super) certified: Certified,
}

/// Which windows are read.
#[derive(Clone, Copy)]
pub(super) struct WindowsAsked<'a> {
    pub(super) models: &'a [FoundModel],
    pub(super) span: &'a Span,
    pub(super) arrivals: &'a Arrivals,
    pub(super) max_votes: usize,
    /// Whether the past comes from elsewhere.
    pub(super) without_past: bool,
}

/// What was read of some models for one window.
#[derive(Debug, Default)]
pub struct FoundWindows {
    pub(super) models: HashMap<ModelKey, WindowsOfModel>,
}

/// What was read of one model.
#[derive(Debug, Default)]
pub(super) struct WindowsOfModel {
    pub(super) cohorts: Option<Result<Vec<CohortWindow>, SourceError>>,
    pub(super) census: ModelCensus,
    /// Of earlier windows, where they are the store's.
    pub(super) histories: Arc<[VersionHistory]>,
}

/// A version of a model on a chipset.
pub type VersionOnChipset = (ModelKey, String, String);

/// Returns the apps of models, with their environments, each once.
pub(super) fn apps_of<'a>(models: impl Iterator<Item = &'a ModelKey>) -> Vec<(&'a str, &'a str)> {
    let mut apps: Vec<_> = models
        .map(|model| (&*model.app_id, &*model.environment))
        .collect();
    apps.sort_unstable();
    apps.dedup();
    apps
}
