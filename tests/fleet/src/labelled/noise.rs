//! The runs of one device in one window.
//!
//! `latency = base x silicon x lasting x placement x session drift x governor x contention x heat x
//! power save x lognormal x spike`; the ranges are those of the project's detection notes, or within
//! them: silicon 3-10 % between devices of one make, runs 3-7 % within one device, a day of its own 0.8 %,
//! Pareto spikes, contention bursts, governor ramps, thermal ramps with a status that may stay 0, cold
//! first runs (3-20, 1.25, 1.06), 18 % of the devices without context.

use epwatch_proto::{Phase, PowerSave, Stratum, Thermal};

use crate::chance::Chance;

/// What does not change about a device.
#[derive(Debug, Clone)]
pub(super) struct Traits {
    pub(super) silicon: f64,
    /// A slow-down of its own that comes with the new version's time; 1 for nearly all.
    pub(super) lasting: f64,
    /// Spread of its days and of its runs, as the sigma of a lognormal.
    pub(super) day_sigma: f64,
    pub(super) run_sigma: f64,
    pub(super) runs: f64,
    pub(super) reports_context: bool,
    pub(super) status_stays_zero: bool,
    pub(super) governor: f64,
    pub(super) always_fell_back: bool,
}

/// Sessions of a device in a calm window, on average.
pub(super) const USUAL_SESSIONS: f64 = 2.5;

/// How disturbed a window is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weather {
    /// Share of the sessions that are hot, and how much slower they are.
    pub(super) heat: f64,
    pub(super) power_save: f64,
    pub(super) governor: f64,
    /// Whether the governor holds clocks low for good, not for moments.
    pub(super) is_governed: bool,
    /// Share of the sessions that meet other work, and of their runs.
    pub(super) contention: f64,
    pub(super) contended_runs: f64,
    /// Sessions of a window.
    pub(super) sessions: (u32, u32),
}

impl Default for Weather {
    fn default() -> Self {
        Self {
            heat: 0.03,
            power_save: 0.03,
            governor: 1.0,
            is_governed: false,
            contention: 0.03,
            contended_runs: 0.3,
            sessions: (1, 4),
        }
    }
}

/// What a window's runs do beyond the weather.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    pub(super) base_us: f64,
    pub(super) runs: u32,
    /// Slow-down of the runs that are hit, their share, and that of the sessions.
    pub(super) factor: f64,
    pub(super) run_share: f64,
    pub(super) session_share: f64,
}

/// Runs of one stratum.
#[derive(Debug, Clone)]
pub(super) struct Runs {
    pub(super) phase: Phase,
    pub(super) thermal: Thermal,
    pub(super) power_save: PowerSave,
    /// Whether the session they belong to is one that the fault hit.
    pub(super) is_hit: bool,
    /// In microseconds.
    pub(super) values: Vec<f64>,
}

impl Runs {
    pub(super) fn stratum(&self, shape_key: &str) -> Stratum {
        Stratum {
            phase: self.phase,
            thermal: self.thermal,
            power_save: self.power_save,
            performance_mode: String::new(),
            shape_key: shape_key.to_owned(),
            session_age: epwatch_proto::SessionAge::Unknown,
        }
    }
}

const SPIKES: f64 = 0.002;
const SPIKE_ALPHA: f64 = 1.8;
const COLD: [(f64, f64); 3] = [(3.0, 20.0), (1.25, 1.2501), (1.06, 1.0601)];

/// Draws a window's runs, by stratum.
pub(super) fn runs(
    traits: &Traits,
    weather: &Weather,
    work: &Work,
    chance: &mut Chance,
) -> Vec<Runs> {
    let mut strata: Vec<Runs> = Vec::new();
    let (fewest, most) = weather.sessions;
    let sessions =
        (fewest + whole(chance.unit() * f64::from(most - fewest + 1))).min(work.runs.max(1));
    // The device's day: what its clocks do that nothing reports.
    let day = (traits.day_sigma * chance.normal()).exp();
    // A governor that holds clocks low holds them for all runs of a device.
    let held = if weather.is_governed {
        chance.between((1.0, weather.governor))
    } else {
        1.0
    };
    for session in 0..sessions {
        let runs = work.runs / sessions + u32::from(session < work.runs % sessions);
        let heat = if chance.happens(weather.heat) {
            chance.between((1.3, 2.2))
        } else {
            1.0
        };
        let saves = chance.happens(weather.power_save);
        let slow = if saves {
            chance.between((1.2, 1.7))
        } else {
            1.0
        };
        let contended = chance.happens(weather.contention);
        let is_hit = chance.happens(work.session_share);
        let drift = day * (0.01 * chance.normal()).exp();
        let hot_from = chance.unit();
        for run in 0..runs {
            let at = f64::from(run) / f64::from(runs);
            let is_hot = heat > 1.0 && at > hot_from;
            let ramp = if is_hot {
                1.0 + (heat - 1.0) * ((at - hot_from) / (1.0 - hot_from)).min(1.0)
            } else {
                1.0
            };
            let cold = COLD.get(run as usize).map(|range| chance.between(*range));
            let governor = held * (1.0 + (traits.governor - 1.0) * chance.unit());
            let met = contended && chance.happens(weather.contended_runs);
            let other = if met { chance.between((1.2, 1.9)) } else { 1.0 };
            let spike = if chance.happens(SPIKES) {
                (1.3 * chance.pareto(SPIKE_ALPHA)).min(30.0)
            } else {
                1.0
            };
            let fault = if is_hit && chance.happens(work.run_share) {
                work.factor
            } else {
                1.0
            };
            let noise = (traits.run_sigma * chance.normal()).exp();
            let us = work.base_us
                * traits.silicon
                * drift
                * noise
                * ramp
                * slow
                * governor
                * other
                * spike
                * fault
                * cold.unwrap_or(1.0);
            let us = us.clamp(1.0, 59_000_000.0);
            let phase = if cold.is_some() {
                Phase::Cold
            } else {
                Phase::Warm
            };
            let (thermal, power_save) = if traits.reports_context {
                let hot = is_hot && ramp > 1.15 && !traits.status_stays_zero;
                (
                    if hot {
                        Thermal::Moderate
                    } else {
                        Thermal::None
                    },
                    if saves { PowerSave::On } else { PowerSave::Off },
                )
            } else {
                (Thermal::Unknown, PowerSave::Unknown)
            };
            let known = strata.iter_mut().find(|runs| {
                (runs.phase, runs.thermal, runs.power_save, runs.is_hit)
                    == (phase, thermal, power_save, is_hit)
            });
            match known {
                Some(known) => known.values.push(us),
                None => {
                    // Most runs of a session fall into one stratum.
                    let mut values = Vec::with_capacity((runs - run) as usize);
                    values.push(us);
                    strata.push(Runs {
                        phase,
                        thermal,
                        power_save,
                        is_hit,
                        values,
                    });
                }
            }
        }
    }
    strata
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small and positive"
)]
pub(super) fn whole(value: f64) -> u32 {
    value as u32
}
