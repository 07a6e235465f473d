//! Judged windows of cohorts, by `cohort_windows_v1`.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use clickhouse::Row;
use epwatch_model::{Severity, SignalId, VerdictClass};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub(crate) use super::first_judged::CohortName;
use super::first_judged::FirstWindows;
use super::period::PlottedPeriod;
use super::progress::time;
use super::store::{ReadError, StoreReader, filtered};
use crate::text::number;
use crate::text::words::Tone;

/// The latest judgement of a cohort.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct CohortRow {
    pub(crate) model: String,
    pub(crate) version: String,
    pub(crate) chipset: String,
    pub(crate) first: Option<Timestamp>,
    pub(crate) window_end: Option<Timestamp>,
    pub(crate) window_seconds: f64,
    pub(crate) verdict: String,
    pub(crate) severity: String,
    pub(crate) devices: u64,
    /// The version that most of its devices ran before; empty where none is known.
    pub(crate) follows: String,
    /// Devices of all versions of the model on the chipset, each once.
    pub(crate) devices_on_chipset: u64,
    pub(crate) eligible: u64,
    pub(crate) hit: u64,
    pub(crate) runs: u64,
    pub(crate) p50_us: Option<f64>,
    pub(crate) p95_us: Option<f64>,
    pub(crate) npu_share: Option<f64>,
    pub(crate) latency_ratio: Option<f64>,
    /// The model's deadline in the detector's config.
    pub(crate) deadline_us: Option<f64>,
    /// Share of the runs that take longer than the deadline.
    pub(crate) late_share: Option<f64>,
    pub(crate) cv_within: Option<f64>,
    pub(crate) cv_between: Option<f64>,
    pub(crate) reasons: Vec<String>,
    pub(crate) signals: Vec<SignalRow>,
}

/// Devices that are slower than their own past, as the detector counted them. Drawings, sentences and JSON have these
/// counts; bins of ratios have other edges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Slower {
    pub(crate) devices: u64,
    /// All devices that were compared with their own past.
    pub(crate) compared: u64,
}

impl Slower {
    /// The least ratio that counts, and the signal that counts it.
    pub(crate) const RATIO: f64 = 1.6;
    pub(crate) const SIGNAL: SignalId = SignalId::ShiftBeyond(16);

    /// `None` if no device was compared.
    pub(crate) fn of(devices: u64, compared: u64) -> Option<Self> {
        (compared > 0).then_some(Self { devices, compared })
    }

    /// Returns a sentence on these devices and those without a past.
    pub(crate) fn words(self, without_past: u64) -> String {
        let times = number::times_slower(Some(Self::RATIO)).unwrap_or_default();
        let are = if self.devices == 1 { "is" } else { "are" };
        let without = match without_past {
            0 => String::new(),
            n => format!(
                "; the past of {} is not known",
                number::of_them(n, "device")
            ),
        };
        format!(
            "{} of {} with a past {are} {times} than it or more{without}.",
            number::count(self.devices),
            number::of_them(self.compared, "device")
        )
    }
}

/// A signal of a window.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct SignalRow {
    pub(crate) id: String,
    pub(crate) value: f64,
    pub(crate) p: f64,
    pub(crate) hits: u64,
    pub(crate) devices: u64,
    /// Whether the signal fires, which makes it a finding.
    pub(crate) fires: bool,
}

/// Signals that compare each device with a reference.
const COMPARING: [SignalId; 4] = [
    SignalId::Placement,
    SignalId::Certificate,
    SignalId::Shift,
    SignalId::ShiftOfModel,
];

/// Returns the devices that were compared with a reference. A finding counts them itself, as `eligible`; a healthy verdict
/// has none, and its signals do.
pub(super) fn compared<'a>(
    verdict: &str,
    eligible: u64,
    signals: impl Iterator<Item = (&'a str, u64)>,
) -> u64 {
    if VerdictClass::parse(verdict) != Some(VerdictClass::Healthy) {
        return eligible;
    }
    let compares = |id: &str| COMPARING.iter().any(|of| of.name() == Some(id));
    let devices = signals.filter(|(id, _)| compares(id));
    devices.fold(eligible, |most, (_, devices)| most.max(devices))
}

/// The columns of each cohort's latest window are in three tuples, because ClickHouse plans one aggregate for a tuple.
/// Planning is most of the query. `signal_fires` is the newest column of the signals. It is empty in rows that are
/// older than the column. The chipset's windows go to its own page, so that it needs no second query for them.
const LATEST: &str = "
SELECT
    w.model_id AS model, w.model_version AS version, w.chipset AS chipset,
    min(w.window_end) AS first, max(w.window_end) AS window_end,
    argMax((w.window_seconds, w.verdict, w.severity, w.devices, w.follows, w.devices_on_chipset,
        w.eligible_devices, w.devices_hit, w.runs), w.window_end) AS judged,
    argMax((w.p50_us, w.p95_us, w.npu_share, w.latency_ratio, w.deadline_us, w.late_share, w.cv_within, w.cv_between),
        w.window_end) AS measured,
    argMax((w.reasons, w.signal_id, w.signal_value, w.signal_p, w.signal_hits, w.signal_devices, w.signal_fires),
        w.window_end) AS explained,
    groupArrayIf(10000)((w.window_end, w.p50_us, w.verdict, w.severity, w.devices_hit), ? = 1 AND w.chipset = ?) AS windows
FROM cohort_windows_v1 AS w
WHERE w.app_id = ? AND w.environment = ? AND w.firmware = ''
  AND (? = 0 OR w.model_id = ?)
  AND w.window_end > fromUnixTimestamp64Milli(?) - INTERVAL 1 DAY AND w.window_end <= fromUnixTimestamp64Milli(?)
GROUP BY w.model_id, w.chipset, w.model_version
ORDER BY indexOf(['page', 'ticket', 'info', 'none'], judged.3), judged.8 DESC, judged.4 DESC, model, chipset, version
LIMIT 2000";

type Judged = (f64, String, String, u64, String, u64, u64, u64, u64);
type Measured = (
    Option<f64>,
    Option<f64>,
    Option<f64>,
    Option<f64>,
    Option<f64>,
    Option<f64>,
    Option<f64>,
    Option<f64>,
);
type Explained = (
    Vec<String>,
    Vec<String>,
    Vec<f64>,
    Vec<f64>,
    Vec<u64>,
    Vec<u64>,
    Vec<bool>,
);

/// A judged window of a cohort: its end in milliseconds, median, verdict, severity and devices hit.
type JudgedWindow = (i64, Option<f64>, String, String, u64);

#[derive(Debug, Row, Deserialize)]
struct LatestRow {
    model: String,
    version: String,
    chipset: String,
    first: i64,
    window_end: i64,
    judged: Judged,
    measured: Measured,
    explained: Explained,
    windows: Vec<JudgedWindow>,
}

impl LatestRow {
    /// Returns the latest judgement and the windows.
    fn split(self) -> (CohortRow, Vec<JudgedWindow>) {
        let (window_seconds, verdict, severity, devices, follows, on_chipset, eligible, hit, runs) =
            self.judged;
        let (p50_us, p95_us, npu_share, latency_ratio, deadline_us, late_share, within, between) =
            self.measured;
        let (reasons, ids, values, ps, hits, of, fires) = self.explained;
        let signals = ids.iter().map(String::as_str).zip(of.iter().copied());
        let eligible = compared(&verdict, eligible, signals);
        let fires = fires.into_iter().chain(std::iter::repeat(false));
        let counts = hits.into_iter().zip(of).zip(fires);
        let signals = ids.into_iter().zip(values).zip(ps).zip(counts);
        let signals = signals.map(|(((id, value), p), ((hits, devices), fires))| SignalRow {
            id,
            value,
            p,
            hits,
            devices,
            fires,
        });
        let row = CohortRow {
            model: self.model,
            version: self.version,
            chipset: self.chipset,
            first: time(self.first),
            window_end: time(self.window_end),
            window_seconds,
            verdict,
            severity,
            devices,
            follows,
            devices_on_chipset: on_chipset,
            eligible,
            hit,
            runs,
            p50_us,
            p95_us,
            npu_share,
            latency_ratio,
            deadline_us,
            late_share,
            cv_within: within,
            cv_between: between,
            reasons,
            signals: signals.collect(),
        };
        (row, self.windows)
    }
}

impl CohortRow {
    pub(crate) fn name(&self) -> CohortName {
        (
            self.model.clone(),
            self.chipset.clone(),
            self.version.clone(),
        )
    }

    pub(crate) fn tone(&self) -> Tone {
        Tone::of(&self.verdict, &self.severity)
    }

    pub(crate) fn slower(&self) -> Option<Slower> {
        let signal = self.signal(Slower::SIGNAL)?;
        Slower::of(signal.hits, signal.devices)
    }

    pub(crate) fn signal(&self, id: SignalId) -> Option<&SignalRow> {
        let id = id.to_string();
        self.signals.iter().find(|signal| signal.id == id)
    }

    /// Returns the verdict's class; `None` for a class that only a newer detector knows.
    pub(crate) fn class(&self) -> Option<VerdictClass> {
        VerdictClass::parse(&self.verdict)
    }

    /// Whether a person has to look at the verdict.
    pub(crate) fn is_finding(&self) -> bool {
        Severity::parse(&self.severity).is_some_and(|severity| severity >= Severity::Ticket)
    }
}

/// Returns the latest judgement of each cohort in the day before `until`, the worst first; without `model`, of all
/// models.
pub(crate) async fn latest(
    store: &StoreReader,
    of: (&str, &str),
    model: Option<&str>,
    until: Timestamp,
) -> Result<Vec<CohortRow>, ReadError> {
    let rows = latest_rows(store, of, model, None, until).await?;
    Ok(rows.into_iter().map(|row| row.split().0).collect())
}

/// The windows of one chipset in a day, by cohort.
#[derive(Debug, Default)]
pub(crate) struct ChipsetWindows(HashMap<CohortName, Vec<JudgedWindow>>);

impl ChipsetWindows {
    /// Returns a cohort's slots of a period that lies within the day.
    pub(crate) fn slots(&mut self, name: &CohortName, period: PlottedPeriod) -> Vec<Slot> {
        let windows = self.0.remove(name);
        slots_of(windows.unwrap_or_default(), period)
    }
}

/// Returns the same as [`latest`] for one model, and the windows of a chipset in that day.
pub(crate) async fn latest_with_windows(
    store: &StoreReader,
    of: (&str, &str),
    (model, chipset): (&str, &str),
    until: Timestamp,
) -> Result<(Vec<CohortRow>, ChipsetWindows), ReadError> {
    let mut cohorts = Vec::new();
    let mut windows = ChipsetWindows::default();
    for row in latest_rows(store, of, Some(model), Some(chipset), until).await? {
        let (cohort, of_cohort) = row.split();
        if !of_cohort.is_empty() {
            windows.0.insert(cohort.name(), of_cohort);
        }
        cohorts.push(cohort);
    }
    Ok((cohorts, windows))
}

async fn latest_rows(
    store: &StoreReader,
    (app, environment): (&str, &str),
    model: Option<&str>,
    chipset: Option<&str>,
    until: Timestamp,
) -> Result<Vec<LatestRow>, ReadError> {
    let ms = until.as_millisecond();
    store
        .rows(LATEST, |query| {
            let query = filtered(query, chipset).bind(app).bind(environment);
            filtered(query, model).bind(ms).bind(ms)
        })
        .await
}

#[derive(Debug, Row, Deserialize)]
struct FirstRow {
    model: String,
    chipset: String,
    version: String,
    first: i64,
}

const FIRST: &str = "
SELECT w.model_id AS model, w.chipset AS chipset, w.model_version AS version, min(w.window_end) AS first
FROM cohort_windows_v1 AS w
WHERE w.app_id = ? AND w.environment = ? AND w.firmware = '' AND (? = 0 OR w.model_id = ?)
  AND w.window_end > fromUnixTimestamp64Milli(?) - INTERVAL 30 DAY
GROUP BY w.model_id, w.chipset, w.model_version
LIMIT 10000";

/// Returns when each version was first judged on each chipset, in the last 30 days.
pub(crate) async fn first_judged(
    store: &StoreReader,
    (app, environment): (&str, &str),
    model: Option<&str>,
    until: Timestamp,
) -> Result<FirstWindows, ReadError> {
    let of = (
        app.to_owned(),
        environment.to_owned(),
        model.map(str::to_owned),
    );
    if let Some(first) = store.first_judged.at(&of, until) {
        return Ok(first);
    }
    let rows: Vec<FirstRow> = store
        .rows(FIRST, |query| {
            let query = query.bind(app).bind(environment);
            let query = filtered(query, model);
            query.bind(until.as_millisecond())
        })
        .await?;
    let named = |row: FirstRow| Some(((row.model, row.chipset, row.version), time(row.first)?));
    let first: FirstWindows = Arc::new(rows.into_iter().filter_map(named).collect());
    store.first_judged.put(of, until, first.clone());
    Ok(first)
}

/// Orders versions of one model: by when they were first judged, then by the numbers in their names.
pub(crate) fn by_age(a: (&str, Option<Timestamp>), b: (&str, Option<Timestamp>)) -> Ordering {
    let numbers = |version: &str| -> Vec<u64> {
        let parts = version.split(|c: char| !c.is_ascii_digit());
        parts.filter_map(|part| part.parse().ok()).collect()
    };
    let by_number = || numbers(a.0).cmp(&numbers(b.0)).then_with(|| a.0.cmp(b.0));
    a.1.cmp(&b.1).then_with(by_number)
}

/// One slot of a cohort's windows: the last median, the worst verdict, the most devices hit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Slot {
    pub(crate) at: f64,
    pub(crate) p50_us: Option<f64>,
    pub(crate) verdict: String,
    pub(crate) severity: String,
    pub(crate) hit: u64,
    /// Windows in the slot whose verdict is a ticket or a page.
    pub(crate) windows_at_fault: u64,
}

/// Windows of a cohort that were at fault while an incident lasted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct SeenIn {
    pub(crate) windows: u64,
    /// Whether the incident lasted longer than the period, so only the last day is counted.
    pub(crate) is_last_day: bool,
}

impl SeenIn {
    /// `None` if no window of the period is stored as at fault.
    pub(crate) fn of(
        slots: &[Slot],
        period: PlottedPeriod,
        since: Option<Timestamp>,
    ) -> Option<Self> {
        let windows = slots.iter().map(|slot| slot.windows_at_fault).sum();
        (windows > 0).then(|| Self {
            windows,
            is_last_day: since.is_some_and(|since| since.as_second() < period.from.as_second()),
        })
    }

    /// Returns the number as a part of a sentence.
    pub(crate) fn words(self) -> String {
        let last_day = if self.is_last_day {
            " of its last day"
        } else {
            ""
        };
        format!(
            "seen in {}{last_day}",
            number::of_them(self.windows, "window")
        )
    }
}

#[derive(Debug, Row, Deserialize)]
struct SlotRow {
    model: String,
    chipset: String,
    version: String,
    end: i64,
    p50_us: Option<f64>,
    worst: (String, String),
    hit: u64,
    at_fault: u64,
}

const SLOTS: &str = "
SELECT
    w.model_id AS model, w.chipset AS chipset, w.model_version AS version, max(w.window_end) AS end,
    argMax(tuple(w.p50_us), w.window_end).1 AS p50_us,
    argMax((w.verdict, w.severity), (indexOf(['none', 'info', 'ticket', 'page'], w.severity), w.window_end)) AS worst,
    max(w.devices_hit) AS hit, countIf(w.severity IN ('ticket', 'page')) AS at_fault
FROM cohort_windows_v1 AS w
WHERE w.app_id = ? AND w.environment = ? AND w.firmware = ''
  AND (? = 0 OR w.model_id = ?) AND (? = 0 OR w.chipset = ?)
  AND w.window_end > fromUnixTimestamp64Milli(?) AND w.window_end <= fromUnixTimestamp64Milli(?)
GROUP BY w.model_id, w.chipset, w.model_version,
    intDiv((toUnixTimestamp64Milli(w.window_end) - ?) * ?, ?)
ORDER BY model, chipset, version, end
LIMIT 100000";

/// Returns the windows of cohorts over a period, by cohort, in order of time.
pub(crate) async fn slots(
    store: &StoreReader,
    (app, environment): (&str, &str),
    model: Option<&str>,
    chipset: Option<&str>,
    period: PlottedPeriod,
) -> Result<HashMap<CohortName, Vec<Slot>>, ReadError> {
    let (from, to) = (period.from.as_millisecond() - 1, period.to.as_millisecond());
    let rows: Vec<SlotRow> = store
        .rows(SLOTS, |query| {
            let query = query.bind(app).bind(environment);
            let query = filtered(query, model);
            let query = filtered(query, chipset);
            query
                .bind(from)
                .bind(to)
                .bind(from)
                .bind(period.slots)
                .bind(to - from)
        })
        .await?;
    let mut all: HashMap<CohortName, Vec<Slot>> = HashMap::new();
    for row in rows {
        let Some(end) = time(row.end) else {
            continue;
        };
        let slots = all
            .entry((row.model, row.chipset, row.version))
            .or_default();
        slots.push(Slot {
            at: period.at(end).clamp(0.0, 1.0),
            p50_us: row.p50_us,
            verdict: row.worst.0,
            severity: row.worst.1,
            hit: row.hit,
            windows_at_fault: row.at_fault,
        });
    }
    Ok(all)
}

/// Puts windows of a cohort into the slots of a period, as [`SLOTS`] does.
fn slots_of(mut windows: Vec<JudgedWindow>, period: PlottedPeriod) -> Vec<Slot> {
    let (from, to) = (period.from.as_millisecond() - 1, period.to.as_millisecond());
    windows.retain(|(end, ..)| *end > from && *end <= to);
    windows.sort_by_key(|(end, ..)| *end);
    let slot = |end: i64| (end - from) * period.slots / (to - from);
    let in_slots = windows.chunk_by(|a, b| slot(a.0) == slot(b.0));
    let slots = in_slots.filter_map(|windows| {
        let (end, p50_us, ..) = windows.last()?;
        let severity = |window: &JudgedWindow| Severity::parse(&window.3);
        let worst = windows.iter().max_by_key(|window| severity(window))?;
        let at_fault = windows
            .iter()
            .filter(|window| severity(window) >= Some(Severity::Ticket));
        Some(Slot {
            at: period.at(time(*end)?).clamp(0.0, 1.0),
            p50_us: *p50_us,
            verdict: worst.2.clone(),
            severity: worst.3.clone(),
            hit: windows.iter().map(|(.., hit)| *hit).max()?,
            windows_at_fault: at_fault.count() as u64,
        })
    });
    slots.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_on_slower_devices_has_the_signals_ratio_and_counts() {
        assert_eq!(
            Slower::SIGNAL.to_string(),
            format!("slower_than_{:.1}x", Slower::RATIO)
        );
        assert_eq!(Slower::of(0, 0), None);
        let words = |devices, without| Slower::of(devices, 9).unwrap().words(without);
        assert_eq!(
            words(5, 3),
            "5 of 9 devices with a past are 1.6 times slower than it or more; the past of 3 devices is not known."
        );
        assert_eq!(
            words(1, 0),
            "1 of 9 devices with a past is 1.6 times slower than it or more."
        );
    }

    #[test]
    fn a_healthy_verdict_compared_as_many_devices_as_its_signals() {
        let signals = [
            ("placement_change", 30),
            ("slow_device_share", 40),
            ("start_failure", 90),
            ("another", 99),
        ];
        assert_eq!(compared("healthy", 7, signals.into_iter()), 40);
        assert_eq!(compared("healthy", 50, signals.into_iter()), 50);
        assert_eq!(compared("partial_fallback", 7, signals.into_iter()), 7);
    }

    #[test]
    fn a_slot_has_its_last_median_and_its_worst_verdict() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let period = PlottedPeriod::of(at(1_000), at(1_100), 10);
        let window = |second: i64, p50_us, verdict: &str, severity: &str, hit| {
            (
                second * 1_000,
                p50_us,
                verdict.to_owned(),
                severity.to_owned(),
                hit,
            )
        };
        let windows = vec![
            window(1_100, Some(9.0), "healthy", "none", 0),
            window(1_008, None, "healthy", "none", 1),
            window(1_000, Some(2.0), "regression", "ticket", 7),
            window(1_004, Some(3.0), "bimodal", "ticket", 2),
            window(999, Some(1.0), "regression", "page", 90),
            window(1_101, Some(1.0), "regression", "page", 90),
        ];
        let slots = slots_of(windows, period);
        let of = |slot: &Slot| (slot.p50_us, slot.verdict.clone(), slot.hit);
        assert_eq!(slots.len(), 2, "{slots:?}");
        assert_eq!(of(&slots[0]), (None, "bimodal".to_owned(), 7));
        assert_eq!(of(&slots[1]), (Some(9.0), "healthy".to_owned(), 0));
        assert_eq!(slots[0].windows_at_fault, 2);
        assert!((slots[0].at - 0.08).abs() < 1e-9 && slots[1].at >= 1.0);
    }

    #[test]
    fn windows_at_fault_are_those_of_the_whole_incident_or_of_its_last_day() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let slot = |windows_at_fault| Slot {
            at: 0.0,
            p50_us: None,
            verdict: String::new(),
            severity: String::new(),
            hit: 0,
            windows_at_fault,
        };
        let words = |slots: &[Slot], began| {
            let period = PlottedPeriod::of(at(began), at(100_000), 120);
            SeenIn::of(slots, period, Some(at(began))).map(SeenIn::words)
        };
        assert_eq!(words(&[slot(0)], 99_000), None);
        let whole = words(&[slot(1_500), slot(0), slot(7)], 99_000);
        assert_eq!(whole.as_deref(), Some("seen in 1,507 windows"));
        let cut = words(&[slot(1)], 2);
        assert_eq!(cut.as_deref(), Some("seen in 1 window of its last day"));
    }

    #[test]
    fn versions_are_ordered_by_age_then_by_number() {
        let at = |second| Timestamp::from_second(second).ok();
        assert_eq!(by_age(("9", at(2)), ("10", at(1))), Ordering::Greater);
        assert_eq!(by_age(("1.9.0", at(1)), ("1.10.0", at(1))), Ordering::Less);
        assert_eq!(by_age(("b", None), ("a", at(1))), Ordering::Less);
        assert_eq!(by_age(("a", at(1)), ("b", at(1))), Ordering::Less);
    }
}
