//! Reads all models of some apps at once: a table is scanned once for each kind of row, not once for
//! each model.

use std::borrow::Cow;

use clickhouse::Row;
use epwatch_model::{Installation, VersionOnChipset};
use epwatch_stats::Moments;
use epwatch_store::native::decode::Blocks;
use serde::Deserialize;

use crate::judge::hash::HashMap;
use crate::judge::window::histogram_of;
use crate::read::assemble::{CohortPlacement, WindowBuilders};
use crate::read::batches::MAX_SESSIONS;
use crate::read::device_baselines::{
    BaselineRequest, DeviceBaselines, DeviceBaselinesBuilder, DeviceSums,
};
use crate::read::error::{SourceError, failed, histogram_for};
use crate::read::interner::Texts;
use crate::read::reader::{WindowsAsked, WindowsByModel, apps_of};
use crate::read::span::Span;

use super::deduplicated::Counted;
use super::held_window::WindowRows;
use super::queries::{CohortNames, cohort_of, device_baselines, earlier, of_clean_series};
use super::reports;

/// Maximum number of devices whose earlier runs the store adds up at once. Each takes up to some kilobytes.
const MAX_SUMS: u64 = 50_000;

/// An earlier window of a vote.
#[derive(Debug, Row, Deserialize)]
struct EarlierRow<'a> {
    app_id: &'a str,
    environment: &'a str,
    model_id: &'a str,
    model_version: &'a str,
    chipset: &'a str,
    firmware: &'a str,
    installation: Installation,
    graph_kind: &'a str,
    placement_source: &'a str,
    fingerprint_algorithm: u32,
    fingerprint_normalised: u64,
    shape_key: &'a str,
    hist_bucket: Vec<u16>,
    hist_count: Vec<u64>,
    n: u64,
    sum_us: f64,
    m2_us2: f64,
}

impl EarlierRow<'_> {
    fn add_to(self, builders: &mut WindowBuilders<'_>) {
        let texts = builders.texts.to_mut();
        let model = (
            texts.id(self.app_id),
            texts.id(self.environment),
            texts.id(self.model_id),
        );
        let ran = CohortPlacement {
            version: texts.id(self.model_version),
            chipset: texts.id(self.chipset),
            firmware: texts.id(self.firmware),
            graph_kind: texts.id(self.graph_kind),
            source: texts.id(self.placement_source),
            fingerprint_algorithm: self.fingerprint_algorithm,
            fingerprint: self.fingerprint_normalised,
        };
        let vote = (self.installation, ran, texts.id(self.shape_key));
        let counts = self.hist_bucket.into_iter().zip(self.hist_count);
        let moments = Moments::from_parts(self.n, self.sum_us, self.m2_us2);
        let runs = (histogram_of(counts), moments);
        builders.add(model, |builder, _| builder.add_earlier(vote, runs));
    }
}

/// Runs of a device with one input shape before the window.
#[derive(Debug, Row, Deserialize)]
struct SelfRow<'a> {
    #[serde(borrow)]
    cohort: CohortNames<'a>,
    installation: Installation,
    device_model: &'a str,
    shape_key: &'a str,
    hist_bucket: Vec<u16>,
    hist_count: Vec<u64>,
    n: u64,
    sum_us: f64,
    m2_us2: f64,
}

impl Counted {
    /// Builds windows from held rows, or reads the reports of the window.
    pub(super) async fn windows(
        &self,
        asked: WindowsAsked<'_>,
        held: Option<&WindowRows>,
    ) -> Result<WindowsByModel, SourceError> {
        let models = asked.models.iter();
        let apps = apps_of(models.clone().map(|found| &found.model));
        let sessions: u64 = models.map(|found| found.sessions).sum();
        let texts = match held {
            Some(rows) => Cow::Borrowed(rows.texts()),
            None => Cow::Owned(Texts::default()),
        };
        let mut builders = WindowBuilders::of(asked, texts);
        // A large app is read in slices of its devices, so that a part is added up at a time.
        let slices = sessions.div_ceil(2 * MAX_SESSIONS).max(1);
        let mut need_earlier_runs = false;
        for slice in 0..slices {
            match held {
                Some(rows) => rows.add(asked, (slices, slice), &mut builders),
                None => {
                    self.add_reports(&apps, asked.span, (slices, slice), &mut builders)
                        .await?;
                }
            }
            need_earlier_runs |= builders.end_votes();
        }
        if need_earlier_runs && !asked.span.stands_alone {
            for slice in 0..slices {
                self.add_earlier(&apps, asked.span, (slices, slice), &mut builders)
                    .await?;
            }
        }
        Ok(builders.finish())
    }

    async fn add_reports(
        &self,
        apps: &[(&str, &str)],
        span: &Span,
        slice: (u64, u64),
        builders: &mut WindowBuilders<'_>,
    ) -> Result<(), SourceError> {
        let (from, to) = (span.start_s(), span.end_s());
        let what = "reports";
        let query = self.query(&reports::of_apps()).bind(apps);
        let query = query.bind(from).bind(to).bind(from);
        let query = query.bind(slice.0).bind(slice.1);
        let mut blocks = Blocks::of(query).map_err(failed(what))?;
        while let Some(block) = blocks.next().await.map_err(failed(what))? {
            reports::read(&block, builders).map_err(failed(what))?;
        }
        Ok(())
    }

    /// Adds earlier windows of votes with too few runs.
    async fn add_earlier(
        &self,
        apps: &[(&str, &str)],
        span: &Span,
        slice: (u64, u64),
        builders: &mut WindowBuilders<'_>,
    ) -> Result<(), SourceError> {
        let (from, to) = (span.start_s(), span.end_s());
        let query = self.query(&earlier()).bind(from).bind(to - from);
        let query = of_clean_series(query, apps, (span.earliest_s(), from), slice);
        let query = of_clean_series(query, apps, (from, to), slice);
        let what = "earlier runs";
        let mut rows = query.fetch::<EarlierRow<'_>>().map_err(failed(what))?;
        while let Some(row) = rows.next().await.map_err(failed(what))? {
            row.add_to(builders);
        }
        Ok(())
    }

    /// Reads baselines of devices of some versions.
    pub(super) async fn device_baselines(
        &self,
        wanted: &[VersionOnChipset],
        asked: BaselineRequest,
        span: &Span,
    ) -> Result<HashMap<VersionOnChipset, DeviceBaselines>, SourceError> {
        let apps = apps_of(wanted.iter().map(|(model, _, _)| model));
        let wanted = wanted.iter();
        let keys = wanted.map(|(of, v, chip)| (&of.app_id, &of.environment, &of.model_id, v, chip));
        let keys: Vec<_> = keys.collect();
        let what = "devices before";
        let mut builders: HashMap<VersionOnChipset, DeviceBaselinesBuilder> = HashMap::default();
        // The store holds a sum for each device until its last row.
        let slices = asked.votes.div_ceil(MAX_SUMS).max(1);
        let before = span.before(asked.until);
        for slice in 0..slices {
            let query = self.query(&device_baselines());
            let query = of_clean_series(query, &apps, before, (slices, slice));
            let mut rows = query
                .bind(&keys)
                .fetch::<SelfRow<'_>>()
                .map_err(failed(what))?;
            while let Some(row) = rows.next().await.map_err(failed(what))? {
                let key = cohort_of(row.cohort);
                let counts = row.hist_bucket.into_iter().zip(row.hist_count);
                let runs = DeviceSums {
                    model_version: &key.1,
                    installation: row.installation,
                    device_model: row.device_model,
                    shape_key: row.shape_key,
                    histogram: histogram_for(&key.0, counts)?,
                    moments: Moments::from_parts(row.n, row.sum_us, row.m2_us2),
                };
                let builder = builders.entry(key.clone()).or_default();
                builder.add(&runs, asked.before);
            }
        }
        let built = builders.into_iter();
        Ok(built
            .map(|(key, builder)| (key, builder.finish()))
            .collect())
    }
}
