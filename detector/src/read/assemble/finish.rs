//! Ends a window: joins latency with its placement, and votes with their cohort.

use std::collections::BTreeMap;
use std::sync::Arc;

use epwatch_model::{CohortKey, Installation, Placement, PlacementMethod};
use epwatch_stats::RangeHistogram;

use crate::judge::hash::{HashMap, HashSet};
use crate::judge::window::{CohortWindow, DeviceVote, VoteLatency, Voteless};
use crate::read::error::{SourceError, histogram_for};
use crate::read::interner::{TextId, Texts};

use super::builder::{CohortId, VoteKey, WindowBuilder, WithoutVote};
use super::rows::{CohortPlacement, PlacedSession};

type ByFirmwareAndShape = BTreeMap<(Arc<str>, Arc<str>), RangeHistogram>;

/// Keeps every placement once, for all devices that have it.
#[derive(Default)]
struct Placements(HashMap<CohortPlacement, Vec<(PlacedSession, Arc<Placement>)>>);

impl Placements {
    fn of(
        &mut self,
        ran: CohortPlacement,
        session: Option<&PlacedSession>,
        texts: &Texts,
    ) -> Arc<Placement> {
        // If no session was read, it is unknown where the device ran.
        let mut session = session.cloned().unwrap_or_default();
        session.reasons.sort_unstable();
        let variants = self.0.entry(ran).or_default();
        if let Some((_, known)) = variants.iter().find(|(known, _)| *known == session) {
            return known.clone();
        }
        let text = |id: &TextId| texts.get(*id).to_string();
        let runtime = text(&session.runtime);
        let mut reasons: Vec<String> = session.reasons.iter().map(text).collect();
        reasons.sort_unstable();
        reasons.dedup();
        let placement = Arc::new(Placement {
            reasons,
            ..session
                .counts
                .placement(ran.method(texts), ran.fingerprint, runtime)
        });
        variants.push((session, placement.clone()));
        placement
    }
}

impl WithoutVote {
    fn counted(self, votes: &[DeviceVote], texts: &Texts) -> Voteless {
        let voting: HashSet<Installation> = votes.iter().map(|vote| vote.installation).collect();
        let directed = self.directed.len() as u64;
        let mut only_directed: BTreeMap<Arc<str>, Vec<Installation>> = BTreeMap::new();
        for (installation, firmware) in self.directed {
            if !voting.contains(&installation) {
                let firmware = texts.get(firmware).clone();
                let of_firmware = only_directed.entry(firmware).or_default();
                of_firmware.push(installation);
            }
        }
        Voteless {
            directed,
            only_directed,
            unproven: self.unproven.difference(&voting).count() as u64,
        }
    }
}

impl WindowBuilder {
    /// Returns the windows of the model's cohorts, in the order of their versions and chipsets.
    pub(super) fn finish(mut self, texts: &Texts) -> Result<Vec<CohortWindow>, SourceError> {
        let unfinished = std::mem::take(&mut self.unfinished).into_iter();
        let unfinished = unfinished.map(|(key, vote)| (key, vote.end()));
        let latencies = std::mem::take(&mut self.latencies).into_iter();
        let mut placements = Placements::default();
        let mut votes: HashMap<CohortId, Vec<DeviceVote>> = HashMap::default();
        for (key, latency) in latencies.chain(unfinished) {
            let (installation, ran, _) = key;
            let mut placed = self.placed.get_mut(&(installation, ran));
            if let Some(placed) = &mut placed {
                placed.has_latency = true;
            }
            let placed = placed.map(|placed| &*placed);
            let created_s = placed.map(|placed| placed.created_s);
            let session = placed.map(|placed| &placed.session);
            let placement = placements.of(ran, session, texts);
            let vote = self.vote(key, (placement, created_s), Some(latency), texts);
            let of_cohort = votes.entry((ran.version, ran.chipset)).or_default();
            of_cohort.push(vote);
        }
        for ((installation, ran), placed) in std::mem::take(&mut self.placed) {
            if !placed.has_latency {
                let placement = placements.of(ran, Some(&placed.session), texts);
                let key = (installation, ran, TextId::EMPTY);
                let of_cohort = votes.entry((ran.version, ran.chipset)).or_default();
                let placed = (placement, Some(placed.created_s));
                of_cohort.push(self.vote(key, placed, None, texts));
            }
        }

        // If a directive covers every device, no device votes, but the incident still needs the window.
        for (cohort, without) in &self.voteless {
            if !without.directed.is_empty() {
                votes.entry(*cohort).or_default();
            }
        }

        let mut cohorts: Vec<CohortWindow> = Vec::new();
        for (cohort, mut votes) in votes {
            votes.sort_by(|a, b| order_of(a).cmp(&order_of(b)));
            let without = self.voteless.remove(&cohort).unwrap_or_default();
            let voteless = without.counted(&votes, texts);
            let key = CohortKey {
                model: self.model.clone(),
                model_version: texts.get(cohort.0).to_string(),
                chipset: texts.get(cohort.1).to_string(),
                firmware: None,
            };
            cohorts.push(CohortWindow {
                votes,
                voteless,
                histograms: self.histograms(cohort, texts)?,
                ..CohortWindow::empty(key, self.end, self.length)
            });
        }
        cohorts.sort_by(|a, b| name_of(a).cmp(&name_of(b)));
        Ok(cohorts)
    }

    fn vote(
        &self,
        (installation, ran, shape_key): VoteKey,
        (placement, created_s): (Arc<Placement>, Option<(i64, i64)>),
        latency: Option<VoteLatency>,
        texts: &Texts,
    ) -> DeviceVote {
        let device_model = self.device_models.get(&installation);
        let device_model = device_model.map_or(TextId::EMPTY, |(_, name)| *name);
        DeviceVote {
            installation,
            firmware: texts.get(ran.firmware).clone(),
            device_model: texts.get(device_model).clone(),
            shape_key: texts.get(shape_key).clone(),
            placement,
            created_s,
            latency,
            is_proven: !self.newcomers.contains(&installation),
            reports_heat: self.report_heat.contains(&installation),
        }
    }

    fn histograms(
        &mut self,
        cohort: CohortId,
        texts: &Texts,
    ) -> Result<ByFirmwareAndShape, SourceError> {
        let parts = self.counts.remove(&cohort).unwrap_or_default().into_iter();
        let built = parts.map(|((firmware, shape_key), counts)| {
            let part = (texts.get(firmware).clone(), texts.get(shape_key).clone());
            Ok((part, histogram_for(&self.model, counts.buckets())?))
        });
        built.collect()
    }
}

fn name_of(window: &CohortWindow) -> (&str, &str) {
    (&window.key.model_version, &window.key.chipset)
}

/// The sort key of a cohort's votes. No two votes have the same key.
fn order_of(vote: &DeviceVote) -> (Installation, &str, &str, u64, &PlacementMethod) {
    (
        vote.installation,
        &vote.firmware,
        &vote.shape_key,
        vote.placement.fingerprint,
        &vote.placement.method,
    )
}
