//! How long one run takes on one device, and what the device can say about the moment.
//!
//! `latency = base x silicon x lasting x placement x shape x cold x governor x contention x heat
//! x power save x lognormal x spike`. Base and placement come from outside; the rest is here, with
//! the spreads that `Noise` gives. Everything is drawn from the seed: no clock, no global state.

use crate::chance::Chance;
use crate::episodes::{EpisodePattern, Episodes};
use std::time::Duration;

/// What makes runs and devices differ. The defaults are the noise that the detector's thresholds
/// were measured under.
#[derive(Debug, Clone, PartialEq)]
pub struct Noise {
    /// Coefficient of variation of the silicon between devices: one draw a fleet.
    pub silicon_cv: (f64, f64),
    /// Coefficient of variation of clean runs within a device: one draw a device.
    pub run_cv: (f64, f64),
    /// How much longer the first run of a session takes: one draw a session.
    pub first_run: (f64, f64),
    /// The second and the third run.
    pub second_and_third_run: (f64, f64),
    /// Share of runs hit by a spike.
    pub spikes: f64,
    /// Tail index of the spikes (Pareto, lowest 1.3 x).
    pub spike_alpha: f64,
    /// Runs after an idle gap of at least this long find the clocks low.
    pub governor_idle: Duration,
    /// How much slower the first of them is: one draw a device.
    pub governor: (f64, f64),
    /// Other work on the same device; within an episode half of the runs meet it.
    pub contention: EpisodePattern,
    /// Heat.
    pub heat: EpisodePattern,
    /// Power save mode, at full height from its first to its last moment.
    pub power_save: EpisodePattern,
    /// Share of devices that can report neither heat nor power save.
    pub without_context: f64,
    /// Share of the others whose thermal status stays 0 however hot they are.
    pub status_stays_zero: f64,
    /// Share of devices with a lasting slow-down of their own, and how much.
    pub lasting: f64,
    /// See `lasting`.
    pub lasting_slow_down: (f64, f64),
    /// Spread of the number of runs between devices (standard deviation of its logarithm).
    pub run_count_sigma: f64,
}

impl Default for Noise {
    fn default() -> Self {
        let minutes = |n: u64| Duration::from_secs(60 * n);
        Self {
            silicon_cv: (0.03, 0.10),
            run_cv: (0.03, 0.10),
            first_run: (3.0, 20.0),
            second_and_third_run: (1.25, 1.06),
            spikes: 0.004,
            spike_alpha: 1.8,
            governor_idle: Duration::from_secs(3),
            governor: (1.0, 1.25),
            contention: EpisodePattern {
                mean_gap: minutes(30),
                mean_length: minutes(1),
                slow_down: (1.2, 1.9),
            },
            heat: EpisodePattern {
                mean_gap: minutes(150),
                mean_length: minutes(8),
                slow_down: (1.3, 2.2),
            },
            power_save: EpisodePattern {
                mean_gap: minutes(1200),
                mean_length: minutes(60),
                slow_down: (1.2, 1.7),
            },
            without_context: 0.18,
            status_stays_zero: 0.35,
            lasting: 0.005,
            lasting_slow_down: (1.4, 2.5),
            run_count_sigma: 0.8,
        }
    }
}

/// What does not change about one device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct DeviceTraits {
    /// Its silicon next to the fleet's median.
    pub(crate) silicon: f64,
    /// A slow-down that was always there; 1 for nearly all.
    pub(crate) lasting: f64,
    /// Coefficient of variation of its clean runs.
    pub(crate) run_cv: f64,
    /// Runs it makes next to the fleet's median device.
    pub(crate) runs: f64,
    /// Whether it can report heat and power save.
    pub(crate) reports_context: bool,
    /// Whether its thermal status stays 0 however hot it is.
    pub(crate) status_stays_zero: bool,
    governor: f64,
}

impl DeviceTraits {
    fn draw(noise: &Noise, silicon_cv: f64, chance: &mut Chance) -> Self {
        Self {
            silicon: chance.factor(silicon_cv),
            lasting: if chance.happens(noise.lasting) {
                chance.between(noise.lasting_slow_down)
            } else {
                1.0
            },
            run_cv: chance.between(noise.run_cv),
            runs: (noise.run_count_sigma * chance.normal())
                .exp()
                .clamp(0.1, 12.0),
            reports_context: !chance.happens(noise.without_context),
            status_stays_zero: chance.happens(noise.status_stays_zero),
            governor: chance.between(noise.governor),
        }
    }
}

/// One run and what the device can say about the moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Run {
    /// How long it took.
    pub(crate) latency: Duration,
    /// Android's thermal status, 0 to 6; `None`: the device cannot say.
    pub(crate) thermal_status: Option<u8>,
    /// Whether power save was on; `None`: the device cannot say.
    pub(crate) power_save: Option<bool>,
}

/// What one session does to its runs.
#[derive(Debug, Clone)]
pub(crate) struct SessionPhysics {
    base_us: f64,
    first_run: f64,
    n_runs: u64,
    last_end: Option<Duration>,
    runs_since_idle: u32,
}

/// One device's physics over time.
#[derive(Debug, Clone)]
pub(crate) struct DevicePhysics {
    noise: Noise,
    traits: DeviceTraits,
    chance: Chance,
    contention: Episodes,
    heat: Episodes,
    power_save: Episodes,
}

impl DevicePhysics {
    /// The device of this number in the fleet of this seed.
    pub(crate) fn new(noise: &Noise, seed: u64, device: u64) -> Self {
        let silicon_cv = Chance::split(seed, "silicon", 0).between(noise.silicon_cv);
        let mut chance = Chance::split(seed, "traits", device);
        let episodes = |pattern, label| Episodes::new(pattern, Chance::split(seed, label, device));
        Self {
            traits: DeviceTraits::draw(noise, silicon_cv, &mut chance),
            chance: Chance::split(seed, "runs", device),
            contention: episodes(noise.contention, "contention"),
            heat: episodes(noise.heat, "heat"),
            power_save: episodes(noise.power_save, "power save"),
            noise: noise.clone(),
        }
    }

    /// What does not change about it.
    pub(crate) fn traits(&self) -> DeviceTraits {
        self.traits
    }

    /// Opens a session whose runs take `npu_latency_us` on a median device when all of it is on
    /// the NPU, times `slow_factor` for what is not.
    pub(crate) fn session(&mut self, npu_latency_us: f64, slow_factor: f64) -> SessionPhysics {
        SessionPhysics {
            base_us: npu_latency_us * slow_factor * self.traits.silicon * self.traits.lasting,
            first_run: self.chance.between(self.noise.first_run),
            n_runs: 0,
            last_end: None,
            runs_since_idle: 0,
        }
    }

    /// The run of `session` that starts at `now`, since the fleet's time zero; time never goes
    /// back. `shape_cost` is the input's cost next to the model's usual one.
    pub(crate) fn run(
        &mut self,
        session: &mut SessionPhysics,
        now: Duration,
        shape_cost: f64,
    ) -> Run {
        let heat = self.heat.at(now);
        let contention = self.contention.at(now);
        let power_save = self.power_save.at(now);
        let mut us = session.base_us * shape_cost * self.chance.factor(self.traits.run_cv);
        us *= self.cold(session) * self.governor(session, now);
        us *= heat.map_or(1.0, |height| height.factor());
        us *= power_save.map_or(1.0, |height| height.slow_down);
        if let Some(height) = contention
            && self.chance.happens(0.5)
        {
            us *= height.factor();
        }
        if self.chance.happens(self.noise.spikes) {
            us *= 1.3 * self.chance.pareto(self.noise.spike_alpha);
        }
        // A run longer than a minute is one that the app would have given up.
        let latency = Duration::from_secs_f64((us / 1e6).clamp(1e-6, 60.0));
        session.n_runs += 1;
        session.last_end = Some(now + latency);
        let context = self.traits.reports_context;
        Run {
            latency,
            thermal_status: context
                .then(|| self.thermal_status(heat.map_or(0.0, |height| height.level))),
            power_save: context.then_some(power_save.is_some()),
        }
    }

    /// Time from one run's start to the next one's at `runs_per_second` of the median device.
    pub(crate) fn next_gap(&mut self, runs_per_second: f64) -> Duration {
        let mean = 1.0 / (runs_per_second * self.traits.runs).max(1e-9);
        self.chance.wait(Duration::from_secs_f64(mean))
    }

    /// Uniform in `[0, 1)`: where in its report interval the device begins.
    pub(crate) fn phase(&mut self) -> f64 {
        self.chance.unit()
    }

    /// Index into `weights`, drawn by weight.
    pub(crate) fn pick(&mut self, weights: impl Iterator<Item = f64> + Clone) -> usize {
        let total: f64 = weights.clone().sum();
        let mut left = self.chance.unit() * total;
        let mut last = 0;
        for (index, weight) in weights.enumerate() {
            if left < weight {
                return index;
            }
            left -= weight;
            last = index;
        }
        last
    }

    fn cold(&self, session: &SessionPhysics) -> f64 {
        let (second, third) = self.noise.second_and_third_run;
        match session.n_runs {
            0 => session.first_run,
            1 => second,
            2 => third,
            _ => 1.0,
        }
    }

    fn governor(&self, session: &mut SessionPhysics, now: Duration) -> f64 {
        let idle = session
            .last_end
            .is_some_and(|end| now.saturating_sub(end) >= self.noise.governor_idle);
        session.runs_since_idle = if idle {
            0
        } else {
            session.runs_since_idle.saturating_add(1)
        };
        1.0 + (self.traits.governor - 1.0) * (-f64::from(session.runs_since_idle)).exp()
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

    /// A fleet's noise without what comes and goes.
    fn quiet() -> Noise {
        let never = EpisodePattern {
            mean_gap: Duration::from_secs(1 << 40),
            mean_length: Duration::from_millis(1),
            slow_down: (1.0, 1.0),
        };
        Noise {
            spikes: 0.0,
            contention: never,
            heat: never,
            power_save: never,
            lasting: 0.0,
            ..Noise::default()
        }
    }

    fn latencies(noise: &Noise, device: u64, slow_factor: f64, n_runs: usize) -> Vec<f64> {
        let mut physics = DevicePhysics::new(noise, 11, device);
        let mut session = physics.session(2_000.0, slow_factor);
        let mut now = Duration::ZERO;
        (0..n_runs)
            .map(|_| {
                let run = physics.run(&mut session, now, 1.0);
                now += run.latency + Duration::from_millis(200);
                run.latency.as_secs_f64() * 1e6
            })
            .collect()
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
            let warm = &latencies(&quiet(), device, 1.0, 2_003)[3..];
            let cv = cv(warm);
            assert!((0.028..0.107).contains(&cv), "device {device}: {cv}");
        }
    }

    #[test]
    fn devices_differ_by_their_silicon() {
        let medians: Vec<f64> = (0..400)
            .map(|device| median(&latencies(&quiet(), device, 1.0, 103)[3..]))
            .collect();
        let cv = cv(&medians);
        assert!((0.025..0.12).contains(&cv), "{cv}");
    }

    #[test]
    fn first_runs_are_cold() {
        for device in 0..50 {
            let runs = latencies(&quiet(), device, 1.0, 203);
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
            let npu = median(&latencies(&Noise::default(), device, 1.0, 300));
            let partly_cpu = median(&latencies(&Noise::default(), device, 3.9, 300));
            assert!((partly_cpu / npu / 3.9 - 1.0).abs() < 0.02);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_runs() {
        let noise = Noise::default();
        assert_eq!(
            latencies(&noise, 5, 1.0, 500),
            latencies(&noise, 5, 1.0, 500)
        );
        assert_ne!(
            latencies(&noise, 5, 1.0, 500),
            latencies(&noise, 6, 1.0, 500)
        );
    }

    #[test]
    fn run_counts_have_a_heavy_tail_and_some_devices_report_no_context() {
        let traits: Vec<DeviceTraits> = (0..2_000)
            .map(|device| DevicePhysics::new(&Noise::default(), 2, device).traits())
            .collect();
        let share = |holds: fn(&DeviceTraits) -> bool| {
            traits.iter().filter(|traits| holds(traits)).count() as f64 / 2_000.0
        };
        assert!((0.15..0.21).contains(&share(|traits| !traits.reports_context)));
        assert!((0.001..0.012).contains(&share(|traits| traits.lasting > 1.0)));
        assert!(share(|traits| traits.runs > 4.0) > 0.02);
        assert!(share(|traits| traits.runs < 0.25) > 0.02);
    }

    #[test]
    fn heat_slows_runs_and_shows_in_the_status_of_devices_that_have_one() {
        let noise = Noise {
            heat: EpisodePattern {
                mean_gap: Duration::from_millis(1),
                mean_length: Duration::from_secs(1 << 30),
                slow_down: (2.0, 2.0),
            },
            ..quiet()
        };
        let mut statuses = [0_u32; 4];
        for device in 0..200 {
            let mut physics = DevicePhysics::new(&noise, 4, device);
            let mut session = physics.session(2_000.0, 1.0);
            for hour in 1..2_000_u64 {
                let run = physics.run(&mut session, Duration::from_secs(hour * 360_000), 1.0);
                let traits = physics.traits();
                assert_eq!(run.thermal_status.is_some(), traits.reports_context);
                if let Some(status) = run.thermal_status {
                    assert!(!traits.status_stays_zero || status == 0);
                    statuses[usize::from(status)] += 1;
                }
            }
        }
        assert!(statuses.iter().all(|n| *n > 0), "{statuses:?}");
    }
}
