//! Limits of distinct names: models, versions, chipsets and shape keys of an app in 14 days of receipt. Names above a
//! limit become [`OTHER`] in the rows; the WAL keeps the received bytes.
//!
//! A key that ships in an app is public, so names can be made up. Names of the last 14 days are admitted. One network
//! may add a handful of new names a day, over all environments of an app. Names that single networks added fill at most
//! half of each limit. The other half is for names that devices of several networks report, or a device of an `own`
//! key. Unproven installations add no names. A sender whose network is unknown is not limited in this way.
//!
//! A record must make the same rows when its batch is inserted again after a crash. So an admitted name is appended to
//! the file `names` in the WAL's directory before its batch is inserted. The line also has the network that added the
//! name and the offset of the first record for which it counts. This is the start of its batch, except in two cases. It
//! is the start of the next batch if several devices added the name together, or if a record of its batch kept
//! [`OTHER`]. Records of a batch that was decided before admit no names, because a day's votes are counted in memory
//! only and could admit other names. The WAL's checkpoint says which records these are. Each collector has limits of
//! its own, so two collectors admit at most twice as many names.
//!
//! Old days are dropped at start. If the file has no name, the writer adds the names in the store's reports before its
//! first batch. So a WAL in a new folder starts with the names of the previous WAL and of other collectors.

mod dimension;
pub(super) mod saved_names;
#[cfg(test)]
mod tests;

use std::fs::{self, File, OpenOptions};
use std::hash::BuildHasher;
use std::io::{self, Write};
use std::path::Path;

use epwatch_proto::accelerator;
use epwatch_server::replace_file;
use foldhash::quality::RandomState;

pub(crate) use self::dimension::Dimension;
use self::saved_names::{line_of, parse};
use super::stored::Stored;
use crate::wal_record::SenderMark;

/// Replaces a name beyond the limit.
pub(crate) const OTHER: &str = "__other__";

const FILE: &str = "names";
const DAY_MS: i64 = 86_400_000;
/// After this many days without a report a name counts as new again.
const KEPT_DAYS: i64 = 14;
/// The most names over all apps. With keys there are few apps; without keys a sender can name any app.
const MAX_NAMES: usize = 200_000;
/// How many new names of each dimension a network may add in a day.
const OF_NETWORK: u8 = 5;
/// How many votes for new names of each dimension a wide network has in a day. The names that it adds count as votes.
const VOTES_OF_NETWORK: u8 = 20;
/// How many networks, and devices, must report a name so that it is admitted. Once a quarter of the limit is used, more
/// are needed.
const SUPPORT: usize = 3;
const MUCH_SUPPORT: usize = 25;
/// The most new names that wait for support. Each wide network has few votes, so only many networks can fill this.
const MAX_WAITING: usize = 20_000;
/// The most networks whose votes of a day are counted.
const MAX_COUNTED: usize = 200_000;

/// Counts of names above the limit, by dimension.
pub(crate) type Limited = [u64; 4];

type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;
type HashSet<K> = std::collections::HashSet<K, RandomState>;
type Names = [HashMap<String, Name>; 4];

/// An admitted name.
#[derive(Debug, Clone, Copy)]
struct Name {
    last_day: i64,
    /// Records before this offset keep [`OTHER`].
    from: u64,
    /// True if one network added it, so that it counts in the half of the limit for such names.
    is_of_one: bool,
}

/// The properties of a report's sender that decide which names it may add.
#[derive(Debug, Clone, Copy)]
struct Sender {
    day: i64,
    offset: u64,
    device: [u8; 16],
    mark: SenderMark,
}

/// Devices, each with its network.
type Support = Vec<([u8; 16], u32)>;

/// App, environment and dimension.
type NamePlace = (String, String, u8);

/// The key of one network's counts of a day: app, dimension, network. The environment is left out, so that made-up
/// environments add nothing to a network's share.
type DailyShare = (String, u8, u32);

/// A name of the store's reports: app, environment, dimension, name, the latest day that has it.
pub(crate) type StoredName = (String, String, u8, String, u16);

/// Returns the query of the [`StoredName`]s of the last [`KEPT_DAYS`] before a time in milliseconds. Names that most
/// devices report come first. Rows after that time come from a collector whose clock is ahead. A name of such a day
/// would make the other names look old. `uniqHLL12` takes some kilobytes for each of the names, however many devices
/// have it.
pub(crate) fn stored_names_sql(now_ms: i64) -> String {
    format!(
        "SELECT app_id, environment, named.1 AS dimension, named.2 AS name, max(day) AS last_day \
         FROM (SELECT toString(app_id) AS app_id, toString(environment) AS environment, installation, \
             toUInt16(toDate(received_at)) AS day, \
             arrayConcat(session_model_id, start_failure_model_id) AS models, \
             arrayConcat(session_model_version, start_failure_model_version) AS versions, \
             arrayJoin(arrayDistinct(arrayConcat( \
                 arrayMap(m -> (toUInt8(0), CAST(m, 'String')), models), \
                 arrayMap((m, v) -> (toUInt8(1), CAST(concat(m, '\\n', v), 'String')), models, versions), \
                 arrayMap(c -> (toUInt8(2), CAST(c, 'String')), \
                     arrayConcat([chipset], session_chipset, start_failure_chipset)), \
                 arrayMap(s -> (toUInt8(3), CAST(s, 'String')), series_shape_key)))) AS named \
             FROM reports WHERE received_at BETWEEN fromUnixTimestamp64Milli(toInt64({}), 'UTC') \
                 AND fromUnixTimestamp64Milli(toInt64({now_ms}), 'UTC')) \
         WHERE position(name, '{OTHER}') = 0 \
         GROUP BY app_id, environment, dimension, name ORDER BY uniqHLL12(installation) DESC LIMIT {MAX_NAMES} \
         SETTINGS max_bytes_before_external_group_by = 1073741824",
        now_ms - KEPT_DAYS * DAY_MS
    )
}

/// Returns the name of a cohort above the limit. The name keeps the accelerator, so that accelerators stay apart and an
/// unknown EP stays unknown.
fn other_cohort(chipset: &str) -> String {
    match accelerator::split_cohort(chipset).1 {
        None => OTHER.to_owned(),
        Some(_) if accelerator::unknown_ep(chipset).is_some() => format!("{OTHER} [?]"),
        Some(label) => format!("{OTHER} [{label}]"),
    }
}

/// The names of one collector; by default without limits or a file.
#[derive(Debug, Default)]
pub(crate) struct CardinalityLimiter {
    limits: [usize; 4],
    n_names: usize,
    /// The latest day of a report.
    day: i64,
    /// The names by app, then by environment.
    apps: HashMap<String, HashMap<String, Names>>,
    /// Counts of that day: names that each narrow network added, and votes of each wide network.
    brought: HashMap<DailyShare, u8>,
    voted: HashMap<DailyShare, u8>,
    /// The devices and networks that reported a new name.
    waiting: HashMap<(NamePlace, String), Support>,
    /// Names that found support; they count from the next batch on.
    supported: Vec<(NamePlace, String)>,
    /// Names that were replaced in one record of the batch before another record added them, each with its network.
    from_next: Vec<(NamePlace, String, u32)>,
    /// The names in records below this offset are decided: names that are not known yet stay [`OTHER`] in them.
    decided_until: u64,
    /// The first record of the batch.
    batch_start: u64,
    /// Hashes of the names that were refused in the batch.
    refused: HashSet<u64>,
    hasher: RandomState,
    /// `None` saves nothing.
    file: Option<File>,
    unwritten: Vec<u8>,
}

impl CardinalityLimiter {
    /// Opens the file in the WAL's directory. Limits are in the order of [`Dimension::ALL`].
    pub(crate) fn open(dir: &Path, limits: [usize; 4]) -> io::Result<Self> {
        let mut guard = Self {
            limits,
            ..Self::default()
        };
        let path = dir.join(FILE);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let (lines, n_damaged) = parse(&bytes);
        if n_damaged > 0 {
            tracing::error!(
                lines = n_damaged,
                "the file of names is torn or damaged: the names of these lines are new again"
            );
        }
        let latest = lines.iter().map(|(_, line)| line.0).max();
        guard.begin(latest.unwrap_or(i64::MIN));
        for (of, (day, app, environment, _, name, network, from)) in &lines {
            if *day + KEPT_DAYS < guard.day {
                continue;
            }
            // An admitted name stays admitted, even if the limit is lower now.
            guard.insert(*day, (app, environment), *of, name, (*network, *from));
            if *network != 0 && *day == guard.day {
                let share = (app.clone(), *of as u8, *network);
                let brought = guard.brought.entry(share).or_default();
                *brought = brought.saturating_add(1);
            }
            // The file is rewritten without old days and torn lines.
            guard.note(*day, (app, environment), *of, name, (*network, *from));
        }
        replace_file(&path, &guard.unwritten)?;
        guard.unwritten.clear();
        guard.file = Some(OpenOptions::new().append(true).open(&path)?);
        Ok(guard)
    }

    /// Whether no name is known, because the WAL's folder is new or has lost its file.
    pub(crate) fn is_empty(&self) -> bool {
        self.file.is_some() && self.n_names == 0
    }

    /// Adds the store's names to an empty limiter, in their order and within the limits. Either all are saved or none
    /// is added, so that a retry saves the same names.
    pub(crate) fn admit_stored(&mut self, dir: &Path, names: &[StoredName]) -> io::Result<()> {
        let mut n_names: HashMap<NamePlace, usize> = HashMap::default();
        let mut admitted = Vec::new();
        for (app, environment, of, name, day) in names {
            let Some(of) = Dimension::ALL.get(usize::from(*of)) else {
                continue;
            };
            let at = (app.as_str(), environment.as_str());
            let n_names = n_names.entry(place(at, *of)).or_default();
            let most = self.limits[*of as usize];
            if (most == 0 || *n_names < most) && admitted.len() < MAX_NAMES {
                *n_names += 1;
                admitted.push((i64::from(*day), at, *of, name.as_str()));
            }
        }
        self.unwritten.clear();
        for (day, at, of, name) in &admitted {
            self.note(*day, *at, *of, name, (0, 0));
        }
        let lines = std::mem::take(&mut self.unwritten);
        let path = dir.join(FILE);
        replace_file(&path, &lines)?;
        self.file = Some(OpenOptions::new().append(true).open(&path)?);
        let latest = admitted.iter().map(|(day, ..)| *day).max();
        self.begin(latest.unwrap_or(0));
        for (day, at, of, name) in admitted {
            self.insert(day, at, of, name, (0, 0));
        }
        Ok(())
    }

    /// Replaces and counts the names of one report that are above the limits.
    pub(super) fn apply(&mut self, stored: &mut Stored, limited: &mut Limited) {
        let sender = Sender {
            day: stored.received_ms.div_euclid(DAY_MS),
            offset: stored.wal_offset,
            device: *stored.report.key.installation.as_bytes(),
            mark: stored.mark,
        };
        let Stored {
            app_id,
            environment,
            chipset,
            session_chipsets,
            start_failure_chipsets,
            report,
            ..
        } = stored;
        let at = (app_id.as_str(), environment.as_str());
        let mut keep = |of, name: &str| {
            let is_in = self.keeps(&sender, at, of, name);
            limited[of as usize] += u64::from(!is_in);
            is_in
        };
        let reported = chipset.clone();
        if !keep(Dimension::Chipset, chipset) {
            OTHER.clone_into(chipset);
        }
        // A device can make up the name of an accelerator, too.
        for of_cohort in session_chipsets.iter_mut().chain(start_failure_chipsets) {
            if *of_cohort == reported {
                of_cohort.clone_from(chipset);
            } else if !of_cohort.is_empty() && !keep(Dimension::Chipset, of_cohort) {
                *of_cohort = other_cohort(of_cohort);
            }
        }
        let sessions = report.sessions.iter_mut().map(|s| &mut s.model);
        let failures = report.start_failures.iter_mut().map(|f| &mut f.model);
        for model in sessions.chain(failures) {
            if !keep(Dimension::Model, &model.id) {
                OTHER.clone_into(&mut model.id);
            }
            // A version belongs to its model: "1" of two models is two names.
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

    fn keeps(&mut self, sender: &Sender, at: (&str, &str), of: Dimension, name: &str) -> bool {
        // A device that sends this name itself takes nothing from the limit.
        if name == OTHER {
            return true;
        }
        self.begin(sender.day);
        if let Some(known) = self.known(at, of, name) {
            let known = *known;
            if known.last_day < sender.day {
                self.insert(sender.day, at, of, name, (0, known.from));
                self.note(sender.day, at, of, name, (0, known.from));
            }
            return known.from <= sender.offset;
        }
        if sender.offset < self.decided_until {
            return false;
        }
        let is_in = self.brings(sender, at, of, name);
        if !is_in {
            self.refused.insert(self.hash(at, of, name));
        }
        is_in
    }

    fn hash(&self, at: (&str, &str), of: Dimension, name: &str) -> u64 {
        self.hasher.hash_one((at, of as u8, name))
    }

    /// Admits a name. If `network` is not 0, this network alone added the name. Returns whether the name counts for the
    /// current record.
    fn admit(
        &mut self,
        sender: &Sender,
        at: (&str, &str),
        of: Dimension,
        name: &str,
        network: u32,
    ) -> bool {
        if self.refused.contains(&self.hash(at, of, name)) {
            // An earlier record of the batch has `__other__` in place of the name.
            self.insert(sender.day, at, of, name, (network, u64::MAX));
            let name = name.to_owned();
            self.from_next.push((place(at, of), name, network));
            return false;
        }
        let from = self.batch_start;
        self.insert(sender.day, at, of, name, (network, from));
        self.note(sender.day, at, of, name, (network, from));
        true
    }

    /// Whether a sender may add a new name.
    fn brings(&mut self, sender: &Sender, at: (&str, &str), of: Dimension, name: &str) -> bool {
        let most = self.limits[of as usize];
        let names = self.apps.get(at.0).and_then(|app| app.get(at.1));
        let names = names.map(|names| &names[of as usize]);
        let n_names = names.map_or(0, |names| names.len());
        let is_refused = most > 0 && (sender.mark.is_unproven || n_names >= most);
        if is_refused || self.n_names >= MAX_NAMES {
            return false;
        }
        let [narrow, wide] = sender.mark.network;
        if sender.mark.is_own || narrow == 0 || most == 0 {
            return self.admit(sender, at, of, name, 0);
        }
        let n_of_one = names.map_or(0, |names| names.values().filter(|n| n.is_of_one).count());
        // One model has several input shapes.
        let times = if of == Dimension::ShapeKey { 10 } else { 1 };
        let share_of = |network| (at.0.to_owned(), of as u8, network);
        if !take(&mut self.voted, share_of(wide), VOTES_OF_NETWORK * times) {
            return false;
        }
        if 2 * n_of_one < most && take(&mut self.brought, share_of(narrow), OF_NETWORK * times) {
            return self.admit(sender, at, of, name, narrow);
        }
        let needed = match 4 * (n_names - n_of_one) < most {
            true => SUPPORT,
            false => MUCH_SUPPORT,
        };
        self.wait(place(at, of), name, (sender.device, narrow), needed);
        false
    }

    /// Notes that a device reported a new name. The name is admitted once enough devices did.
    fn wait(&mut self, place: NamePlace, name: &str, by: ([u8; 16], u32), needed: usize) {
        let key = (place, name.to_owned());
        if self.waiting.len() >= MAX_WAITING && !self.waiting.contains_key(&key) {
            return;
        }
        let support = self.waiting.entry(key.clone()).or_default();
        // One device on several networks counts once, and so do several devices on one network.
        let is_new = support
            .iter()
            .all(|known| known.0 != by.0 && known.1 != by.1);
        if is_new && support.len() < needed {
            support.push(by);
        }
        if support.len() >= needed {
            self.waiting.remove(&key);
            self.supported.push(key);
        }
    }

    /// Sets the WAL's position at the start: names of records below `decided_until` were decided before this start. A saved
    /// offset beyond `end` belongs to an earlier WAL of this folder, so its name counts from the first record.
    pub(crate) fn begin_wal(&mut self, decided_until: u64, end: u64) {
        self.decided_until = decided_until;
        let environments = self.apps.values_mut().flat_map(|app| app.values_mut());
        for name in environments.flatten().flat_map(|names| names.values_mut()) {
            if name.from > end {
                name.from = 0;
            }
        }
    }

    /// Begins a batch, whose records are at `start` and above.
    pub(super) fn begin_batch(&mut self, start: u64) {
        self.batch_start = start;
        self.refused.clear();
    }

    /// Admits the names that found support in a batch, for the records after its last one.
    pub(super) fn end_batch(&mut self, next_offset: u64) {
        let day = self.day;
        self.decided_until = self.decided_until.max(next_offset);
        for ((app, environment, of), name, network) in std::mem::take(&mut self.from_next) {
            let (at, of) = ((&*app, &*environment), Dimension::ALL[of as usize]);
            if let Some(name) = self.known_mut(at, of, &name) {
                name.from = next_offset;
            }
            self.note(day, at, of, &name, (network, next_offset));
        }
        for ((app, environment, of), name) in std::mem::take(&mut self.supported) {
            let (at, of) = (
                (app.as_str(), environment.as_str()),
                Dimension::ALL[of as usize],
            );
            let most = self.limits[of as usize];
            let names = self.apps.get(at.0).and_then(|app| app.get(at.1));
            let n_names = names.map_or(0, |names| names[of as usize].len());
            if n_names < most && self.n_names < MAX_NAMES && self.known(at, of, &name).is_none() {
                self.insert(day, at, of, &name, (0, next_offset));
                self.note(day, at, of, &name, (0, next_offset));
            }
        }
    }

    fn known(&self, at: (&str, &str), of: Dimension, name: &str) -> Option<&Name> {
        self.apps.get(at.0)?.get(at.1)?[of as usize].get(name)
    }

    fn known_mut(&mut self, at: (&str, &str), of: Dimension, name: &str) -> Option<&mut Name> {
        self.apps.get_mut(at.0)?.get_mut(at.1)?[of as usize].get_mut(name)
    }

    fn insert(
        &mut self,
        day: i64,
        at: (&str, &str),
        of: Dimension,
        name: &str,
        (network, from): (u32, u64),
    ) {
        let app = self.apps.entry(at.0.to_owned()).or_default();
        let names = &mut app.entry(at.1.to_owned()).or_default()[of as usize];
        if let Some(known) = names.get_mut(name) {
            known.last_day = known.last_day.max(day);
            return;
        }
        let new = Name {
            last_day: day,
            from,
            is_of_one: network != 0,
        };
        names.insert(name.to_owned(), new);
        self.n_names += 1;
    }

    /// Begins a day: the counts return to 0, and names without a report in [`KEPT_DAYS`] are dropped.
    fn begin(&mut self, day: i64) {
        if day <= self.day {
            return;
        }
        self.day = day;
        self.brought.clear();
        self.voted.clear();
        self.waiting.clear();
        let mut n_names = 0;
        for app in self.apps.values_mut() {
            app.retain(|_, names| {
                for names in names.iter_mut() {
                    names.retain(|_, name| name.last_day + KEPT_DAYS >= day);
                    n_names += names.len();
                }
                names.iter().any(|names| !names.is_empty())
            });
        }
        self.apps.retain(|_, app| !app.is_empty());
        self.n_names = n_names;
    }

    fn note(
        &mut self,
        day: i64,
        at: (&str, &str),
        of: Dimension,
        name: &str,
        (network, from): (u32, u64),
    ) {
        let line = (
            day,
            at.0.to_owned(),
            at.1.to_owned(),
            of as usize,
            name.to_owned(),
            network,
            from,
        );
        self.unwritten.extend(line_of(&line).as_bytes());
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
            // A part of a line may be written, so the next try starts a new line.
            Err(_) if self.unwritten.first() != Some(&b'\n') => self.unwritten.insert(0, b'\n'),
            Err(_) => {}
        }
        saved
    }
}

fn place(at: (&str, &str), of: Dimension) -> NamePlace {
    (at.0.to_owned(), at.1.to_owned(), of as u8)
}

/// Takes one from a network's share of a day; returns whether there was one left.
fn take(counts: &mut HashMap<DailyShare, u8>, key: DailyShare, most: u8) -> bool {
    if counts.len() >= MAX_COUNTED && !counts.contains_key(&key) {
        return false;
    }
    let count = counts.entry(key).or_default();
    let has_room = *count < most;
    *count += u8::from(has_room);
    has_room
}
