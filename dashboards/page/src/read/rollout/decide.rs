//! Decides without I/O from the detector's findings on each chipset and from the number of devices that it still needs.

use std::collections::BTreeMap;

use clickhouse::Row;
use epwatch_model::{State, VerdictClass};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::read::certificates::CertificateRow;
use crate::read::incidents::IncidentRow;
use crate::read::progress::time;
use crate::read::windows::{CohortRow, compared};
use crate::text::number;
use crate::text::words;

/// A version of a model in an app and environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RolloutQuery {
    /// Id of the app.
    pub app: String,
    /// For example `production`.
    pub environment: String,
    /// The model's name in the app.
    pub model: String,
    /// The version that is rolled out.
    pub version: String,
}

/// Number of devices with which the detector sees, in one window, that a model is twice as slow.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Needed {
    /// Devices needed if placements are readable.
    pub with_placements: u64,
    /// Devices needed if placements are not readable.
    pub without: u64,
}

impl Needed {
    /// The detector's `SEES_DOUBLE_WITH_PLACEMENT` and `SEES_DOUBLE`. A test of the command compares them.
    pub const OF_THE_DETECTOR: Self = Self {
        with_placements: 8,
        without: 30,
    };
}

/// Whether the version may go to more devices. The worst answer of the chipsets decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RolloutAnswer {
    /// An incident is open, or the last window was a page or a ticket.
    Stop,
    /// Nothing is wrong so far, but too few devices could be compared to be sure.
    NotYet,
    /// Enough devices were compared, and none of the detector's rules found anything.
    Go,
    /// The chipset has fewer devices than needed, over all versions. It does not decide about the roll-out.
    Rare,
}

/// The answer for one chipset.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ChipsetAnswer {
    pub(crate) chipset: String,
    pub(crate) answer: RolloutAnswer,
    /// Devices of the version in the last window.
    pub(crate) devices: u64,
    /// Devices of the version that could be compared.
    pub(crate) compared: u64,
    /// Devices that have to be compared in one window.
    pub(crate) needed: u64,
    /// Devices of all versions in the last window, each once.
    pub(crate) devices_on_chipset: u64,
    /// Time until enough devices can be compared, if they keep coming as fast as since the version's first window.
    pub(crate) seconds_left: Option<f64>,
    pub(crate) p50_us: Option<f64>,
    pub(crate) latency_ratio: Option<f64>,
    pub(crate) npu_share: Option<f64>,
    /// The share that the gate certified; with several runtimes, the smallest.
    pub(crate) certified_npu_share: Option<f64>,
    /// Id of the open incident.
    pub(crate) incident: Option<String>,
    pub(crate) why: String,
    /// Firmwares with enough devices of the version to be judged apart, or with a finding; the worst first.
    pub(crate) firmwares: Vec<FirmwareAnswer>,
}

/// The answer for a firmware of a chipset, by the same rule.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct FirmwareAnswer {
    pub(crate) firmware: String,
    pub(crate) answer: RolloutAnswer,
    pub(crate) devices: u64,
    pub(crate) compared: u64,
    pub(crate) p50_us: Option<f64>,
    pub(crate) latency_ratio: Option<f64>,
    pub(crate) npu_share: Option<f64>,
    pub(crate) why: String,
}

/// An incident of the version that a person called false.
#[derive(Debug, Clone, Row, Deserialize)]
pub(super) struct FalseRow {
    pub(super) chipsets: Vec<String>,
    pub(super) verdict: String,
    pub(super) who: String,
    pub(super) why: String,
}

impl FalseRow {
    /// Whether the feedback is about a ticket of this verdict on this chipset. It never overrules a page.
    fn is_of(&self, chipset: &str, row: &CohortRow) -> bool {
        let is_there = self.chipsets.is_empty() || self.chipsets.iter().any(|name| name == chipset);
        row.severity == "ticket" && row.verdict == self.verdict && is_there
    }
}

#[derive(Debug, Row, Deserialize)]
pub(super) struct FirmwareRow {
    pub(super) chipset: String,
    pub(super) firmware: String,
    pub(super) window_end: i64,
    pub(super) verdict: String,
    pub(super) severity: String,
    pub(super) devices: u64,
    pub(super) eligible: u64,
    pub(super) p50_us: Option<f64>,
    pub(super) latency_ratio: Option<f64>,
    pub(super) npu_share: Option<f64>,
    pub(super) reasons: Vec<String>,
    pub(super) signal_id: Vec<String>,
    pub(super) signal_devices: Vec<u64>,
}

impl FirmwareRow {
    /// Judges a firmware as its chipset is judged; `None` if it has too few devices and no finding.
    fn answer(
        self,
        query: &RolloutQuery,
        needed: u64,
        called_false: &[FalseRow],
    ) -> Option<FirmwareAnswer> {
        let signals = self.signal_id.iter().map(String::as_str);
        let signals = signals.zip(self.signal_devices.iter().copied());
        let eligible = compared(&self.verdict, self.eligible, signals);
        let row = CohortRow {
            model: query.model.clone(),
            version: query.version.clone(),
            window_end: time(self.window_end),
            verdict: self.verdict,
            severity: self.severity,
            devices: self.devices,
            eligible,
            reasons: self.reasons,
            ..CohortRow::default()
        };
        let is_bad = matches!(&*row.severity, "page" | "ticket");
        if row.eligible < needed && !is_bad {
            return None;
        }
        let mut judged = ChipsetAnswer {
            chipset: self.chipset,
            answer: RolloutAnswer::NotYet,
            devices: row.devices,
            compared: row.eligible,
            needed,
            devices_on_chipset: row.devices,
            seconds_left: None,
            p50_us: self.p50_us,
            latency_ratio: self.latency_ratio,
            npu_share: self.npu_share,
            certified_npu_share: None,
            incident: None,
            why: String::new(),
            firmwares: Vec::new(),
        };
        decide(&mut judged, None, Some(&row), Some(&row), called_false);
        Some(FirmwareAnswer {
            firmware: self.firmware,
            answer: judged.answer,
            devices: judged.devices,
            compared: judged.compared,
            p50_us: judged.p50_us,
            latency_ratio: judged.latency_ratio,
            npu_share: judged.npu_share,
            why: judged.why,
        })
    }
}

/// Adds the answers for firmwares. A firmware that is worse than its chipset decides for it: a fault of one firmware is
/// diluted among the others.
pub(super) fn add_firmwares(
    chipsets: &mut [ChipsetAnswer],
    rows: Vec<FirmwareRow>,
    query: &RolloutQuery,
    called_false: &[FalseRow],
) {
    for row in rows {
        let Some(chipset) = chipsets.iter_mut().find(|of| of.chipset == row.chipset) else {
            continue;
        };
        let Some(firmware) = row.answer(query, chipset.needed, called_false) else {
            continue;
        };
        if firmware.answer < chipset.answer {
            chipset.answer = firmware.answer;
            chipset.why = format!("on firmware {}: {}", firmware.firmware, firmware.why);
            chipset.seconds_left = None;
        }
        chipset.firmwares.push(firmware);
        chipset.firmwares.sort_by_key(|of| of.answer);
    }
    sort(chipsets);
}

/// Adds the shares that the gate certified. They decide nothing here, because the detector already compares devices
/// with them.
pub(super) fn add_certificates(
    chipsets: &mut [ChipsetAnswer],
    certificates: &[CertificateRow],
    query: &RolloutQuery,
) {
    for chipset in chipsets {
        let its = certificates.iter().filter(|row| {
            !row.is_replaced
                && row.environment == query.environment
                && row.model == query.model
                && row.version == query.version
                && row.chipset == chipset.chipset
        });
        let shares = its.filter_map(|row| row.npu_macs_share).map(f64::from);
        chipset.certified_npu_share = shares.reduce(f64::min);
    }
}

/// A newer window is overdue after this many steps, plus the time for its verdict.
const LATE_STEPS: i64 = 3;
const LATE_SECONDS: i64 = 900;

pub(super) fn is_late(until: Timestamp, step_seconds: Option<i64>, now: Timestamp) -> bool {
    let step = step_seconds.unwrap_or(3600).clamp(0, 86_400);
    now.as_second() - until.as_second() > LATE_STEPS * step + LATE_SECONDS
}

/// Chipsets that are too rare decide nothing, unless there is no other.
pub(super) fn whole(chipsets: &[ChipsetAnswer]) -> RolloutAnswer {
    let answers = chipsets.iter().map(|chipset| chipset.answer);
    match answers.min() {
        None | Some(RolloutAnswer::Rare) => RolloutAnswer::NotYet,
        Some(answer) => answer,
    }
}

/// Judges each chipset that the model runs on. `rows` are of one model.
pub(super) fn answers(
    query: &RolloutQuery,
    rows: &[CohortRow],
    open: &[IncidentRow],
    needed: Needed,
    called_false: &[FalseRow],
) -> Vec<ChipsetAnswer> {
    let last = rows.iter().filter_map(|row| row.window_end).max();
    let mut chipsets: BTreeMap<&str, Vec<&CohortRow>> = BTreeMap::new();
    for row in rows {
        chipsets.entry(&row.chipset).or_default().push(row);
    }
    let mut answers: Vec<ChipsetAnswer> = chipsets
        .into_iter()
        .map(|(chipset, rows)| {
            let its = open.iter().find(|incident| {
                incident.model == query.model
                    && incident.version == query.version
                    && incident.state() != Some(State::Pending)
                    && incident.is_finding()
                    && (incident.chipsets.is_empty()
                        || incident.chipsets.iter().any(|name| name == chipset))
            });
            let own = rows.iter().find(|row| row.version == query.version);
            let now = rows.iter().filter(|row| row.window_end == last);
            let on_chipset = now.clone().map(|row| row.devices_on_chipset).max();
            let is_readable = match own {
                Some(own) => own.npu_share.is_some(),
                None => now.clone().any(|row| row.npu_share.is_some()),
            };
            let needed = match is_readable {
                true => needed.with_placements,
                false => needed.without,
            };
            let in_last = own.filter(|own| own.window_end == last);
            let mut answer = ChipsetAnswer {
                chipset: chipset.to_owned(),
                answer: RolloutAnswer::NotYet,
                devices: in_last.map_or(0, |row| row.devices),
                compared: in_last.map_or(0, |row| row.eligible),
                needed,
                devices_on_chipset: on_chipset.unwrap_or(0),
                seconds_left: None,
                p50_us: own.and_then(|row| row.p50_us),
                latency_ratio: own.and_then(|row| row.latency_ratio),
                npu_share: own.and_then(|row| row.npu_share),
                certified_npu_share: None,
                incident: its.map(|incident| incident.incident.clone()),
                why: String::new(),
                firmwares: Vec::new(),
            };
            decide(
                &mut answer,
                its,
                own.copied(),
                in_last.copied(),
                called_false,
            );
            answer
        })
        .collect();
    sort(&mut answers);
    answers
}

fn sort(answers: &mut [ChipsetAnswer]) {
    answers.sort_by_key(|of| (of.answer, std::cmp::Reverse(of.devices_on_chipset)));
}

/// Sets the answer, why, and the time that is left.
fn decide(
    answer: &mut ChipsetAnswer,
    incident: Option<&IncidentRow>,
    own: Option<&CohortRow>,
    in_last: Option<&CohortRow>,
    called_false: &[FalseRow],
) {
    let called_false = own.and_then(|row| {
        called_false
            .iter()
            .find(|called| called.is_of(&answer.chipset, row))
    });
    let first_reason = |row: &CohortRow| row.reasons.first().cloned().unwrap_or_default();
    let is_bad = own.filter(|row| row.is_finding() && called_false.is_none());
    if let Some(incident) = incident {
        answer.answer = RolloutAnswer::Stop;
        let verdict = words::verdict(&incident.verdict);
        answer.why = match own.map(first_reason).filter(|why| !why.is_empty()) {
            Some(why) if is_bad.is_some() => format!("{verdict}: {why}"),
            _ => format!("{verdict}: an incident is open"),
        };
        return;
    }
    if let Some(bad) = is_bad {
        answer.answer = RolloutAnswer::Stop;
        answer.why = format!("{}: {}", words::verdict(&bad.verdict), first_reason(bad));
        return;
    }
    let is_fine =
        |row: &CohortRow| row.class() == Some(VerdictClass::Healthy) || called_false.is_some();
    let is_healthy = in_last.is_some_and(is_fine);
    if is_healthy && answer.compared >= answer.needed {
        answer.answer = RolloutAnswer::Go;
        let compared = number::of_them(answer.compared, "device");
        answer.why = match (own, called_false) {
            (Some(own), Some(called)) => format!(
                "{}, which {} called false ({}): {compared} compared",
                words::verdict(&own.verdict),
                called.who,
                called.why
            ),
            _ => format!("healthy: {compared} compared"),
        };
        return;
    }
    if answer.devices_on_chipset < answer.needed {
        answer.answer = RolloutAnswer::Rare;
        answer.why = format!(
            "the model has {} on it in all versions, and {} are needed: it cannot be told here",
            number::of_them(answer.devices_on_chipset, "device"),
            answer.needed
        );
        return;
    }
    answer.answer = RolloutAnswer::NotYet;
    let missing = answer.needed.saturating_sub(answer.compared);
    answer.why = match in_last {
        None => format!(
            "no device ran it in the last window; {} are needed",
            answer.needed
        ),
        Some(row) if !is_healthy && row.class() != Some(VerdictClass::NotEnoughData) => {
            format!("{}: {}", words::verdict(&row.verdict), first_reason(row))
        }
        // More devices of this version would not help, for example without a baseline to compare with.
        Some(row) if missing == 0 => first_reason(row),
        Some(_) => format!(
            "{} of the {} that are needed could be compared: {missing} more",
            number::of_them(answer.compared, "device"),
            answer.needed
        ),
    };
    answer.seconds_left = in_last.filter(|_| missing > 0).and_then(|row| {
        let elapsed = row.window_end?.duration_since(row.first?).as_secs_f64() + row.window_seconds;
        (row.eligible > 0).then(|| missing as f64 * elapsed / row.eligible as f64)
    });
}
