//! From recorded reports to a [`Recording`]: parses, keeps what windows need, counts every report
//! once.
//!
//! The copy that counts is the first by receive time, as in the store; among equal times the one
//! that was read first.

use std::sync::Arc;
use std::time::Duration;

use epwatch_proto::event_time;
use epwatch_proto::placement::{is_npu_ep, stored_share};
use epwatch_proto::{
    BaselineKind, Chipset, LatencySeries, Model, ParseError, RecordedReport, Report, SendClock,
    Session, Thermal, hex,
};
use epwatch_server::AppAdmission;

use crate::cohort::{App, Installation, ModelKey, VersionOnChipset};
use crate::device_events::{FailedStart, GoldenTest};
use crate::hash::{HashMap, HashSet};
use crate::interner::{Interner, TextId, Texts};
use crate::read::assemble::{CohortPlacement, ModelId, SelfQuantiles};
use crate::read::census::{Census, CensusPlace, CensusSession};
use crate::read::cpu_nodes::NodesRow;
use crate::read::event_log::EventLog;
use crate::read::span::{Bucket, bucket_at};

use super::{Baselines, ModelRecord, Nodes, Place, Recording, Seen, Sent, Series, packed};
use crate::standing::{NetworkHash, Sender};

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
    /// Reports of installations that were new beyond the room at their receipt: they do not vote.
    pub unproven: u64,
}

/// Takes recorded reports, in any order.
#[derive(Debug)]
pub struct Intake {
    bucket_ms: i64,
    summary: IntakeSummary,
    texts: Texts,
    devices: Interner<Installation>,
    places: Interner<Place>,
    apps: Interner<App>,
    models: Interner<ModelKey>,
    /// By model, version, algorithm and exact fingerprint: when they were first received, and the nodes.
    nodes: HashMap<(u32, TextId, u32, u64), (i64, NodesRow)>,
    kept: Vec<Kept>,
}

/// A report, as far as windows need it.
#[derive(Debug)]
struct Kept {
    received_ms: i64,
    stream: u64,
    sequence: u64,
    device: u32,
    app: u32,
    is_late: bool,
    /// Each with the number of its model.
    seen: Box<[(u32, Seen)]>,
    series: Box<[(u32, Series)]>,
    events: EventLog,
    mark: Mark,
}

/// What a collector decided about the sender of a report, if one did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mark {
    /// Whether the installation was unproven; `None` if no collector decided that.
    pub is_unproven: Option<bool>,
    /// Who sent it; `None` if no collector recorded that.
    pub sender: Option<Sender>,
}

/// Fields that all rows of a report share.
struct ReportFields<'a> {
    app: App,
    report: &'a Report,
    bucket: i64,
    received_ms: i64,
    device: u32,
    is_late: bool,
    chipset: TextId,
    firmware: TextId,
    device_model: TextId,
    runtime: TextId,
}

impl Intake {
    /// Takes reports into buckets of this length, by receive time.
    #[must_use]
    pub fn new(bucket: Duration) -> Self {
        Self {
            bucket_ms: i64::try_from(bucket.as_millis()).unwrap_or(i64::MAX).max(1),
            summary: IntakeSummary::default(),
            texts: Texts::default(),
            devices: Interner::default(),
            places: Interner::default(),
            apps: Interner::default(),
            models: Interner::default(),
            nodes: HashMap::default(),
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
        let network = record
            .network
            .map(|[narrow, wide]| NetworkHash { narrow, wide });
        let mark = Mark {
            is_unproven: record.is_unproven,
            sender: record.is_own.map(|is_own| Sender { is_own, network }),
        };
        let received_ms = record.received_at_unix_ms;
        self.add_marked(received_ms, app, &report, &record.sent, mark);
        Ok(())
    }

    /// Takes one that was parsed already; `app` is the app and environment that the key proved. `is_unproven` is
    /// the collector's decision, if one was made.
    pub fn add_report(
        &mut self,
        received_ms: i64,
        app: (&str, &str),
        report: &Report,
        sent: &SendClock,
        is_unproven: Option<bool>,
    ) {
        let mark = Mark {
            is_unproven,
            sender: None,
        };
        self.add_marked(received_ms, app, report, sent, mark);
    }

    /// The same, with all that a collector decided.
    pub fn add_marked(
        &mut self,
        received_ms: i64,
        app: (&str, &str),
        report: &Report,
        sent: &SendClock,
        mark: Mark,
    ) {
        self.summary.records += 1;
        let is_late = event_time::estimate(received_ms, sent, report.into()).is_late;
        self.summary.late += u64::from(is_late);
        let info = &report.device;
        let chipset = Chipset::normalise(&info.chipset_raw, &info.soc_manufacturer, &info.board);
        let fields = ReportFields {
            app: (app.0.to_owned(), app.1.to_owned()),
            report,
            bucket: received_ms.div_euclid(self.bucket_ms) * self.bucket_ms / 1_000,
            received_ms,
            device: self.devices.id(*report.key.installation.as_bytes()),
            is_late,
            chipset: self.texts.id(chipset.as_str()),
            firmware: self.texts.id(&info.vendor_fingerprint_hash),
            device_model: self.texts.id(&info.model),
            runtime: self.texts.id(&report.runtime.name()),
        };
        let (mut seen, mut series) = (Vec::new(), Vec::new());
        for session in &report.sessions {
            let model = self.models.id(fields.model(&session.model));
            let place = self.place(session, &fields);
            self.note_nodes(model, session, received_ms);
            let votes = !is_late && place.requests_npu && !place.is_directed;
            let place = self.places.id(place);
            let row = Seen {
                bucket: fields.bucket,
                device: fields.device,
                place,
                created_s: created_after(fields.bucket, session),
                is_late,
                is_unproven: false,
                is_own: false,
            };
            seen.push((model, row));
            let own = report.series.iter().filter(|series| {
                votes && series.session_uid == session.uid && series.stratum.is_clean()
            });
            series.extend(own.map(|series| (model, self.series(series, place, &fields))));
        }
        let events = self.events(&fields);
        self.kept.push(Kept {
            received_ms,
            stream: report.key.stream.0,
            sequence: report.key.sequence.get(),
            device: fields.device,
            is_late,
            seen: seen.into(),
            series: series.into(),
            events,
            mark,
            app: self.apps.id(fields.app),
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
        let mut records: Vec<ModelRecord> = Vec::new();
        records.resize_with(self.models.items().len(), ModelRecord::default);
        // Reserves space once, because rows dominate memory.
        let rows = self.kept.iter();
        let mut room = vec![(0, 0); records.len()];
        for kept in rows {
            kept.seen
                .iter()
                .for_each(|(model, _)| room[*model as usize].0 += 1);
            kept.series
                .iter()
                .for_each(|(model, _)| room[*model as usize].1 += 1);
        }
        for (record, (seen, series)) in records.iter_mut().zip(room) {
            record.seen.reserve_exact(seen);
            record.series.reserve_exact(series);
        }
        let mut nodes: Vec<_> = self.nodes.into_iter().collect();
        nodes.sort_by_key(|((_, _, algorithm, exact), (first, _))| (*first, *algorithm, *exact));
        for ((model, version, _, _), (_, row)) in nodes {
            records[model as usize].nodes.push(Nodes { version, row });
        }
        let mut recording = Recording {
            texts: self.texts,
            devices: self.devices.into_items(),
            places: self.places.into_items(),
            ..Recording::default()
        };
        let models = self.models.into_items();
        let mut census = Census::with_texts(recording.texts.clone());
        let apps = self.apps.into_items();
        let model_ids: Vec<ModelId> = models.iter().map(|m| census.texts.model(m)).collect();
        let mut last_bucket = Bucket::default();
        let mut counted: HashSet<(u32, u64, u64)> = HashSet::default();
        counted.reserve(self.kept.len());
        let mut admissions: HashMap<u32, AppAdmission<u32>> = HashMap::default();
        for mut kept in self.kept {
            if !counted.insert((kept.device, kept.stream, kept.sequence)) {
                self.summary.duplicates += 1;
                continue;
            }
            self.summary.reports += 1;
            let received = kept.received_ms;
            let span = recording.received.get_or_insert((received, received));
            span.1 = received;
            let bucket = received.div_euclid(self.bucket_ms) * self.bucket_ms / 1_000;
            let app = &apps[kept.app as usize];
            let admission = admissions.entry(kept.app).or_default();
            let is_unproven = admission.is_unproven(kept.device, received, kept.mark.is_unproven);
            let is_own = kept.mark.sender.is_some_and(|sender| sender.is_own);
            if is_unproven {
                self.summary.unproven += 1;
                (kept.series, kept.events) = Default::default();
            }
            let bucket = bucket_at(bucket);
            census.events.append(kept.events);
            if bucket != last_bucket {
                census.close(&[last_bucket]);
                last_bucket = bucket;
            }
            let votes = !is_unproven && !kept.is_late;
            if let Some(by) = kept.mark.sender.filter(|_| votes) {
                let of_app = recording.senders.entry(app.clone()).or_default();
                of_app.push(Sent {
                    bucket: i64::from(bucket),
                    device: kept.device,
                    by,
                });
            }
            let device = recording.devices[kept.device as usize];
            if kept.seen.is_empty() {
                census.add_sessionless(bucket, (&app.0, &app.1), device, (is_unproven, is_own));
            }
            for (model, mut seen) in kept.seen {
                (seen.is_unproven, seen.is_own) = (is_unproven, is_own);
                let place = &recording.places[seen.place as usize];
                let session = CensusSession {
                    received_ms: received,
                    device,
                    place: place.in_census(model_ids[model as usize], &seen),
                    counts: place.counts(),
                };
                census.add(bucket, &session);
                records[model as usize].seen.push(seen);
            }
            for (model, series) in kept.series {
                records[model as usize].series.push(series);
            }
        }
        census.close(&[last_bucket]);
        recording.census = Arc::new(census);
        recording.models = models.into_iter().zip(records).collect();
        (recording, self.summary)
    }

    fn place(&mut self, session: &Session, fields: &ReportFields<'_>) -> Place {
        let placement = &session.placement;
        let reasons = placement.reasons.iter();
        let share = |share: f64| stored_share(share).to_bits();
        Place {
            ran: CohortPlacement {
                version: self.texts.id(&session.model.version),
                chipset: fields.chipset,
                firmware: fields.firmware,
                graph_kind: self.texts.id(placement.graph_kind.as_str()),
                source: self.texts.id(placement.source.as_str()),
                fingerprint_algorithm: placement.fingerprint_algorithm(),
                fingerprint: placement.normalised.map_or(0, |print| print.value),
            },
            runtime: fields.runtime,
            exact: placement.exact.map_or(0, |print| print.value),
            nodes: [
                placement.n_nodes,
                placement.n_npu_nodes(),
                placement.n_cpu_nodes(),
                placement.n_benign_cpu_nodes(),
            ],
            macs: [
                placement.npu_macs_share().map(share),
                placement.macs_attributed.map(share),
            ],
            reasons: reasons
                .map(|reason| self.texts.id(reason.as_str()))
                .collect(),
            requests_npu: placement.requests_npu(),
            is_directed: !session.directive_id.is_empty(),
        }
    }

    fn note_nodes(&mut self, model: u32, session: &Session, received_ms: i64) {
        let placement = &session.placement;
        let Some(exact) = placement.exact else { return };
        let version = self.texts.id(&session.model.version);
        let id = (model, version, exact.algorithm, exact.value);
        let known = self.nodes.get(&id);
        if known.is_some_and(|(first, _)| *first <= received_ms) {
            return;
        }
        let nodes = placement.cpu_nodes.iter();
        let row = NodesRow {
            fingerprint_algorithm: exact.algorithm,
            fingerprint_normalised: placement.normalised.map_or(0, |print| print.value),
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
        self.nodes.insert(id, (received_ms, row));
    }

    fn series(&mut self, series: &LatencySeries, place: u32, fields: &ReportFields<'_>) -> Series {
        let quantiles = |b: &epwatch_proto::SelfBaseline| SelfQuantiles {
            n: b.n,
            p10_us: b.p10_us,
            p50_us: b.p50_us,
            p95_us: b.p95_us,
            cv: b.cv,
        };
        let learnt = |b: &&epwatch_proto::SelfBaseline| b.n > 0;
        let previous = series.baselines.of_kind(BaselineKind::PreviousVersion);
        let previous = previous.filter(learnt);
        let runtime = series.baselines.of_kind(BaselineKind::EarlierRuntime);
        let runtime = runtime.filter(learnt).map(quantiles);
        let baselines = (previous.is_some() || runtime.is_some()).then(|| {
            Box::new(Baselines {
                previous: previous.map(|b| (self.texts.id(&b.model_version), quantiles(b))),
                runtime,
            })
        });
        let key = &fields.report.key;
        let absence = series.baselines.absence();
        Series {
            bucket: fields.bucket,
            order: (
                fields.received_ms,
                key.stream.0,
                key.sequence.get(),
                series.session_uid.get(),
            ),
            device: fields.device,
            place,
            shape: self.texts.id(&series.stratum.shape_key),
            device_model: fields.device_model,
            reports_heat: series.stratum.thermal != Thermal::Unknown,
            sum_us: series.sum_us,
            m2_us2: series.m2_us2,
            n: series.n,
            histogram: packed::pack(&series.histogram),
            baselines,
            absence: absence.map_or(TextId::EMPTY, |absence| self.texts.id(absence.as_str())),
        }
    }

    /// Returns the self-tests of sessions that vote, and the failed starts that requested an NPU.
    fn events(&mut self, fields: &ReportFields<'_>) -> EventLog {
        let mut events = EventLog::default();
        if fields.is_late {
            return events;
        }
        let report = fields.report;
        let bucket = bucket_at(fields.bucket);
        let order = (
            fields.received_ms,
            report.key.stream.0,
            report.key.sequence.get(),
        );
        let installation = *report.key.installation.as_bytes();
        let firmware = self.texts.get(fields.firmware).clone();
        let chipset = self.texts.get(fields.chipset).clone();
        let cohort = |model: &Model| -> VersionOnChipset {
            let version = model.version.clone();
            (fields.model(model), version, chipset.to_string())
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
                firmware: firmware.clone(),
                input_id: self.texts.shared(&test.input_id),
                npu_hash: self.texts.shared(&hash),
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
                    firmware: firmware.clone(),
                    reason: self.texts.shared(failure.reason.as_str()),
                    count: failure.count,
                    is_proven: true,
                };
                events.add_start(cohort(&failure.model), bucket, start);
            }
        }
        events
    }
}

/// Returns when a session was created, in seconds from a bucket on; as far as 68 years.
fn created_after(bucket: i64, session: &Session) -> i32 {
    let created_s = session.created_at_unix_ms.div_euclid(1_000);
    let after = created_s.saturating_sub(bucket);
    i32::try_from(after).unwrap_or(if after < 0 { i32::MIN } else { i32::MAX })
}

impl ReportFields<'_> {
    fn model(&self, model: &Model) -> ModelKey {
        ModelKey::of((&self.app.0, &self.app.1), &model.id)
    }
}

impl Place {
    /// Returns what the census counts of a session.
    fn in_census(&self, model: ModelId, seen: &Seen) -> CensusPlace {
        CensusPlace {
            model,
            ran: self.ran,
            runtime: self.runtime,
            fingerprint_exact: self.exact,
            votes: !(seen.is_late || seen.is_unproven) && self.requests_npu && !self.is_directed,
            is_unproven: seen.is_unproven,
            is_own: seen.is_own,
        }
    }
}
