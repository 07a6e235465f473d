//! A recording as a reader of reports.

use std::sync::Arc;

use epwatch_stats::SparseHistogram;
use jiff::Timestamp;

use crate::cohort::{ModelKey, VersionOnChipset};
use crate::hash::HashMap;
use crate::read::certified::Certified;
use crate::read::cpu_nodes::unexpected;
use crate::read::error::SourceError;
use crate::read::history::HistoryByModel;
use crate::read::reader::{Answer, Beginning, ReportReader, WindowsAsked, WindowsByModel};
use crate::read::selves::{Asked, SelvesBefore};
use crate::read::span::{PastSpan, Span};
use crate::verdict::CpuNodes;

use super::Recording;

#[derive(Debug, Clone)]
pub(in crate::read) struct RecordingReader(pub(in crate::read) Arc<Recording>);

/// What is in memory is there at once.
fn at_once<'a, T: Send + 'a>(answer: Result<T, SourceError>) -> Answer<'a, T> {
    Box::pin(std::future::ready(answer))
}

impl ReportReader for RecordingReader {
    fn received(&self) -> Answer<'_, Option<(Timestamp, Timestamp)>> {
        at_once(Ok(self.0.received()))
    }

    fn begin<'a>(&'a self, _span: &'a Span) -> Answer<'a, Beginning> {
        at_once(Ok(Beginning {
            reader: Arc::new(self.clone()),
            census: self.0.census.clone(),
            certified: Certified::default(),
        }))
    }

    fn windows<'a>(&'a self, asked: WindowsAsked<'a>) -> Answer<'a, WindowsByModel> {
        at_once(Ok(self.0.windows(asked)))
    }

    fn histograms<'a>(
        &'a self,
        version: &'a VersionOnChipset,
        span_s: (i64, i64),
    ) -> Answer<'a, Vec<(Arc<str>, SparseHistogram)>> {
        at_once(self.0.latency_before(version, span_s))
    }

    fn selves_before<'a>(
        &'a self,
        wanted: &'a [VersionOnChipset],
        asked: Asked,
        span: &'a Span,
    ) -> Answer<'a, HashMap<VersionOnChipset, SelvesBefore>> {
        at_once(self.0.selves_before(wanted, asked, span))
    }

    fn cpu_nodes<'a>(
        &'a self,
        version: (&'a ModelKey, &'a str),
        fingerprints: &'a [u64],
    ) -> Answer<'a, CpuNodes> {
        at_once(Ok(unexpected(self.0.nodes(version, fingerprints))))
    }

    fn history(&self, _past: PastSpan) -> Answer<'_, Arc<HistoryByModel>> {
        at_once(Ok(Arc::default()))
    }
}
