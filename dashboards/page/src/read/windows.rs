//! Judged windows of cohorts, by `cohort_windows_v1`.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use clickhouse::Row;
use epwatch_model::{Severity, SignalId, VerdictClass};
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};

pub(crate) use super::first_judged::CohortName;
use super::first_judged::FirstWindows;
use super::period::Period;
use super::progress::{time, time_of_ms};
use super::store::{ReadError, StoreReader, filtered};
use crate::text::number;
use crate::text::words::Tone;

/// The latest judgement of a cohort.
#[derive(Debug, Clone, Default, PartialEq, Row, Serialize, Deserialize)]
pub(crate) struct CohortRow {
    pub(crate) model: String,
    pub(crate) version: String,
    pub(crate) chipset: String,
    #[serde(deserialize_with = "time_of_ms")]
    pub(crate) first: Option<Timestamp>,
    #[serde(deserialize_with = "time_of_ms")]
    pub(crate) window_end: Option<Timestamp>,
    pub(crate) window_seconds: f64,
    pub(crate) verdict: String,
    pub(crate) severity: String,
    pub(crate) devices: u64,
    /// The version that most of its devices ran before; empty where none is known.
    pub(crate) follows: String,
    /// Of all versions of the model on the chipset, each device once.
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
    /// Share of the runs that take longer.
    pub(crate) late_share: Option<f64>,
    pub(crate) cv_within: Option<f64>,
    pub(crate) cv_between: Option<f64>,
    pub(crate) reasons: Vec<String>,
    #[serde(deserialize_with = "signals")]
    pub(crate) signals: Vec<SignalRow>,
}

/// Devices that are slower than their own past, as the detector counted them. Drawings, sentences and JSON have these
/// counts; bins of ratios have other edges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Slower {
    pub(crate) devices: u64,
    /// All devices with a past.
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
    /// Whether the detector took it as a finding.
    pub(crate) fires: bool,
}

/// Devices that were compared with a reference. A finding counts them itself; a healthy verdict has none, and its signals do.
pub(super) const COMPARED: &str = "if(w.verdict = 'healthy', arrayMax(arrayPushBack(arrayFilter((n, id) -> has(
        ['placement_change', 'certificate_drift', 'slow_device_share', 'slow_device_share_of_model'], toString(id)),
    w.signal_devices, w.signal_id), w.eligible_devices)), w.eligible_devices)";

/// Nullable columns stand in a tuple: `argMax` skips rows in which its argument is NULL.
/// `signal_fires` is the youngest column of the signals, and empty in rows from before it was added.
static LATEST: LazyLock<String> = LazyLock::new(|| {
    "
SELECT
    toString(w.model_id) AS model, toString(w.model_version) AS version, toString(w.chipset) AS chipset,
    toInt64(toUnixTimestamp64Milli(min(w.window_end))) AS first, toInt64(toUnixTimestamp64Milli(max(w.window_end))) AS window_end,
    argMax(w.window_seconds, w.window_end) AS window_seconds,
    toString(argMax(w.verdict, w.window_end)) AS verdict, toString(argMax(w.severity, w.window_end)) AS severity,
    argMax(w.devices, w.window_end) AS devices, toString(argMax(w.follows, w.window_end)) AS follows,
    argMax(w.devices_on_chipset, w.window_end) AS devices_on_chipset,
    argMax({compared}, w.window_end) AS eligible,
    argMax(w.devices_hit, w.window_end) AS hit, argMax(w.runs, w.window_end) AS runs,
    argMax(tuple(w.p50_us), w.window_end).1 AS p50_us, argMax(tuple(w.p95_us), w.window_end).1 AS p95_us,
    argMax(tuple(w.npu_share), w.window_end).1 AS npu_share,
    argMax(tuple(w.latency_ratio), w.window_end).1 AS latency_ratio,
    argMax(tuple(w.deadline_us), w.window_end).1 AS deadline_us, argMax(tuple(w.late_share), w.window_end).1 AS late_share,
    argMax(tuple(w.cv_within), w.window_end).1 AS cv_within, argMax(tuple(w.cv_between), w.window_end).1 AS cv_between,
    argMax(w.reasons, w.window_end) AS reasons,
    arrayZip(CAST(argMax(w.signal_id, w.window_end), 'Array(String)'), argMax(w.signal_value, w.window_end),
        argMax(w.signal_p, w.window_end), argMax(w.signal_hits, w.window_end), argMax(w.signal_devices, w.window_end),
        arrayResize(argMax(w.signal_fires, w.window_end), length(argMax(w.signal_id, w.window_end)))) AS signals
FROM cohort_windows_v1 AS w
WHERE w.app_id = ? AND w.environment = ? AND w.firmware = ''
  AND (? = 0 OR w.model_id = ?)
  AND w.window_end > fromUnixTimestamp64Milli(?) - INTERVAL 1 DAY AND w.window_end <= fromUnixTimestamp64Milli(?)
GROUP BY w.model_id, w.chipset, w.model_version
ORDER BY indexOf(['page', 'ticket', 'info', 'none'], severity), hit DESC, devices DESC, model, chipset, version
LIMIT 2000".replace("{compared}", COMPARED)
});

/// Reads a column of tuples.
fn signals<'de, D: Deserializer<'de>>(column: D) -> Result<Vec<SignalRow>, D::Error> {
    let rows = Vec::<(String, f64, f64, u64, u64, bool)>::deserialize(column)?;
    let signals = rows.into_iter();
    let signals = signals.map(|(id, value, p, hits, devices, fires)| SignalRow {
        id,
        value,
        p,
        hits,
        devices,
        fires,
    });
    Ok(signals.collect())
}

impl CohortRow {
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

    /// Returns the verdict; `None` for one of a newer detector.
    pub(crate) fn class(&self) -> Option<VerdictClass> {
        VerdictClass::parse(&self.verdict)
    }

    /// Whether a person has to look at it.
    pub(crate) fn is_finding(&self) -> bool {
        Severity::parse(&self.severity).is_some_and(|severity| severity >= Severity::Ticket)
    }
}

/// Returns the latest judgement of each cohort in the day before `until`, the worst first; of all models without
/// `model`.
pub(crate) async fn latest(
    store: &StoreReader,
    (app, environment): (&str, &str),
    model: Option<&str>,
    until: Timestamp,
) -> Result<Vec<CohortRow>, ReadError> {
    let ms = until.as_millisecond();
    store
        .rows(&LATEST, |query| {
            let query = query.bind(app).bind(environment);
            let query = filtered(query, model);
            query.bind(ms).bind(ms)
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
SELECT toString(w.model_id) AS model, toString(w.chipset) AS chipset, toString(w.model_version) AS version,
    toInt64(toUnixTimestamp64Milli(min(w.window_end))) AS first
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
    /// Windows in it whose verdict is a ticket or a page.
    pub(crate) windows_at_fault: u64,
}

/// Windows of a cohort that were at fault while an incident lasted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct SeenIn {
    pub(crate) windows: u64,
    /// Whether it lasted longer than the period in which they are counted.
    pub(crate) is_last_day: bool,
}

impl SeenIn {
    /// `None` if no window of the period is stored as at fault.
    pub(crate) fn of(slots: &[Slot], period: Period, since: Option<Timestamp>) -> Option<Self> {
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
    toString(w.model_id) AS model, toString(w.chipset) AS chipset, toString(w.model_version) AS version,
    toInt64(toUnixTimestamp64Milli(max(w.window_end))) AS end,
    argMax(tuple(w.p50_us), w.window_end).1 AS p50_us,
    argMax((toString(w.verdict), toString(w.severity)),
        (indexOf(['none', 'info', 'ticket', 'page'], toString(w.severity)), w.window_end)) AS worst,
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
    period: Period,
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
            let period = Period::of(at(began), at(100_000), 120);
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
