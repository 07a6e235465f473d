//! Reads reports from the store's versioned views. SQL only selects and adds; what it means is decided in
//! Rust. Rows are streamed, and a device's histogram lives only until its quantiles are taken. From one
//! evaluation to the next it holds the look-back, up to a bound, and what earlier windows had.

mod certified;
mod deduplicated;
mod device_events;
mod held_past;
mod look_back;
mod nodes;
mod places;
mod queries;
mod reports;
mod usual;
mod windows;

use std::sync::Arc;

use clickhouse::{Client, Row};
use futures::future::BoxFuture;
use jiff::Timestamp;
use serde::Deserialize;

use crate::cohort::{App, Installation, ModelKey};
use crate::hash::HashMap;
use crate::verdict::CpuNodes;

use super::arrivals::Flood;
use super::census::Census;
use super::error::{SourceError, failed};
use super::reader::{
    Answer, Beginning, FoundWindows, ReportReader, VersionOnChipset, WindowsAsked, apps_of,
};
use super::rows::{HistogramRow, NodesRow};
use super::span::PastSpan;
use super::usual::Usual;
use super::{Asked, SelvesBefore, Span};
use deduplicated::Counted;
use held_past::HeldPast;
pub use look_back::HeldLookBack;
use look_back::LookBack;
pub(super) use look_back::MAX_HELD_BYTES;
use nodes::NodesAsked;
use queries::{FLOODED, LATENCY_BEFORE, NODES, of_clean_series};
use windows::Reader;

#[derive(Clone)]
pub(super) struct StoreReader {
    counted: Counted,
    /// All evaluations share it.
    look_back: Arc<tokio::sync::Mutex<LookBack>>,
    /// Of the look-back of one evaluation.
    census: Option<Arc<Census>>,
    held_past: Arc<HeldPast>,
    /// Nodes that one evaluation asked for.
    nodes: Arc<NodesAsked>,
}

/// When an installation was first received.
#[derive(Row, Deserialize)]
struct FirstReceipt {
    at_ms: i64,
    new: Installation,
}

impl StoreReader {
    /// Reads through `client`, whose database has the migrations; holds a look-back of at most
    /// `look_back_bytes`.
    pub(super) fn new(client: Client, look_back_bytes: usize) -> Self {
        let look_back = LookBack::of_at_most(look_back_bytes);
        Self {
            counted: Counted::new(client),
            look_back: Arc::new(tokio::sync::Mutex::new(look_back)),
            census: None,
            held_past: Arc::default(),
            nodes: Arc::default(),
        }
    }

    /// Looks at the copies of open buckets, once for all queries.
    async fn settled(&self) -> Result<Self, SourceError> {
        Ok(Self {
            counted: self.counted.settled().await?,
            nodes: Arc::default(),
            census: None,
            ..self.clone()
        })
    }

    /// Reads of the look-back what is not held.
    async fn with_census(self, span: &Span) -> Result<Self, SourceError> {
        Ok(Self {
            census: Some(self.read_census(span).await?),
            ..self
        })
    }

    async fn read_census(&self, span: &Span) -> Result<Arc<Census>, SourceError> {
        match &self.census {
            Some(census) => Ok(census.clone()),
            None => self.look_back.lock().await.read(&self.counted, span).await,
        }
    }

    fn reader<'a>(&'a self, span: &'a Span) -> Reader<'a> {
        Reader {
            store: &self.counted,
            span,
        }
    }

    async fn read_windows(&self, asked: WindowsAsked<'_>) -> Result<FoundWindows, SourceError> {
        let mut found = self.reader(asked.span).windows(asked).await?;
        if asked.without_past {
            return Ok(found);
        }
        let told = self.held_past.of(asked.span.past());
        let apps = apps_of(asked.models.iter().map(|found| &found.model)).into_iter();
        let apps = apps.map(|(app, environment)| (app.to_owned(), environment.to_owned()));
        let client = &self.counted.client;
        told.ask_histories(client, apps.collect()).await?;
        for (model, slot) in &mut found.models {
            slot.histories = told.of_model(model);
        }
        Ok(found)
    }
}

impl ReportReader for StoreReader {
    fn received(&self) -> Answer<'_, Option<(Timestamp, Timestamp)>> {
        Box::pin(async move {
            let query = self.counted.query(
                "SELECT toUnixTimestamp64Milli(min(received_at)), \
                 toUnixTimestamp64Milli(max(received_at)), count() FROM counted_reports_v1",
            );
            let (first, last, n) = query
                .fetch_one::<(i64, i64, u64)>()
                .await
                .map_err(failed("the first and last report"))?;
            let at = |ms| Timestamp::from_millisecond(ms).ok();
            Ok((n > 0).then(|| at(first).zip(at(last))).flatten())
        })
    }

    fn prepared<'a>(&'a self, span: &'a Span) -> Answer<'a, Arc<dyn ReportReader>> {
        Box::pin(async move {
            let prepared = self.settled().await?.with_census(span).await?;
            Ok(Arc::new(prepared) as Arc<dyn ReportReader>)
        })
    }

    /// Queries that do not need each other's answers run at the same time: the store works on two at a
    /// time, and on one while another's answer is read.
    fn begin<'a>(&'a self, span: &'a Span) -> Answer<'a, Beginning> {
        Box::pin(async move {
            let counted = async {
                let settled = self.settled().await?;
                let reported = device_events::read(&settled.counted, span);
                tokio::try_join!(settled.clone().with_census(span), reported)
            };
            let certified = certified::read(&self.counted.client);
            let ((prepared, reported), certified) = tokio::try_join!(counted, certified)?;
            Ok(Beginning {
                reader: Arc::new(prepared),
                reported,
                certified,
            })
        })
    }

    fn census<'a>(&'a self, span: &'a Span) -> Answer<'a, Arc<Census>> {
        Box::pin(self.read_census(span))
    }

    fn arrivals_in<'a>(
        &'a self,
        (app_id, environment): &'a App,
        flood: &'a Flood,
        span: &'a Span,
    ) -> Answer<'a, Vec<(i64, Installation)>> {
        let query = self.counted.query(FLOODED).bind(app_id).bind(environment);
        let query = query.bind(span.earliest_s()).bind(span.end_s());
        let query = query.bind(span.earliest_s());
        let query = query.bind(flood.from_s).bind(flood.to_s);
        let what = "installations of a flood";
        Box::pin(async move {
            let rows = query.fetch_all::<FirstReceipt>().await;
            let rows = rows.map_err(failed(what))?.into_iter();
            Ok(rows.map(|row| (row.at_ms, row.new)).collect())
        })
    }

    fn windows<'a>(&'a self, asked: WindowsAsked<'a>) -> Answer<'a, FoundWindows> {
        Box::pin(self.read_windows(asked))
    }

    fn histograms<'a>(
        &'a self,
        (model, version, chipset): &'a VersionOnChipset,
        span_s: (i64, i64),
    ) -> Answer<'a, Vec<HistogramRow>> {
        let app = [(&*model.app_id, &*model.environment)];
        let query = self.counted.query(LATENCY_BEFORE);
        let query = of_clean_series(query, &app, span_s, (1, 0));
        let query = query.bind(&model.model_id).bind(version).bind(chipset);
        Box::pin(async { query.fetch_all().await.map_err(failed("latency before")) })
    }

    fn selves_before<'a>(
        &'a self,
        wanted: &'a [VersionOnChipset],
        asked: Asked,
        span: &'a Span,
    ) -> Answer<'a, HashMap<VersionOnChipset, SelvesBefore>> {
        Box::pin(async move { self.reader(span).selves_before(wanted, asked).await })
    }

    fn cpu_nodes<'a>(
        &'a self,
        (model, model_version): (&'a ModelKey, &'a str),
        fingerprints: &'a [u64],
    ) -> Answer<'a, CpuNodes> {
        Box::pin(async move {
            let version = (model.clone(), model_version.to_owned());
            let unknown = self.nodes.unknown(&version, fingerprints);
            if !unknown.is_empty() {
                let query = self.counted.plain_query(NODES).bind(&model.app_id);
                let query = query.bind(&model.environment).bind(&model.model_id);
                let query = query.bind(model_version).bind(&unknown);
                let rows = query.fetch_all::<NodesRow>().await;
                let rows = rows.map_err(failed("nodes on the CPU"))?;
                self.nodes.add(&version, &unknown, rows);
            }
            Ok(self.nodes.of(&version, fingerprints))
        })
    }

    fn usual(&self, past: PastSpan) -> Answer<'_, Arc<Usual>> {
        Box::pin(async move {
            let told = self.held_past.of(past);
            told.usual(&self.counted.client).await
        })
    }

    fn look_ahead(&self, past: PastSpan) -> Answer<'_, ()> {
        Box::pin(self.held_past.look_ahead(&self.counted.client, past))
    }

    fn held_look_back(&self) -> BoxFuture<'_, Option<HeldLookBack>> {
        Box::pin(async { Some(self.look_back.lock().await.held()) })
    }
}
