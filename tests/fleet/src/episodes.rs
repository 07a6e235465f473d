//! Things that come, last a while and go: heat, contention, power save.

use crate::chance::Chance;
use std::time::Duration;

/// How often something comes and how long it stays.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EpisodePattern {
    /// Mean time between the end of one and the beginning of the next.
    pub mean_gap: Duration,
    /// Mean length.
    pub mean_length: Duration,
    /// Slow-down at its height, lowest and highest: one draw an episode.
    pub slow_down: (f64, f64),
}

/// One device's episodes of one kind, drawn as time goes by.
#[derive(Debug, Clone)]
pub(crate) struct Episodes {
    pattern: EpisodePattern,
    chance: Chance,
    current: Episode,
}

/// One episode, present or next.
#[derive(Debug, Clone, Copy)]
struct Episode {
    begins: Duration,
    ends: Duration,
    slow_down: f64,
}

/// What an episode does at one instant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Height {
    /// 0 to 1: rises over the first third, falls over the last fifth.
    pub(crate) level: f64,
    /// Slow-down at full height.
    pub(crate) slow_down: f64,
}

impl Height {
    /// Slow-down now.
    pub(crate) fn factor(self) -> f64 {
        1.0 + (self.slow_down - 1.0) * self.level
    }
}

impl Episodes {
    /// Starts in the steady state: some devices are in the middle of one at time zero.
    pub(crate) fn new(pattern: EpisodePattern, mut chance: Chance) -> Self {
        let cycle = pattern.mean_gap + pattern.mean_length;
        let within = chance.happens(pattern.mean_length.div_duration_f64(cycle));
        let gap = if within {
            Duration::ZERO
        } else {
            chance.wait(pattern.mean_gap)
        };
        let current = draw(&pattern, &mut chance, gap);
        Self {
            pattern,
            chance,
            current,
        }
    }

    /// What holds at `now`, which never goes back; `None` between episodes.
    pub(crate) fn at(&mut self, now: Duration) -> Option<Height> {
        while now >= self.current.ends {
            let begins = self.current.ends + self.chance.wait(self.pattern.mean_gap);
            self.current = draw(&self.pattern, &mut self.chance, begins);
        }
        let Episode {
            begins,
            ends,
            slow_down,
        } = self.current;
        if now < begins {
            return None;
        }
        let progress = (now - begins).div_duration_f64(ends - begins);
        let level = (progress / 0.33).min((1.0 - progress) / 0.2).min(1.0);
        Some(Height { level, slow_down })
    }
}

fn draw(pattern: &EpisodePattern, chance: &mut Chance, begins: Duration) -> Episode {
    // Never of no length: progress divides by it.
    let length = chance
        .wait(pattern.mean_length)
        .max(Duration::from_millis(1));
    Episode {
        begins,
        ends: begins + length,
        slow_down: chance.between(pattern.slow_down),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATTERN: EpisodePattern = EpisodePattern {
        mean_gap: Duration::from_secs(90),
        mean_length: Duration::from_secs(10),
        slow_down: (1.5, 2.0),
    };

    #[test]
    fn share_of_time_follows_the_pattern() {
        let mut inside = 0;
        for device in 0..200 {
            let mut episodes = Episodes::new(PATTERN, Chance::split(3, "heat", device));
            for second in 0..1_000 {
                inside += u32::from(episodes.at(Duration::from_secs(second)).is_some());
            }
        }
        let share = f64::from(inside) / 200_000.0;
        assert!((0.085..0.115).contains(&share), "share {share}");
    }

    #[test]
    fn slow_down_stays_between_one_and_the_height() {
        let mut episodes = Episodes::new(PATTERN, Chance::split(3, "heat", 1));
        let factors: Vec<f64> = (0..100_000)
            .filter_map(|tenth| episodes.at(Duration::from_millis(tenth * 100)))
            .map(Height::factor)
            .collect();
        assert!(factors.iter().all(|factor| (1.0..=2.0).contains(factor)));
        assert!(factors.iter().any(|factor| *factor > 1.4));
    }
}
