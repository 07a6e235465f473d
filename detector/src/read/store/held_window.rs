//! Holds the rows of the window's buckets between evaluations. If a day's window moves by an hour, one bucket in 24 is
//! new.
//!
//! A bucket is used only while the copies that count in it are the copies whose rows were read. The
//! [`super::census_cache`] compares them. A window that takes more memory than the bound is not held. Then its reports
//! are read for some apps at a time, and go into windows at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use epwatch_model::Installation;
use epwatch_proto::SparseHistogram;
use epwatch_store::native::decode::Blocks;

use crate::judge::hash::HashMap;
use crate::read::assemble::{ModelId, SeriesRow, SessionRow, WindowBuilders};
use crate::read::error::{SourceError, failed};
use crate::read::interner::{Interner, Texts};
use crate::read::packed::{
    KnownSessions, PackedRows, RecordedSession, ReportedPlacement, Series, SeriesFields, rows,
};
use crate::read::reader::WindowsAsked;
use crate::read::span::{Bucket, Span};

use super::buckets::{of_buckets, portions};
use super::deduplicated::Counted;
use super::groups::Copies;
use super::reports::{self, ReportSink};

/// Assumed bytes of a report's rows before any report was read. One clean series of 20 buckets takes 160.
const BYTES_A_REPORT: usize = 250;

/// Number of reports in a window from which the bytes per report are learnt.
const ENOUGH_REPORTS: u64 = 10_000;

/// Estimated bytes of a placement or a text with its number, on the high side.
const BYTES_A_NAME: usize = 300;

/// Number of evaluations for which an unused bucket is held. Evaluations of recoveries and of older windows come in
/// between.
const UNUSED_EVALUATIONS: u64 = 4;

/// The name of the query in errors.
const WHAT: &str = "reports";

/// The rows that were read so far.
#[derive(Debug)]
pub(super) struct HeldWindow {
    max_bytes: usize,
    bytes_a_report: usize,
    evaluations: u64,
    buckets_read: u64,
    names: Arc<Names>,
    buckets: BTreeMap<Bucket, HeldBucket>,
}

#[derive(Debug)]
struct HeldBucket {
    rows: Arc<BucketRows>,
    needed_in: u64,
}

/// Texts and placements that the numbers in rows stand for, in all buckets.
#[derive(Debug, Clone, Default)]
struct Names {
    texts: Texts,
    groups: Interner<ReportedPlacement>,
}

/// All reports of one bucket.
#[derive(Debug, Default)]
struct BucketRows {
    copies: Copies,
    devices: Vec<Installation>,
    models: HashMap<ModelId, ModelRows>,
}

#[derive(Debug, Default)]
struct ModelRows {
    seen: Vec<u8>,
    series: Vec<u8>,
}

/// The rows of one evaluation's window.
#[derive(Debug)]
pub(super) struct WindowRows {
    names: Arc<Names>,
    buckets: Vec<(Bucket, Arc<BucketRows>)>,
}

/// A bucket whose reports are arriving.
#[derive(Debug, Default)]
struct OpenBucket {
    copies: Copies,
    devices: Interner<Installation>,
    models: HashMap<ModelId, ModelRows>,
}

/// Packs the reports of several buckets.
struct Packer<'a> {
    names: &'a mut Names,
    buckets: HashMap<Bucket, OpenBucket>,
    /// Bucket of the report.
    bucket: Bucket,
    /// Group of the session.
    group: u32,
}

impl HeldWindow {
    pub(super) fn of_at_most(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            bytes_a_report: BYTES_A_REPORT,
            evaluations: 0,
            buckets_read: 0,
            names: Arc::default(),
            buckets: BTreeMap::new(),
        }
    }

    pub(super) fn clear(&mut self) {
        self.names = Arc::default();
        self.buckets.clear();
    }

    pub(super) fn buckets_read(&self) -> u64 {
        self.buckets_read
    }

    pub(super) fn bytes(&self) -> usize {
        let of_rows = self.buckets.values().map(|held| held.rows.bytes());
        of_rows.sum::<usize>() + self.names.bytes()
    }

    /// Returns the rows of the window, in which exactly these copies count; `None` if they take too much memory.
    pub(super) async fn read(
        &mut self,
        store: &Counted,
        span: &Span,
        counted: &BTreeMap<Bucket, Copies>,
    ) -> Result<Option<Arc<WindowRows>>, SourceError> {
        let window: Vec<(Bucket, Copies)> = counted
            .range(span.window_buckets())
            .map(|(at, copies)| (*at, *copies))
            .collect();
        let reports: u64 = window.iter().map(|(_, copies)| copies.reports).sum();
        let expected = usize::try_from(reports).map(|n| n.saturating_mul(self.bytes_a_report));
        if expected.map_or(true, |bytes| bytes > self.max_bytes) {
            self.clear();
            return Ok(None);
        }
        // Names from dropped buckets stay until there are too many.
        if self.names.bytes() > self.max_bytes / 4 {
            self.clear();
        }
        let is_stale = |at: Bucket, rows: &BucketRows| {
            span.window_buckets().contains(&at) && counted.get(&at) != Some(&rows.copies)
        };
        self.buckets.retain(|at, held| !is_stale(*at, &held.rows));
        let new = window
            .iter()
            .filter(|(at, _)| !self.buckets.contains_key(at));
        let new: Vec<(Bucket, Copies)> = new.copied().collect();
        self.evaluations += 1;
        for some in portions(&new, |(_, copies)| copies.reports) {
            self.read_buckets(store, some).await?;
            self.buckets_read += some.len() as u64;
        }
        let now = self.evaluations;
        for (at, _) in &window {
            if let Some(held) = self.buckets.get_mut(at) {
                held.needed_in = now;
            }
        }
        self.buckets
            .retain(|_, held| held.needed_in + UNUSED_EVALUATIONS > now);
        let of_window = self.buckets.range(span.window_buckets());
        let rows = WindowRows {
            names: self.names.clone(),
            buckets: of_window
                .map(|(at, held)| (*at, held.rows.clone()))
                .collect(),
        };
        self.bound(&rows, reports);
        Ok(Some(Arc::new(rows)))
    }

    /// Drops rows beyond the bound, and learns how many bytes a report takes.
    fn bound(&mut self, window: &WindowRows, reports: u64) {
        let of_window: usize = window.buckets.iter().map(|(_, rows)| rows.bytes()).sum();
        if reports >= ENOUGH_REPORTS {
            let reports = usize::try_from(reports).unwrap_or(usize::MAX);
            self.bytes_a_report = (of_window / reports).max(1);
        }
        let now = self.evaluations;
        if self.bytes() > self.max_bytes {
            self.buckets.retain(|_, held| held.needed_in == now);
        }
        if self.bytes() > self.max_bytes {
            self.clear();
        }
    }

    /// A bucket whose reading failed or was stopped is not held.
    async fn read_buckets(
        &mut self,
        store: &Counted,
        wanted: &[(Bucket, Copies)],
    ) -> Result<(), SourceError> {
        let buckets: Vec<Bucket> = wanted.iter().map(|(at, _)| *at).collect();
        let mut packer = Packer {
            names: Arc::make_mut(&mut self.names),
            buckets: HashMap::default(),
            bucket: 0,
            group: 0,
        };
        let query = of_buckets(store.query(&reports::of_buckets()), &buckets);
        let mut blocks = Blocks::of(query).map_err(failed(WHAT))?;
        while let Some(block) = blocks.next().await.map_err(failed(WHAT))? {
            reports::read(&block, &mut packer).map_err(failed(WHAT))?;
        }
        for (at, open) in packer.buckets {
            let held = HeldBucket {
                rows: Arc::new(open.close()),
                needed_in: self.evaluations,
            };
            self.buckets.insert(at, held);
        }
        Ok(())
    }
}

impl Names {
    fn bytes(&self) -> usize {
        // The empty text is always there.
        (self.groups.items().len() + self.texts.n() - 1) * BYTES_A_NAME
    }
}

impl BucketRows {
    fn bytes(&self) -> usize {
        let of_model = |rows: &ModelRows| rows.seen.len() + rows.series.len() + 100;
        let of_models: usize = self.models.values().map(of_model).sum();
        of_models + self.devices.len() * size_of::<Installation>()
    }
}

impl OpenBucket {
    fn close(self) -> BucketRows {
        let mut models = self.models;
        for rows in models.values_mut() {
            rows.seen.shrink_to_fit();
            rows.series.shrink_to_fit();
        }
        let mut devices = self.devices.into_items();
        devices.shrink_to_fit();
        BucketRows {
            copies: self.copies,
            devices,
            models,
        }
    }
}

impl WindowRows {
    /// Returns the texts of the rows.
    pub(super) fn texts(&self) -> &Texts {
        &self.names.texts
    }

    /// Adds the reports of some models, of one slice of their devices.
    pub(super) fn add(
        &self,
        asked: WindowsAsked<'_>,
        (slices, slice): (u64, u64),
        builders: &mut WindowBuilders<'_>,
    ) {
        let wants = |device: &Installation| {
            // Installations are random.
            let [first, second, ..] = *device;
            u64::from(u16::from_le_bytes([first, second])) % slices == slice
        };
        let models = asked.models.iter();
        let known_model = |model| builders.texts.known_model(model);
        let models: Vec<ModelId> = models.filter_map(|f| known_model(&f.model)).collect();
        let mut known = KnownSessions::default();
        for (at, bucket) in &self.buckets {
            for model in &models {
                if let Some(rows) = bucket.models.get(model) {
                    // Device numbers differ from bucket to bucket.
                    known.clear();
                    let packed = PackedRows {
                        bucket_s: i64::from(*at),
                        devices: &bucket.devices,
                        groups: self.names.groups.items(),
                        seen: &rows.seen,
                        series: &rows.series,
                    };
                    packed.add(*model, wants, &mut known, builders);
                }
            }
        }
    }
}

impl Packer<'_> {
    fn open(&mut self, model: ModelId, device: Installation) -> (u32, &mut ModelRows) {
        let bucket = self.buckets.entry(self.bucket).or_default();
        let device = bucket.devices.id(device);
        (device, bucket.models.entry(model).or_default())
    }
}

impl ReportSink for Packer<'_> {
    fn texts(&mut self) -> &mut Texts {
        &mut self.names.texts
    }

    fn report(&mut self, bucket: Bucket, copy: u64) {
        self.bucket = bucket;
        self.buckets.entry(bucket).or_default().copies.add(copy);
    }

    fn session(&mut self, model: ModelId, row: SessionRow) {
        let group = self.names.groups.id(ReportedPlacement::of(&row));
        self.group = group;
        let created_after_s = rows::created_after(i64::from(self.bucket), row.created_s);
        let (device, rows) = self.open(model, row.installation);
        let seen = RecordedSession {
            device,
            group,
            created_after_s,
            is_late: row.is_late,
            is_unproven: row.is_unproven,
            is_own: false,
        };
        seen.pack(&mut rows.seen);
    }

    fn series(&mut self, model: ModelId, row: &SeriesRow, counts: &SparseHistogram) {
        let group = self.group;
        let moments = row.head.moments;
        let fields = SeriesFields {
            order: row.head.order,
            device_model: row.head.device_model,
            reports_heat: row.reports_heat,
            sum_us: moments.sum(),
            m2_us2: moments.m2(),
            earlier: row.earlier,
        };
        let (device, rows) = self.open(model, row.installation);
        let id = (device, group, row.shape_key);
        let runs = (moments.n(), counts);
        Series::pack(id, &fields, runs, &mut rows.series);
    }
}
