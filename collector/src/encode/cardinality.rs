//! Limits of distinct names: models, versions, chipsets and shape keys of an app on a day of receipt. Names beyond
//! become [`OTHER`] in the rows; the WAL keeps the bytes as they came in.
//!
//! A record must make the same rows when its batch is inserted again after a crash. So an admitted name is appended to
//! the file `names` in the WAL's directory before its batch is inserted. At a repetition an admitted name is known, and
//! for any other name the day is as full as it was. Each collector has limits of its own, so two admit at most twice as
//! many.
//!
//! Each line of the file is a JSON array: day, app, environment, dimension, name. A torn line is skipped; its batch was
//! not inserted. Old days are dropped at start.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use epwatch_server::replace_file;
use foldhash::quality::RandomState;

use super::stored::Stored;

/// Replaces a name beyond the limit.
pub(crate) const OTHER: &str = "__other__";

const FILE: &str = "names";
const DAY_MS: i64 = 86_400_000;
/// Days in memory: a batch of a quiet collector may span some.
const MAX_DAYS: usize = 16;
/// Names of one day over all apps. With keys apps are few; without keys a sender can name any.
const MAX_NAMES: usize = 200_000;

/// The kinds of names. The label is the metric's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Dimension {
    Model,
    Version,
    Chipset,
    ShapeKey,
}

impl Dimension {
    pub(crate) const ALL: [Self; 4] = [Self::Model, Self::Version, Self::Chipset, Self::ShapeKey];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Version => "version",
            Self::Chipset => "chipset",
            Self::ShapeKey => "shape_key",
        }
    }
}

/// Counts of names beyond the limit, by dimension.
pub(crate) type Limited = [u64; 4];

type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;
type Names = [std::collections::HashSet<String, RandomState>; 4];

#[derive(Debug, Default)]
struct Day {
    n_names: usize,
    /// By app, then environment.
    apps: HashMap<String, HashMap<String, Names>>,
}

impl Day {
    /// Returns whether the name is admitted, and whether it is new.
    fn admit(&mut self, at: (&str, &str), of: Dimension, name: &str, most: usize) -> (bool, bool) {
        let known = self.apps.get(at.0).and_then(|app| app.get(at.1));
        let names = known.map(|names| &names[of as usize]);
        if names.is_some_and(|names| names.contains(name)) {
            return (true, false);
        }
        let n_names = names.map_or(0, |names| names.len());
        if (most > 0 && n_names >= most) || self.n_names >= MAX_NAMES {
            return (false, false);
        }
        let app = self.apps.entry(at.0.to_owned()).or_default();
        let names = app.entry(at.1.to_owned()).or_default();
        names[of as usize].insert(name.to_owned());
        self.n_names += 1;
        (true, true)
    }
}

/// The names of one collector; by default without limits or a file.
#[derive(Debug, Default)]
pub(crate) struct CardinalityLimiter {
    limits: [usize; 4],
    days: BTreeMap<i64, Day>,
    /// `None` saves nothing.
    file: Option<File>,
    unwritten: Vec<u8>,
}

impl CardinalityLimiter {
    /// Opens the file in the WAL's directory. Limits are in the order of [`Dimension::ALL`].
    pub(crate) fn open(dir: &Path, limits: [usize; 4]) -> io::Result<Self> {
        let mut guard = Self {
            limits,
            days: BTreeMap::new(),
            file: None,
            unwritten: Vec::new(),
        };
        let path = dir.join(FILE);
        let text = match fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let lines = text.lines().filter_map(|line| {
            let line: (i64, String, String, usize, String) = serde_json::from_str(line).ok()?;
            Some((*Dimension::ALL.get(line.3)?, line))
        });
        let lines: Vec<_> = lines.collect();
        for (of, (day, app, environment, _, name)) in &lines {
            // An admitted name stays admitted, even if the limit is lower now.
            guard.admit(*day, (app, environment), *of, name, 0);
        }
        // Rewritten without old days and torn lines.
        guard.unwritten.clear();
        for (of, (day, app, environment, _, name)) in &lines {
            if guard.days.contains_key(day) {
                guard.note(*day, (app, environment), *of, name);
            }
        }
        replace_file(&path, &guard.unwritten)?;
        guard.unwritten.clear();
        guard.file = Some(OpenOptions::new().append(true).open(&path)?);
        Ok(guard)
    }

    /// Replaces and counts the names of one report that are beyond the limits.
    pub(super) fn apply(&mut self, stored: &mut Stored, limited: &mut Limited) {
        let day = stored.received_ms.div_euclid(DAY_MS);
        let Stored {
            app_id,
            environment,
            chipset,
            report,
            ..
        } = stored;
        let at = (app_id.as_str(), environment.as_str());
        let mut keep = |of, name: &str| {
            let is_in = self.keeps(day, at, of, name);
            limited[of as usize] += u64::from(!is_in);
            is_in
        };
        if !keep(Dimension::Chipset, chipset) {
            OTHER.clone_into(chipset);
        }
        let sessions = report.sessions.iter_mut().map(|s| &mut s.model);
        let failures = report.start_failures.iter_mut().map(|f| &mut f.model);
        for model in sessions.chain(failures) {
            if !keep(Dimension::Model, &model.id) {
                OTHER.clone_into(&mut model.id);
            }
            // A version is one of its model: "1" of two models is two names.
            let version = format!("{}\n{}", model.id, model.version);
            if model.id == OTHER || !keep(Dimension::Version, &version) {
                OTHER.clone_into(&mut model.version);
            }
        }
        for series in &mut report.series {
            if !keep(Dimension::ShapeKey, &series.stratum.shape_key) {
                OTHER.clone_into(&mut series.stratum.shape_key);
            }
        }
    }

    fn keeps(&mut self, day: i64, at: (&str, &str), of: Dimension, name: &str) -> bool {
        // A device that sends this name itself takes nothing from the limit.
        name == OTHER || self.admit(day, at, of, name, self.limits[of as usize])
    }

    fn admit(
        &mut self,
        day: i64,
        at: (&str, &str),
        of: Dimension,
        name: &str,
        most: usize,
    ) -> bool {
        let (is_in, is_new) = self.days.entry(day).or_default().admit(at, of, name, most);
        if is_new {
            self.note(day, at, of, name);
        }
        while self.days.len() > MAX_DAYS {
            self.days.pop_first();
        }
        is_in
    }

    fn note(&mut self, day: i64, at: (&str, &str), of: Dimension, name: &str) {
        let line = serde_json::json!([day, at.0, at.1, of as usize, name]);
        self.unwritten.extend(line.to_string().as_bytes());
        self.unwritten.push(b'\n');
    }

    /// Makes admitted names durable, before their batch is inserted.
    pub(crate) fn save(&mut self) -> io::Result<()> {
        let Some(file) = self.file.as_mut().filter(|_| !self.unwritten.is_empty()) else {
            return Ok(());
        };
        let saved = file
            .write_all(&self.unwritten)
            .and_then(|()| file.sync_data());
        match saved {
            Ok(()) => self.unwritten.clear(),
            // A part may be written, so the next try starts a new line.
            Err(_) if self.unwritten.first() != Some(&b'\n') => self.unwritten.insert(0, b'\n'),
            Err(_) => {}
        }
        saved
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use epwatch_proto::event_time::{self, EndClock};
    use epwatch_proto::{Report, SendClock};

    use super::*;
    use crate::encode::Encoder;
    use crate::encode::tests::{FULL, logged};

    const AT: (&str, &str) = ("app", "production");

    const LIMITS: [usize; 4] = [2, 3, 0, 1];

    #[test]
    fn names_beyond_the_limit_stay_out_by_app_and_day() {
        let dir = tempfile::tempdir().unwrap();
        let mut guard = CardinalityLimiter::open(dir.path(), LIMITS).unwrap();
        let mut keeps = |day, at, of, name: &str| guard.keeps(day, at, of, name);
        assert!(keeps(1, AT, Dimension::Model, "a"));
        assert!(keeps(1, AT, Dimension::Model, "b"));
        assert!(!keeps(1, AT, Dimension::Model, "c"));
        assert!(keeps(1, AT, Dimension::Model, "a"), "known ones go on");
        assert!(keeps(1, AT, Dimension::Model, OTHER));
        assert!(keeps(1, ("app", "staging"), Dimension::Model, "c"));
        assert!(keeps(1, ("other", "production"), Dimension::Model, "c"));
        assert!(keeps(2, AT, Dimension::Model, "c"));
        assert!((0..1_000).all(|n| keeps(1, AT, Dimension::Chipset, &n.to_string())));
    }

    /// After a crash a limiter that has read the file decides the batch again, from its start.
    #[test]
    fn a_batch_that_is_looked_at_again_is_decided_as_before() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["a", "b", "c", "d", "b", "c", "line\nbreak", "a"];
        let decide = |guard: &mut CardinalityLimiter| {
            let decided = names.map(|name| guard.keeps(7, AT, Dimension::Version, name));
            guard.save().unwrap();
            decided
        };
        let mut guard = CardinalityLimiter::open(dir.path(), LIMITS).unwrap();
        let first = decide(&mut guard);
        assert_eq!(first, [true, true, true, false, true, true, false, true]);
        drop(guard);
        // A torn line at the end.
        let mut file = OpenOptions::new()
            .append(true)
            .open(dir.path().join(FILE))
            .unwrap();
        file.write_all(b"[7,\"app\",\"prod").unwrap();
        let mut again = CardinalityLimiter::open(dir.path(), LIMITS).unwrap();
        assert_eq!(decide(&mut again), first);
        let mut once_more = CardinalityLimiter::open(dir.path(), LIMITS).unwrap();
        assert_eq!(decide(&mut once_more), first);
    }

    #[test]
    fn strangers_who_make_up_apps_and_days_find_no_end_of_room() {
        let dir = tempfile::tempdir().unwrap();
        let mut guard = CardinalityLimiter::open(dir.path(), LIMITS).unwrap();
        let n_in = (0..MAX_NAMES + 1_000)
            .filter(|n| guard.keeps(1, (&n.to_string(), "x"), Dimension::Model, "m"))
            .count();
        assert_eq!(n_in, MAX_NAMES);
        for day in 0..100 {
            guard.keeps(day, AT, Dimension::Model, "m");
        }
        assert_eq!(guard.days.len(), MAX_DAYS);
    }

    /// The disk refuses the names once: the batch is encoded again, with its placements.
    #[tokio::test]
    async fn placements_of_a_batch_whose_names_were_not_saved_are_still_new() {
        let dir = tempfile::tempdir().unwrap();
        let records = logged(dir.path(), &[FULL.to_vec()]).await;
        let guard = CardinalityLimiter::open(dir.path(), LIMITS).unwrap();
        let mut encoder = Encoder::new(7, Duration::from_secs(3600), guard);
        // A file opened for reading refuses writes.
        let read_only = File::open(dir.path().join(FILE)).unwrap();
        let writable = encoder.names.file.replace(read_only);
        encoder.encode_and_persist_names(&records).unwrap_err();
        encoder.names.file = writable;
        for n_new in [1, 0] {
            let rows = encoder.encode_and_persist_names(&records).unwrap();
            assert_eq!(rows.placements.n_rows, n_new);
        }
    }

    /// A report with this name in every place.
    fn named(name: &str) -> Stored {
        let mut report = Report::parse(FULL).unwrap();
        let sessions = report.sessions.iter_mut().map(|s| &mut s.model);
        let failures = report.start_failures.iter_mut().map(|f| &mut f.model);
        for model in sessions.chain(failures) {
            name.clone_into(&mut model.id);
            name.clone_into(&mut model.version);
        }
        for series in &mut report.series {
            name.clone_into(&mut series.stratum.shape_key);
        }
        let end = EndClock {
            wall_unix_ms: report.interval_end_unix_ms,
            uptime_ms: report.uptime_at_end_ms,
            boot_id: &report.boot_id,
        };
        Stored {
            collector_id: 7,
            wal_offset: 0,
            received_ms: 0,
            bucket: 0,
            occurred: event_time::estimate(0, &SendClock::default(), end),
            app_id: AT.0.to_owned(),
            environment: AT.1.to_owned(),
            is_unproven: false,
            chipset: name.to_owned(),
            report,
        }
    }

    /// The names of a report by dimension, in every place.
    fn names_of(stored: &Stored) -> [Vec<&str>; 4] {
        let report = &stored.report;
        let sessions = report.sessions.iter().map(|s| &s.model);
        let failures = report.start_failures.iter().map(|f| &f.model);
        let models: Vec<_> = sessions.chain(failures).collect();
        let shape_keys = report.series.iter().map(|s| s.stratum.shape_key.as_str());
        [
            models.iter().map(|model| model.id.as_str()).collect(),
            models.iter().map(|model| model.version.as_str()).collect(),
            vec![stored.chipset.as_str()],
            shape_keys.collect(),
        ]
    }

    /// With only `of` limited to one name, a second report has the `expected` names.
    #[track_caller]
    fn check_replaced(of: Dimension, expected: [&str; 4]) {
        let mut guard = CardinalityLimiter::default();
        guard.limits[of as usize] = 1;
        let mut limited = Limited::default();
        let mut apply = |name| {
            let mut stored = named(name);
            guard.apply(&mut stored, &mut limited);
            stored
        };
        let first = apply("first");
        let then = apply("then");
        for names in names_of(&first) {
            assert!(!names.is_empty());
            assert!(names.iter().all(|name| *name == "first"), "{names:?}");
        }
        for (names, expected) in names_of(&then).iter().zip(expected) {
            assert!(
                names.iter().all(|name| name == &expected),
                "{of:?}: {names:?}"
            );
        }
        for other in Dimension::ALL {
            assert_eq!(
                limited[other as usize] > 0,
                other == of,
                "{of:?}: {other:?}"
            );
        }
    }

    #[test]
    fn a_name_beyond_the_limit_is_replaced_wherever_it_stands() {
        check_replaced(Dimension::Model, [OTHER, OTHER, "then", "then"]);
        check_replaced(Dimension::Version, ["then", OTHER, "then", "then"]);
        check_replaced(Dimension::Chipset, ["then", "then", OTHER, "then"]);
        check_replaced(Dimension::ShapeKey, ["then", "then", "then", OTHER]);
    }
}
