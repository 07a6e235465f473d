//! The runs of one device in one window, by stratum.

use epwatch_proto::{Phase, PowerSave, SessionAge, Stratum, Thermal};

use epwatch_fleet::chance::{Chance, whole};
use epwatch_fleet::physics::{SlowRuns, Spell, Traits, Weather};

/// Number of sessions of a device in a calm window, on average.
pub(super) const USUAL_SESSIONS: f64 = 2.5;
/// Minimum and maximum number of sessions of a calm window.
pub(super) const CALM_SESSIONS: (u32, u32) = (1, 4);

/// The work of a device in a window.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    pub(super) base_us: f64,
    pub(super) runs: u32,
    /// Minimum and maximum number of sessions.
    pub(super) sessions: (u32, u32),
    pub(super) slow_runs: SlowRuns,
    /// Whether the device is hot from the start; it reports this if it can.
    pub(super) is_hot: bool,
    /// Share of the runs on larger inputs, if the shape of a run is not known. Otherwise all runs have one shape.
    pub(super) larger: f64,
}

/// Latency of larger inputs, relative to the others.
pub(super) const LARGER: f64 = 1.9;

/// Runs of one stratum.
#[derive(Debug, Clone)]
pub(super) struct Runs {
    pub(super) phase: Phase,
    pub(super) thermal: Thermal,
    pub(super) power_save: PowerSave,
    /// Whether the fault hit their session.
    pub(super) is_hit: bool,
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
            session_age: SessionAge::Unknown,
        }
    }
}

/// Draws a window's runs, by stratum.
pub(super) fn runs(
    traits: &Traits,
    weather: &Weather,
    work: &Work,
    chance: &mut Chance,
) -> Vec<Runs> {
    let mut strata: Vec<Runs> = Vec::new();
    let (fewest, most) = work.sessions;
    let sessions =
        (fewest + whole(chance.unit() * f64::from(most - fewest + 1))).min(work.runs.max(1));
    let day = traits.day(chance);
    // A governor that keeps clocks low does so for all runs of a device.
    let held = weather
        .governor
        .map_or(1.0, |most| chance.between((1.0, most)));
    for session in 0..sessions {
        let runs = work.runs / sessions + u32::from(session < work.runs % sessions);
        let spell = Spell::draw(weather, day, work.slow_runs, chance);
        for number in 0..runs {
            let at = (f64::from(number) / f64::from(runs), number as usize);
            let is_larger = work.larger > 0.0 && chance.happens(work.larger);
            let base_us = work.base_us * if is_larger { LARGER } else { 1.0 };
            let run = spell.run(traits, weather, (base_us, held), at, chance);
            let phase = if run.is_cold {
                Phase::Cold
            } else {
                Phase::Warm
            };
            let is_seen_hot = work.is_hot || (run.heat > 1.15 && !traits.status_stays_zero);
            let (thermal, power_save) =
                match (traits.reports_context, is_seen_hot, spell.saves_power) {
                    (false, ..) => (Thermal::Unknown, PowerSave::Unknown),
                    (true, is_hot, saves) => (
                        if is_hot {
                            Thermal::Moderate
                        } else {
                            Thermal::None
                        },
                        if saves { PowerSave::On } else { PowerSave::Off },
                    ),
                };
            let is_hit = spell.is_hit;
            let known = strata.iter_mut().find(|runs| {
                (runs.phase, runs.thermal, runs.power_save, runs.is_hit)
                    == (phase, thermal, power_save, is_hit)
            });
            match known {
                Some(known) => known.values.push(run.us),
                None => {
                    // Most runs of a session fall into one stratum.
                    let mut values = Vec::with_capacity((runs - number) as usize);
                    values.push(run.us);
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
