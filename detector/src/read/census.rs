//! The placement census: which devices reported in each bucket of the look-back, and with which placement.
//!
//! Pure. A reader of the store adds the buckets that are new and forgets those that changed; a recording adds
//! all of its reports once. Both are asked the same questions. A bucket that is read holds its devices in one
//! or two bytes each, since fleets have millions of them.

use std::collections::BTreeMap;

use crate::baseline::{PlacementCount, VersionSeen};
use crate::cohort::{App, Installation, ModelKey};
use crate::hash::{HashMap, HashSet};
use crate::interner::{Interner, next_id};
use crate::placement::{NodeCounts, PlacementMethod};
use crate::varint;

use super::event_log::EventLog;
use super::model_windows::FoundModel;
use super::span::{Bucket, Span, bucket_at};

/// What a placement or a version takes, with its names: rather too much than too little.
const BYTES_A_NAME: usize = 512;

/// Number of a session's place within its app.
pub(super) type PlaceId = u32;

/// The place of reports without a session.
const NOWHERE: PlaceId = PlaceId::MAX;

/// What a version takes that was in a bucket, with the time.
const BYTES_A_VERSION: usize = 48;

/// Every app, by bucket.
#[derive(Debug, Clone, Default)]
pub(super) struct Census {
    /// Where in `apps` each is.
    names: BTreeMap<App, usize>,
    apps: Vec<AppCensus>,
    /// Self-tests and failed starts of the same buckets.
    pub(super) events: EventLog,
}

/// One app, by bucket.
#[derive(Debug, Clone, Default)]
pub(super) struct AppCensus {
    devices: HashMap<Installation, u32>,
    versions: Interner<VersionName>,
    cohorts: Interner<CohortName>,
    placements: Interner<PlacementName>,
    places: Interner<PlaceName>,
    /// Of each place.
    counts: Vec<NodeCounts>,
    buckets: BTreeMap<Bucket, AppBucket>,
}

/// Model and version.
type VersionName = (String, String);

/// Number of the version, chipset.
type CohortName = (u32, String);

/// What the devices of a cohort are counted by: number of the cohort, and a placement that compares.
type PlacementName = (u32, PlacementMethod, u64);

/// Where sessions ran: number of the cohort; for those that vote the number of the placement, and which of
/// those that a normalised fingerprint stands for: runtime and exact fingerprint.
type PlaceName = (u32, Option<(u32, String, u64)>);

/// One app in one bucket.
#[derive(Debug, Clone, Default)]
struct AppBucket {
    /// Place and device, until the bucket is packed.
    open: Vec<(PlaceId, u32)>,
    /// For each place its number, how many bytes follow, and the devices; as differences.
    packed: Box<[u8]>,
    versions: BTreeMap<u32, VersionSessions>,
}

/// One version in one bucket.
#[derive(Debug, Clone, Copy)]
struct VersionSessions {
    first_received_ms: i64,
    sessions: u64,
}

/// A session, as the census counts it.
#[derive(Debug, Clone, Copy)]
pub(super) struct CensusSession<'a> {
    pub(super) model_id: &'a str,
    pub(super) model_version: &'a str,
    pub(super) chipset: &'a str,
    pub(super) votes: bool,
    pub(super) graph_kind: &'a str,
    pub(super) placement_source: &'a str,
    pub(super) fingerprint_algorithm: u32,
    pub(super) fingerprint_normalised: u64,
    pub(super) fingerprint_exact: u64,
    pub(super) runtime: &'a str,
    pub(super) counts: NodeCounts,
}

/// What the look-back has of one model, window included.
#[derive(Debug, Clone, Default)]
pub(super) struct ModelCensus {
    pub(super) placements: Vec<PlacementCount>,
    pub(super) versions: Vec<VersionSeen>,
}

impl Census {
    pub(super) fn apps(&self) -> impl Iterator<Item = (&App, &AppCensus)> {
        self.names.iter().map(|(app, at)| (app, &self.apps[*at]))
    }

    /// Returns where an app is, for [`Self::app_mut`].
    pub(super) fn number_of(&mut self, app_id: &str, environment: &str) -> usize {
        let next = self.apps.len();
        let app = (app_id.to_owned(), environment.to_owned());
        let at = *self.names.entry(app).or_insert(next);
        if at == next {
            self.apps.push(AppCensus::default());
        }
        at
    }

    pub(super) fn app_mut(&mut self, number: usize) -> &mut AppCensus {
        &mut self.apps[number]
    }

    /// Drops a bucket.
    pub(super) fn forget(&mut self, bucket: Bucket) {
        for app in &mut self.apps {
            app.buckets.remove(&bucket);
        }
        self.events.forget(bucket);
    }

    /// Packs buckets that were read: a device that reported often is held once.
    pub(super) fn close(&mut self, buckets: &[Bucket]) {
        for app in &mut self.apps {
            for bucket in buckets {
                if let Some(bucket) = app.buckets.get_mut(bucket) {
                    bucket.pack();
                }
            }
        }
    }

    /// Returns about how much memory it takes.
    pub(super) fn bytes(&self) -> usize {
        let of_apps: usize = self.apps.iter().map(AppCensus::bytes).sum();
        of_apps + self.events.bytes()
    }

    /// Returns the models that anything arrived for in the window, in order.
    pub(super) fn models(&self, span: &Span) -> Vec<FoundModel> {
        let apps = self.apps();
        apps.flat_map(|(app, census)| census.models(app, span))
            .collect()
    }

    /// Returns what the look-back has of the models of some apps.
    pub(super) fn of_apps(
        &self,
        apps: &[(&str, &str)],
        span: &Span,
    ) -> HashMap<ModelKey, ModelCensus> {
        let wanted = self
            .apps()
            .filter(|((app_id, environment), _)| apps.contains(&(app_id, environment)));
        let found = wanted.flat_map(|((app_id, environment), census)| {
            let models = census.by_model(span).into_iter();
            models.map(move |(model_id, of_model)| {
                let model = ModelKey {
                    app_id: app_id.clone(),
                    environment: environment.clone(),
                    model_id,
                };
                (model, of_model)
            })
        });
        found.collect()
    }
}

impl AppCensus {
    /// Returns the number of a place, for [`Self::add`].
    pub(super) fn place(&mut self, session: &CensusSession<'_>) -> PlaceId {
        let version = (
            session.model_id.to_owned(),
            session.model_version.to_owned(),
        );
        let cohort = (self.versions.id(version), session.chipset.to_owned());
        let cohort = self.cohorts.id(cohort);
        let placement = session.votes.then(|| {
            let method = PlacementMethod {
                graph_kind: session.graph_kind.to_owned(),
                source: session.placement_source.to_owned(),
                fingerprint_algorithm: session.fingerprint_algorithm,
            };
            let placement = (cohort, method, session.fingerprint_normalised);
            let placement = self.placements.id(placement);
            (
                placement,
                session.runtime.to_owned(),
                session.fingerprint_exact,
            )
        });
        let place = self.places.id((cohort, placement));
        if place as usize == self.counts.len() {
            self.counts.push(session.counts);
        }
        place
    }

    /// Adds a session to a bucket that is not closed.
    pub(super) fn add(
        &mut self,
        bucket: Bucket,
        received_ms: i64,
        place: PlaceId,
        device: Installation,
    ) {
        let device = self.device(device);
        let (cohort, _) = &self.places.items()[place as usize];
        let (version, _) = self.cohorts.items()[*cohort as usize];
        let bucket = self.buckets.entry(bucket).or_default();
        bucket.open.push((place, device));
        let version = bucket.versions.entry(version);
        let of_version = version.or_insert(VersionSessions {
            first_received_ms: received_ms,
            sessions: 0,
        });
        of_version.first_received_ms = of_version.first_received_ms.min(received_ms);
        of_version.sessions += 1;
    }

    /// Adds a report without a session.
    pub(super) fn add_sessionless(&mut self, bucket: Bucket, device: Installation) {
        let device = self.device(device);
        let bucket = self.buckets.entry(bucket).or_default();
        bucket.open.push((NOWHERE, device));
    }

    fn device(&mut self, installation: Installation) -> u32 {
        let next = next_id(self.devices.len());
        *self.devices.entry(installation).or_insert(next)
    }

    fn bytes(&self) -> usize {
        let of_bucket = |bucket: &AppBucket| {
            bucket.packed.len()
                + bucket.open.capacity() * size_of::<(PlaceId, u32)>()
                + bucket.versions.len() * BYTES_A_VERSION
                + size_of::<(Bucket, AppBucket)>()
        };
        let of_buckets: usize = self.buckets.values().map(of_bucket).sum();
        // A table may be half empty.
        let of_devices = self.devices.capacity() * (size_of::<(Installation, u32)>() + 1);
        let named = [self.versions.items().len(), self.cohorts.items().len()];
        let places = self.placements.items().len() + self.places.items().len();
        let named = named.iter().sum::<usize>() + places;
        of_buckets + of_devices + named * BYTES_A_NAME
    }

    /// Returns the bucket in which each device was first received in the look-back.
    pub(super) fn first_received(
        &self,
        span: &Span,
    ) -> impl Iterator<Item = (Bucket, Installation)> {
        let mut first = vec![Bucket::MAX; self.devices.len()];
        for (at, bucket) in self.buckets.range(span.buckets()) {
            for device in bucket.places().flat_map(|place| place.devices()) {
                let first = &mut first[device as usize];
                *first = (*first).min(*at);
            }
        }
        let devices = self.devices.iter();
        let first =
            devices.map(move |(installation, device)| (first[*device as usize], *installation));
        first.filter(|(bucket, _)| *bucket != Bucket::MAX)
    }

    fn models(&self, (app_id, environment): &App, span: &Span) -> Vec<FoundModel> {
        let window = span.window_buckets();
        let mut models: BTreeMap<&str, (HashSet<u32>, u64)> = BTreeMap::new();
        for (_, bucket) in self.buckets.range(window) {
            for (version, of_version) in &bucket.versions {
                let (model_id, _) = &self.versions.items()[*version as usize];
                models.entry(model_id).or_default().1 += of_version.sessions;
            }
            for place in bucket.places() {
                if let Some((cohort, _)) = self.places.items().get(place.id as usize) {
                    let (model_id, _) = self.version_of(*cohort);
                    models.entry(model_id).or_default().0.insert(*cohort);
                }
            }
        }
        let found = models
            .into_iter()
            .map(|(model_id, (cohorts, sessions))| FoundModel {
                model: ModelKey {
                    app_id: app_id.clone(),
                    environment: environment.clone(),
                    model_id: model_id.to_owned(),
                },
                cohorts: cohorts.len() as u64,
                sessions,
            });
        found.collect()
    }

    fn order_of<'a>(
        &'a self,
        (cohort, method, fingerprint): &'a PlacementName,
    ) -> (&'a VersionName, &'a str, &'a PlacementMethod, u64) {
        let (_, chipset) = &self.cohorts.items()[*cohort as usize];
        (self.version_of(*cohort), chipset, method, *fingerprint)
    }

    fn version_of(&self, cohort: u32) -> &VersionName {
        let (version, _) = &self.cohorts.items()[cohort as usize];
        &self.versions.items()[*version as usize]
    }

    /// Returns what the look-back has, by model.
    pub(super) fn by_model(&self, span: &Span) -> BTreeMap<String, ModelCensus> {
        let mut models: BTreeMap<String, ModelCensus> = BTreeMap::new();
        let mut of_placement: Vec<Presence<'_>> = Vec::new();
        of_placement.resize_with(self.placements.items().len(), Presence::default);
        let mut first: BTreeMap<&VersionName, i64> = BTreeMap::new();
        for (at, bucket) in self.buckets.range(span.buckets()) {
            for place in bucket.places() {
                let known = self.places.items().get(place.id as usize);
                let Some((_, Some((placement, runtime, exact)))) = known else {
                    continue;
                };
                let presence = &mut of_placement[*placement as usize];
                presence.buckets.push((*at, place.devices));
                // Of several the first by runtime and exact fingerprint is shown.
                let key = (runtime.as_str(), *exact, place.id);
                presence.shown = Some(presence.shown.map_or(key, |shown| shown.min(key)));
            }
            for (version, of_version) in &bucket.versions {
                let version = &self.versions.items()[*version as usize];
                let received_ms = of_version.first_received_ms;
                let slot = first.entry(version).or_insert(received_ms);
                *slot = (*slot).min(received_ms);
            }
        }
        for ((model_id, version), first_seen_ms) in first {
            let of_model = models.entry(model_id.clone()).or_default();
            of_model.versions.push(VersionSeen {
                version: version.clone(),
                first_seen_ms,
            });
        }
        let mut counter = Counter {
            start: bucket_at(span.start_s()),
            counted: vec![0; self.devices.len()],
            nth: 0,
        };
        let mut counts = Vec::new();
        for (presence, placement) in of_placement.iter().zip(self.placements.items()) {
            if let Some((runtime, _, place)) = presence.shown {
                counts.push((placement, runtime, place, counter.count(&presence.buckets)));
            }
        }
        // In the order of their names, whichever were met first.
        counts.sort_by(|a, b| self.order_of(a.0).cmp(&self.order_of(b.0)));
        for ((cohort, method, fingerprint), runtime, place, (devices, devices_before)) in counts {
            let (model_id, version) = self.version_of(*cohort);
            let counts = self.counts[place as usize];
            let of_model = models.entry(model_id.clone()).or_default();
            of_model.placements.push(PlacementCount {
                model_version: version.clone(),
                chipset: self.cohorts.items()[*cohort as usize].1.clone(),
                placement: counts.placement(method.clone(), *fingerprint, runtime.to_owned()),
                devices,
                devices_before,
            });
        }
        models
    }
}

/// Where one placement was, and the number of the place that is shown for it, after what it is chosen by.
#[derive(Debug, Default)]
struct Presence<'a> {
    buckets: Vec<(Bucket, &'a [u8])>,
    shown: Option<(&'a str, u64, PlaceId)>,
}

/// Counts the devices of one placement after the other, each once.
struct Counter {
    start: Bucket,
    /// Which placement a device was counted for last, by number from 1.
    counted: Vec<u32>,
    nth: u32,
}

impl Counter {
    /// Returns how many devices there are, and how many of them are in a bucket before the window.
    fn count(&mut self, buckets: &[(Bucket, &[u8])]) -> (u64, u64) {
        self.nth += 1;
        let (mut all, mut before) = (0, 0);
        for (at, bytes) in buckets {
            for device in devices(bytes) {
                let counted = &mut self.counted[device as usize];
                if *counted != self.nth {
                    *counted = self.nth;
                    all += 1;
                    before += u64::from(*at < self.start);
                }
            }
        }
        (all, before)
    }
}

/// Devices that ran at one place in a bucket.
struct PlaceDevices<'a> {
    id: PlaceId,
    devices: &'a [u8],
}

impl<'a> PlaceDevices<'a> {
    fn devices(&self) -> impl Iterator<Item = u32> + use<'a> {
        devices(self.devices)
    }
}

impl AppBucket {
    fn pack(&mut self) {
        let mut open = std::mem::take(&mut self.open);
        for place in self.places() {
            open.extend(place.devices().map(|device| (place.id, device)));
        }
        open.sort_unstable();
        open.dedup();
        let (mut packed, mut of_place) = (Vec::new(), Vec::new());
        let mut before = 0;
        for same in open.chunk_by(|a, b| a.0 == b.0) {
            of_place.clear();
            let mut last = 0;
            for (_, device) in same {
                varint::push(&mut of_place, u64::from(device - last));
                last = *device;
            }
            let place = same[0].0;
            for number in [u64::from(place - before), of_place.len() as u64] {
                varint::push(&mut packed, number);
            }
            before = place;
            packed.extend_from_slice(&of_place);
        }
        self.packed = packed.into_boxed_slice();
    }

    fn places(&self) -> impl Iterator<Item = PlaceDevices<'_>> {
        let (mut rest, mut id) = (&*self.packed, 0);
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            id += number(&mut rest);
            let length = number(&mut rest) as usize;
            let devices = rest.split_off(..length.min(rest.len())).unwrap_or_default();
            Some(PlaceDevices { id, devices })
        })
    }
}

fn devices(mut bytes: &[u8]) -> impl Iterator<Item = u32> {
    let mut device = 0;
    std::iter::from_fn(move || {
        (!bytes.is_empty()).then(|| {
            device += number(&mut bytes);
            device
        })
    })
}

#[expect(clippy::cast_possible_truncation, reason = "only 32 bits are packed")]
fn number(bytes: &mut &[u8]) -> u32 {
    varint::take(bytes) as u32
}
