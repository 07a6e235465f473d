//! A recording as a reader of reports.

use std::sync::Arc;

use epwatch_stats::SparseHistogram;
use jiff::Timestamp;

use crate::cohort::{App, Installation, ModelKey, VersionOnChipset};
use crate::hash::HashMap;
use crate::read::arrivals::Flood;
use crate::read::assemble::{VoteKey, WindowBuilder};
use crate::read::certified::Certified;
use crate::read::cpu_nodes::unexpected;
use crate::read::error::SourceError;
use crate::read::history::HistoryByModel;
use crate::read::reader::{Answer, Beginning, ReportReader, WindowsAsked, WindowsByModel};
use crate::read::selves::{Asked, SelvesBefore};
use crate::read::span::{PastSpan, Span};
use crate::verdict::CpuNodes;
use crate::window::CohortWindow;

use super::Recording;

#[derive(Debug, Clone)]
pub(in crate::read) struct RecordingReader(pub(in crate::read) Arc<Recording>);

/// What is in memory is there at once.
fn at_once<'a, T: Send + 'a>(answer: Result<T, SourceError>) -> Answer<'a, T> {
    Box::pin(std::future::ready(answer))
}

impl RecordingReader {
    fn cohorts(
        &self,
        model: &ModelKey,
        asked: WindowsAsked<'_>,
    ) -> Result<Vec<CohortWindow>, SourceError> {
        let WindowsAsked {
            span,
            arrivals,
            max_votes,
            ..
        } = asked;
        let recording = &self.0;
        let builder = WindowBuilder::new(model.clone(), span.end, span.window, max_votes);
        let mut builder = builder.with_arrivals(arrivals.of(model));
        let mut keys: HashMap<u32, VoteKey> = HashMap::default();
        for (kind, row) in recording.votes(model, span) {
            let key = *keys.entry(kind).or_insert_with(|| builder.key_of(&row.ran));
            builder.add_vote(key.of(row.ran.installation), row)?;
        }
        builder.end_votes()?;
        if builder.needs_earlier_runs() {
            recording.add_earlier(model, span, &mut keys, &mut builder)?;
        }
        for (kind, row) in recording.placements(model, span) {
            let key = *keys.entry(kind).or_insert_with(|| builder.key_of(&row.ran));
            builder.add_placement(key.of(row.ran.installation), row)?;
        }
        builder.finish()
    }
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

    fn arrivals_in<'a>(
        &'a self,
        app: &'a App,
        flood: &'a Flood,
        span: &'a Span,
    ) -> Answer<'a, Vec<(i64, Installation)>> {
        at_once(Ok(self.0.arrivals_in(app, flood, span)))
    }

    fn windows<'a>(&'a self, asked: WindowsAsked<'a>) -> Answer<'a, WindowsByModel> {
        let models = asked.models.iter().map(|found| &found.model);
        let windows = models.map(|model| (model.clone(), self.cohorts(model, asked)));
        at_once(Ok(windows.collect()))
    }

    fn histograms<'a>(
        &'a self,
        (model, version, chipset): &'a VersionOnChipset,
        span_s: (i64, i64),
    ) -> Answer<'a, Vec<(Arc<str>, SparseHistogram)>> {
        at_once(self.0.latency_before(model, (version, chipset), span_s))
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
        (model, model_version): (&'a ModelKey, &'a str),
        fingerprints: &'a [u64],
    ) -> Answer<'a, CpuNodes> {
        let rows = self.0.nodes(model, model_version, fingerprints);
        at_once(Ok(unexpected(rows)))
    }

    fn history(&self, _past: PastSpan) -> Answer<'_, Arc<HistoryByModel>> {
        at_once(Ok(Arc::default()))
    }
}
