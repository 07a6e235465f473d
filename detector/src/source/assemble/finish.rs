//! Ends a window: latency finds its placement, votes their cohort.

use std::collections::BTreeMap;
use std::sync::Arc;

use epwatch_stats::SparseHistogram;

use crate::cohort::CohortKey;
use crate::hash::{HashMap, HashSet};
use crate::placement::Placement;
use crate::reported::Reported;
use crate::source::SourceError;
use crate::window::{CohortWindow, DeviceVote, Installation, VoteLatency, Voteless};

use super::placed::unknown_placement;
use super::vote::VoteKey;
use super::{Pair, WindowBuilder};

/// Who took part without a vote.
#[derive(Default)]
pub(super) struct WithoutVote {
    pub(super) late_or_unproven: HashSet<Installation>,
    /// With their firmware.
    pub(super) directed: HashMap<Installation, Arc<str>>,
    pub(super) flood: HashSet<Installation>,
}

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
    pub(in crate::source) fn finish(mut self) -> Result<Vec<CohortWindow>, SourceError> {
        for (key, vote) in std::mem::take(&mut self.unfinished) {
            let latency = VoteLatency {
                is_filled_up: true,
                own_against_self: vote.own_against_self,
                ..VoteLatency::from_sums(&vote.histogram, vote.moments, vote.earlier_self)
            };
            self.latencies.insert(key, latency);
        }
        let mut votes: BTreeMap<Pair, Vec<DeviceVote>> = BTreeMap::new();
        for (key, latency) in std::mem::take(&mut self.latencies) {
            let without_shape = VoteKey {
                shape_key: self.text(""),
                ..key.clone()
            };
            let placement = match self.placed.get_mut(&without_shape) {
                Some(placed) => {
                    placed.has_latency = true;
                    placed.placement.clone()
                }
                // Nobody said where it ran.
                None => Arc::new(unknown_placement(&key)),
            };
            let is_proven = !self.arrivals.newcomers.contains(&key.installation);
            add_vote_to(&mut votes, key, placement, Some(latency), is_proven);
        }
        for (key, placed) in std::mem::take(&mut self.placed) {
            if !placed.has_latency {
                let is_proven = !self.arrivals.newcomers.contains(&key.installation);
                add_vote_to(&mut votes, key, placed.placement, None, is_proven);
            }
        }

        // Where a directive holds every device nobody votes, and the incident must hear of it.
        for (cohort, without) in &self.voteless {
            if !without.directed.is_empty() {
                votes.entry(cohort.clone()).or_default();
            }
        }

        let mut cohorts: Vec<CohortWindow> = Vec::new();
        for ((version, chipset), mut votes) in votes {
            votes.sort_by(|a, b| {
                (
                    a.installation,
                    &a.firmware,
                    &a.shape_key,
                    a.placement.fingerprint,
                )
                    .cmp(&(
                        b.installation,
                        &b.firmware,
                        &b.shape_key,
                        b.placement.fingerprint,
                    ))
            });
            let cohort = (version, chipset);
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
                histograms: self.histograms(&cohort)?,
                voteless,
                reported: Reported::default(),
                key: CohortKey {
                    model: self.model.clone(),
                    model_version: cohort.0.to_string(),
                    chipset: cohort.1.to_string(),
                    firmware: None,
                },
            });
        }
        Ok(cohorts)
    }

    fn histograms(
        &mut self,
        cohort: &Pair,
    ) -> Result<BTreeMap<Pair, SparseHistogram>, SourceError> {
        let parts = self.counts.remove(cohort).unwrap_or_default().into_iter();
        let built = parts.map(|(part, counts)| Ok((part, self.histogram(counts)?)));
        built.collect()
    }
}

fn add_vote_to(
    votes: &mut BTreeMap<Pair, Vec<DeviceVote>>,
    key: VoteKey,
    placement: Arc<Placement>,
    latency: Option<VoteLatency>,
    is_proven: bool,
) {
    votes
        .entry((key.version, key.chipset))
        .or_default()
        .push(DeviceVote {
            installation: key.installation,
            firmware: key.firmware,
            device_model: "".into(),
            shape_key: key.shape_key,
            placement,
            latency,
            is_proven,
        });
}
