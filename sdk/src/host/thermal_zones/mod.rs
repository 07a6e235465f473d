//! Thermal status from Linux's thermal zones, each compared with its own trip points.
//!
//! The rule for one zone:
//!
//! - Without a `passive` trip the start of throttling is not known, so the zone has no status below its `hot` and
//!   `critical` trips.
//! - Below the lowest `passive` trip minus its hysteresis: none.
//! - From that temperature on: light. The kernel throttles, and stops only below it.
//! - Half way to the next `hot` or `critical` trip: moderate. Throttling is not enough to stop the heating.
//! - At a `hot` trip: severe. At a `critical` trip, where the kernel switches the device off: critical.
//!
//! The worst zone counts. Without any status the result is "unknown", which is not "none". Zones of sensors that are
//! off, and trips that are off (0 or less, or impossible values), are ignored.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use epwatch_proto::Thermal;

use crate::{folder::files, recorder::conditions::CurrentConditions};

/// Linux's folder of thermal zones.
pub(crate) const DIR: &str = "sys/class/thermal";
/// Temperatures change over seconds. A reading opens one small file per zone, about a hundred on a phone's chip.
const INTERVAL: Duration = Duration::from_secs(10);
/// Number of readings before zones and trips are listed again, because daemons move trips and drivers load late.
const READINGS_A_LISTING: u32 = 30;
/// Maximum number of zones that are read; Qualcomm's chips have about a hundred.
const MAX_ZONES: usize = 256;
/// Maximum number of trips of a zone; a zone has a handful.
const MAX_TRIPS: usize = 16;
/// Longest file, which holds a word or a number.
const MAX_BYTES: u64 = 64;
/// Highest plausible temperature, in thousandths of a degree Celsius.
const MAX_MILLI_C: i64 = 200_000;
/// Lowest plausible temperature. Sensors that are off report -273000, for example.
const MIN_MILLI_C: i64 = -55_000;
/// Widest plausible hysteresis.
const MAX_HYSTERESIS: i64 = 10_000;

/// Trip points of one zone, the lowest of each kind, in thousandths of a degree Celsius.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Trips {
    /// The range of throttling, whose end is at or below the lowest `passive` trip.
    passive: Option<Passive>,
    hot: Option<i64>,
    critical: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Passive {
    trip: i64,
    /// Throttling stops below this.
    ends_below: i64,
}

impl Trips {
    /// Adds a trip. Kinds without a meaning for heat, such as `active` fans, are ignored.
    fn add(&mut self, kind: &str, trip: i64, hysteresis: i64) {
        if !(1..=MAX_MILLI_C).contains(&trip) {
            return;
        }
        let lowest = |known: Option<i64>| Some(known.map_or(trip, |known| known.min(trip)));
        match kind {
            "passive" => {
                let ends_below = trip - hysteresis.clamp(0, MAX_HYSTERESIS);
                let passive = Passive { trip, ends_below };
                self.passive = Some(self.passive.map_or(passive, |known| known.min(passive)));
            }
            "hot" => self.hot = lowest(self.hot),
            "critical" => self.critical = lowest(self.critical),
            _ => {}
        }
    }

    /// Status of a zone with these trips at this temperature.
    fn thermal_at(&self, milli_c: i64) -> Thermal {
        let is_read = milli_c != 0 && (MIN_MILLI_C..=MAX_MILLI_C).contains(&milli_c);
        let reaches = |trip: Option<i64>| trip.is_some_and(|trip| milli_c >= trip);
        if !is_read {
            return Thermal::Unknown;
        }
        if reaches(self.critical) {
            return Thermal::Critical;
        }
        if reaches(self.hot) {
            return Thermal::Severe;
        }
        let Some(passive) = self.passive else {
            return Thermal::Unknown;
        };
        let above = [self.hot, self.critical].into_iter().flatten();
        let next = above.filter(|trip| *trip > passive.trip).min();
        if reaches(next.map(|next| i64::midpoint(passive.trip, next))) {
            return Thermal::Moderate;
        }
        match milli_c >= passive.ends_below {
            true => Thermal::Light,
            false => Thermal::None,
        }
    }
}

/// Zones of a device that have a status.
#[derive(Debug, Default)]
struct Zones(Vec<(PathBuf, Trips)>);

impl Zones {
    fn list(dir: &Path) -> Self {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let is_zone = |name: &str| {
            name.strip_prefix("thermal_zone")
                .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        };
        let zones = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_zone));
        let zones = zones.take(MAX_ZONES).map(|entry| entry.path());
        let with_trips = zones
            .filter(|zone| word(&zone.join("mode")).as_deref() != Some("disabled"))
            .map(|zone| {
                let trips = trips_of(&zone);
                (zone.join("temp"), trips)
            });
        Self(with_trips.filter(|(_, t)| *t != Trips::default()).collect())
    }

    fn read(&self) -> Thermal {
        let said = self.0.iter().map(|(temp, trips)| {
            number(temp).map_or(Thermal::Unknown, |milli_c| trips.thermal_at(milli_c))
        });
        // Statuses are in the contract's order: unknown first, then from cool to hot.
        said.max().unwrap_or(Thermal::Unknown)
    }
}

fn trips_of(zone: &Path) -> Trips {
    let mut trips = Trips::default();
    for n in 0..MAX_TRIPS {
        let file = |what: &str| zone.join(format!("trip_point_{n}_{what}"));
        let Some(kind) = word(&file("type")) else {
            break;
        };
        if let Some(trip) = number(&file("temp")) {
            trips.add(&kind, trip, number(&file("hyst")).unwrap_or(0));
        }
    }
    trips
}

fn word(path: &Path) -> Option<String> {
    let bytes = files::read_at_most(path, MAX_BYTES).ok()?;
    Some(std::str::from_utf8(&bytes).ok()?.trim().to_owned())
}

fn number(path: &Path) -> Option<i64> {
    word(path)?.parse().ok()
}

/// Whether any zone below `dir` has a `passive` trip.
pub(crate) fn has_passive_trips(dir: &Path) -> bool {
    Zones::list(dir).0.iter().any(|(_, t)| t.passive.is_some())
}

/// Reads the thermal status once.
pub fn read() -> Thermal {
    Zones::list(&Path::new("/").join(DIR)).read()
}

/// Updates the thermal status of a process, on the SDK's thread.
#[derive(Debug)]
pub(crate) struct ThermalReader {
    dir: PathBuf,
    zones: Zones,
    /// Readings before zones are listed again.
    readings_left: u32,
    next: Option<Instant>,
    conditions: Arc<CurrentConditions>,
}

impl ThermalReader {
    pub(crate) fn new(conditions: Arc<CurrentConditions>, dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            zones: Zones::default(),
            readings_left: 0,
            next: None,
            conditions,
        }
    }

    /// Reads the zones if a reading is due. Without consent nothing is read, and the status is unknown.
    pub(crate) fn refresh(&mut self, now: Instant, may_read: bool) {
        if !may_read {
            if self.next.take().is_some() {
                self.conditions.set_thermal(Thermal::Unknown);
            }
            return;
        }
        if self.next.is_some_and(|next| now < next) {
            return;
        }
        if self.readings_left == 0 {
            self.zones = Zones::list(&self.dir);
            self.readings_left = READINGS_A_LISTING;
        }
        self.readings_left -= 1;
        self.conditions.set_thermal(self.zones.read());
        self.next = Some(now + INTERVAL);
    }

    /// Time until the next reading; `None` if none is planned.
    pub(crate) fn wait(&self, now: Instant) -> Option<Duration> {
        Some(self.next?.saturating_duration_since(now))
    }
}

/// When the reader is gone, the status is unknown.
impl Drop for ThermalReader {
    fn drop(&mut self) {
        self.conditions.set_thermal(Thermal::Unknown);
    }
}

#[cfg(test)]
mod tests;
