//! Latency of runs, one model for live devices and for labelled fleets.
//!
//! `latency = base x silicon x lasting x drift x noise x heat x power save x governor x contention x spike x fault x cold`.
//! Callers give the base, which includes placement and input shape, and the weather; all other factors are drawn here.
//! The ranges come from the project's detection notes, or lie within them. Silicon varies by 3-10 % between devices of
//! one make, runs by 3-7 % within one device, and each day by 0.8 %. There are Pareto spikes, contention bursts,
//! governor ramps, and thermal ramps with a status that may stay 0. First runs are cold (3-20, 1.25, 1.06), and 18 % of
//! the devices have no context.
//!
//! Nothing here reads a clock. The order of the draws is part of every labelled fleet, and so of `docs/detection.md`.

use std::time::Duration;

use crate::chance::Chance;

/// Coefficient of variation of the silicon between devices of one make: one draw for each fleet.
pub const SILICON_CV: (f64, f64) = (0.03, 0.10);
/// Share of live devices with a lasting slow-down of their own.
const LASTING: f64 = 0.005;
const SPIKE_ALPHA: f64 = 1.8;
const COLD: [(f64, f64); 3] = [(3.0, 20.0), (1.25, 1.2501), (1.06, 1.0601)];
/// Length of a live device's spells.
const SPELL: Duration = Duration::from_secs(600);

/// The lasting properties of a device.
#[derive(Debug, Clone, PartialEq)]
pub struct Traits {
    /// Latency factor of the device's silicon, relative to the fleet's median.
    pub silicon: f64,
    /// The device's lasting slow-down; 1 for nearly all devices.
    pub lasting: f64,
    /// Spread of the device's days, as the sigma of a lognormal.
    pub day_sigma: f64,
    /// Spread of the device's runs, as the sigma of a lognormal.
    pub run_sigma: f64,
    /// Number of runs, relative to the fleet's median device.
    pub runs: f64,
    /// Whether it can report heat and power save.
    pub reports_context: bool,
    /// Whether its thermal status stays 0 however hot it is.
    pub status_stays_zero: bool,
    governor: f64,
}

impl Traits {
    /// Draws a device. `lasting` is the share of devices with a lasting slow-down; `wildness` widens the spread of
    /// days and runs.
    pub fn draw(silicon_cv: f64, lasting: f64, wildness: f64, chance: &mut Chance) -> Self {
        Self {
            silicon: chance.factor(silicon_cv),
            lasting: if chance.happens(lasting) {
                chance.between((1.4, 2.5))
            } else {
                1.0
            },
            day_sigma: 0.008 * wildness,
            run_sigma: chance.between((0.03, 0.07)) * wildness,
            runs: (0.8 * chance.normal()).exp().clamp(0.1, 12.0),
            reports_context: !chance.happens(0.18),
            status_stays_zero: chance.happens(0.35),
            governor: chance.between((1.0, 1.12)),
        }
    }

    /// Draws the drift of a device's day, which nothing reports.
    pub fn day(&self, chance: &mut Chance) -> f64 {
        (self.day_sigma * chance.normal()).exp()
    }
}

/// The disturbances of a stretch of time.
#[derive(Debug, Clone, Copy)]
pub struct Weather {
    /// Shares of the spells that are hot, save power, and meet other work.
    pub heat: f64,
    pub power_save: f64,
    pub contention: f64,
    /// In spells that meet other work, the share of runs that do.
    pub contended_runs: f64,
    /// Largest slow-down by a governor that keeps clocks low permanently; `None` if it does so only for moments.
    pub governor: Option<f64>,
    /// Share of the runs hit by a spike.
    pub spikes: f64,
    /// Share of the spells on little cores, and their slow-down; `None` if every spell has the same cores.
    pub little_cores: Option<(f64, f64)>,
    /// Slow-down at the height of the evening, less 1; `None` if the hour does not matter.
    pub evening: Option<f64>,
}

impl Default for Weather {
    fn default() -> Self {
        Self {
            heat: 0.03,
            power_save: 0.03,
            contention: 0.03,
            contended_runs: 0.3,
            governor: None,
            spikes: 0.002,
            little_cores: None,
            evening: None,
        }
    }
}

/// A slow-down of some runs, from outside.
#[derive(Debug, Clone, Copy)]
pub struct SlowRuns {
    pub factor: f64,
    /// Share of runs that are hit in a hit spell.
    pub run_share: f64,
    /// Share of the spells that are hit.
    pub spell_share: f64,
}

impl SlowRuns {
    pub const NONE: Self = Self {
        factor: 1.0,
        run_share: 0.0,
        spell_share: 0.0,
    };
}

/// A stretch of one device's runs under one weather: a session of a labelled fleet, ten minutes of a live device.
#[derive(Debug, Clone)]
pub struct Spell {
    heat: f64,
    hot_from: f64,
    pub saves_power: bool,
    power_save: f64,
    is_contended: bool,
    drift: f64,
    cores: f64,
    load: f64,
    slow_runs: SlowRuns,
    /// Whether `slow_runs` hit it.
    pub is_hit: bool,
}

/// Draws the hour of a day in which a device is used: half of the time in the evening.
fn hour_of_use(chance: &mut Chance) -> f64 {
    match chance.happens(0.5) {
        true => chance.between((18.0, 23.0)),
        false => chance.between((7.0, 18.0)),
    }
}

/// The load of an hour, from 0 to 1 at half past eight.
fn evening(hour: f64) -> f64 {
    (1.0 - (hour - 20.5).abs() / 3.0).max(0.0)
}

/// One run of a spell.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    pub us: f64,
    /// Slow-down by heat; 1 if the device is cool.
    pub heat: f64,
    /// Height of the ramp, 0 to 1.
    heat_level: f64,
    /// Whether it is one of the first three runs of its session.
    pub is_cold: bool,
}

impl Spell {
    /// Draws a spell of a device whose day drifts by `day`.
    pub fn draw(weather: &Weather, day: f64, slow_runs: SlowRuns, chance: &mut Chance) -> Self {
        let heat = if chance.happens(weather.heat) {
            chance.between((1.3, 2.2))
        } else {
            1.0
        };
        let saves_power = chance.happens(weather.power_save);
        Self {
            heat,
            saves_power,
            power_save: if saves_power {
                chance.between((1.2, 1.7))
            } else {
                1.0
            },
            is_contended: chance.happens(weather.contention),
            is_hit: chance.happens(slow_runs.spell_share),
            drift: day * (0.01 * chance.normal()).exp(),
            hot_from: chance.unit(),
            cores: match weather.little_cores {
                Some((share, slow)) if chance.happens(share) => slow,
                _ => 1.0,
            },
            load: weather
                .evening
                .map_or(1.0, |height| 1.0 + height * evening(hour_of_use(chance))),
            slow_runs,
        }
    }

    /// Draws the run at `at`, the share of the spell that is over. `n_before` is the number of earlier runs in its
    /// session. `held` is the slow-down by a governor that keeps clocks low.
    pub fn run(
        &self,
        traits: &Traits,
        weather: &Weather,
        (base_us, held): (f64, f64),
        (at, n_before): (f64, usize),
        chance: &mut Chance,
    ) -> Run {
        let is_hot = self.heat > 1.0 && at > self.hot_from;
        let heat_level = if is_hot {
            ((at - self.hot_from) / (1.0 - self.hot_from)).min(1.0)
        } else {
            0.0
        };
        let heat = 1.0 + (self.heat - 1.0) * heat_level;
        let cold = COLD.get(n_before).map(|range| chance.between(*range));
        let governor = held * (1.0 + (traits.governor - 1.0) * chance.unit());
        let is_met = self.is_contended && chance.happens(weather.contended_runs);
        let contention = if is_met {
            chance.between((1.2, 1.9))
        } else {
            1.0
        };
        let is_spike = chance.happens(weather.spikes);
        let spike = if is_spike {
            (1.3 * chance.pareto(SPIKE_ALPHA)).min(30.0)
        } else {
            1.0
        };
        let is_slow = self.is_hit && chance.happens(self.slow_runs.run_share);
        let fault = if is_slow { self.slow_runs.factor } else { 1.0 };
        let noise = (traits.run_sigma * chance.normal()).exp();
        let us = base_us
            * traits.silicon
            * self.drift
            * self.cores
            * self.load
            * noise
            * heat
            * self.power_save
            * governor
            * contention
            * spike
            * fault
            * cold.unwrap_or(1.0);
        Run {
            // An app gives up a run that takes a minute.
            us: us.clamp(1.0, 59_000_000.0),
            heat,
            heat_level,
            is_cold: cold.is_some(),
        }
    }
}

/// A live device's run, with the conditions that the device reports.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LiveRun {
    pub(crate) latency: Duration,
    /// Android's thermal status, 0 to 6; `None` if it was not reported.
    pub(crate) thermal_status: Option<u8>,
    /// Whether power save was on; `None` if it was not reported.
    pub(crate) power_save: Option<bool>,
}

/// The state of a live device's session.
#[derive(Debug, Clone, Default)]
pub(crate) struct SessionPhysics {
    base_us: f64,
    n_runs: usize,
}

/// One live device over time.
#[derive(Debug, Clone)]
pub(crate) struct DevicePhysics {
    traits: Traits,
    weather: Weather,
    day: f64,
    chance: Chance,
    spell: Spell,
    spell_ends: Duration,
}

impl DevicePhysics {
    /// Returns the device with this number in the fleet with this seed.
    pub(crate) fn new(seed: u64, device: u64) -> Self {
        Self::under(Weather::default(), LASTING, seed, device)
    }

    fn under(weather: Weather, lasting: f64, seed: u64, device: u64) -> Self {
        let silicon_cv = Chance::split(seed, "silicon", 0).between(SILICON_CV);
        let traits = Traits::draw(
            silicon_cv,
            lasting,
            1.0,
            &mut Chance::split(seed, "traits", device),
        );
        let mut chance = Chance::split(seed, "runs", device);
        let day = traits.day(&mut chance);
        Self {
            spell: Spell::draw(&weather, day, SlowRuns::NONE, &mut chance),
            // Devices are not in step: some begin near the end of a spell.
            spell_ends: SPELL.mul_f64(chance.unit()),
            traits,
            weather,
            day,
            chance,
        }
    }

    pub(crate) fn traits(&self) -> &Traits {
        &self.traits
    }

    /// Opens a session. Its runs take `npu_latency_us` on a median device, times `slow_factor` for the part outside
    /// of the NPU.
    pub(crate) fn session(&self, npu_latency_us: f64, slow_factor: f64) -> SessionPhysics {
        SessionPhysics {
            base_us: npu_latency_us * slow_factor * self.traits.lasting,
            n_runs: 0,
        }
    }

    /// Draws the run of `session` that starts at `now`, since the fleet's time zero; time never goes back.
    pub(crate) fn run(&mut self, session: &mut SessionPhysics, now: Duration) -> LiveRun {
        if now >= self.spell_ends {
            let n_missed = (now - self.spell_ends).as_secs() / SPELL.as_secs();
            self.spell_ends += Duration::from_secs((n_missed + 1) * SPELL.as_secs());
            self.spell = Spell::draw(&self.weather, self.day, SlowRuns::NONE, &mut self.chance);
        }
        let at = 1.0 - (self.spell_ends - now).div_duration_f64(SPELL);
        let base = (session.base_us, 1.0);
        let at = (at, session.n_runs);
        let run = self
            .spell
            .run(&self.traits, &self.weather, base, at, &mut self.chance);
        session.n_runs += 1;
        let context = self.traits.reports_context;
        LiveRun {
            latency: Duration::from_secs_f64(run.us / 1e6),
            thermal_status: context.then(|| self.thermal_status(run.heat_level)),
            power_save: context.then_some(self.spell.saves_power),
        }
    }

    /// Draws the time from one run's start to the next, at `runs_per_second` of the median device.
    pub(crate) fn next_gap(&mut self, runs_per_second: f64) -> Duration {
        let mean = 1.0 / (runs_per_second * self.traits.runs).max(1e-9);
        self.chance.wait(Duration::from_secs_f64(mean))
    }

    /// Draws the device's start within its report interval, uniform in `[0, 1)`.
    pub(crate) fn phase(&mut self) -> f64 {
        self.chance.unit()
    }

    fn thermal_status(&self, level: f64) -> u8 {
        if self.traits.status_stays_zero {
            return 0;
        }
        match level {
            level if level < 0.25 => 0,
            level if level < 0.5 => 1,
            level if level < 0.85 => 2,
            _ => 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Weather without spikes, heat, power save and contention.
    const QUIET: Weather = Weather {
        heat: 0.0,
        power_save: 0.0,
        contention: 0.0,
        contended_runs: 0.0,
        governor: None,
        spikes: 0.0,
        little_cores: None,
        evening: None,
    };

    fn latencies(mut physics: DevicePhysics, slow_factor: f64, n_runs: usize) -> Vec<f64> {
        let mut session = physics.session(2_000.0, slow_factor);
        let mut now = Duration::ZERO;
        (0..n_runs)
            .map(|_| {
                let run = physics.run(&mut session, now);
                now += run.latency + Duration::from_millis(200);
                run.latency.as_secs_f64() * 1e6
            })
            .collect()
    }

    fn quiet(device: u64, n_runs: usize) -> Vec<f64> {
        latencies(DevicePhysics::under(QUIET, 0.0, 11, device), 1.0, n_runs)
    }

    fn usual(device: u64, slow_factor: f64, n_runs: usize) -> Vec<f64> {
        latencies(DevicePhysics::new(11, device), slow_factor, n_runs)
    }

    fn cv(values: &[f64]) -> f64 {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
        variance.sqrt() / mean
    }

    fn median(values: &[f64]) -> f64 {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    }

    #[test]
    fn clean_warm_runs_of_a_device_vary_by_3_to_10_percent() {
        for device in 0..50 {
            let warm = &quiet(device, 2_003)[3..];
            let cv = cv(warm);
            assert!((0.028..0.107).contains(&cv), "device {device}: {cv}");
        }
    }

    #[test]
    fn devices_differ_by_their_silicon() {
        let medians: Vec<f64> = (0..400)
            .map(|device| median(&quiet(device, 103)[3..]))
            .collect();
        let cv = cv(&medians);
        assert!((0.025..0.12).contains(&cv), "{cv}");
    }

    #[test]
    fn first_runs_are_cold() {
        for device in 0..50 {
            let runs = quiet(device, 203);
            let warm = median(&runs[3..]);
            assert!(
                (2.0..27.0).contains(&(runs[0] / warm)),
                "{}",
                runs[0] / warm
            );
            assert!(runs[1] / warm < 2.0);
        }
    }

    #[test]
    fn the_placements_factor_moves_the_median_by_itself() {
        for device in 0..10 {
            let npu = median(&usual(device, 1.0, 300));
            let partly_cpu = median(&usual(device, 3.9, 300));
            assert!((partly_cpu / npu / 3.9 - 1.0).abs() < 0.02);
        }
    }

    #[test]
    fn run_counts_have_a_heavy_tail_and_some_devices_report_no_context() {
        let traits: Vec<Traits> = (0..2_000)
            .map(|device| DevicePhysics::new(2, device).traits)
            .collect();
        let share = |holds: fn(&Traits) -> bool| {
            traits.iter().filter(|traits| holds(traits)).count() as f64 / 2_000.0
        };
        assert!((0.15..0.21).contains(&share(|traits| !traits.reports_context)));
        assert!((0.001..0.012).contains(&share(|traits| traits.lasting > 1.0)));
        assert!(share(|traits| traits.runs > 4.0) > 0.02);
        assert!(share(|traits| traits.runs < 0.25) > 0.02);
    }

    #[test]
    fn heat_slows_runs_and_shows_in_the_status_of_devices_that_have_one() {
        let hot = Weather { heat: 1.0, ..QUIET };
        let mut statuses = [0_u32; 4];
        for device in 0..200 {
            let mut physics = DevicePhysics::under(hot, 0.0, 4, device);
            let mut session = physics.session(2_000.0, 1.0);
            for minute in 1..2_000_u64 {
                let run = physics.run(&mut session, Duration::from_secs(minute * 61));
                let traits = &physics.traits;
                assert_eq!(run.thermal_status.is_some(), traits.reports_context);
                if let Some(status) = run.thermal_status {
                    assert!(!traits.status_stays_zero || status == 0);
                    statuses[usize::from(status)] += 1;
                }
            }
        }
        assert!(statuses.iter().all(|n| *n > 0), "{statuses:?}");
    }

    #[test]
    fn the_share_of_spells_follows_the_weather_and_heat_stays_in_its_range() {
        let (mut hot, mut saving, mut slow_downs) = (0, 0, Vec::new());
        let (weather, traits) = (
            Weather {
                heat: 0.1,
                ..Weather::default()
            },
            &DevicePhysics::new(3, 0).traits,
        );
        let mut chance = Chance::split(3, "heat", 0);
        for _ in 0..20_000 {
            let spell = Spell::draw(&weather, 1.0, SlowRuns::NONE, &mut chance);
            let run = spell.run(traits, &weather, (1_000.0, 1.0), (0.99, 10), &mut chance);
            hot += u32::from(spell.heat > 1.0);
            saving += u32::from(spell.saves_power);
            slow_downs.push(run.heat);
        }
        assert!((1_700..2_300).contains(&hot), "{hot}");
        assert!((480..720).contains(&saving), "{saving}");
        assert!(slow_downs.iter().all(|heat| (1.0..=2.2).contains(heat)));
        assert!(slow_downs.iter().any(|heat| *heat > 1.4));
    }
}
