//! Reading reports: one trait, for the store's views and for a recording. Both give the same rows for the same reports,
//! so all later steps share one code.

use std::fmt;
use std::sync::Arc;

use epwatch_model::{Installation, ModelKey, VersionOnChipset};
use epwatch_stats::RangeHistogram;
use futures::future::BoxFuture;
use jiff::Timestamp;

use crate::judge::certified::Certified;
use crate::judge::hash::{HashMap, HashSet};
use crate::judge::sybil_resistance::Sender;
use crate::judge::verdict::CpuNodes;
use crate::judge::window::CohortWindow;

use super::arrivals::NewInstallations;
use super::census::Census;
use super::device_baselines::{BaselineRequest, DeviceBaselines};
use super::error::SourceError;
use super::feedback::Feedback;
use super::history::HistoryByModel;
use super::model_windows::FoundModel;
use super::span::{PastSpan, Span};

/// An answer that may take a while.
pub(super) type ReadFuture<'a, T> = BoxFuture<'a, Result<T, SourceError>>;

/// Windows of each model. A model that failed does not hide the others.
pub(super) type WindowsByModel = HashMap<ModelKey, Result<Vec<CohortWindow>, SourceError>>;

/// Reads reports for windows.
pub(super) trait ReportReader: fmt::Debug + Send + Sync {
    /// Returns when the first and the last report were received; `None` without any.
    fn received(&self) -> ReadFuture<'_, Option<(Timestamp, Timestamp)>>;

    /// Reads what all models of an evaluation share.
    fn begin<'a>(&'a self, span: &'a Span) -> ReadFuture<'a, Beginning>;

    /// Reads the windows of some models of the same or of neighbouring apps.
    fn windows<'a>(&'a self, asked: WindowsAsked<'a>) -> ReadFuture<'a, WindowsByModel>;

    /// Returns a version's merged clean histograms on a chipset in a span of seconds, by input shape.
    fn histograms<'a>(
        &'a self,
        version: &'a VersionOnChipset,
        span_s: (i64, i64),
    ) -> ReadFuture<'a, Vec<(Arc<str>, RangeHistogram)>>;

    /// Returns baselines from before the window, for devices of some versions on chipsets.
    fn device_baselines<'a>(
        &'a self,
        wanted: &'a [VersionOnChipset],
        asked: BaselineRequest,
        span: &'a Span,
    ) -> ReadFuture<'a, HashMap<VersionOnChipset, DeviceBaselines>>;

    /// Returns who sent the reports of some devices of an app and environment in the window.
    fn senders<'a>(
        &'a self,
        app: (&'a str, &'a str),
        devices: &'a HashSet<Installation>,
        span: &'a Span,
    ) -> ReadFuture<'a, Vec<(Installation, Sender)>>;

    /// Returns the nodes on the CPU that should not be there, by fingerprint.
    fn cpu_nodes<'a>(
        &'a self,
        version: (&'a ModelKey, &'a str),
        fingerprints: &'a [u64],
    ) -> ReadFuture<'a, CpuNodes>;

    /// Returns the sums over earlier windows whose verdicts are stored.
    fn history(&self, past: PastSpan) -> ReadFuture<'_, Arc<HistoryByModel>>;

    /// Returns the incidents that began in a span of time and that people called false. `None` if reports are in
    /// memory, because there are no orders then.
    fn feedback(&self, _time: (Timestamp, Timestamp)) -> ReadFuture<'_, Option<Feedback>> {
        Box::pin(async { Ok(None) })
    }

    /// Returns figures of the look-back that is held between evaluations; `None` if reports are in memory, because none
    /// is held then.
    fn held_look_back(&self) -> BoxFuture<'_, Option<HeldLookBack>> {
        Box::pin(async { None })
    }
}

/// Readings that all models of an evaluation share.
pub(super) struct Beginning {
    /// The reader for this evaluation, which reads shared data once.
    pub(super) reader: Arc<dyn ReportReader>,
    pub(super) census: Arc<Census>,
    pub(super) certified: Certified,
}

/// The windows to read.
#[derive(Clone, Copy)]
pub(super) struct WindowsAsked<'a> {
    pub(super) models: &'a [FoundModel],
    pub(super) span: &'a Span,
    pub(super) arrivals: &'a NewInstallations,
    pub(super) max_votes: usize,
}

/// Figures of the look-back that is held between evaluations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldLookBack {
    /// Buckets read so far, by all evaluations. After the first evaluation, only new and changed buckets are read.
    pub buckets_read: u64,
    /// Buckets whose rows were read for windows.
    pub window_buckets_read: u64,
    /// Approximate bytes of memory, including rows of the window.
    pub bytes: usize,
}

/// Returns the apps of models, with their environments, each once.
pub(super) fn apps_of<'a>(models: impl Iterator<Item = &'a ModelKey>) -> Vec<(&'a str, &'a str)> {
    let mut apps: Vec<_> = models.map(ModelKey::app).collect();
    apps.sort_unstable();
    apps.dedup();
    apps
}
