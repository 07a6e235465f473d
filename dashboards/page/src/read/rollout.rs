//! Whether a version may go to more devices: what the detector found on each chipset, and how many devices it still needs.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use clickhouse::Row;
use epwatch_model::{State, VerdictClass};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::certificates::{self, CertificateRow};
use super::incidents::{self, IncidentRow};
use super::progress::{Progress, time};
use super::store::filtered;
use super::store::{ReadError, StoreReader};
use super::windows::{self, CohortRow};
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

/// Devices with which the detector sees a model that is twice as slow, in one window.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Needed {
    /// Where placements are readable.
    pub with_placements: u64,
    /// Where they are not.
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
    /// Nothing is wrong so far, and too few devices could be compared to be sure.
    NotYet,
    /// Enough devices were compared, and none of the detector's rules found anything.
    Go,
    /// Devices of all versions on the chipset are fewer than needed. It decides nothing.
    Rare,
}

/// The answer for each chipset, the worst first.
#[derive(Debug, Serialize)]
pub(crate) struct Rollout {
    pub(crate) query: RolloutQuery,
    pub(crate) answer: RolloutAnswer,
    pub(crate) needed: Needed,
    /// End of the last window that was judged.
    pub(crate) judged_until: Timestamp,
    /// Whether that is too long ago. A detector that stopped finds nothing, so a go is none then.
    pub(crate) is_late: bool,
    pub(crate) chipsets: Vec<ChipsetAnswer>,
    /// Roll-out groups of the app with devices of the version, those with most first. `None` if the store took too long.
    pub(crate) groups: Option<Vec<GroupRow>>,
}

/// The answer for one chipset.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ChipsetAnswer {
    pub(crate) chipset: String,
    pub(crate) answer: RolloutAnswer,
    /// Devices of the version in the last window.
    pub(crate) devices: u64,
    /// Those that could be compared.
    pub(crate) compared: u64,
    /// Those that have to be compared in one window.
    pub(crate) needed: u64,
    /// Devices of all versions in the last window, each once.
    pub(crate) devices_on_chipset: u64,
    /// Until enough devices can be compared, if they go on coming as they did since the version was first judged.
    pub(crate) seconds_left: Option<f64>,
    pub(crate) p50_us: Option<f64>,
    pub(crate) latency_ratio: Option<f64>,
    pub(crate) npu_share: Option<f64>,
    /// The share that the gate certified, the least of several runtimes.
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

/// A roll-out group, as the app labels its devices: how many of them have the version.
#[derive(Debug, Clone, PartialEq, Row, Serialize, Deserialize)]
pub(crate) struct GroupRow {
    pub(crate) label: String,
    pub(crate) value: String,
    /// Devices of the version in the last window.
    pub(crate) devices: u64,
    /// Devices of the model in the last window.
    pub(crate) of: u64,
}

/// Groups of the devices that reported the model in the last window.
const GROUPS: &str = "
SELECT label, value, uniqExactIf(installation, is_version) AS devices, uniqExact(installation) AS of
FROM (
    SELECT r.installation AS installation, toString(name) AS label, toString(its) AS value,
        arrayExists((model, version) -> model = ? AND version = ?, r.session_model_id, r.session_model_version) AS is_version
    FROM counted_reports_v1 AS r
    ARRAY JOIN mapKeys(r.rollout_labels) AS name, mapValues(r.rollout_labels) AS its
    WHERE r.app_id = ? AND r.environment = ? AND has(r.session_model_id, ?)
      AND r.received_at >= fromUnixTimestamp64Milli(?) AND r.received_at < fromUnixTimestamp64Milli(?)
)
GROUP BY label, value
HAVING devices > 0
ORDER BY devices DESC, label, value
LIMIT 20";

/// An incident of the version that a person called false.
#[derive(Debug, Clone, Row, Deserialize)]
struct FalseRow {
    chipsets: Vec<String>,
    verdict: String,
    who: String,
    why: String,
}

const FALSE: &str = "
SELECT CAST(f.chipsets, 'Array(String)') AS chipsets, toString(f.verdict) AS verdict, f.who AS who, f.why AS why
FROM false_incidents_v1 AS f
WHERE f.app_id = ? AND f.environment = ? AND f.model_id = ? AND f.model_version = ?
ORDER BY f.ordered_at DESC
LIMIT 100";

impl FalseRow {
    /// Whether it is about a ticket of this verdict on this chipset. A page is never passed over.
    fn is_of(&self, chipset: &str, row: &CohortRow) -> bool {
        let is_there = self.chipsets.is_empty() || self.chipsets.iter().any(|name| name == chipset);
        row.severity == "ticket" && row.verdict == self.verdict && is_there
    }
}

#[derive(Debug, Row, Deserialize)]
struct FirmwareRow {
    chipset: String,
    firmware: String,
    window_end: i64,
    verdict: String,
    severity: String,
    devices: u64,
    eligible: u64,
    p50_us: Option<f64>,
    latency_ratio: Option<f64>,
    npu_share: Option<f64>,
    reasons: Vec<String>,
}

/// Firmwares of a version in the last window, which are judged apart from their chipset if it has several.
static FIRMWARES: LazyLock<String> = LazyLock::new(|| {
    "
SELECT toString(w.chipset) AS chipset, toString(w.firmware) AS firmware, toInt64(toUnixTimestamp64Milli(w.window_end)) AS window_end,
    toString(w.verdict) AS verdict, toString(w.severity) AS severity, w.devices AS devices, {compared} AS eligible,
    w.p50_us AS p50_us, w.latency_ratio AS latency_ratio, w.npu_share AS npu_share, w.reasons AS reasons
FROM cohort_windows_v1 AS w
WHERE w.app_id = ? AND w.environment = ? AND w.firmware != '' AND (? = 0 OR w.model_id = ?) AND w.model_version = ?
  AND w.window_end = fromUnixTimestamp64Milli(?)
ORDER BY devices DESC, chipset, firmware
LIMIT 1000".replace("{compared}", windows::COMPARED)
});

impl FirmwareRow {
    /// Judges a firmware as its chipset is judged; `None` if it has too few devices and no finding.
    fn answer(
        self,
        query: &RolloutQuery,
        needed: u64,
        called_false: &[FalseRow],
    ) -> Option<FirmwareAnswer> {
        let row = CohortRow {
            model: query.model.clone(),
            version: query.version.clone(),
            window_end: time(self.window_end),
            verdict: self.verdict,
            severity: self.severity,
            devices: self.devices,
            eligible: self.eligible,
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
fn add_firmwares(
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

/// Nothing has this name.
#[derive(Debug)]
pub(crate) enum NoRollout {
    /// Nothing was judged yet.
    NothingJudged,
    /// No model of the app has this name; those that were judged in the last day.
    Model(Vec<String>),
    /// No version of the model has this name; those that were judged in the last day.
    Version(Vec<String>),
    Read(ReadError),
}

impl From<ReadError> for NoRollout {
    fn from(error: ReadError) -> Self {
        Self::Read(error)
    }
}

pub(crate) async fn read(
    store: &StoreReader,
    query: RolloutQuery,
    needed: Needed,
    now: Timestamp,
) -> Result<Rollout, NoRollout> {
    let progress = Progress::read(store).await?;
    let until = progress.judged_until.ok_or(NoRollout::NothingJudged)?;
    let of = (&*query.app, &*query.environment);
    let firmwares = store.rows::<FirmwareRow>(&FIRMWARES, |sql| {
        let sql = filtered(sql.bind(of.0).bind(of.1), Some(&query.model));
        sql.bind(&query.version).bind(until.as_millisecond())
    });
    let called_false = store.rows::<FalseRow>(FALSE, |sql| {
        let sql = sql.bind(of.0).bind(of.1);
        sql.bind(&query.model).bind(&query.version)
    });
    let (rows, open, firmwares, called_false, certificates) = tokio::join!(
        windows::latest(store, of, None, until),
        incidents::open(store, of),
        firmwares,
        called_false,
        certificates::list(store, Some(of.0)),
    );
    let (rows, called_false) = (rows?, called_false?);
    if !rows.iter().any(|row| row.model == query.model) {
        return Err(NoRollout::Model(names(&rows, |row| &row.model)));
    }
    let rows: Vec<CohortRow> = rows
        .into_iter()
        .filter(|row| row.model == query.model)
        .collect();
    if !rows.iter().any(|row| row.version == query.version) {
        return Err(NoRollout::Version(names(&rows, |row| &row.version)));
    }
    let open: Vec<IncidentRow> = open?.into_iter().map(IncidentRow::from).collect();
    let mut chipsets = answers(&query, &rows, &open, needed, &called_false);
    add_firmwares(&mut chipsets, firmwares?, &query, &called_false);
    add_certificates(&mut chipsets, &certificates?, &query);
    let window = rows
        .iter()
        .map(|row| row.window_seconds)
        .fold(0.0, f64::max);
    let from = until - SignedDuration::try_from_secs_f64(window).unwrap_or_default();
    let groups = store.rows::<GroupRow>(GROUPS, |sql| {
        let sql = sql.bind(&query.model).bind(&query.version);
        let sql = sql
            .bind(&query.app)
            .bind(&query.environment)
            .bind(&query.model);
        sql.bind(from.as_millisecond()).bind(until.as_millisecond())
    });
    // They decide nothing, and a large fleet has many reports in a window.
    let groups = groups.await.ok();
    Ok(Rollout {
        answer: whole(&chipsets),
        is_late: is_late(until, progress.step_seconds, now),
        query,
        needed,
        judged_until: until,
        chipsets,
        groups,
    })
}

/// Adds the shares that the gate certified. They decide nothing here: the detector compares the field with them.
fn add_certificates(
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

/// Steps until a newer window is overdue, and the time that its verdict may take on top.
const LATE_STEPS: i64 = 3;
const LATE_SECONDS: i64 = 900;

fn is_late(until: Timestamp, step_seconds: Option<i64>, now: Timestamp) -> bool {
    let step = step_seconds.unwrap_or(3600).clamp(0, 86_400);
    now.as_second() - until.as_second() > LATE_STEPS * step + LATE_SECONDS
}

fn names(rows: &[CohortRow], name: impl Fn(&CohortRow) -> &String) -> Vec<String> {
    let mut names: Vec<String> = rows.iter().map(|row| name(row).clone()).collect();
    names.sort();
    names.dedup();
    names
}

/// Chipsets that are too rare decide nothing, unless there is no other.
fn whole(chipsets: &[ChipsetAnswer]) -> RolloutAnswer {
    let answers = chipsets.iter().map(|chipset| chipset.answer);
    match answers.min() {
        None | Some(RolloutAnswer::Rare) => RolloutAnswer::NotYet,
        Some(answer) => answer,
    }
}

/// Judges each chipset that the model runs on. `rows` are of one model.
fn answers(
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
        // More devices of this version need not help, for example where nothing can be compared with.
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

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDED: Needed = Needed::OF_THE_DETECTOR;

    fn query() -> RolloutQuery {
        RolloutQuery {
            app: "app".to_owned(),
            environment: "production".to_owned(),
            model: "m".to_owned(),
            version: "2".to_owned(),
        }
    }

    fn row(version: &str, verdict: &str, severity: &str, compared: u64) -> CohortRow {
        let at = |hours: i64| Timestamp::from_second(1_800_000_000 + 3600 * hours).ok();
        CohortRow {
            model: "m".to_owned(),
            version: version.to_owned(),
            chipset: "SM8635".to_owned(),
            first: at(0),
            window_end: at(3),
            window_seconds: 3600.0,
            verdict: verdict.to_owned(),
            severity: severity.to_owned(),
            devices: compared + 2,
            eligible: compared,
            devices_on_chipset: 100,
            npu_share: Some(1.0),
            reasons: vec!["the first reason".to_owned()],
            ..CohortRow::default()
        }
    }

    fn incident(severity: &str, state: &str, chipsets: &[&str]) -> IncidentRow {
        IncidentRow {
            incident: "0123-45".to_owned(),
            state: state.to_owned(),
            severity: severity.to_owned(),
            verdict: "partial_fallback".to_owned(),
            app: "app".to_owned(),
            environment: "production".to_owned(),
            model: "m".to_owned(),
            version: "2".to_owned(),
            chipsets: chipsets.iter().map(|name| (*name).to_owned()).collect(),
            started_at: None,
            changed_at: None,
            devices_hit: 0,
            devices_seen: 0,
            latency_ratio: None,
            cpu_ops: Vec::new(),
            cpu_macs_share: None,
            acknowledged_by: None,
            muted_until: None,
            part_of: None,
        }
    }

    fn one(rows: &[CohortRow], open: &[IncidentRow]) -> ChipsetAnswer {
        let all = answers(&query(), rows, open, NEEDED, &[]);
        assert_eq!(all.len(), 1, "{all:?}");
        all.into_iter().next().unwrap()
    }

    #[test]
    fn the_detectors_own_verdict_and_the_number_of_devices_decide() {
        use RolloutAnswer::{Go, NotYet, Stop};
        for (verdict, severity, compared, expected, why) in [
            ("healthy", "none", 8, Go, "healthy: 8 devices compared"),
            (
                "healthy",
                "none",
                7,
                NotYet,
                "7 devices of the 8 that are needed could be compared: 1 more",
            ),
            ("not_enough_data", "none", 9, NotYet, "the first reason"),
            (
                "partial_fallback",
                "page",
                5,
                Stop,
                "Partial CPU fallback: the first reason",
            ),
            (
                "some_devices_fallback",
                "ticket",
                90,
                Stop,
                "CPU fallback on some devices: the first reason",
            ),
            (
                "thermal_or_load",
                "info",
                90,
                NotYet,
                "Devices hot or busy: the first reason",
            ),
        ] {
            let found = one(&[row("2", verdict, severity, compared)], &[]);
            assert_eq!(found.answer, expected, "{verdict} {compared}");
            assert!(found.why.contains(why), "{verdict}: {}", found.why);
        }
    }

    /// A firmware with enough devices has its own answer, and decides for its chipset if it is worse.
    #[test]
    fn a_firmware_at_fault_stops_its_chipset() {
        let firmware = |name: &str, verdict: &str, severity: &str, eligible| FirmwareRow {
            chipset: "SM8635".to_owned(),
            firmware: name.to_owned(),
            window_end: 1_800_010_800_000,
            verdict: verdict.to_owned(),
            severity: severity.to_owned(),
            devices: eligible,
            eligible,
            p50_us: None,
            latency_ratio: None,
            npu_share: Some(1.0),
            reasons: vec!["the first reason".to_owned()],
        };
        let judged = |rows: Vec<FirmwareRow>| {
            let healthy = [row("2", "healthy", "none", 50)];
            let mut all = answers(&query(), &healthy, &[], NEEDED, &[]);
            add_firmwares(&mut all, rows, &query(), &[]);
            let names = all[0]
                .firmwares
                .iter()
                .map(|of| format!("{} {:?}", of.firmware, of.answer));
            (all[0].answer, all[0].why.clone(), names.collect::<Vec<_>>())
        };
        let (answer, _, names) = judged(vec![
            firmware("f1", "healthy", "none", 40),
            firmware("f2", "healthy", "none", 7),
        ]);
        assert_eq!(
            (answer, names),
            (RolloutAnswer::Go, vec!["f1 Go".to_owned()])
        );
        let (answer, why, names) = judged(vec![
            firmware("f1", "healthy", "none", 40),
            firmware("f3", "partial_fallback", "page", 5),
        ]);
        assert_eq!(answer, RolloutAnswer::Stop);
        assert_eq!(
            why,
            "on firmware f3: Partial CPU fallback: the first reason"
        );
        assert_eq!(names, ["f3 Stop", "f1 Go"]);
        let (answer, ..) = judged(vec![firmware("f4", "thermal_or_load", "info", 9)]);
        assert_eq!(answer, RolloutAnswer::NotYet);
    }

    /// A person's feedback counts for tickets of the verdict and the chipset that it was about, and for no page.
    #[test]
    fn a_ticket_that_a_person_called_false_stops_nothing() {
        use RolloutAnswer::{Go, NotYet, Stop};
        let called = |verdict: &str, chipset: &str| FalseRow {
            chipsets: vec![chipset.to_owned()],
            verdict: verdict.to_owned(),
            who: "Ada".to_owned(),
            why: "lab phones".to_owned(),
        };
        let its = called("some_devices_fallback", "SM8635");
        for (severity, compared, called, expected) in [
            ("ticket", 50, its.clone(), Go),
            ("ticket", 5, its.clone(), NotYet),
            ("page", 50, its, Stop),
            (
                "ticket",
                50,
                called("some_devices_fallback", "SM8650"),
                Stop,
            ),
            ("ticket", 50, called("unexplained_slow", "SM8635"), Stop),
        ] {
            let rows = [row("2", "some_devices_fallback", severity, compared)];
            let found =
                answers(&query(), &rows, &[], NEEDED, std::slice::from_ref(&called)).remove(0);
            assert_eq!(found.answer, expected, "{severity} {compared} {called:?}");
            let says = found.why.contains("which Ada called false (lab phones)");
            assert_eq!(says, expected == Go, "{}", found.why);
        }
    }

    #[test]
    fn unreadable_placements_need_more_devices() {
        let mut unreadable = row("2", "healthy", "none", 29);
        unreadable.npu_share = None;
        let found = one(std::slice::from_ref(&unreadable), &[]);
        assert_eq!((found.answer, found.needed), (RolloutAnswer::NotYet, 30));
        unreadable.eligible = 30;
        assert_eq!(one(&[unreadable], &[]).answer, RolloutAnswer::Go);
    }

    #[test]
    fn an_open_incident_stops_though_the_last_window_is_healthy() {
        let rows = [row("2", "healthy", "none", 50)];
        for (incident, expected) in [
            (incident("page", "firing", &["SM8635"]), RolloutAnswer::Stop),
            (incident("ticket", "firing", &[]), RolloutAnswer::Stop),
            (
                incident("page", "mitigated", &["SM8635"]),
                RolloutAnswer::Stop,
            ),
            (incident("page", "firing", &["SM8650"]), RolloutAnswer::Go),
            (incident("page", "pending", &["SM8635"]), RolloutAnswer::Go),
        ] {
            assert_eq!(
                one(&rows, std::slice::from_ref(&incident)).answer,
                expected,
                "{incident:?}"
            );
        }
    }

    #[test]
    fn a_chipset_without_the_version_is_waited_for_and_a_rare_one_is_not() {
        let before = row("1", "healthy", "none", 60);
        let found = one(std::slice::from_ref(&before), &[]);
        assert_eq!((found.answer, found.devices), (RolloutAnswer::NotYet, 0));
        let mut rare = before;
        rare.devices_on_chipset = 3;
        let found = one(&[rare], &[]);
        assert_eq!(found.answer, RolloutAnswer::Rare);
        assert_eq!(whole(std::slice::from_ref(&found)), RolloutAnswer::NotYet);
        let go = ChipsetAnswer {
            answer: RolloutAnswer::Go,
            ..found.clone()
        };
        assert_eq!(whole(&[go, found]), RolloutAnswer::Go);
    }

    #[test]
    fn the_time_that_is_left_follows_the_devices_since_the_first_window() {
        // Four devices in four hours; four are missing.
        let found = one(&[row("2", "not_enough_data", "none", 4)], &[]);
        assert_eq!(found.seconds_left, Some(4.0 * 3600.0));
        assert_eq!(
            one(&[row("2", "healthy", "none", 0)], &[]).seconds_left,
            None
        );
    }

    #[test]
    fn a_detector_that_stopped_lets_nothing_go_on() {
        let until = Timestamp::from_second(1_800_000_000).unwrap();
        for (step, seconds, expected) in [
            (Some(3600), 11_700, false),
            (Some(3600), 11_701, true),
            (Some(3), 900, false),
            (Some(3), 910, true),
            (None, 86_400, true),
            // This machine's clock is behind.
            (Some(3600), -3600, false),
        ] {
            let now = Timestamp::from_second(until.as_second() + seconds).unwrap();
            assert_eq!(is_late(until, step, now), expected, "{step:?} {seconds}");
        }
    }

    /// An older version's window is judged too, and a window of the version in which nobody ran it any more is not the last.
    #[test]
    fn only_the_last_window_counts() {
        let mut old = row("2", "healthy", "none", 50);
        old.window_end = old.first;
        let found = one(&[row("1", "healthy", "none", 50), old], &[]);
        assert_eq!((found.answer, found.compared), (RolloutAnswer::NotYet, 0));
        assert!(
            found.why.contains("no device ran it in the last window"),
            "{}",
            found.why
        );
    }
}
