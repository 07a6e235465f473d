//! The placement census: which devices reported in each bucket of the look-back, and with which placement.
//!
//! Pure. A reader of the store adds new buckets and forgets buckets that changed; a recording adds all of its reports
//! once. A bucket that was read holds its devices in one or two bytes each, because fleets have millions of them.

use std::collections::BTreeMap;

use epwatch_model::{Installation, ModelKey, PlacementMethod};

use crate::judge::baseline::{PlacementCount, VersionSeen};
use crate::judge::hash::{HashMap, HashSet};
use crate::judge::placement::NodeCounts;
use crate::judge::sybil_resistance::ESTABLISHED_IN_FIRST;
use crate::read::interner::{Interner, TextId, Texts, next_id};
use crate::read::varint;

use super::arrivals::{NewInstallations, newcomers};
use super::assemble::{CohortPlacement, ModelId};
use super::event_log::EventLog;
use super::model_windows::FoundModel;
use super::span::{Bucket, Span, bucket_at};

/// Estimated bytes of a group with its names, on the high side.
const BYTES_A_GROUP: usize = 1024;

/// Bytes of a version's entry in a bucket, with its time.
const BYTES_A_VERSION: usize = 48;

/// Number of a session's group within its app.
type PlaceId = u32;

/// The groups of reports without a session, from admitted installations, from unproven ones, and from ones with an
/// `own` key.
const NOWHERE: [PlaceId; 3] = [PlaceId::MAX, PlaceId::MAX - 1, PlaceId::MAX - 2];

/// The census of every app, by bucket.
#[derive(Debug, Clone, Default)]
pub(super) struct Census {
    /// Texts of groups.
    pub(super) texts: Texts,
    /// The apps by id and environment.
    apps: HashMap<(TextId, TextId), AppCensus>,
    /// Self-tests and failed starts of the same buckets.
    pub(super) events: EventLog,
}

/// The census of one app, by bucket.
#[derive(Debug, Clone, Default)]
pub(super) struct AppCensus {
    devices: HashMap<Installation, u32>,
    groups: Interner<SessionGroup>,
    /// Counts of each group.
    counts: Vec<NodeCounts>,
    buckets: BTreeMap<Bucket, AppBucket>,
}

/// Sessions with one model version, placement and runtime, whatever their firmware. There are few such groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SessionGroup {
    pub(super) model: ModelId,
    pub(super) ran: CohortPlacement,
    pub(super) runtime: TextId,
    pub(super) fingerprint_exact: u64,
    pub(super) votes: bool,
    pub(super) is_unproven: bool,
    pub(super) is_own: bool,
}

/// A session of a report.
#[derive(Debug, Clone, Copy)]
pub(super) struct CensusSession {
    pub(super) received_ms: i64,
    pub(super) device: Installation,
    pub(super) group: SessionGroup,
    pub(super) counts: NodeCounts,
}

/// One app in one bucket.
#[derive(Debug, Clone, Default)]
struct AppBucket {
    /// Place and device, until the bucket is packed.
    open: Vec<(PlaceId, u32)>,
    /// For each group its number, the number of bytes that follow, and the devices, all as differences.
    packed: Box<[u8]>,
    /// The sessions by model and version.
    versions: BTreeMap<(TextId, TextId), VersionSessions>,
}

/// One version in one bucket.
#[derive(Debug, Clone, Copy)]
struct VersionSessions {
    first_received_ms: i64,
    sessions: u64,
}

/// The look-back's counts of one model, including the window.
#[derive(Debug, Clone, Default)]
pub(super) struct ModelCensus {
    pub(super) placements: Vec<PlacementCount>,
    pub(super) versions: Vec<VersionSeen>,
}

impl Census {
    /// Makes an empty census with texts that groups may already have.
    pub(super) fn with_texts(texts: Texts) -> Self {
        Self {
            texts,
            ..Self::default()
        }
    }

    /// Adds a session to a bucket that is not closed.
    pub(super) fn add(&mut self, bucket: Bucket, session: &CensusSession) {
        let (app_id, environment, _) = session.group.model;
        let app = self.apps.entry((app_id, environment)).or_default();
        app.add(bucket, session);
    }

    /// Adds a report without a session.
    pub(super) fn add_sessionless(
        &mut self,
        bucket: Bucket,
        app: (TextId, TextId),
        device: Installation,
        (is_unproven, is_own): (bool, bool),
    ) {
        let app = self.apps.entry(app).or_default();
        let device = app.device(device);
        let bucket = app.buckets.entry(bucket).or_default();
        let nowhere = match (is_unproven, is_own) {
            (true, _) => NOWHERE[1],
            (false, true) => NOWHERE[2],
            (false, false) => NOWHERE[0],
        };
        bucket.open.push((nowhere, device));
    }

    /// Returns each app.
    pub(super) fn apps(&self) -> impl Iterator<Item = ((TextId, TextId), &AppCensus)> {
        self.apps.iter().map(|(app, census)| (*app, census))
    }

    /// Drops some buckets.
    pub(super) fn forget(&mut self, gone: &[Bucket]) {
        for app in self.apps.values_mut() {
            app.buckets.retain(|at, _| !gone.contains(at));
        }
        self.events.forget(gone);
    }

    /// Packs buckets that were read. A device that reported often is stored once.
    pub(super) fn close(&mut self, buckets: &[Bucket]) {
        for app in self.apps.values_mut() {
            for bucket in buckets {
                if let Some(bucket) = app.buckets.get_mut(bucket) {
                    bucket.pack();
                }
            }
        }
    }

    /// Returns about how much memory it takes.
    pub(super) fn bytes(&self) -> usize {
        let of_apps: usize = self.apps.values().map(AppCensus::bytes).sum();
        of_apps + self.events.bytes()
    }

    /// Returns the new installations of each app.
    pub(super) fn arrivals(&self, span: &Span) -> NewInstallations {
        let text = |id: TextId| self.texts.get(id).to_string();
        let apps = self.apps.iter().map(|((app_id, environment), app)| {
            let name = (text(*app_id), text(*environment));
            let (admitted, unproven) = app.receipts(span);
            (name, newcomers(admitted, &unproven, span))
        });
        NewInstallations::of_apps(apps)
    }

    /// Returns which of the wanted installations of public keys were admitted to the app at the beginning of the
    /// look-back, and whether any installation was. Every environment of the app counts, because a made-up environment
    /// does not make a new app.
    pub(super) fn established(
        &self,
        app_id: &str,
        wanted: &HashSet<Installation>,
        span: &Span,
    ) -> (HashSet<Installation>, bool) {
        let (mut established, mut is_any) = (HashSet::default(), false);
        let of_app = |((id, _), _): &(&(TextId, TextId), _)| **self.texts.get(*id) == *app_id;
        for (_, app) in self.apps.iter().filter(of_app) {
            is_any |= app.add_established(wanted, span, &mut established);
        }
        (established, is_any)
    }

    /// Returns the models with reports in the window.
    pub(super) fn models(&self, span: &Span) -> Vec<FoundModel> {
        let models = self.apps.values().flat_map(|app| app.models(span));
        let found = models.map(|(model, (cohorts, sessions))| FoundModel {
            model: self.texts.model_key(model),
            cohorts: cohorts.len() as u64,
            sessions,
        });
        found.collect()
    }

    /// Returns the look-back's counts of the models of some apps.
    pub(super) fn of_apps(
        &self,
        apps: &[(&str, &str)],
        span: &Span,
    ) -> HashMap<ModelKey, ModelCensus> {
        let is_wanted = |(app_id, environment): &(TextId, TextId)| {
            apps.contains(&(self.texts.get(*app_id), self.texts.get(*environment)))
        };
        let wanted = self.apps.iter().filter(|(app, _)| is_wanted(app));
        let models = wanted.flat_map(|((app_id, environment), app)| {
            let models = app.by_model(&self.texts, span).into_iter();
            models.map(|(model, found)| ((*app_id, *environment, model), found))
        });
        models
            .map(|(model, found)| (self.texts.model_key(model), found))
            .collect()
    }
}

impl AppCensus {
    fn add(&mut self, bucket: Bucket, session: &CensusSession) {
        let group = session.group.comparable();
        let id = self.groups.id(group);
        if id as usize == self.counts.len() {
            self.counts.push(session.counts);
        }
        let device = self.device(session.device);
        let bucket = self.buckets.entry(bucket).or_default();
        bucket.open.push((id, device));
        let version = bucket.versions.entry((group.model.2, group.ran.version));
        let of_version = version.or_insert(VersionSessions {
            first_received_ms: session.received_ms,
            sessions: 0,
        });
        of_version.first_received_ms = of_version.first_received_ms.min(session.received_ms);
        of_version.sessions += 1;
    }

    fn device(&mut self, installation: Installation) -> u32 {
        let next = next_id(self.devices.len());
        *self.devices.entry(installation).or_insert(next)
    }

    /// Passes the devices that vote in each group of the look-back to `take`, bucket by bucket in their order.
    pub(super) fn each_voting(
        &self,
        span: &Span,
        mut take: impl FnMut(Bucket, &SessionGroup, &mut dyn Iterator<Item = u32>),
    ) {
        for (at, bucket) in self.buckets.range(span.buckets()) {
            for found in bucket.groups() {
                let group = self.groups.items().get(found.at());
                if let Some(group) = group.filter(|group| group.votes) {
                    take(*at, group, &mut found.devices());
                }
            }
        }
    }

    pub(super) fn n_devices(&self) -> usize {
        self.devices.len()
    }

    /// Returns the packed devices of reports of the look-back that were not admitted, by bucket.
    pub(super) fn unproven(&self, span: &Span) -> impl Iterator<Item = (Bucket, &[u8])> {
        let buckets = self.buckets.range(span.buckets());
        buckets.flat_map(move |(at, bucket)| {
            let unproven = bucket
                .groups()
                .filter(move |group| self.is_unproven(group.id));
            unproven.map(move |group| (*at, group.devices))
        })
    }

    /// Returns the packed devices of admitted reports of the look-back, by bucket, with model and version if they
    /// had a session.
    pub(super) fn proven(
        &self,
        span: &Span,
    ) -> impl Iterator<Item = (Bucket, Option<(TextId, TextId)>, &[u8])> {
        let buckets = self.buckets.range(span.buckets());
        buckets.flat_map(move |(at, bucket)| {
            let proven = bucket
                .groups()
                .filter(move |group| !self.is_unproven(group.id));
            proven.map(move |group| {
                let known = self.groups.items().get(group.at());
                let version = known.map(|group| (group.model.2, group.ran.version));
                (*at, version, group.devices)
            })
        })
    }

    fn bytes(&self) -> usize {
        let of_bucket = |bucket: &AppBucket| {
            bucket.packed.len()
                + bucket.open.capacity() * size_of::<(PlaceId, u32)>()
                + bucket.versions.len() * BYTES_A_VERSION
                + size_of::<(Bucket, AppBucket)>()
        };
        let of_buckets: usize = self.buckets.values().map(of_bucket).sum();
        // The hash table may be half empty, so its capacity counts.
        let of_devices = self.devices.capacity() * (size_of::<(Installation, u32)>() + 1);
        of_buckets + of_devices + self.groups.items().len() * BYTES_A_GROUP
    }

    /// Returns the installations with the bucket of their first admitted report, and buckets with unproven ones.
    fn receipts(&self, span: &Span) -> (impl Iterator<Item = (Bucket, Installation)>, Vec<Bucket>) {
        let mut first = vec![Bucket::MAX; self.devices.len()];
        let mut unproven = Vec::new();
        for (at, bucket) in self.buckets.range(span.buckets()) {
            for group in bucket.groups() {
                if self.is_unproven(group.id) {
                    unproven.push(*at);
                    continue;
                }
                // Devices of an `own` key cannot be made up by strangers, so none of them counts as new.
                if self.is_own(group.id) {
                    continue;
                }
                for device in group.devices() {
                    let first = &mut first[device as usize];
                    *first = (*first).min(*at);
                }
            }
        }
        let devices = self.devices.iter();
        let first =
            devices.map(move |(installation, device)| (first[*device as usize], *installation));
        let admitted = first.filter(|(bucket, _)| *bucket != Bucket::MAX);
        (admitted, unproven)
    }

    fn is_unproven(&self, id: PlaceId) -> bool {
        let group = self.groups.items().get(id as usize);
        group.map_or(id == NOWHERE[1], |group| group.is_unproven)
    }

    fn is_own(&self, id: PlaceId) -> bool {
        let group = self.groups.items().get(id as usize);
        group.map_or(id == NOWHERE[2], |group| group.is_own)
    }

    /// Adds the wanted installations that are established. Returns whether any installation is.
    fn add_established(
        &self,
        wanted: &HashSet<Installation>,
        span: &Span,
        established: &mut HashSet<Installation>,
    ) -> bool {
        // This takes one byte per device of the app. A set of the established devices would take 40 bytes for each.
        let mut seen = vec![false; self.devices.len()];
        for (_, bucket) in self.buckets.range(span.first_buckets(ESTABLISHED_IN_FIRST)) {
            let groups = bucket.groups();
            for group in groups.filter(|at| !self.is_unproven(at.id) && !self.is_own(at.id)) {
                group
                    .devices()
                    .for_each(|device| seen[device as usize] = true);
            }
        }
        let is_seen = |device: &&Installation| {
            let known = self.devices.get(*device);
            known.is_some_and(|device| seen[*device as usize])
        };
        established.extend(wanted.iter().filter(is_seen));
        seen.contains(&true)
    }

    /// Returns the cohorts of each model in the window, and the model's number of sessions.
    fn models(&self, span: &Span) -> HashMap<ModelId, (HashSet<(TextId, TextId)>, u64)> {
        let mut sessions: HashMap<TextId, u64> = HashMap::default();
        let mut models: HashMap<ModelId, (HashSet<(TextId, TextId)>, u64)> = HashMap::default();
        for (_, bucket) in self.buckets.range(span.window_buckets()) {
            for ((model, _), of_version) in &bucket.versions {
                *sessions.entry(*model).or_default() += of_version.sessions;
            }
            for group in bucket.groups() {
                if let Some(SessionGroup { model, ran, .. }) = self.groups.items().get(group.at()) {
                    let (cohorts, _) = models.entry(*model).or_default();
                    cohorts.insert((ran.version, ran.chipset));
                }
            }
        }
        for (model, (_, n)) in &mut models {
            *n = sessions.get(&model.2).copied().unwrap_or_default();
        }
        models
    }

    /// Returns the look-back's counts, by model.
    fn by_model(&self, texts: &Texts, span: &Span) -> HashMap<TextId, ModelCensus> {
        let mut models: HashMap<TextId, ModelCensus> = HashMap::default();
        let mut placements: HashMap<(TextId, CohortPlacement), Presence<'_>> = HashMap::default();
        let mut first: HashMap<(TextId, TextId), i64> = HashMap::default();
        for (at, bucket) in self.buckets.range(span.buckets()) {
            for devices in bucket.groups() {
                let known = self.groups.items().get(devices.at());
                let Some(group) = known.filter(|group| group.votes) else {
                    continue;
                };
                let presence = placements.entry((group.model.2, group.ran)).or_default();
                presence.buckets.push((*at, devices.devices));
                // If there are several, the first by runtime and exact fingerprint is shown.
                let key = (
                    &**texts.get(group.runtime),
                    group.fingerprint_exact,
                    devices.id,
                );
                presence.shown = Some(presence.shown.map_or(key, |shown| shown.min(key)));
            }
            for (version, of_version) in &bucket.versions {
                let received_ms = of_version.first_received_ms;
                let slot = first.entry(*version).or_insert(received_ms);
                *slot = (*slot).min(received_ms);
            }
        }
        for ((model, version), first_seen_ms) in first {
            models.entry(model).or_default().versions.push(VersionSeen {
                version: texts.get(version).to_string(),
                first_seen_ms,
                devices: 0,
            });
        }
        let window_start = bucket_at(span.start_s());
        let mut counter = DeviceCounter::of(self.n_devices());
        let text = |id| texts.get(id).to_string();
        for ((model, ran), presence) in placements {
            let Some((runtime, _, shown)) = presence.shown else {
                continue;
            };
            let counts = self.counts[shown as usize];
            let (mut devices, mut devices_before) = (0, 0);
            counter.each(&presence.buckets, |at, _| {
                devices += 1;
                devices_before += u64::from(at < window_start);
            });
            models
                .entry(model)
                .or_default()
                .placements
                .push(PlacementCount {
                    model_version: text(ran.version),
                    chipset: text(ran.chipset),
                    placement: counts.placement(
                        ran.method(texts),
                        ran.fingerprint,
                        runtime.to_owned(),
                    ),
                    devices,
                    devices_before,
                });
        }
        // Sorted by name, so that the order of reading does not matter.
        for found in models.values_mut() {
            found.versions.sort_by(|a, b| a.version.cmp(&b.version));
            let placements = &found.placements;
            for seen in &mut found.versions {
                let of_version = placements
                    .iter()
                    .filter(|count| count.model_version == seen.version);
                seen.devices = of_version.map(|count| count.devices).sum();
            }
            found
                .placements
                .sort_by(|a, b| order_of(a).cmp(&order_of(b)));
        }
        models
    }
}

fn order_of(count: &PlacementCount) -> (&str, &str, &PlacementMethod, u64) {
    let placement = &count.placement;
    (
        &count.model_version,
        &count.chipset,
        &placement.method,
        placement.fingerprint,
    )
}

impl SessionGroup {
    /// Returns the group without its firmware. If its sessions do not vote, only their cohort is kept.
    fn comparable(self) -> Self {
        let mut group = self;
        group.ran.firmware = TextId::EMPTY;
        if !self.votes {
            (group.runtime, group.fingerprint_exact) = (TextId::EMPTY, 0);
            group.ran = CohortPlacement {
                version: self.ran.version,
                chipset: self.ran.chipset,
                ..CohortPlacement::default()
            };
        }
        group
    }
}

/// The buckets of one placement, and the group that is shown for it. The group's number follows the values by which it
/// is chosen.
#[derive(Debug, Default)]
struct Presence<'a> {
    buckets: Vec<(Bucket, &'a [u8])>,
    shown: Option<(&'a str, u64, PlaceId)>,
}

/// Passes each device once per call of [`Self::each`].
pub(super) struct DeviceCounter {
    /// For each device, the number of the last call that counted it, from 1.
    counted: Vec<u32>,
    nth: u32,
}

impl DeviceCounter {
    pub(super) fn of(n_devices: usize) -> Self {
        Self {
            counted: vec![0; n_devices],
            nth: 0,
        }
    }

    /// Passes each packed device to `take`, with the place where it occurred first.
    pub(super) fn each<T: Copy>(&mut self, packed: &[(T, &[u8])], mut take: impl FnMut(T, u32)) {
        self.nth += 1;
        for (at, bytes) in packed {
            for device in devices(bytes) {
                let counted = &mut self.counted[device as usize];
                if *counted != self.nth {
                    *counted = self.nth;
                    take(*at, device);
                }
            }
        }
    }
}

/// Devices that ran in one group in a bucket.
struct GroupDevices<'a> {
    id: PlaceId,
    devices: &'a [u8],
}

impl<'a> GroupDevices<'a> {
    fn at(&self) -> usize {
        self.id as usize
    }

    fn devices(&self) -> impl Iterator<Item = u32> + use<'a> {
        devices(self.devices)
    }
}

impl AppBucket {
    fn pack(&mut self) {
        let mut open = std::mem::take(&mut self.open);
        for group in self.groups() {
            open.extend(group.devices().map(|device| (group.id, device)));
        }
        open.sort_unstable();
        open.dedup();
        let (mut packed, mut of_group) = (Vec::new(), Vec::new());
        let mut before = 0;
        for same in open.chunk_by(|a, b| a.0 == b.0) {
            of_group.clear();
            let mut last = 0;
            for (_, device) in same {
                varint::push(&mut of_group, u64::from(device - last));
                last = *device;
            }
            let group = same[0].0;
            for number in [u64::from(group - before), of_group.len() as u64] {
                varint::push(&mut packed, number);
            }
            before = group;
            packed.extend_from_slice(&of_group);
        }
        self.packed = packed.into_boxed_slice();
    }

    fn groups(&self) -> impl Iterator<Item = GroupDevices<'_>> {
        let (mut rest, mut id) = (&*self.packed, 0);
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            id += number(&mut rest);
            let length = number(&mut rest) as usize;
            let devices = rest.split_off(..length.min(rest.len())).unwrap_or_default();
            Some(GroupDevices { id, devices })
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
