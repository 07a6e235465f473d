//! From recorded reports to a [`Recording`]: parses, keeps what windows need, counts every report
//! once.
//!
//! The copy that counts is the first by receive time, as in the store; among equal times the one
//! that was read first.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use epwatch_proto::event_time;
use epwatch_proto::placement::{is_npu_ep, stored_share};
use epwatch_proto::{
    BaselineKind, Chipset, LatencySeries, Model, ParseError, RecordedReport, Report, SendClock,
    Session, hex,
};

use crate::cohort::{ModelKey, VersionOnChipset};
use crate::device_events::{FailedStart, GoldenTest};
use crate::hash::{HashMap, HashSet};
use crate::interner::Interner;

use crate::read::census::{AppCensus, Census, PlaceId};
use crate::read::cpu_nodes::NodesRow;
use crate::read::event_log::EventLog;
use crate::read::span::{Bucket, bucket_at};

use super::{Baselines, Kind, ModelRecord, Nodes, Numbers, Place, Recording, Seen, Series, packed};

/// What was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct IntakeSummary {
    /// Records read.
    pub records: u64,
    /// Reports counted.
    pub reports: u64,
    /// Copies of a report that was received before.
    pub duplicates: u64,
    /// Reports over 48 h old at their receipt, or of unknown age: they do not vote.
    pub late: u64,
    /// Reports of installations that were new beyond their quota at their receipt: they do not vote.
    pub unproven: u64,
}

/// Takes recorded reports, in any order.
#[derive(Debug)]
pub struct Intake {
    bucket_ms: i64,
    summary: IntakeSummary,
    texts: HashSet<Arc<str>>,
    devices: Interner<[u8; 16]>,
    device_models: Interner<Arc<str>>,
    models: BTreeMap<Arc<ModelKey>, Names>,
    apps: Vec<(Arc<str>, Arc<str>)>,
    kept: Vec<Kept>,
}

/// What a model's rows refer to by number.
#[derive(Debug, Default)]
struct Names {
    kinds: Interner<Kind>,
    places: Interner<Place>,
    shapes: Interner<Arc<str>>,
    nodes: HashMap<(Arc<str>, u32, u64), (i64, Nodes)>,
}

/// A report, as far as windows need it.
#[derive(Debug)]
struct Kept {
    received_ms: i64,
    stream: u64,
    sequence: u64,
    device: u32,
    app: u32,
    parts: Box<[Part]>,
    events: EventLog,
}

/// What a report says of one model.
#[derive(Debug)]
struct Part {
    /// Shared: every report has it.
    model: Arc<ModelKey>,
    seen: Vec<Seen>,
    series: Vec<Series>,
}

impl Intake {
    /// Takes reports into buckets of this length, by receive time.
    #[must_use]
    pub fn new(bucket: Duration) -> Self {
        Self {
            bucket_ms: i64::try_from(bucket.as_millis()).unwrap_or(i64::MAX).max(1),
            summary: IntakeSummary::default(),
            texts: HashSet::default(),
            devices: Interner::default(),
            device_models: Interner::default(),
            models: BTreeMap::new(),
            apps: Vec::new(),
            kept: Vec::new(),
        }
    }

    /// Takes one.
    ///
    /// # Errors
    /// The report breaks the contract; the field is named.
    pub fn add(&mut self, record: &RecordedReport) -> Result<(), ParseError> {
        let report = record.parse_report()?;
        let app = (record.app_id.as_str(), record.environment.as_str());
        let is_unproven = record.is_unproven;
        let received_ms = record.received_at_unix_ms;
        self.add_report(received_ms, app, &report, &record.sent, is_unproven);
        Ok(())
    }

    /// Takes one that was parsed already; `app` is the app and environment that the key proved. An
    /// unproven installation's does not vote.
    pub fn add_report(
        &mut self,
        received_ms: i64,
        app: (&str, &str),
        report: &Report,
        sent: &SendClock,
        is_unproven: bool,
    ) {
        self.summary.records += 1;
        self.summary.unproven += u64::from(is_unproven);
        let is_late = event_time::estimate(received_ms, sent, report.into()).is_late;
        self.summary.late += u64::from(is_late);
        let names = app;
        let app = (self.text(app.0), self.text(app.1));
        let device = self.devices.id(*report.key.installation.as_bytes());
        let mut context = ReportFields {
            bucket: received_ms.div_euclid(self.bucket_ms) * self.bucket_ms / 1_000,
            received_ms,
            device,
            votes: !is_late && !is_unproven,
            stream: report.key.stream.0,
            sequence: report.key.sequence.get(),
            chipset: Arc::from(""),
            firmware: self.text(&report.device.vendor_fingerprint_hash),
            device_model: 0,
        };
        let device_info = &report.device;
        let (raw, board) = (&device_info.chipset_raw, &device_info.board);
        let chipset = Chipset::normalise(raw, &device_info.soc_manufacturer, board);
        context.chipset = self.text(chipset.as_str());
        let device_model = self.text(&device_info.model);
        context.device_model = self.device_models.id(device_model);
        let parts = self.parts(names, report, &context);
        let events = self.events(names, report, &context);
        let app = self.app(app);
        self.kept.push(Kept {
            received_ms,
            stream: report.key.stream.0,
            sequence: report.key.sequence.get(),
            device,
            app,
            parts,
            events,
        });
    }

    /// Returns how many reports wait.
    #[must_use]
    pub fn n_records(&self) -> u64 {
        self.summary.records
    }

    /// Counts every report once, and puts them in order.
    #[must_use]
    pub fn finish(mut self) -> (Recording, IntakeSummary) {
        // Stable: among equal times what was read first comes first.
        self.kept.sort_by_key(|kept| kept.received_ms);
        let mut recording = Recording {
            devices: self.devices.into_items(),
            device_models: self.device_models.into_items(),
            ..Recording::default()
        };
        for (model, names) in self.models {
            let mut nodes: Vec<(i64, (u32, u64), Nodes)> = names
                .nodes
                .into_iter()
                .map(|((_, algorithm, exact), (first, nodes))| (first, (algorithm, exact), nodes))
                .collect();
            nodes.sort_by_key(|(first, id, _)| (*first, *id));
            let record = ModelRecord {
                kinds: names.kinds.into_items(),
                places: names.places.into_items(),
                shapes: names.shapes.into_items(),
                nodes: nodes.into_iter().map(|(_, _, nodes)| nodes).collect(),
                ..ModelRecord::default()
            };
            recording.models.insert(ModelKey::clone(&model), record);
        }
        // Rows are the bulk: room is made for them once.
        let mut room: HashMap<&ModelKey, (usize, usize)> = HashMap::default();
        for part in self.kept.iter().flat_map(|kept| &kept.parts) {
            let slot = room.entry(&part.model).or_default();
            *slot = (slot.0 + part.seen.len(), slot.1 + part.series.len());
        }
        for (model, (seen, series)) in room {
            if let Some(record) = recording.models.get_mut(model) {
                record.seen.reserve_exact(seen);
                record.series.reserve_exact(series);
            }
        }
        let mut census = Census::default();
        let apps = self.apps.iter();
        let census_apps: Vec<usize> = apps
            .map(|(app_id, environment)| census.number_of(app_id, environment))
            .collect();
        let mut last_bucket = Bucket::default();
        let mut counted: HashSet<(u32, u64, u64)> = HashSet::default();
        counted.reserve(self.kept.len());
        for kept in self.kept {
            if !counted.insert((kept.device, kept.stream, kept.sequence)) {
                self.summary.duplicates += 1;
                continue;
            }
            self.summary.reports += 1;
            let received = kept.received_ms;
            let span = recording.received.get_or_insert((received, received));
            span.1 = received;
            let bucket = received.div_euclid(self.bucket_ms) * self.bucket_ms / 1_000;
            let app = self.apps[kept.app as usize].clone();
            let arrivals = recording.arrivals.entry(app).or_default();
            arrivals.push((bucket, received, kept.device));
            let bucket = bucket_at(bucket);
            census.events.append(kept.events);
            if bucket != last_bucket {
                census.close(&[last_bucket]);
                last_bucket = bucket;
            }
            let app = census.app_mut(census_apps[kept.app as usize]);
            let device = recording.devices[kept.device as usize];
            if kept.parts.iter().all(|part| part.seen.is_empty()) {
                app.add_sessionless(bucket, device);
            }
            for part in kept.parts {
                let Some(record) = recording.models.get_mut(&*part.model) else {
                    continue;
                };
                for seen in &part.seen {
                    let place = record.census_place(&part.model.model_id, seen, app);
                    app.add(bucket, received, place, device);
                }
                record.seen.extend(part.seen);
                record.series.extend(part.series);
            }
        }
        census.close(&[last_bucket]);
        recording.census = Arc::new(census);
        (recording, self.summary)
    }

    fn parts(
        &mut self,
        (app_id, environment): (&str, &str),
        report: &Report,
        context: &ReportFields,
    ) -> Box<[Part]> {
        let runtime = self.text(&report.runtime.name());
        let mut parts: Vec<Part> = Vec::new();
        for session in &report.sessions {
            let model = ModelKey {
                app_id: app_id.to_owned(),
                environment: environment.to_owned(),
                model_id: session.model.id.clone(),
            };
            let version = self.text(&session.model.version);
            let known = self
                .models
                .get_key_value(&model)
                .map(|(key, _)| key.clone());
            let model = known.unwrap_or_else(|| Arc::new(model));
            let names = self.models.entry(model.clone()).or_default();
            let kind = names.kinds.id(context.kind(session, version.clone()));
            names.note_nodes(session, &version, context.received_ms);
            let place = names.places.id(place_of(session, kind, runtime.clone()));
            let votes_at_all = {
                let place = &names.places.items()[place as usize];
                place.requests_npu && !place.is_directed && context.votes
            };
            let part = part_of(&mut parts, &model);
            part.seen.push(Seen {
                bucket: context.bucket,
                device: context.device,
                place,
                votes: context.votes,
            });
            if !votes_at_all {
                continue;
            }
            let own = report
                .series
                .iter()
                .filter(|series| series.session_uid == session.uid && series.stratum.is_clean());
            for series in own {
                let texts = &mut self.texts;
                let shape = names.shapes.id(text(texts, &series.stratum.shape_key));
                part.series.push(context.series(series, kind, shape, texts));
            }
        }
        for part in &mut parts {
            part.seen.shrink_to_fit();
            part.series.shrink_to_fit();
        }
        parts.into_boxed_slice()
    }

    /// Returns the self-tests of sessions that vote, and the failed starts that requested an NPU.
    fn events(
        &mut self,
        (app_id, environment): (&str, &str),
        report: &Report,
        context: &ReportFields,
    ) -> EventLog {
        let mut events = EventLog::default();
        if !context.votes {
            return events;
        }
        let bucket = bucket_at(context.bucket);
        let order = (context.received_ms, context.stream, context.sequence);
        let installation = *report.key.installation.as_bytes();
        let cohort = |model: &Model| -> VersionOnChipset {
            let key = ModelKey {
                app_id: app_id.to_owned(),
                environment: environment.to_owned(),
                model_id: model.id.clone(),
            };
            (key, model.version.clone(), context.chipset.to_string())
        };
        for test in &report.self_tests {
            let mut sessions = report.sessions.iter();
            let session = sessions.find(|session| session.uid == test.session_uid);
            let votes = |session: &&Session| {
                session.placement.requests_npu() && session.directive_id.is_empty()
            };
            let Some(session) = session.filter(votes) else {
                continue;
            };
            let hash = hex(test.npu_output_hash.as_slice().as_flattened());
            let test = GoldenTest {
                installation,
                firmware: context.firmware.clone(),
                input_id: self.text(&test.input_id),
                npu_hash: self.text(&hash),
                tolerance: test.tolerance,
                max_abs: test.max_abs,
                cosine: test.cosine,
                top1_equal: test.top1_equal,
                has_run: test.error_code == 0,
                is_proven: true,
            };
            events.add_test(cohort(&session.model), (bucket, order), test);
        }
        for failure in &report.start_failures {
            let eps = &failure.requested_eps;
            // Where it is unknown, an NPU was requested.
            if eps.is_empty() || eps.iter().any(|ep| is_npu_ep(ep)) {
                let start = FailedStart {
                    installation,
                    firmware: context.firmware.clone(),
                    reason: self.text(failure.reason.as_str()),
                    count: failure.count,
                    is_proven: true,
                };
                events.add_start(cohort(&failure.model), bucket, start);
            }
        }
        events
    }

    fn app(&mut self, app: (Arc<str>, Arc<str>)) -> u32 {
        let at = self.apps.iter().position(|known| *known == app);
        let at = at.unwrap_or_else(|| {
            self.apps.push(app);
            self.apps.len() - 1
        });
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    fn text(&mut self, wanted: &str) -> Arc<str> {
        text(&mut self.texts, wanted)
    }
}

fn part_of<'a>(parts: &'a mut Vec<Part>, model: &Arc<ModelKey>) -> &'a mut Part {
    let at = parts
        .iter()
        .position(|part| Arc::ptr_eq(&part.model, model) || part.model == *model);
    let at = at.unwrap_or_else(|| {
        parts.push(Part {
            model: model.clone(),
            seen: Vec::new(),
            series: Vec::new(),
        });
        parts.len() - 1
    });
    &mut parts[at]
}

fn text(texts: &mut HashSet<Arc<str>>, wanted: &str) -> Arc<str> {
    if let Some(known) = texts.get(wanted) {
        return known.clone();
    }
    let new: Arc<str> = wanted.into();
    texts.insert(new.clone());
    new
}

/// Fields that all rows of a report share.
struct ReportFields {
    bucket: i64,
    received_ms: i64,
    device: u32,
    votes: bool,
    stream: u64,
    sequence: u64,
    chipset: Arc<str>,
    firmware: Arc<str>,
    device_model: u32,
}

impl ReportFields {
    fn kind(&self, session: &Session, model_version: Arc<str>) -> Kind {
        let placement = &session.placement;
        Kind {
            model_version,
            chipset: self.chipset.clone(),
            firmware: self.firmware.clone(),
            graph_kind: placement.graph_kind.as_str(),
            source: placement.source.as_str(),
            algorithm: placement.fingerprint_algorithm(),
            normalised: placement.normalised.map_or(0, |print| print.value),
        }
    }

    fn series(
        &self,
        series: &LatencySeries,
        kind: u32,
        shape: u32,
        texts: &mut HashSet<Arc<str>>,
    ) -> Series {
        let numbers = |b: &epwatch_proto::SelfBaseline| -> Numbers {
            (b.n, b.p10_us, b.p50_us, b.p95_us, b.cv)
        };
        let previous = series.baselines.of_kind(BaselineKind::PreviousVersion);
        let earlier = series.baselines.of_kind(BaselineKind::EarlierRuntime);
        let baselines = (previous.is_some() || earlier.is_some()).then(|| {
            Box::new(Baselines {
                previous: previous.map(|b| (text(texts, &b.model_version), numbers(b))),
                earlier: earlier.map(numbers),
            })
        });
        Series {
            bucket: self.bucket,
            order: (
                self.received_ms,
                self.stream,
                self.sequence,
                series.session_uid.get(),
            ),
            device: self.device,
            kind,
            shape,
            device_model: self.device_model,
            sum_us: series.sum_us,
            m2_us2: series.m2_us2,
            n: series.n,
            histogram: packed::pack(&series.histogram),
            baselines,
            absence: series
                .baselines
                .absence()
                .map_or("", |absence| absence.as_str()),
        }
    }
}

impl ModelRecord {
    /// Returns the number that the census has for where a session ran.
    fn census_place(&mut self, model_id: &str, seen: &Seen, census: &mut AppCensus) -> PlaceId {
        self.census_places.resize(self.places.len(), [None; 2]);
        let number = &mut self.census_places[seen.place as usize][usize::from(seen.votes)];
        *number.get_or_insert_with(|| {
            let place = &self.places[seen.place as usize];
            let kind = &self.kinds[place.kind as usize];
            census.place(&place.session(model_id, kind, seen.votes))
        })
    }
}

impl Names {
    fn note_nodes(&mut self, session: &Session, version: &Arc<str>, received_ms: i64) {
        let placement = &session.placement;
        let Some(exact) = placement.exact else { return };
        let id = (version.clone(), exact.algorithm, exact.value);
        let known = self.nodes.get(&id).map(|(first, _)| *first);
        if known.is_some_and(|first| first <= received_ms) {
            return;
        }
        let normalised = placement.normalised.map_or(0, |print| print.value);
        let nodes = placement.cpu_nodes.iter();
        let row = NodesRow {
            fingerprint_algorithm: exact.algorithm,
            fingerprint_normalised: normalised,
            op_type: nodes.clone().map(|node| node.op_type.clone()).collect(),
            benign: nodes.clone().map(|node| node.benign).collect(),
            reason: nodes
                .clone()
                .map(|node| node.reason.as_str().to_owned())
                .collect(),
            macs_share: nodes
                .map(|node| node.macs_share.map(stored_share))
                .collect(),
        };
        let nodes = Nodes {
            model_version: version.clone(),
            normalised,
            row,
        };
        self.nodes.insert(id, (received_ms, nodes));
    }
}

fn place_of(session: &Session, kind: u32, runtime: Arc<str>) -> Place {
    let placement = &session.placement;
    Place {
        kind,
        runtime,
        exact: placement.exact.map_or(0, |print| print.value),
        n_nodes: placement.n_nodes,
        npu_nodes: placement.n_npu_nodes(),
        cpu_nodes: placement.n_cpu_nodes(),
        cpu_benign_nodes: placement.n_benign_cpu_nodes(),
        npu_macs_share: placement.npu_macs_share().map(stored_bits),
        macs_attributed: placement.macs_attributed.map(stored_bits),
        reasons: placement
            .reasons
            .iter()
            .map(|reason| reason.as_str())
            .collect(),
        requests_npu: placement.requests_npu(),
        is_directed: !session.directive_id.is_empty(),
    }
}

/// Bits of what the store holds, so that places compare.
fn stored_bits(share: f64) -> u32 {
    stored_share(share).to_bits()
}
