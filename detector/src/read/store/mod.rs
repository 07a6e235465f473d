//! Reads reports from the store's versioned views. SQL only selects and adds up; Rust interprets the rows. Rows are
//! streamed. Between evaluations it holds the census of the look-back and the rows of the window, each up to a bound,
//! and earlier windows.

mod buckets;
mod census_cache;
mod deduplicated;
mod events;
mod groups;
mod held_window;
mod history;
mod nodes;
mod queries;
mod reports;
mod text_cache;
mod windows;

use std::sync::Arc;

use clickhouse::{Client, Row};
use epwatch_model::{Installation, ModelKey, VersionOnChipset};
use epwatch_proto::hex;
use epwatch_stats::RangeHistogram;
use futures::future::BoxFuture;
use jiff::Timestamp;
use serde::Deserialize;

use crate::judge::certified::{Certified, CertifiedRow};
use crate::judge::hash::{HashMap, HashSet};
use crate::judge::sybil_resistance::{NetworkHash, Sender};
use crate::judge::verdict::CpuNodes;

use super::cpu_nodes::NodesRow;
use super::device_baselines::{BaselineRequest, DeviceBaselines};
use super::error::{SourceError, failed, histogram_for};
use super::feedback::{Feedback, feedback};
use super::history::HistoryByModel;
use super::reader::{
    Beginning, HeldLookBack, ReadFuture, ReportReader, WindowsAsked, WindowsByModel,
};
use super::span::{PastSpan, Span};
use census_cache::CensusCache;
pub(super) use census_cache::MAX_HELD_BYTES;
use deduplicated::Counted;
use held_window::{HeldWindow, WindowRows};
use history::CachedHistory;
use nodes::CachedNodes;
use queries::{
    CERTIFIED, MAX_NAMED_DEVICES, MAX_QUERY_BYTES, NODES, SENDERS, latency_before, of_clean_series,
};

/// A clone for one evaluation shares all but `counted` and `window`.
#[derive(Debug, Clone)]
pub(super) struct StoreReader {
    counted: Counted,
    look_back: Arc<tokio::sync::Mutex<LookBack>>,
    /// The rows of the evaluation's window, if they are held.
    window: Option<Arc<WindowRows>>,
    history: Arc<CachedHistory>,
    nodes: Arc<CachedNodes>,
}

/// Data about reports that is held between evaluations.
#[derive(Debug)]
struct LookBack {
    census: CensusCache,
    window: HeldWindow,
}

/// The runs of a version with one input shape.
#[derive(Row, Deserialize)]
struct HistogramRow {
    shape_key: String,
    hist_bucket: Vec<u16>,
    hist_count: Vec<u64>,
}

#[derive(Row, Deserialize)]
struct SenderRow {
    device: u128,
    is_own: bool,
    first_network: (u32, u32),
}

impl SenderRow {
    fn sender(self) -> (Installation, Sender) {
        let (narrow, wide) = self.first_network;
        let network = NetworkHash { narrow, wide };
        let sender = Sender {
            is_own: self.is_own,
            network: (narrow != 0).then_some(network),
        };
        (self.device.to_le_bytes(), sender)
    }
}

impl StoreReader {
    /// Reads through `client`, whose database has the migrations. Holds a look-back and the rows of a window, of at most
    /// `max_bytes` each.
    pub(super) fn new(client: Client, max_bytes: usize) -> Self {
        let look_back = LookBack {
            census: CensusCache::of_at_most(max_bytes),
            window: HeldWindow::of_at_most(max_bytes),
        };
        Self {
            counted: Counted::new(client),
            look_back: Arc::new(tokio::sync::Mutex::new(look_back)),
            window: None,
            history: Arc::default(),
            nodes: Arc::default(),
        }
    }

    /// Reads every certification. Labs certify by hand, so they are few.
    async fn certified(&self) -> Result<Certified, SourceError> {
        let client = self.counted.client.clone().with_validation(false);
        let rows = client.query(CERTIFIED).fetch_all::<CertifiedRow>().await;
        rows.map(Certified::from_rows)
            .map_err(failed("certified placements"))
    }
}

impl ReportReader for StoreReader {
    fn feedback(&self, time: (Timestamp, Timestamp)) -> ReadFuture<'_, Option<Feedback>> {
        Box::pin(async move { feedback(&self.counted.client, time).await.map(Some) })
    }

    fn received(&self) -> ReadFuture<'_, Option<(Timestamp, Timestamp)>> {
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

    /// Queries that do not need each other's answers run at the same time. The store works on two at a time, and on one
    /// while another's answer is read.
    fn begin<'a>(&'a self, span: &'a Span) -> ReadFuture<'a, Beginning> {
        let census = async {
            let counted = self.counted.settled().await?;
            let LookBack { census, window } = &mut *self.look_back.lock().await;
            let read = census.read(&counted, span).await?;
            let window = match census.copies() {
                Some(copies) => window.read(&counted, span, copies).await?,
                None => {
                    window.clear();
                    None
                }
            };
            Ok((counted, read, window))
        };
        Box::pin(async {
            let ((counted, census, window), certified) =
                tokio::try_join!(census, self.certified())?;
            self.nodes.bound();
            let reader = Self {
                counted,
                window,
                ..self.clone()
            };
            Ok(Beginning {
                reader: Arc::new(reader),
                census,
                certified,
            })
        })
    }

    fn windows<'a>(&'a self, asked: WindowsAsked<'a>) -> ReadFuture<'a, WindowsByModel> {
        Box::pin(self.counted.windows(asked, self.window.as_deref()))
    }

    fn histograms<'a>(
        &'a self,
        (model, version, chipset): &'a VersionOnChipset,
        span_s: (i64, i64),
    ) -> ReadFuture<'a, Vec<(Arc<str>, RangeHistogram)>> {
        let query = self.counted.query(&latency_before());
        let query = of_clean_series(query, &[model.app()], span_s, (1, 0));
        let query = query.bind(&model.model_id).bind(version).bind(chipset);
        Box::pin(async move {
            let rows = query.fetch_all::<HistogramRow>().await;
            let rows = rows.map_err(failed("latency before"))?.into_iter();
            let histograms = rows.map(|row| {
                let counts = row.hist_bucket.into_iter().zip(row.hist_count);
                Ok((row.shape_key.into(), histogram_for(model, counts)?))
            });
            histograms.collect()
        })
    }

    fn device_baselines<'a>(
        &'a self,
        wanted: &'a [VersionOnChipset],
        asked: BaselineRequest,
        span: &'a Span,
    ) -> ReadFuture<'a, HashMap<VersionOnChipset, DeviceBaselines>> {
        Box::pin(self.counted.device_baselines(wanted, asked, span))
    }

    fn senders<'a>(
        &'a self,
        (app_id, environment): (&'a str, &'a str),
        devices: &'a HashSet<Installation>,
        span: &'a Span,
    ) -> ReadFuture<'a, Vec<(Installation, Sender)>> {
        let buckets = span.window_buckets();
        Box::pin(async move {
            let mut senders = Vec::with_capacity(devices.len());
            let devices: Vec<&Installation> = devices.iter().collect();
            for named in devices.chunks(MAX_NAMED_DEVICES) {
                let bytes: Vec<u8> = named.iter().copied().flatten().copied().collect();
                let query = self.counted.plain_query(SENDERS).bind(app_id);
                let query = query.bind(environment).bind(buckets.start);
                let query = query.bind(buckets.end).bind(buckets.start);
                let query = query.bind(hex(&bytes)).bind(named.len());
                let query = query.with_setting("max_query_size", MAX_QUERY_BYTES);
                let rows = query.fetch_all::<SenderRow>().await;
                let rows = rows.map_err(failed("the senders of reports"))?;
                senders.extend(rows.into_iter().map(SenderRow::sender));
            }
            Ok(senders)
        })
    }

    fn cpu_nodes<'a>(
        &'a self,
        (model, model_version): (&'a ModelKey, &'a str),
        fingerprints: &'a [u64],
    ) -> ReadFuture<'a, CpuNodes> {
        Box::pin(async move {
            let version = (model.clone(), model_version.to_owned());
            let unknown = self.nodes.unknown(&version, fingerprints);
            if !unknown.is_empty() {
                let query = self.counted.plain_query(NODES).bind(&model.app_id);
                let query = query.bind(&model.environment).bind(&model.model_id);
                let query = query.bind(model_version).bind(&unknown);
                let rows = query.fetch_all::<NodesRow>().await;
                let rows = rows.map_err(failed("nodes on the CPU"))?;
                self.nodes.add(&version, rows);
            }
            Ok(self.nodes.of(&version, fingerprints))
        })
    }

    fn history(&self, past: PastSpan) -> ReadFuture<'_, Arc<HistoryByModel>> {
        Box::pin(self.history.read(&self.counted.client, past))
    }

    fn held_look_back(&self) -> BoxFuture<'_, Option<HeldLookBack>> {
        Box::pin(async {
            let LookBack { census, window } = &*self.look_back.lock().await;
            let mut held = census.held();
            held.window_buckets_read = window.buckets_read();
            held.bytes += window.bytes();
            Some(held)
        })
    }
}
