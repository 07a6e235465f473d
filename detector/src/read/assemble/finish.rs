//! Ends a window: latency finds its placement, votes their cohort.

use std::collections::BTreeMap;
use std::sync::Arc;

use epwatch_stats::SparseHistogram;

use crate::cohort::CohortKey;
use crate::device_events::DeviceEvents;
use crate::hash::{HashMap, HashSet};
use crate::placement::{Placement, PlacementMethod};
use crate::read::SourceError;
use crate::window::{CohortWindow, DeviceVote, Installation, VoteLatency, Voteless};

use super::placed::unknown_placement;
use super::vote::VoteKey;
use super::{Pair, WindowBuilder, WithoutVote};

type ByFirmwareAndShape = BTreeMap<(Arc<str>, Arc<str>), SparseHistogram>;

impl WithoutVote {
    fn counted(self, votes: &[DeviceVote]) -> Voteless {
        let voting: HashSet<Installation> = votes.iter().map(|vote| vote.installation).collect();
        let directed = self.directed.len() as u64;
        let mut only_directed: BTreeMap<Arc<str>, u64> = BTreeMap::new();
        for (installation, firmware) in self.directed {
            if !voting.contains(&installation) {
                *only_directed.entry(firmware).or_default() += 1;
            }
        }
        Voteless {
            late_or_unproven: self.late_or_unproven.len() as u64,
            directed,
            only_directed,
            flood: self.flood.len() as u64,
        }
    }
}

impl WindowBuilder {
    pub(in crate::read) fn finish(mut self) -> Result<Vec<CohortWindow>, SourceError> {
        for (key, vote) in std::mem::take(&mut self.unfinished) {
            let latency = VoteLatency {
                is_filled_up: true,
                own_against_self: vote.own_against_self,
                ..VoteLatency::from_sums(&vote.histogram, vote.moments, vote.earlier_self)
            };
            self.latencies.push((key, latency));
        }
        let no_shape = self.texts.id("");
        let mut votes: HashMap<Pair, Vec<DeviceVote>> = HashMap::default();
        for (key, latency) in std::mem::take(&mut self.latencies) {
            let without_shape = VoteKey {
                shape_key: no_shape,
                ..key
            };
            let placement = match self.placed.get_mut(&without_shape) {
                Some(placed) => {
                    placed.has_latency = true;
                    placed.placement.clone()
                }
                // Nobody said where it ran.
                None => {
                    let method = key.method.named(&self.texts);
                    Arc::new(unknown_placement(method, key.fingerprint))
                }
            };
            let vote = self.vote(&key, placement, Some(latency));
            votes
                .entry((key.version, key.chipset))
                .or_default()
                .push(vote);
        }
        for (key, placed) in std::mem::take(&mut self.placed) {
            if !placed.has_latency {
                let vote = self.vote(&key, placed.placement, None);
                votes
                    .entry((key.version, key.chipset))
                    .or_default()
                    .push(vote);
            }
        }

        // Where a directive holds every device nobody votes, and the incident must hear of it.
        for (cohort, without) in &self.voteless {
            if !without.directed.is_empty() {
                votes.entry(*cohort).or_default();
            }
        }

        let mut cohorts: Vec<CohortWindow> = Vec::new();
        for (cohort, mut votes) in votes {
            votes.sort_by(|a, b| order_of(a).cmp(&order_of(b)));
            for vote in &mut votes {
                if let Some((_, model)) = self.device_models.get(&vote.installation) {
                    vote.device_model = model.clone();
                }
            }
            let without = self.voteless.remove(&cohort).unwrap_or_default();
            let voteless = without.counted(&votes);
            cohorts.push(CohortWindow {
                end: self.end,
                length: self.length,
                votes,
                histograms: self.histograms(cohort)?,
                voteless,
                device_events: DeviceEvents::default(),
                key: CohortKey {
                    model: self.model.clone(),
                    model_version: self.texts.get(cohort.0).to_string(),
                    chipset: self.texts.get(cohort.1).to_string(),
                    firmware: None,
                },
            });
        }
        cohorts.sort_by(|a, b| name_of(a).cmp(&name_of(b)));
        Ok(cohorts)
    }

    fn vote(
        &self,
        key: &VoteKey,
        placement: Arc<Placement>,
        latency: Option<VoteLatency>,
    ) -> DeviceVote {
        DeviceVote {
            installation: key.installation,
            firmware: self.texts.get(key.firmware).clone(),
            device_model: "".into(),
            shape_key: self.texts.get(key.shape_key).clone(),
            placement,
            latency,
            is_proven: !self.arrivals.newcomers.contains(&key.installation),
        }
    }

    fn histograms(&mut self, cohort: Pair) -> Result<ByFirmwareAndShape, SourceError> {
        let parts = self.counts.remove(&cohort).unwrap_or_default().into_iter();
        let built = parts.map(|((firmware, shape_key), counts)| {
            let part = (
                self.texts.get(firmware).clone(),
                self.texts.get(shape_key).clone(),
            );
            Ok((part, self.histogram(counts.buckets())?))
        });
        built.collect()
    }
}

fn name_of(window: &CohortWindow) -> (&str, &str) {
    (&window.key.model_version, &window.key.chipset)
}

/// Orders the votes of a cohort: no two are alike in all of it.
fn order_of(vote: &DeviceVote) -> (Installation, &str, &str, u64, &PlacementMethod) {
    (
        vote.installation,
        &vote.firmware,
        &vote.shape_key,
        vote.placement.fingerprint,
        &vote.placement.method,
    )
}
