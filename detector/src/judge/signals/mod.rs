//! The signals, one file each: what each of them counts in a cohort window, and how surprising the count is.
//!
//! Every signal counts devices, never runs, because runs of one device are not independent. [`SignalId`] describes each
//! signal. `verdict` makes a verdict of their results.

mod certificate_drift;
mod compiled_model;
mod control;
mod cross_chipset;
mod cv_increase;
pub(crate) mod intermittent_runs;
mod limits;
mod median_ratio;
mod output_drop;
mod outputs;
mod placement_change;
mod same_shape;
pub(crate) mod slow_devices;
mod slower_group;
mod slower_with_placement_change;
mod start_failures;
mod unseen_heat;

use epwatch_model::{Signal, SignalId, TAIL_PERCENTS};

use crate::judge::baseline::Baseline;
use crate::judge::window::{CohortWindow, DeviceVote};

use median_ratio::Median;
use slower_with_placement_change::SpeedBefore;

pub(crate) use certificate_drift::{CertificateDrift, UncertifiedRuntime};
pub(crate) use compiled_model::CompiledForAnother;
pub(crate) use control::Control;
pub use control::{Controls, PeerRatios};
pub(crate) use cross_chipset::CrossChipset;
pub(crate) use cv_increase::CvIncrease;
pub(crate) use intermittent_runs::Intermittent;
pub use limits::Limits;
pub(crate) use limits::{MIN_ELIGIBLE, MIN_HITS, UNSURPRISING_P};
pub(crate) use median_ratio::MEDIAN_CHANCE;
pub(crate) use output_drop::DroppedOutputs;
pub(crate) use outputs::{OutputMinority, Outputs, OutputsBeyond};
pub(crate) use placement_change::PlacementChange;
pub(crate) use slow_devices::Shift;
pub(crate) use slower_group::SlowerGroup;
pub(crate) use slower_with_placement_change::SlowerAndMoved;
pub(crate) use start_failures::StartFailures;
pub use unseen_heat::UnseenHeat;

/// The results of all signals in one cohort window.
#[derive(Debug, Clone, PartialEq)]
pub struct SignalEvidence {
    /// `Placement`; `None` if no placement is comparable.
    pub placement: Option<PlacementChange>,
    /// `SlowerAndMoved`; `None` without a change of placement, or if the devices' speed has no reference.
    pub slower_and_moved: Option<SlowerAndMoved>,
    /// `Certificate`; `None` if nothing was certified for the devices' runtime.
    pub certificate: Option<CertificateDrift>,
    /// The devices' runtime, if no certificate is for it, and there is one for another runtime.
    pub uncertified_runtime: Option<UncertifiedRuntime>,
    /// `Shift`; `None` if no device has a baseline.
    pub shift: Option<Shift>,
    /// Whether the devices that `Shift` found are those whose placement got worse.
    pub placement_explains_shift: bool,
    /// `Median`; `None` with fewer than 10 devices that have a baseline.
    pub median: Option<Median>,
    /// Devices of a model or firmware that are slower than the chipset's others; `None` if there are none.
    pub slower_group: Option<SlowerGroup>,
    /// `Tail`; `None` if no device has a baseline.
    pub tail: Option<Intermittent>,
    /// `NearTail`; `None` if no device has a baseline.
    pub near_tail: Option<Intermittent>,
    /// `Moved`; `None` if no device has a baseline.
    pub moved: Option<Intermittent>,
    /// Control of `Median` and `Shift`: whether something other than the model slowed down as well.
    pub control: Control,
    /// Control of `SlowerAndMoved`.
    pub control_of_moved: Control,
    /// Whether the intermittent signals compare most devices with earlier windows of this version. Such a comparison
    /// does not page.
    pub by_own_windows: bool,
    /// Whether the devices that `Shift` found are nearly all among those that report no thermal state.
    pub may_be_heat: bool,
    /// The same for the intermittent signals, if one fires.
    pub intermittent_control: Control,
    /// Whether other chipsets show `Median` or `Shift` as well; `None` if neither fires, or there are none.
    pub cross_chipset: Option<CrossChipset>,
    /// The same for the intermittent signals, if one fires.
    pub intermittent_cross_chipset: Option<CrossChipset>,
    /// `Start`; `None` without devices.
    pub start_failures: Option<StartFailures>,
    /// Devices with a compiled model that was not made for them; `None` if they are too few.
    pub compiled_for_another: Option<CompiledForAnother>,
    /// `Outputs` and `OutputHash`; `None` without self-tests.
    pub outputs: Option<Outputs>,
    /// `OutputDrop`; `None` without self-tests.
    pub output_drop: Option<DroppedOutputs>,
    /// `CvIncrease`; `None` if no device has a baseline.
    pub cv_increase: Option<CvIncrease>,
}

impl SignalEvidence {
    /// Computes every signal.
    #[must_use]
    pub fn gather(
        window: &CohortWindow,
        controls: Controls<'_>,
        baseline: &Baseline,
        limits: &Limits,
    ) -> Self {
        let Controls {
            previous,
            peers,
            chipsets,
        } = controls;
        let placement = placement_change::changed(window, baseline, limits);
        let slower_and_moved = placement.as_ref().and_then(|change| {
            let worse = |vote: &DeviceVote| {
                placement_change::compare_worse(vote, baseline).unwrap_or(false)
            };
            let before = SpeedBefore {
                is_worse: &worse,
                latency: &baseline.latency,
                certified: baseline.certified_latency(),
            };
            slower_with_placement_change::slower(window, previous, change, before, limits)
        });
        let ratios = slow_devices::worst_ratios(&window.votes);
        let before = previous.map(|previous| slow_devices::worst_ratios(&previous.votes));
        let shift = slow_devices::beyond(window, &ratios, baseline, limits);
        let slower = shift.as_ref().filter(|shift| shift.signal.fires);
        let both = placement.as_ref().zip(slower);
        let placement_explains_shift = both.is_some_and(|(change, shift)| {
            slower_with_placement_change::explains(change, &shift.hit_devices, limits)
        });
        let median = median_ratio::moved(
            &ratios,
            before.as_ref(),
            control::peer_ratio(window, &ratios, peers),
        );
        let control = control::slowed_too(window, previous, peers, shift.as_ref(), baseline);
        let moved = placement.as_ref();
        let control_of_moved = moved.map_or(control, |change| {
            control::of_moved(control, window, &change.hit_devices, peers)
        });
        let may_be_heat = slower
            .is_some_and(|shift| unseen_heat::unseen_heat(window, &shift.hit_devices).is_some());
        let runs = intermittent_runs::runs_of_devices(&window.votes);
        let by_own_windows = 2 * window.n_with_earlier_windows() > runs.len() as u64;
        let of_runs = match by_own_windows {
            true => limits.of_tickets(),
            false => *limits,
        };
        let tail = intermittent_runs::tails(SignalId::Tail, &runs, baseline, &of_runs);
        let near_tail = intermittent_runs::tails(SignalId::NearTail, &runs, baseline, &of_runs);
        let moved = intermittent_runs::moved_medians(&runs, baseline, &of_runs);
        let found = firing([&tail, &near_tail, &moved]);
        let intermittent_control = found.map_or(Control::Absent, |found| {
            let rate = built_in_rate(found.past_id());
            control::intermittent_too(window, previous, peers, found, baseline, rate)
        });
        let intermittent_cross_chipset = found.and_then(|found| {
            let usual = usual_share(found.past_id(), baseline);
            cross_chipset::in_some_runs(window, controls, found, usual)
        });
        let is_slower = slower.is_some() || median.as_ref().is_some_and(|m| m.signal.fires);
        let cross_chipset = shift.as_ref().filter(|_| is_slower).and_then(|shift| {
            let usual = usual_share(shift.past_id(), baseline);
            cross_chipset::in_all_runs(window, chipsets, shift, usual)
        });
        Self {
            placement,
            slower_and_moved,
            certificate: certificate_drift::drifted(window, previous, baseline, limits),
            uncertified_runtime: certificate_drift::uncertified(window, baseline),
            shift,
            placement_explains_shift,
            median,
            slower_group: slower_group::slower_group(window),
            tail,
            near_tail,
            moved,
            control,
            control_of_moved,
            may_be_heat,
            by_own_windows,
            intermittent_control,
            cross_chipset,
            intermittent_cross_chipset,
            start_failures: start_failures::start_failures(window, previous, baseline, limits),
            compiled_for_another: compiled_model::compiled_for_another(window, limits),
            outputs: outputs::differ(window, previous, baseline, limits),
            output_drop: output_drop::dropped(window, previous, chipsets, baseline, limits),
            cv_increase: cv_increase::varies(window, previous, baseline, limits),
        }
    }

    /// Returns every signal, for the store and for people.
    #[must_use]
    pub fn signals(&self) -> Vec<Signal> {
        let outputs = self.outputs.as_ref();
        let minority = outputs.and_then(|outputs| outputs.minority.as_ref());
        let beyond = outputs.and_then(|outputs| outputs.beyond.as_ref());
        let all = [
            self.slower_and_moved.as_ref().map(|found| &found.signal),
            self.placement.as_ref().map(|found| &found.signal),
            self.certificate.as_ref().map(|found| &found.change.signal),
            self.median.as_ref().map(|found| &found.signal),
            self.shift.as_ref().map(|found| &found.signal),
            self.tail.as_ref().map(|found| &found.signal),
            self.near_tail.as_ref().map(|found| &found.signal),
            self.moved.as_ref().map(|found| &found.signal),
            self.start_failures.as_ref().map(|found| &found.signal),
            beyond.map(|found| &found.signal),
            minority.map(|found| &found.signal),
            self.output_drop.as_ref().map(|found| &found.signal),
            self.cv_increase.as_ref().map(|found| &found.signal),
        ];
        all.into_iter().flatten().cloned().collect()
    }

    pub(crate) fn firing_certificate(&self) -> Option<&CertificateDrift> {
        let drift = self.certificate.as_ref();
        drift.filter(|drift| drift.change.signal.fires)
    }

    pub(crate) fn firing_shift(&self) -> Option<&Shift> {
        self.shift.as_ref().filter(|shift| shift.signal.fires)
    }

    pub(crate) fn firing_median(&self) -> Option<&Median> {
        self.median.as_ref().filter(|median| median.signal.fires)
    }

    /// Returns the first of `Tail`, `NearTail` and `Moved` that fires.
    pub(crate) fn firing_intermittent(&self) -> Option<&Intermittent> {
        firing([&self.tail, &self.near_tail, &self.moved])
    }

    /// Whether most of the devices that an intermittent signal hits have other runs that no slow-down of all runs explains.
    pub(crate) fn has_fast_runs_too(&self) -> bool {
        self.firing_intermittent()
            .is_some_and(|found| found.has_fast_runs_too)
    }

    /// Returns the results of `Tail`, `NearTail` and `Moved` that counted any device.
    pub(crate) fn in_some_runs(&self) -> Vec<&Intermittent> {
        let all = [&self.tail, &self.near_tail, &self.moved];
        all.into_iter().flatten().collect()
    }

    pub(crate) fn firing_starts(&self) -> Option<&StartFailures> {
        let starts = self.start_failures.as_ref();
        starts.filter(|starts| starts.signal.fires)
    }

    pub(crate) fn firing_outputs(&self) -> Option<&OutputsBeyond> {
        let beyond = self.outputs.as_ref()?.beyond.as_ref();
        beyond.filter(|beyond| beyond.signal.fires)
    }

    /// Returns the chipsets where outputs are off, if `Outputs` or `OutputDrop` fires.
    pub(crate) fn firing_drop(&self) -> Option<&DroppedOutputs> {
        let dropped = self.output_drop.as_ref()?;
        let fires = dropped.signal.fires || self.firing_outputs().is_some();
        Some(dropped).filter(|dropped| fires && dropped.signal.hits > 0)
    }

    /// Returns the counts behind the signals, for the history of later versions. Each count has the smallest chance of
    /// all signals that show the same slow-down. A window with a fault must not become its own history.
    #[must_use]
    pub fn tallies(&self) -> Vec<Signal> {
        let slower = [
            self.slower_and_moved.as_ref().map(|found| &found.signal),
            self.placement.as_ref().map(|found| &found.signal),
            self.firing_median().map(|found| &found.signal),
            self.shift.as_ref().map(|found| &found.signal),
        ];
        let in_some_runs = [&self.tail, &self.near_tail, &self.moved];
        let in_some_runs = in_some_runs.map(|found| Some(&found.as_ref()?.signal));
        let least = |signals: &[Option<&Signal>], of: f64| {
            let chances = signals.iter().flatten().map(|signal| signal.p);
            chances.fold(of, f64::min)
        };
        let p_slower = least(&slower, 1.0);
        let p_in_some_runs = least(&in_some_runs, p_slower);
        let shift = self.shift.iter().flat_map(Shift::history_rows);
        let tails = self.tail.iter().chain(&self.near_tail);
        let tails = tails.flat_map(|tail| tail.tallies.clone());
        let with = |p| move |row| Signal { p, ..row };
        let shift = shift.map(with(p_slower));
        shift.chain(tails.map(with(p_in_some_runs))).collect()
    }
}

fn firing(all: [&Option<Intermittent>; 3]) -> Option<&Intermittent> {
    let mut found = all.into_iter().flatten();
    found.find(|found| found.signal.fires)
}

/// Returns a signal's built-in rate among healthy devices.
#[must_use]
pub fn built_in_rate(id: SignalId) -> f64 {
    match id {
        SignalId::Placement | SignalId::SlowerAndMoved | SignalId::Certificate => {
            placement_change::FLEET_RATE
        }
        SignalId::Median | SignalId::Shift | SignalId::ShiftOfModel | SignalId::ShiftBeyond(_) => {
            slow_devices::FLEET_RATE
        }
        SignalId::Moved => intermittent_runs::MOVED_RATE,
        SignalId::Start => start_failures::FLEET_RATE,
        SignalId::Outputs => outputs::BEYOND_RATE,
        SignalId::OutputHash => outputs::MINORITY_RATE,
        SignalId::OutputDrop => outputs::BEYOND_RATE,
        SignalId::CvIncrease => cv_increase::FLEET_RATE,
        SignalId::Tail | SignalId::NearTail => intermittent_runs::MOVED_RATE,
        SignalId::TailBeyond(percent) | SignalId::NearTailBeyond(percent) => {
            let mut rates = TAIL_PERCENTS.into_iter();
            let known = rates.find(|(of, _)| *of == percent);
            known.map_or(intermittent_runs::MOVED_RATE, |(_, rate)| rate)
        }
    }
}

/// Returns the expected share of devices hit in a healthy cohort: the fleet's rate, updated by the
/// cohort's own history.
fn usual_share(id: SignalId, baseline: &Baseline) -> f64 {
    let fleet = baseline.rates.of(id, built_in_rate(id));
    let past = baseline.history.of(id);
    let hits = fleet.rate * fleet.strength + past.hits as f64;
    hits / (fleet.strength + past.devices as f64)
}
