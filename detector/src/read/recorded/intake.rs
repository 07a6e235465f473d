//! From recorded reports to a [`Recording`]: parses, keeps what windows need, counts every report
//! once.
//!
//! The copy that counts is the first by receive time, as in the store. Among equal times it is the copy that was read
//! first.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use epwatch_model::{Installation, ModelKey, VersionOnChipset};
use epwatch_proto::event_time;
use epwatch_proto::placement::stored_share;
use epwatch_proto::{
    BaselineKind, Chipset, LatencySeries, Model, ParseError, RecordedReport, Report, SendClock,
    Session, Thermal, hex,
};
use epwatch_server::AppAdmission;

use crate::judge::device_events::{FailedStart, GoldenTest};
use crate::judge::hash::HashMap;
use crate::judge::sybil_resistance::{NetworkHash, Sender};
use crate::read::assemble::{CohortPlacement, DeviceBaseline, ModelId, SelfQuantiles};
use crate::read::census::{Census, CensusSession};
use crate::read::cpu_nodes::NodesRow;
use crate::read::event_log::EventLog;
use crate::read::interner::{Interner, TextId, Texts, next_id};
use crate::read::packed::{RecordedSession, ReportedPlacement, Series, SeriesFields, rows};
use crate::read::span::bucket_at;
use crate::read::varint;

use super::sender_decision::SenderDecision;
use super::spill::{Extent, MAX_HELD_BYTES, Spill};
use super::{ModelRecord, Nodes, Recording, Rows, Sent};

/// Counts of an intake.
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
    /// Reports of installations that were new when the limit was reached at their receipt: they do not vote.
    pub unproven: u64,
}

/// Takes recorded reports, in any order.
#[derive(Debug)]
pub struct Intake {
    bucket_ms: i64,
    summary: IntakeSummary,
    texts: Texts,
    devices: Interner<Installation>,
    groups: Interner<ReportedPlacement>,
    apps: Interner<(TextId, TextId)>,
    models: Interner<ModelId>,
    /// Nodes and the time of their first receipt, by model, version, algorithm and exact fingerprint.
    nodes: HashMap<(u32, TextId, u32, u64), (i64, NodesRow)>,
    kept: Vec<Kept>,
    /// Events of the reports that have any, by number.
    events: BTreeMap<u32, EventLog>,
    rows: Spill,
    held_bytes: usize,
    /// The error because of which rows are missing.
    failed: Option<io::Error>,
}

/// A report that waits to be put in order. Its rows are bytes: app, the collector's decision, sessions, series.
#[derive(Debug)]
struct Kept {
    received_ms: i64,
    stream: u64,
    sequence: u64,
    app_id: TextId,
    device: u32,
    number: u32,
    rows: Extent,
}

/// The rows of one model in the bucket that is being filled.
#[derive(Debug, Default)]
struct OpenRows {
    seen: Vec<u8>,
    series: Vec<u8>,
}

/// Fields that all rows of a report share.
struct ReportFields<'a> {
    app: (TextId, TextId),
    report: &'a Report,
    bucket: i64,
    received_ms: i64,
    device: u32,
    is_late: bool,
    chipset: &'a str,
    firmware: TextId,
    device_model: TextId,
    runtime: TextId,
}

impl Intake {
    /// Begins an intake with buckets of this length, by receive time.
    #[must_use]
    pub fn new(bucket: Duration) -> Self {
        Self {
            bucket_ms: i64::try_from(bucket.as_millis()).unwrap_or(i64::MAX).max(1),
            summary: IntakeSummary::default(),
            texts: Texts::default(),
            devices: Interner::default(),
            groups: Interner::default(),
            apps: Interner::default(),
            models: Interner::default(),
            nodes: HashMap::default(),
            kept: Vec::new(),
            events: BTreeMap::new(),
            rows: Spill::holding(MAX_HELD_BYTES),
            held_bytes: MAX_HELD_BYTES,
            failed: None,
        }
    }

    /// Holds up to `bytes` of rows in memory before and after they are put in order, instead of 96 MiB. The other rows
    /// go to a temporary file.
    #[must_use]
    pub fn holding(mut self, bytes: usize) -> Self {
        self.rows = Spill::holding(bytes);
        self.held_bytes = bytes;
        self
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
        let mark = SenderDecision {
            is_unproven: record.is_unproven,
            sender: record.is_own.map(|is_own| Sender { is_own, network }),
        };
        let received_ms = record.received_at_unix_ms;
        self.add_marked(received_ms, app, &report, &record.sent, mark);
        Ok(())
    }

    /// Takes a report that is already parsed; `app` is the app and environment that the key proved.
    pub fn add_marked(
        &mut self,
        received_ms: i64,
        app: (&str, &str),
        report: &Report,
        sent: &SendClock,
        mark: SenderDecision,
    ) {
        self.summary.records += 1;
        let is_late = event_time::estimate(received_ms, sent, report.into()).is_late;
        self.summary.late += u64::from(is_late);
        let info = &report.device;
        let chipset = Chipset::normalise(&info.chipset_raw, &info.soc_manufacturer, &info.board);
        let chipset = chipset.as_str();
        let ort_version = self.texts.id(&report.runtime.ort_version);
        let ep_version = self.texts.id(&report.runtime.ep_version);
        let fields = ReportFields {
            app: (self.texts.id(app.0), self.texts.id(app.1)),
            report,
            bucket: received_ms.div_euclid(self.bucket_ms) * self.bucket_ms / 1_000,
            received_ms,
            device: self.devices.id(*report.key.installation.as_bytes()),
            is_late,
            chipset,
            firmware: self.texts.id(&info.vendor_fingerprint_hash),
            device_model: self.texts.id(&info.model),
            runtime: self.texts.runtime(ort_version, ep_version),
        };
        let mut bytes = Vec::with_capacity(512);
        varint::push(&mut bytes, self.apps.id(fields.app).into());
        mark.pack(&mut bytes);
        bytes.push(u8::from(is_late));
        varint::push(&mut bytes, report.sessions.len() as u64);
        let mut series = Vec::with_capacity(512);
        let chipsets = report.session_chipsets(chipset);
        for (session, chipset) in report.sessions.iter().zip(chipsets) {
            let model_id = self.texts.id(&session.model.id);
            let model = self.models.id((fields.app.0, fields.app.1, model_id));
            let group = self.group(session, &chipset, &fields);
            self.note_nodes(model, session, received_ms);
            let votes = !is_late && group.requests_npu && !group.is_directed;
            let group = self.groups.id(group);
            varint::push(&mut bytes, model.into());
            let seen = RecordedSession {
                device: fields.device,
                group,
                created_after_s: rows::created_after(
                    fields.bucket,
                    session.created_at_unix_ms.div_euclid(1_000),
                ),
                is_late,
                is_unproven: false,
                is_own: false,
            };
            seen.pack(&mut bytes);
            let own = report.series.iter().filter(|series| {
                votes && series.session_uid == session.uid && series.stratum.is_clean()
            });
            for one in own {
                varint::push(&mut series, model.into());
                self.pack_series(one, group, &fields, &mut series);
            }
        }
        bytes.extend_from_slice(&series);
        let number = next_id(self.kept.len());
        let events = self.events(&fields);
        if !events.is_empty() {
            self.events.insert(number, events);
        }
        if self.failed.is_some() {
            return;
        }
        match self.rows.push(&bytes) {
            Ok(rows) => self.kept.push(Kept {
                received_ms,
                stream: report.key.stream.0,
                sequence: report.key.sequence.get(),
                app_id: fields.app.0,
                device: fields.device,
                number,
                rows,
            }),
            Err(error) => self.failed = Some(error),
        }
    }

    /// Returns how many reports wait.
    #[must_use]
    pub fn n_records(&self) -> u64 {
        self.summary.records
    }

    /// Counts every report once, and puts them in order.
    ///
    /// # Errors
    /// The temporary file with the rows beyond the limit could not be written or read.
    pub fn finish(mut self) -> io::Result<(Recording, IntakeSummary)> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        self.rows.flush()?;
        let counted = counted_once(self.kept);
        self.summary.reports = counted.len() as u64;
        self.summary.duplicates = self.summary.records - self.summary.reports;
        let models = self.models.into_items();
        let mut records: Vec<ModelRecord> = Vec::new();
        records.resize_with(models.len(), ModelRecord::default);
        let mut nodes: Vec<_> = self.nodes.into_iter().collect();
        nodes.sort_by_key(|((_, _, algorithm, exact), (first, _))| (*first, *algorithm, *exact));
        for ((model, version, _, _), (_, row)) in nodes {
            records[model as usize].nodes.push(Nodes { version, row });
        }
        let (devices, groups) = (self.devices.into_items(), self.groups.into_items());
        let mut census = Census::with_texts(self.texts.clone());
        let apps = self.apps.into_items();
        let mut admissions: HashMap<u32, AppAdmission<u32>> = HashMap::default();
        let mut ordered = Spill::holding(self.held_bytes);
        let mut open: BTreeMap<u32, OpenRows> = BTreeMap::new();
        let mut senders: HashMap<(TextId, TextId), Vec<Sent>> = HashMap::default();
        let mut last_s = None;
        let ends = counted.first().zip(counted.last());
        let received = ends.map(|(first, last)| (first.received_ms, last.received_ms));
        for kept in &counted {
            let received_ms = kept.received_ms;
            let bucket_s = received_ms.div_euclid(self.bucket_ms) * self.bucket_ms / 1_000;
            if let Some(last_s) = last_s.replace(bucket_s).filter(|last| *last != bucket_s) {
                close(&mut open, last_s, &mut records, &mut ordered)?;
                census.close(&[bucket_at(last_s)]);
            }
            let bytes = self.rows.read(kept.rows)?;
            let mut rest = &*bytes;
            let app = rows::number(&mut rest);
            let mark = SenderDecision::take(&mut rest);
            let is_late = rows::byte(&mut rest) != 0;
            let admission = admissions.entry(app).or_default();
            let is_unproven = admission.is_unproven(kept.device, received_ms, mark.is_unproven);
            let is_own = mark.sender.is_some_and(|sender| sender.is_own);
            if let Some(by) = mark.sender.filter(|_| !is_unproven && !is_late) {
                let of_app = senders.entry(apps[app as usize]).or_default();
                of_app.push(Sent {
                    bucket: bucket_s,
                    device: kept.device,
                    by,
                });
            }
            self.summary.unproven += u64::from(is_unproven);
            if let Some(events) = self.events.remove(&kept.number).filter(|_| !is_unproven) {
                census.events.append(events);
            }
            let (bucket, device) = (bucket_at(bucket_s), devices[kept.device as usize]);
            let n_sessions = rows::number(&mut rest);
            if n_sessions == 0 {
                let app = apps[app as usize];
                census.add_sessionless(bucket, app, device, (is_unproven, is_own));
            }
            for _ in 0..n_sessions {
                let model = rows::number(&mut rest);
                let Some(seen) = RecordedSession::take(&mut rest) else {
                    break;
                };
                let seen = RecordedSession {
                    is_unproven,
                    is_own,
                    ..seen
                };
                let group = &groups[seen.group as usize];
                let session = CensusSession {
                    received_ms,
                    device,
                    group: group.in_census(models[model as usize], &seen),
                    counts: group.counts(),
                };
                census.add(bucket, &session);
                seen.pack(&mut open.entry(model).or_default().seen);
            }
            while !is_unproven && !rest.is_empty() {
                let model = rows::number(&mut rest);
                let from_here = rest;
                Series::take(&mut rest);
                let taken = &from_here[..from_here.len() - rest.len()];
                open.entry(model).or_default().series.extend(taken);
            }
        }
        if let Some(last_s) = last_s {
            close(&mut open, last_s, &mut records, &mut ordered)?;
            census.close(&[bucket_at(last_s)]);
        }
        ordered.flush()?;
        let mut first_groups: HashMap<CohortPlacement, u32> = HashMap::default();
        let vote_groups = (0..).zip(&groups);
        let vote_groups =
            vote_groups.map(|(at, group)| *first_groups.entry(group.ran).or_insert(at));
        let texts = self.texts;
        let models = models.into_iter().map(|model| texts.model_key(model));
        let senders = senders.into_iter().map(|((app_id, environment), sent)| {
            let name = |id| texts.get(id).to_string();
            ((name(app_id), name(environment)), sent)
        });
        let recording = Recording {
            vote_groups: vote_groups.collect(),
            models: models.zip(records).collect(),
            devices,
            groups,
            received,
            census: Arc::new(census),
            senders: senders.collect(),
            rows: ordered,
            texts,
        };
        Ok((recording, self.summary))
    }

    fn group(
        &mut self,
        session: &Session,
        chipset: &str,
        fields: &ReportFields<'_>,
    ) -> ReportedPlacement {
        let placement = &session.placement;
        let reasons = placement.reasons.iter();
        let share = |share: f64| stored_share(share).to_bits();
        ReportedPlacement {
            ran: CohortPlacement {
                version: self.texts.id(&session.model.version),
                chipset: self.texts.id(chipset),
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

    fn pack_series(
        &mut self,
        series: &LatencySeries,
        group: u32,
        fields: &ReportFields<'_>,
        to: &mut Vec<u8>,
    ) {
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
        let key = &fields.report.key;
        let absence = series.baselines.absence();
        let packed = SeriesFields {
            order: (
                fields.received_ms,
                key.stream.0,
                key.sequence.get(),
                series.session_uid.get(),
            ),
            device_model: fields.device_model,
            reports_heat: series.stratum.thermal != Thermal::Unknown,
            sum_us: series.sum_us,
            m2_us2: series.m2_us2,
            earlier: DeviceBaseline {
                previous: previous.map(|b| (self.texts.id(&b.model_version), quantiles(b))),
                runtime: runtime.filter(learnt).map(quantiles),
                absence: absence.map_or(TextId::EMPTY, |absence| self.texts.id(absence.as_str())),
            },
        };
        let shape = self.texts.id(&series.stratum.shape_key);
        let id = (fields.device, group, shape);
        Series::pack(id, &packed, (series.n, &series.histogram), to);
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
        let app = [fields.app.0, fields.app.1].map(|id| self.texts.get(id).clone());
        let cohort = |model: &Model, chipset: String| -> VersionOnChipset {
            let [app_id, environment] = &app;
            let key = ModelKey::of((app_id, environment), &model.id);
            (key, model.version.clone(), chipset)
        };
        for test in &report.self_tests {
            let chipsets = report.session_chipsets(fields.chipset);
            let mut sessions = report.sessions.iter().zip(chipsets);
            let session = sessions.find(|(session, _)| session.uid == test.session_uid);
            let votes = |(session, _): &(&Session, String)| {
                session.placement.requests_npu() && session.directive_id.is_empty()
            };
            let Some((session, chipset)) = session.filter(votes) else {
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
                first_off: self.texts.shared(&test.first_off_output),
                has_run: test.error_code == 0,
                is_proven: true,
            };
            events.add_test(cohort(&session.model, chipset), (bucket, order), test);
        }
        let chipsets = report.start_failure_chipsets(fields.chipset);
        for (failure, chipset) in report.start_failures.iter().zip(chipsets) {
            if !chipset.is_empty() {
                let start = FailedStart {
                    installation,
                    firmware: firmware.clone(),
                    reason: self.texts.shared(failure.reason.as_str()),
                    count: failure.count,
                    is_proven: true,
                };
                events.add_start(cohort(&failure.model, chipset), bucket, start);
            }
        }
        events
    }
}

/// Returns the first copy of each report, in the order of receipt; among equal times, the copy that was read first.
/// Report keys include the app, so that no app's reports replace another's.
fn counted_once(mut kept: Vec<Kept>) -> Vec<Kept> {
    let key = |kept: &Kept| (kept.app_id, kept.device, kept.stream, kept.sequence);
    kept.sort_unstable_by_key(|kept| (key(kept), kept.received_ms, kept.number));
    kept.dedup_by(|later, first| key(later) == key(first));
    kept.sort_unstable_by_key(|kept| (kept.received_ms, kept.number));
    kept
}

/// Ends a bucket.
fn close(
    open: &mut BTreeMap<u32, OpenRows>,
    bucket: i64,
    records: &mut [ModelRecord],
    to: &mut Spill,
) -> io::Result<()> {
    for (model, rows) in open {
        if rows.seen.is_empty() {
            continue;
        }
        let rows_of_bucket = Rows {
            bucket,
            seen: to.push(&rows.seen)?,
            series: to.push(&rows.series)?,
        };
        records[*model as usize].buckets.push(rows_of_bucket);
        rows.seen.clear();
        rows.series.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use epwatch_proto::samples;

    use super::*;

    #[test]
    fn a_report_is_a_copy_of_one_of_the_same_app_only() {
        let mut intake = Intake::new(Duration::from_secs(3_600));
        let report = samples::report(samples::key([1; 16], 2, 3), samples::session_uid(4));
        let apps = [
            ("camera", "production"),
            ("scanner", "production"),
            ("camera", "production"),
            ("camera", "testing"),
        ];
        for (received_ms, app) in (0..).zip(apps) {
            let mark = SenderDecision {
                is_unproven: None,
                sender: None,
            };
            intake.add_marked(received_ms, app, &report, &SendClock::default(), mark);
        }
        let (_, summary) = intake.finish().unwrap();
        assert_eq!((summary.reports, summary.duplicates), (2, 2));
    }
}
