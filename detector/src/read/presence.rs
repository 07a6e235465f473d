//! Who was there in which bucket, and where it ran: what the look-back of an evaluation tells, held
//! bucket by bucket, so that the next evaluation reads only the buckets that are new.
//!
//! Pure: the look-back of the store reads the store and says which buckets to forget. What is answered here
//! is what the store would answer, whichever buckets were read when.

use std::collections::BTreeMap;

use crate::baseline::PlacementCount;
use crate::cohort::ModelKey;
use crate::hash::{HashMap, HashSet};
use crate::window::Installation;

use super::Span;
use super::rows::{ArrivalRow, PlaceRow, PlacementNumbers, SeenRow, SessionlessRow, placement_of};

/// What a placement or a version takes, with its names: rather too much than too little.
const BYTES_A_NAME: usize = 512;

/// What the number of a place takes, in a table that may be half empty.
const BYTES_A_PLACE: usize = 64;

/// What the number of a version takes that was in a bucket, with the time.
const BYTES_A_VERSION: usize = 48;

/// Start of a bucket, in seconds since 1970.
pub(super) type Bucket = u32;

/// What was read.
#[derive(Debug, Clone, Default)]
pub(super) struct Presence {
    buckets: BTreeMap<Bucket, Known>,
    /// Where in `apps` each is.
    names: BTreeMap<(String, String), usize>,
    apps: Vec<App>,
    /// By the number that the store gave it.
    places: HashMap<u64, Place>,
}

/// Where a session ran: app, version and kind of placement, each by its number.
#[derive(Debug, Clone, Copy)]
struct Place {
    app: usize,
    version: u32,
    /// `None` does not vote.
    kind: Option<u32>,
}

/// A bucket that was read.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// The sum over the copies that were read: which they were.
    copies: u64,
    /// How many they were.
    reports: u64,
    /// When its first and its last report came, in milliseconds since 1970.
    first_ms: i64,
    last_ms: i64,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            copies: 0,
            reports: 0,
            first_ms: i64::MAX,
            last_ms: i64::MIN,
        }
    }
}

/// Devices, placements and versions of one app, by number.
#[derive(Debug, Clone, Default)]
struct App {
    devices: HashMap<Installation, u32>,
    cohorts: HashMap<CohortPlacement, u32>,
    kinds: HashMap<(u32, Numbers), u32>,
    versions: HashMap<(String, String), u32>,
    buckets: BTreeMap<Bucket, OfBucket>,
}

/// One app in one bucket.
#[derive(Debug, Clone, Default)]
struct OfBucket {
    /// Kind of placement and device, of those that vote.
    placed: Vec<(u32, u32)>,
    /// The other devices.
    others: Vec<u32>,
    /// Versions with the time they were first received.
    versions: BTreeMap<u32, i64>,
}

/// What a cohort's devices are counted by.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct CohortPlacement {
    model_id: String,
    model_version: String,
    chipset: String,
    graph_kind: String,
    source: String,
    algorithm: u32,
    fingerprint: u64,
}

/// Of what the normalised fingerprint leaves out, the first by runtime and exact fingerprint speaks.
#[derive(Debug, Clone)]
struct Numbers {
    fingerprint_exact: u64,
    numbers: PlacementNumbers,
}

impl Numbers {
    fn key(&self) -> (&str, u64) {
        (&self.numbers.0, self.fingerprint_exact)
    }
}

impl PartialEq for Numbers {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Numbers {}

impl std::hash::Hash for Numbers {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

/// What the look-back knows of one model.
#[derive(Debug, Default)]
pub(super) struct OfModel {
    pub(super) census: Vec<PlacementCount>,
    /// By version, in milliseconds since 1970.
    pub(super) first_seen: BTreeMap<String, i64>,
}

impl Presence {
    /// Returns the buckets that were read, each with the sum over its copies.
    pub(super) fn buckets(&self) -> impl Iterator<Item = (Bucket, u64)> {
        self.buckets.iter().map(|(at, known)| (*at, known.copies))
    }

    /// Returns how many reports of a bucket were read.
    pub(super) fn reports(&self, bucket: Bucket) -> u64 {
        self.buckets.get(&bucket).map_or(0, |known| known.reports)
    }

    /// Returns about how much memory it takes.
    pub(super) fn bytes(&self) -> usize {
        let of_apps: usize = self.apps.iter().map(App::bytes).sum();
        of_apps + self.places.len() * BYTES_A_PLACE
    }

    /// Drops a bucket.
    pub(super) fn forget(&mut self, bucket: Bucket) {
        self.buckets.remove(&bucket);
        for app in &mut self.apps {
            app.buckets.remove(&bucket);
        }
    }

    /// Learns what a place is.
    pub(super) fn name(&mut self, row: &PlaceRow<'_>) {
        let at = self.app(row.app_id, row.environment);
        let app = &mut self.apps[at];
        let place = Place {
            app: at,
            version: app.version(row),
            kind: row.votes.then(|| app.kind(row)),
        };
        self.places.insert(row.place, place);
    }

    /// Adds a session, in a bucket that is read now; `false` where nobody said what its place is.
    pub(super) fn add(&mut self, row: &SeenRow) -> bool {
        let Some(place) = self.places.get(&row.place).copied() else {
            return false;
        };
        self.note(row.at_s, row.at_ms, row.copy);
        let app = &mut self.apps[place.app];
        let device = app.device(row.device);
        let held = app.buckets.entry(row.at_s).or_default();
        let first = held.versions.entry(place.version).or_insert(row.at_ms);
        *first = (*first).min(row.at_ms);
        match place.kind {
            Some(kind) => held.placed.push((kind, device)),
            None => held.others.push(device),
        }
        true
    }

    /// Adds a report without a session.
    pub(super) fn add_sessionless(&mut self, row: &SessionlessRow<'_>) {
        self.note(row.at_s, row.at_ms, row.copy);
        let at = self.app(row.app_id, row.environment);
        let app = &mut self.apps[at];
        let device = app.device(row.device.to_le_bytes());
        app.buckets.entry(row.at_s).or_default().others.push(device);
    }

    fn note(&mut self, bucket: Bucket, at_ms: i64, copy: u64) {
        let known = self.buckets.entry(bucket).or_default();
        known.copies = known.copies.wrapping_add(copy);
        known.reports += u64::from(copy != 0);
        known.first_ms = known.first_ms.min(at_ms);
        known.last_ms = known.last_ms.max(at_ms);
    }

    fn app(&mut self, app_id: &str, environment: &str) -> usize {
        let next = self.apps.len();
        let name = (app_id.to_owned(), environment.to_owned());
        let at = *self.names.entry(name).or_insert(next);
        if at == next {
            self.apps.push(App::default());
        }
        at
    }

    /// Ends buckets that were read: a device that reported often is held once.
    pub(super) fn end(&mut self, buckets: &[Bucket]) {
        for app in &mut self.apps {
            for at in buckets {
                let Some(held) = app.buckets.get_mut(at) else {
                    continue;
                };
                held.placed.sort_unstable();
                held.placed.dedup();
                held.placed.shrink_to_fit();
                held.others.sort_unstable();
                held.others.dedup();
                held.others.shrink_to_fit();
            }
        }
    }

    /// Returns what the look-back knows of an app's models.
    pub(super) fn census(
        &self,
        app_id: &str,
        environment: &str,
        span: &Span,
    ) -> BTreeMap<ModelKey, OfModel> {
        let app = (app_id.to_owned(), environment.to_owned());
        let Some(app) = self.names.get(&app).map(|at| &self.apps[*at]) else {
            return BTreeMap::new();
        };
        let key_of = |model_id: &str| ModelKey {
            app_id: app_id.to_owned(),
            environment: environment.to_owned(),
            model_id: model_id.to_owned(),
        };
        let mut models: BTreeMap<ModelKey, OfModel> = BTreeMap::new();
        for ((model_id, version), first_ms) in app.first_seen(span) {
            let of_model = models.entry(key_of(&model_id)).or_default();
            of_model.first_seen.insert(version, first_ms);
        }
        for (cohort, counted) in app.counted(span) {
            let of_model = models.entry(key_of(&cohort.model_id)).or_default();
            let (kind, source) = (cohort.graph_kind.clone(), cohort.source.clone());
            let method = (kind, source, cohort.algorithm);
            of_model.census.push(PlacementCount {
                model_version: cohort.model_version.clone(),
                chipset: cohort.chipset.clone(),
                placement: placement_of(method, cohort.fingerprint, counted.speaks),
                devices: counted.devices,
                devices_before: counted.devices_before,
            });
        }
        models
    }

    /// Returns who is new in the window, by the bucket of its first report, and how many were in each
    /// bucket before; `None` where a window begins within a bucket, so that its first report's time
    /// decides.
    pub(super) fn arrivals(&self, span: &Span) -> Option<Vec<ArrivalRow>> {
        let start_ms = span.start_s().saturating_mul(1_000);
        let window_ms = i64::try_from(span.window.as_millis()).ok()?.max(1);
        let is_torn = |known: &Known| {
            let window_of = |ms: i64| (ms - start_ms).div_euclid(window_ms);
            known.first_ms <= known.last_ms && window_of(known.first_ms) != window_of(known.last_ms)
        };
        let mut within = self.buckets.range(buckets_of(span)).map(|(_, known)| known);
        if within.any(is_torn) {
            return None;
        }
        let mut rows = Vec::new();
        for ((app_id, environment), at) in &self.names {
            let app = &self.apps[*at];
            let row = |installation, at_ms, devices| ArrivalRow {
                app_id: app_id.clone(),
                environment: environment.clone(),
                installation,
                at_ms,
                devices,
            };
            let mut is_known = vec![false; app.devices.len()];
            let mut new: HashMap<u32, i64> = HashMap::default();
            for (bucket, held) in app.buckets.range(buckets_of(span)) {
                let at_ms = self.buckets.get(bucket)?.first_ms;
                let mut first = 0;
                let placed = held.placed.iter().map(|(_, device)| *device);
                for device in placed.chain(held.others.iter().copied()) {
                    let seen = is_known.get_mut(device as usize)?;
                    if std::mem::replace(seen, true) {
                        continue;
                    }
                    if at_ms >= start_ms {
                        new.insert(device, at_ms);
                    } else {
                        first += 1;
                    }
                }
                if first > 0 {
                    rows.push(row([0; 16], at_ms, first));
                }
            }
            if !new.is_empty() {
                let devices = app.devices.iter();
                let named = devices.filter_map(|(id, device)| Some((*id, *new.get(device)?)));
                rows.extend(named.map(|(installation, at_ms)| row(installation, at_ms, 1)));
            }
        }
        Some(rows)
    }
}

/// How many devices had a placement.
struct Counted<'a> {
    speaks: &'a PlacementNumbers,
    key: (&'a str, u64),
    devices: u64,
    devices_before: u64,
}

impl App {
    fn bytes(&self) -> usize {
        let of_bucket = |held: &OfBucket| {
            held.placed.capacity() * size_of::<(u32, u32)>()
                + held.others.capacity() * size_of::<u32>()
                + held.versions.len() * BYTES_A_VERSION
                + size_of::<(Bucket, OfBucket)>()
        };
        let of_buckets: usize = self.buckets.values().map(of_bucket).sum();
        // A table may be half empty.
        let of_devices = self.devices.capacity() * (size_of::<(Installation, u32)>() + 1);
        let named = self.kinds.len() + self.cohorts.len() + self.versions.len();
        of_buckets + of_devices + named * BYTES_A_NAME
    }

    fn device(&mut self, installation: Installation) -> u32 {
        let next = number(self.devices.len());
        *self.devices.entry(installation).or_insert(next)
    }

    fn version(&mut self, row: &PlaceRow<'_>) -> u32 {
        let next = number(self.versions.len());
        let key = (row.model_id.to_owned(), row.model_version.to_owned());
        *self.versions.entry(key).or_insert(next)
    }

    fn kind(&mut self, row: &PlaceRow<'_>) -> u32 {
        let cohort = CohortPlacement {
            model_id: row.model_id.to_owned(),
            model_version: row.model_version.to_owned(),
            chipset: row.chipset.to_owned(),
            graph_kind: row.graph_kind.to_owned(),
            source: row.placement_source.to_owned(),
            algorithm: row.fingerprint_algorithm,
            fingerprint: row.fingerprint_normalised,
        };
        let next = number(self.cohorts.len());
        let cohort = *self.cohorts.entry(cohort).or_insert(next);
        let (runtime, n, npu, cpu, benign, macs, attributed) = row.numbers;
        let numbers = Numbers {
            fingerprint_exact: row.fingerprint_exact,
            numbers: (runtime.to_owned(), n, npu, cpu, benign, macs, attributed),
        };
        let next = number(self.kinds.len());
        *self.kinds.entry((cohort, numbers)).or_insert(next)
    }

    /// Cohorts and placements of the look-back, in their order.
    fn counted(&self, span: &Span) -> BTreeMap<&CohortPlacement, Counted<'_>> {
        let start = bucket_at(span.start_s());
        let mut kinds: Vec<(u32, &Numbers)> = Vec::with_capacity(self.kinds.len());
        let mut by_number: Vec<_> = self.kinds.iter().collect();
        by_number.sort_unstable_by_key(|(_, number)| **number);
        kinds.extend(
            by_number
                .into_iter()
                .map(|((cohort, numbers), _)| (*cohort, numbers)),
        );
        let mut is_present = vec![false; kinds.len()];
        let mut devices = vec![(0_u64, 0_u64); self.cohorts.len()];
        let mut known: HashSet<(u32, u32)> = HashSet::default();
        // Most devices are where they were when they were seen last.
        let mut last = vec![u32::MAX; self.devices.len()];
        for (bucket, held) in self.buckets.range(buckets_of(span)) {
            for (kind, device) in &held.placed {
                let at = *kind as usize;
                is_present[at] = true;
                let cohort = kinds[at].0;
                let was_in = std::mem::replace(&mut last[*device as usize], cohort);
                if was_in != cohort && known.insert((cohort, *device)) {
                    let (all, before) = &mut devices[cohort as usize];
                    *all += 1;
                    *before += u64::from(*bucket < start);
                }
            }
        }
        let mut cohorts: Vec<_> = self.cohorts.iter().collect();
        cohorts.sort_unstable_by_key(|(_, number)| **number);
        let mut counted: BTreeMap<&CohortPlacement, Counted<'_>> = BTreeMap::new();
        for ((cohort, numbers), _) in kinds.into_iter().zip(is_present).filter(|(_, is)| *is) {
            let at = cohort as usize;
            let slot = counted.entry(cohorts[at].0).or_insert(Counted {
                speaks: &numbers.numbers,
                key: numbers.key(),
                devices: devices[at].0,
                devices_before: devices[at].1,
            });
            if numbers.key() < slot.key {
                (slot.speaks, slot.key) = (&numbers.numbers, numbers.key());
            }
        }
        counted
    }

    /// Model, version: when it was first received.
    fn first_seen(&self, span: &Span) -> BTreeMap<(String, String), i64> {
        let mut first: HashMap<u32, i64> = HashMap::default();
        let held = self.buckets.range(buckets_of(span));
        for (version, at_ms) in held.flat_map(|(_, held)| &held.versions) {
            let slot = first.entry(*version).or_insert(*at_ms);
            *slot = (*slot).min(*at_ms);
        }
        let versions = self.versions.iter();
        let seen = versions.filter_map(|(key, number)| Some((key.clone(), *first.get(number)?)));
        seen.collect()
    }
}

fn number(len: usize) -> u32 {
    u32::try_from(len).expect("fewer than the bound of what is held")
}

fn bucket_at(seconds: i64) -> Bucket {
    Bucket::try_from(seconds.max(0)).unwrap_or(Bucket::MAX)
}

/// Buckets of the look-back, window included.
pub(super) fn buckets_of(span: &Span) -> std::ops::Range<Bucket> {
    let end = bucket_at(span.end_s());
    bucket_at(span.earliest_s()).min(end)..end
}
