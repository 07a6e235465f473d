//! A recording as a reader of reports. Every answer is in memory.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use epwatch_model::{Installation, ModelKey, VersionOnChipset};
use epwatch_proto::SparseHistogram;
use epwatch_stats::RangeHistogram;
use jiff::Timestamp;

use crate::judge::certified::Certified;
use crate::judge::hash::{HashMap, HashSet};
use crate::judge::sybil_resistance::Sender;
use crate::judge::verdict::CpuNodes;
use crate::read::assemble::{SeriesSum, WindowBuilders};
use crate::read::cpu_nodes::unexpected;
use crate::read::device_baselines::{
    BaselineRequest, DeviceBaselines, DeviceBaselinesBuilder, DeviceSums,
};
use crate::read::error::histogram_for;
use crate::read::history::HistoryByModel;
use crate::read::interner::TextId;
use crate::read::reader::{Beginning, ReadFuture, ReportReader, WindowsAsked, WindowsByModel};
use crate::read::span::{PastSpan, Span};

use super::Recording;

impl ReportReader for Arc<Recording> {
    fn received(&self) -> ReadFuture<'_, Option<(Timestamp, Timestamp)>> {
        Box::pin(async {
            let at = |ms| Timestamp::from_millisecond(ms).ok();
            Ok(self
                .received
                .and_then(|(first, last)| at(first).zip(at(last))))
        })
    }

    fn begin<'a>(&'a self, _span: &'a Span) -> ReadFuture<'a, Beginning> {
        Box::pin(async {
            Ok(Beginning {
                reader: Arc::new(self.clone()),
                census: self.census.clone(),
                certified: Certified::default(),
            })
        })
    }

    fn senders<'a>(
        &'a self,
        (app_id, environment): (&'a str, &'a str),
        devices: &'a HashSet<Installation>,
        span: &'a Span,
    ) -> ReadFuture<'a, Vec<(Installation, Sender)>> {
        let app = (app_id.to_owned(), environment.to_owned());
        let senders = self.senders.get(&app);
        let senders = senders.map(|all| self.senders_of(all, devices, span));
        Box::pin(async { Ok(senders.unwrap_or_default()) })
    }

    fn windows<'a>(&'a self, asked: WindowsAsked<'a>) -> ReadFuture<'a, WindowsByModel> {
        Box::pin(async move {
            let mut builders = WindowBuilders::of(asked, Cow::Borrowed(&self.texts));
            let models = asked.models.iter();
            let records = models.filter_map(|found| self.models.get_key_value(&found.model));
            for (model, record) in records.clone() {
                self.add_window(model, record, asked.span, &mut builders)?;
            }
            if builders.end_votes() && !asked.span.stands_alone {
                for (model, record) in records {
                    self.add_earlier(model, record, asked.span, &mut builders)?;
                }
            }
            Ok(builders.finish())
        })
    }

    fn histograms<'a>(
        &'a self,
        cohort: &'a VersionOnChipset,
        span_s: (i64, i64),
    ) -> ReadFuture<'a, Vec<(Arc<str>, RangeHistogram)>> {
        Box::pin(async move {
            let mut merged: BTreeMap<&Arc<str>, SparseHistogram> = BTreeMap::new();
            self.each_series_of(std::slice::from_ref(cohort), span_s, |_, series| {
                let counts = merged.entry(self.texts.get(series.shape)).or_default();
                counts.add_all(series.unpacked().1);
            })?;
            let histograms = merged.into_iter().map(|(shape, counts)| {
                let histogram = histogram_for(&cohort.0, counts.buckets())?;
                Ok((shape.clone(), histogram))
            });
            histograms.collect()
        })
    }

    /// Adds up each device's runs with each input shape.
    fn device_baselines<'a>(
        &'a self,
        wanted: &'a [VersionOnChipset],
        asked: BaselineRequest,
        span: &'a Span,
    ) -> ReadFuture<'a, HashMap<VersionOnChipset, DeviceBaselines>> {
        Box::pin(async move {
            let mut sums: Vec<HashMap<(u32, TextId), SeriesSum>> = Vec::new();
            sums.resize_with(wanted.len(), HashMap::default);
            self.each_series_of(wanted, span.before(asked.until), |at, series| {
                let of_device = (series.device, series.shape);
                series.add_to(&mut sums[at], of_device);
            })?;
            let mut baselines = HashMap::default();
            for (cohort, sums) in wanted.iter().zip(sums) {
                let (model, version, _) = cohort;
                let mut builder = DeviceBaselinesBuilder::default();
                for ((device, shape), mut sum) in sums {
                    let runs = DeviceSums {
                        model_version: version,
                        installation: self.devices[device as usize],
                        device_model: self.texts.get(sum.device_model),
                        shape_key: self.texts.get(shape),
                        histogram: histogram_for(model, sum.histogram.buckets())?,
                        moments: Some(sum.moments()),
                    };
                    builder.add(&runs, asked.before);
                }
                baselines.insert(cohort.clone(), builder.finish());
            }
            Ok(baselines)
        })
    }

    fn cpu_nodes<'a>(
        &'a self,
        (model, version): (&'a ModelKey, &'a str),
        fingerprints: &'a [u64],
    ) -> ReadFuture<'a, CpuNodes> {
        let nodes = self.models.get(model).map(|record| record.nodes.iter());
        let wanted = nodes.into_iter().flatten().filter(move |nodes| {
            **self.texts.get(nodes.version) == *version
                && fingerprints.contains(&nodes.row.fingerprint_normalised)
        });
        Box::pin(async { Ok(unexpected(wanted.map(|nodes| nodes.row.clone()))) })
    }

    fn history(&self, _past: PastSpan) -> ReadFuture<'_, Arc<HistoryByModel>> {
        Box::pin(async { Ok(Arc::default()) })
    }
}
