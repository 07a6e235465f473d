//! Files of recorded reports: the SDK's reports of each session, as a collector received them
//! (`epwatch collector dump`), plain or gzip.
//!
//! A session is a launch. Each report has a part of the session's runs; the parts are added up, and each report counts
//! once. Only clean runs count: warm, at most lightly hot, without power save. A session that was not made is a launch
//! without runs. The numbers of reports, sessions, input shapes and placements are bounded, and so is memory.

use std::{
    collections::{BTreeMap, HashSet},
    io::{BufRead, BufReader, Read},
    sync::Arc,
};

use epwatch_proto::{
    EpBackend, GraphKind, InstallationId, LatencySeries, Model, Phase, Placement, PlacementSource,
    ReasonCode, Report, ReportKey, SelfTest, Session, SessionUid, SparseHistogram, StartFailure,
    asked_for,
    histogram::{bucket_high_us, bucket_low_us},
    recorded::{MAX_RECORDED_BYTES, RecordedReader},
};
use flate2::bufread::MultiGzDecoder;

use super::{
    input::{ReadError, malformed},
    protobuf::varint,
};
use crate::{
    launch::LEAST_RUNS,
    mistakes::Mistake,
    placement::{Counted, InspectedChipset, InspectedNode, InspectedReason, NoSession},
    run::{Run, RunOutputs, RunTarget},
    verdict::EpNumbers,
};

const KIND: &str = "recorded reports";
/// [`Run::source`] of these files.
pub(crate) const SOURCE: &str = "recorded_reports";

/// Maximum number of reports of a file: a hundred of each of a thousand sessions.
const MOST_REPORTS: usize = 100_000;
/// Input shapes of a session whose runs are kept. With more than one, none is judged.
const MOST_SHAPES: usize = 16;
/// Maximum number of sessions of a file: enough for a bench, or a small fleet's day.
const MOST_SESSIONS: usize = 1_000;
/// Maximum number of placements that differ. Each has at most 256 nodes.
const MOST_PLACEMENTS: usize = 64;
/// Maximum number of runs that are kept of a session. An even sample of more runs has the same quantiles.
const MOST_RUNS: u64 = 2_000;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// Receive times in milliseconds that a record may begin with, from 2001 to 2100.
const RECEIVED_MS: std::ops::Range<u64> = 1_000_000_000_000..4_102_444_800_000;

/// Whether a file begins as a record does: its length, the receive time (field 1), the app's id (field 2).
pub(super) fn is_recorded(head: &[u8]) -> bool {
    if head.starts_with(&GZIP_MAGIC) {
        return true;
    }
    let mut rest = head;
    let is_length = varint(&mut rest).is_some_and(|length| length <= MAX_RECORDED_BYTES as u64);
    let Some(after_key) = rest.strip_prefix(&[0x08]).filter(|_| is_length) else {
        return false;
    };
    rest = after_key;
    varint(&mut rest).is_some_and(|ms| RECEIVED_MS.contains(&ms)) && rest.first() == Some(&0x12)
}

/// Returns a run for each session, in the order in which the sessions were made.
pub(super) fn read(mut input: impl BufRead) -> Result<Vec<Run>, ReadError> {
    let mut sessions = Sessions::of_at_most(MOST_REPORTS);
    match input.fill_buf()?.starts_with(&GZIP_MAGIC) {
        // Reads are small: a length is read byte by byte.
        true => sessions.add_all(BufReader::new(MultiGzDecoder::new(input)))?,
        false => sessions.add_all(input)?,
    }
    sessions.runs()
}

#[derive(Debug)]
struct Sessions {
    most_reports: usize,
    seen: HashSet<ReportKey>,
    of: BTreeMap<(InstallationId, SessionUid), Launched>,
    /// Sessions that could not be made.
    failed: Vec<Launched>,
    /// Those that differ.
    placements: Vec<Arc<InspectedChipset>>,
}

/// A session with the runs of all its reports.
#[derive(Debug)]
struct Launched {
    created_at_unix_ms: i64,
    target: RunTarget,
    placed: Option<Arc<InspectedChipset>>,
    is_precompiled: bool,
    /// Clean runs by the shape of their inputs.
    clean: BTreeMap<String, SparseHistogram>,
    /// Warm runs on a hot device, or one that saves power.
    n_throttled: u64,
    /// Runs that ended with an error.
    n_failed: u64,
    /// Results of golden inputs.
    outputs: Option<RunOutputs>,
}

impl Sessions {
    fn of_at_most(most_reports: usize) -> Self {
        Self {
            most_reports,
            seen: HashSet::new(),
            of: BTreeMap::new(),
            failed: Vec::new(),
            placements: Vec::new(),
        }
    }

    fn add_all(&mut self, input: impl Read) -> Result<(), ReadError> {
        let expected = "varint-length-delimited epwatch.v1.RecordedReport, whole";
        for (record, at) in RecordedReader::new(input).zip(1..) {
            let record = record.map_err(|error| {
                let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
                malformed(
                    KIND,
                    format!("{error}{}", cause.unwrap_or_default()),
                    expected,
                )
            })?;
            let report = record.parse_report().map_err(|error| {
                malformed(KIND, format!("record {at}: {}", error.detail()), expected)
            })?;
            if !self.seen.insert(report.key) {
                continue;
            }
            if self.seen.len() > self.most_reports {
                return Err(too_many(self.most_reports, "reports"));
            }
            self.add(&report)?;
        }
        Ok(())
    }

    fn add(&mut self, report: &Report) -> Result<(), ReadError> {
        let chipsets = report.session_chipsets(report.device.chipset.as_str());
        for (session, chipset) in report.sessions.iter().zip(chipsets) {
            let key = (report.key.installation, session.uid);
            if !self.of.contains_key(&key) {
                self.check_room()?;
                let launched = self.launched(report, session, &chipset)?;
                self.of.insert(key, launched);
            }
        }
        let chipsets = report.start_failure_chipsets(report.device.chipset.as_str());
        for (failure, chipset) in report.start_failures.iter().zip(chipsets) {
            self.check_room()?;
            let failed = self.not_made(report, failure, &chipset)?;
            self.failed.push(failed);
        }
        let installation = report.key.installation;
        for errors in &report.run_errors {
            if let Some(launched) = self.of.get_mut(&(installation, errors.session_uid)) {
                launched.n_failed = launched.n_failed.saturating_add(errors.count);
            }
        }
        for test in &report.self_tests {
            if let Some(launched) = self.of.get_mut(&(installation, test.session_uid)) {
                launched.add_test(test);
            }
        }
        for series in &report.series {
            let key = (installation, series.session_uid);
            if let Some(launched) = self.of.get_mut(&key) {
                launched.add(series);
            }
        }
        Ok(())
    }

    fn check_room(&self) -> Result<(), ReadError> {
        match self.of.len() + self.failed.len() < MOST_SESSIONS {
            true => Ok(()),
            false => Err(too_many(MOST_SESSIONS, "sessions")),
        }
    }

    /// A session that was not made, with the reason.
    fn not_made(
        &mut self,
        report: &Report,
        failure: &StartFailure,
        cohort: &str,
    ) -> Result<Launched, ReadError> {
        // A session for the CPU belongs to no cohort.
        let chipset = match cohort.is_empty() {
            true => report.device.chipset.as_str(),
            false => cohort,
        };
        let row = format!(
            "failure {} of {}",
            self.failed.len(),
            report.key.sequence.get()
        );
        let asked = asked_for(&failure.requested_eps, None);
        let target = target(report, &failure.model, chipset, row, asked);
        let text = format!("{} starts: {}", failure.count, failure.text);
        let placed = InspectedChipset {
            chipset: chipset.to_owned(),
            soc_model: String::new(),
            session: "failed".to_owned(),
            error: Some(text),
            requested: failure.requested_eps.clone(),
            backend: report.runtime.backend,
            eps: BTreeMap::new(),
            cpu_nodes: Vec::new(),
            fingerprint_normalised: None,
            reasons: vec![reason(failure.reason)],
            npu_partitions: Vec::new(),
            crossings: None,
            no_session: NoSession::default(),
            encoded: String::new(),
            counted: Counted::default(),
        };
        let placed = Some(self.shared(placed)?);
        Ok(Launched::new(report.interval_end_unix_ms, target, placed))
    }

    /// `chipset` is the name of the session's cohort, so that launches of two accelerators never compare.
    fn launched(
        &mut self,
        report: &Report,
        session: &Session,
        chipset: &str,
    ) -> Result<Launched, ReadError> {
        let placement = &session.placement;
        let is_precompiled = placement.graph_kind == GraphKind::EpContext;
        let is_known = placement.source != PlacementSource::Unavailable && !is_precompiled;
        // A directive removes EPs from the request. The session's own list has the EPs that the app requested.
        let requested = match session.directive_id.is_empty() {
            true => &placement.requested_eps,
            false => &session.requested_eps,
        };
        let asked = asked_for(requested, session.options.selection_policy);
        let row = session.uid.to_string();
        let target = target(report, &session.model, chipset, row, asked);
        let placed = is_known.then(|| InspectedChipset {
            requested: requested.clone(),
            backend: report.runtime.backend,
            ..inspected(placement, chipset)
        });
        let placed = placed.map(|placed| self.shared(placed)).transpose()?;
        Ok(Launched {
            is_precompiled,
            ..Launched::new(session.created_at_unix_ms, target, placed)
        })
    }

    /// Keeps equal placements once in memory.
    fn shared(&mut self, placed: InspectedChipset) -> Result<Arc<InspectedChipset>, ReadError> {
        if let Some(known) = self.placements.iter().find(|known| ***known == placed) {
            return Ok(Arc::clone(known));
        }
        if self.placements.len() == MOST_PLACEMENTS {
            return Err(too_many(MOST_PLACEMENTS, "placements that differ"));
        }
        let placed = Arc::new(placed);
        self.placements.push(Arc::clone(&placed));
        Ok(placed)
    }

    fn runs(self) -> Result<Vec<Run>, ReadError> {
        let mut sessions: Vec<Launched> = self.of.into_values().collect();
        sessions.extend(self.failed);
        if sessions.is_empty() {
            return Err(malformed(KIND, "no session", "reports with sessions"));
        }
        sessions.sort_by_key(|session| session.created_at_unix_ms);
        Ok(sessions.into_iter().map(Launched::run).collect())
    }
}

fn too_many(most: usize, of_what: &str) -> ReadError {
    let what = format!("more than {most} {of_what}");
    let expected = "the recording of a bench; `epwatch replay` judges a fleet's";
    malformed(KIND, what, expected)
}

fn target(
    report: &Report,
    model: &Model,
    chipset: &str,
    row: String,
    asked_for: Option<String>,
) -> RunTarget {
    let device = &report.device;
    let name = format!("{} {}", device.manufacturer, device.model);
    let some = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
    RunTarget {
        row,
        device: some(&name),
        phone: Some(report.key.installation.to_hex()[..8].to_owned()),
        chipset: Some(chipset.to_owned()),
        firmware: some(&device.vendor_fingerprint_hash),
        os: None,
        runtime: Some(report.runtime.name()),
        model: Some(format!("{} {}", model.id, model.version)),
        model_id: Some(model.id.clone()),
        model_sha256: model.sha256.map(|sha256| sha256.to_string()),
        model_data: BTreeMap::new(),
        asked_for,
    }
}

impl Launched {
    fn new(
        created_at_unix_ms: i64,
        target: RunTarget,
        placed: Option<Arc<InspectedChipset>>,
    ) -> Self {
        Self {
            created_at_unix_ms,
            target,
            placed,
            is_precompiled: false,
            clean: BTreeMap::new(),
            n_throttled: 0,
            n_failed: 0,
            outputs: None,
        }
    }

    /// Keeps the worst result of several golden inputs. A test that could not run, or is beyond the owner's tolerance,
    /// counts as wrong.
    fn add_test(&mut self, test: &SelfTest) {
        let outputs = self.outputs.get_or_insert_default();
        let id = &test.input_id;
        let beyond = test
            .max_abs
            .zip(test.tolerance)
            .filter(|(off, most)| off > most);
        let wrong = match (test.error_code, beyond) {
            (0, None) => None,
            (0, Some((off, most))) => {
                Some(format!("golden input {id} is off by {off}, over {most}"))
            }
            (code, _) => Some(format!("golden input {id} ended with error {code}")),
        };
        let worst = |known: Option<f64>, new: Option<f64>, of: fn(f64, f64) -> f64| match known {
            Some(known) => Some(new.map_or(known, |new| of(known, new))),
            None => new,
        };
        outputs.wrong = outputs.wrong.take().or(wrong);
        let first = Some(&test.first_off_output).filter(|first| !first.is_empty());
        outputs.first_off = outputs.first_off.take().or_else(|| first.cloned());
        outputs.cosine = worst(outputs.cosine, test.cosine, f64::min);
        outputs.max_abs = worst(outputs.max_abs, test.max_abs, f64::max);
    }

    fn add(&mut self, series: &LatencySeries) {
        let stratum = &series.stratum;
        if stratum.is_clean() {
            if self.clean.len() < MOST_SHAPES || self.clean.contains_key(&stratum.shape_key) {
                let shape = self.clean.entry(stratum.shape_key.clone()).or_default();
                shape.merge(&series.histogram);
            }
        } else if stratum.phase == Phase::Warm {
            self.n_throttled = self.n_throttled.saturating_add(series.n);
        }
    }

    fn run(self) -> Run {
        let n_shapes = self.clean.len();
        let most = self.clean.into_values().max_by_key(SparseHistogram::total);
        let runs_us = most.map_or(Vec::new(), |histogram| sample(&histogram));
        let mut mistakes = Vec::new();
        mistakes.extend((n_shapes > 1).then(Mistake::input_shapes));
        mistakes.extend(self.is_precompiled.then(Mistake::ep_context));
        if runs_us.is_empty() && self.n_throttled > 0 {
            let why = format!("hot or saving power in {} warm runs", self.n_throttled);
            mistakes.push(Mistake::throttled("a session", &why));
        }
        Run {
            source: SOURCE,
            target: self.target,
            // Sessions with too few runs keep no run times. They are common in the field.
            runs_us: Some(runs_us)
                .filter(|runs| runs.len() >= LEAST_RUNS)
                .unwrap_or_default(),
            warmup: Some(0),
            started_unix_ms: Some(self.created_at_unix_ms),
            placed: self.placed,
            outputs: self.outputs,
            failed_runs: self.n_failed,
            mistakes,
            ..Run::default()
        }
    }
}

/// Runs in ascending order, each in the middle of its bucket.
fn sample(histogram: &SparseHistogram) -> Vec<u64> {
    let every = histogram.total().div_ceil(MOST_RUNS).max(1);
    let (mut runs, mut next, mut n_below) = (Vec::new(), every / 2, 0_u64);
    for (index, n) in histogram.buckets() {
        n_below = n_below.saturating_add(n);
        while next < n_below {
            runs.push((bucket_low_us(index).midpoint(bucket_high_us(index))).max(1));
            next = next.saturating_add(every);
        }
    }
    runs
}

fn reason(code: ReasonCode) -> InspectedReason {
    InspectedReason {
        code: code.as_str().to_owned(),
        fix: code.way_out(&[]),
    }
}

fn inspected(placement: &Placement, chipset: &str) -> InspectedChipset {
    let eps = placement.eps.iter().map(|share| {
        let ep = EpNumbers {
            nodes: share.n_nodes,
            partitions: share.n_partitions,
            macs_share: share.macs_share,
        };
        (share.ep.clone(), ep)
    });
    let cpu_nodes = placement.cpu_nodes.iter().map(|node| InspectedNode {
        name: node.name.clone(),
        op_type: node.op_type.clone(),
        reason: node.reason.as_str().to_owned(),
        reason_text: Some(node.reason_text.clone()).filter(|text| !text.is_empty()),
        macs_share: node.macs_share,
        benign: node.benign,
        place: None,
        time: None,
    });
    let reasons = placement.reasons.iter().copied().map(reason);
    InspectedChipset {
        chipset: chipset.to_owned(),
        soc_model: String::new(),
        session: "ok".to_owned(),
        error: None,
        requested: Vec::new(),
        backend: EpBackend::default(),
        eps: eps.collect(),
        cpu_nodes: cpu_nodes.collect(),
        fingerprint_normalised: placement.normalised.map(|print| print.to_string()),
        reasons: reasons.collect(),
        npu_partitions: Vec::new(),
        crossings: None,
        no_session: NoSession::default(),
        encoded: String::new(),
        counted: Counted::default(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use epwatch_proto::{RecordedReport, SelectionPolicy, Thermal, recorded::write_recorded};
    use flate2::{Compression, write::GzEncoder};

    use super::*;
    use crate::read::{ReadOptions, read as read_any};

    /// The report of the wire's golden file: a session of "mixed 2" on SM8635. One of its two computing nodes is on the
    /// CPU.
    fn golden() -> (RecordedReport, Report) {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/fixtures/wire/recorded_reports.bin"
        );
        let file = std::fs::File::open(path).unwrap();
        let record = RecordedReader::new(file).next().unwrap().unwrap();
        let report = record.parse_report().unwrap();
        (record, report)
    }

    /// A report with `n` clean runs around this latency.
    fn with_runs(sequence: u64, us: u64, n: u64) -> Report {
        let (_, mut report) = golden();
        report.key.sequence = epwatch_proto::Sequence::new(sequence).unwrap();
        let series = &mut report.series[0];
        series.stratum.thermal = Thermal::None;
        series.stratum.power_save = epwatch_proto::PowerSave::Off;
        series.histogram = SparseHistogram::default();
        series.histogram.record_n(us, n);
        let all = us as f64 * n as f64;
        (series.n, series.runs_seen) = (n, 4 * n + 10);
        (series.sum_us, series.m2_us2) = (all, 0.0);
        (series.min_us, series.max_us) = (us as f64, us as f64);
        series.exceed = None;
        (series.slow_fast_switches, series.longest_slow_streak) = (None, None);
        series.first_runs_us = Vec::new();
        (report.self_tests, report.run_errors) = (Vec::new(), Vec::new());
        report.start_failures = Vec::new();
        report
    }

    fn file(reports: &[Report]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for report in reports {
            let record = RecordedReport {
                report: report.to_bytes().into(),
                ..golden().0
            };
            write_recorded(&mut bytes, &record).unwrap();
        }
        bytes
    }

    fn runs(bytes: &[u8]) -> Result<Vec<Run>, String> {
        read_any(bytes, ReadOptions::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_session_is_a_launch_with_the_runs_of_its_reports_each_once() {
        let (first, second) = (with_runs(1, 1_000, 30), with_runs(2, 4_000, 10));
        let plain = file(&[first.clone(), second, first]);
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(&plain).unwrap();
        for bytes in [plain, packed.finish().unwrap()] {
            let [run] = <[Run; 1]>::try_from(runs(&bytes).unwrap()).unwrap();
            assert_eq!(run.runs_us.len(), 40);
            let near = |us: u64, of: u64| us.abs_diff(of) <= of / 100;
            assert!(near(run.runs_us[29], 1_000) && near(run.runs_us[30], 4_000));
            assert_eq!(run.target.chipset.as_deref(), Some("SM8635"));
            assert_eq!(run.target.model.as_deref(), Some("mixed 2"));
            assert_eq!(run.target.device.as_deref(), Some("Example EX-1"));
            let placed = run.placed.unwrap();
            assert_eq!(placed.eps["QNNExecutionProvider"].macs_share, Some(0.75));
            assert_eq!(placed.cpu_nodes.len(), 2);
            assert_eq!(
                placed.cpu_nodes[1].reason_text.as_deref(),
                Some("Validation FAILED")
            );
        }
    }

    #[test]
    fn only_clean_runs_count_and_few_are_none() {
        let mut hot = with_runs(1, 1_000, 30);
        hot.series[0].stratum.thermal = Thermal::Severe;
        let run = &runs(&file(&[hot])).unwrap()[0];
        assert_eq!((run.runs_us.len(), run.mistakes[0].id), (0, "throttled"));
        assert!(
            runs(&file(&[with_runs(1, 1_000, 19)])).unwrap()[0]
                .runs_us
                .is_empty()
        );
    }

    #[test]
    fn a_long_session_is_sampled_evenly() {
        let many = &runs(&file(&[
            with_runs(1, 1_000, 900_000),
            with_runs(2, 4_000, 100_000),
        ]))
        .unwrap()[0];
        assert_eq!(many.runs_us.len(), 2_000);
        assert_eq!(many.runs_us.iter().filter(|us| **us > 2_000).count(), 200);
    }

    #[test]
    fn reports_and_shapes_are_bounded() {
        let reports: Vec<Report> = (1..=40)
            .map(|n| {
                let mut report = with_runs(n, 1_000, 30);
                report.series[0].stratum.shape_key = format!("x:1x{n}");
                report
            })
            .collect();
        let bytes = file(&reports);
        let mut sessions = Sessions::of_at_most(39);
        let error = sessions.add_all(&*bytes).unwrap_err().to_string();
        assert!(error.contains("more than 39 reports"), "{error}");
        let mut sessions = Sessions::of_at_most(40);
        sessions.add_all(&*bytes).unwrap();
        let launched = sessions.of.values().next().unwrap();
        assert_eq!(launched.clean.len(), MOST_SHAPES);
    }

    #[test]
    fn a_cut_file_and_one_without_sessions_are_refused() {
        let mut bytes = file(&[with_runs(1, 1_000, 30)]);
        bytes.pop();
        let error = runs(&bytes).unwrap_err();
        assert!(
            error.contains("record at byte 0: the file ends within it"),
            "{error}"
        );
        let mut none = with_runs(1, 1_000, 30);
        (none.sessions, none.series, none.self_tests) = (Vec::new(), Vec::new(), Vec::new());
        (none.run_errors, none.start_failures) = (Vec::new(), Vec::new());
        let error = runs(&file(&[none])).unwrap_err();
        assert!(error.contains("no session"), "{error}");
    }

    /// Reports have starts, runs and outputs that failed, which run times do not show.
    #[test]
    fn starts_runs_and_answers_that_failed_are_read() {
        let mut report = with_runs(1, 1_000, 30);
        let uid = report.sessions[0].uid;
        report.start_failures = vec![StartFailure {
            model: report.sessions[0].model.clone(),
            requested_eps: vec!["QNNExecutionProvider".to_owned()],
            phase: epwatch_proto::StartPhase::SessionCreation,
            reason: ReasonCode::Unknown,
            ort_status_code: 1,
            text: "QNN.backendValidateOpConfig() failed".to_owned(),
            count: 3,
            device_type: None,
        }];
        report.run_errors = vec![epwatch_proto::RunErrors {
            session_uid: uid,
            ort_status_code: 1,
            count: 2,
        }];
        let test = |cosine: f64, max_abs: f64| SelfTest {
            session_uid: uid,
            input_id: format!("golden {cosine}"),
            tolerance: Some(0.1),
            npu_output_hash: None,
            cpu_output_hash: None,
            max_abs: Some(max_abs),
            cosine: Some(cosine),
            top1_equal: None,
            error_code: 0,
            first_off_output: (if cosine < 0.9 { "softmax_3" } else { "" }).to_owned(),
        };
        report.sessions[0].options.selection_policy = Some(SelectionPolicy::PreferNpu);
        report.self_tests = vec![test(0.99, 0.01), test(0.5, 0.2), test(0.98, 0.02)];
        let found = runs(&file(&[report])).unwrap();
        let [session, failed] = &found[..] else {
            panic!("{found:?}");
        };
        let outputs = session.outputs.as_ref().unwrap();
        assert_eq!((outputs.cosine, outputs.max_abs), (Some(0.5), Some(0.2)));
        assert_eq!(outputs.first_off.as_deref(), Some("softmax_3"));
        let wrong = outputs.wrong.as_deref().unwrap();
        assert!(wrong.contains("golden 0.5 is off by 0.2"), "{wrong}");
        assert_eq!(session.failed_runs, 2);
        let placed = failed.placed.as_ref().unwrap();
        assert_eq!((&*placed.session, failed.runs_us.len()), ("failed", 0));
        assert!(placed.error.as_ref().unwrap().contains("3 starts"));
        let asked = [session, failed].map(|run| run.target.asked_for.as_deref().unwrap());
        let qnn = "QNNExecutionProvider";
        assert_eq!(asked, [&*format!("PREFER_NPU ({qnn})"), qnn]);
    }
}
