//! The share of healthy devices that each signal hits: built-in rates, and the rates of a fleet.
//!
//! The built-in rates are the highest rates of simulated fleets with realistic noise. A fleet's own rates are estimated
//! from its healthy windows: a version on a chipset counts once, at the mean of its windows. If cohorts differ more
//! than by chance, the prior gets weaker, since the next cohort may differ as much. Windows may contain unreported
//! faults. So a version on a chipset counts only once it is seven windows old, and its latest windows do not count yet.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use epwatch_model::SignalId;
use epwatch_server::{read_config_text, replace_readable_file};
use serde::{Deserialize, Serialize};

use crate::judge::tally::{BaseRate, PRIOR_STRENGTH, Tally};

/// Windows that a fleet needs before its own rates count, and the age in windows from which a version on a
/// chipset contributes to them.
pub(crate) const MIN_WINDOWS: u64 = 7;

/// Weight of the built-in rate among the fleet's own, in devices.
const BUILT_IN_WEIGHT: f64 = 200.0;

/// Lower bound of a rate: no fleet is so uniform that a single hit is surprising.
const LEAST_RATE: f64 = 0.002;

/// The weakest prior, in devices.
const LEAST_STRENGTH: f64 = 8.0;

/// Rates estimated from a fleet. A signal that is missing has its built-in rate.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BaseRates(pub BTreeMap<SignalId, BaseRate>);

impl BaseRates {
    /// Returns the rate of a signal, or `built_in` if the fleet has none of its own.
    #[must_use]
    pub fn of(&self, signal: SignalId, built_in: f64) -> BaseRate {
        self.0.get(&signal).copied().unwrap_or(BaseRate {
            rate: built_in,
            strength: PRIOR_STRENGTH,
        })
    }

    /// Whether the fleet has a rate of its own for this signal.
    #[must_use]
    pub fn has(&self, signal: SignalId) -> bool {
        self.0.contains_key(&signal)
    }

    /// Estimates rates from the tallies of healthy cohorts. `built_in` returns each signal's built-in rate.
    #[must_use]
    pub fn learnt(
        cohorts: &BTreeMap<SignalId, Vec<Tally>>,
        built_in: impl Fn(SignalId) -> f64,
    ) -> Self {
        let learnt = cohorts
            .iter()
            .filter(|(_, tallies)| tallies.len() >= 2)
            .map(|(id, tallies)| (*id, rate(tallies, built_in(*id))));
        BaseRates(learnt.collect())
    }
}

/// The error of a rates file that could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BaseRatesError {
    /// The file could not be read or written.
    #[error("failed to {what} the rates file {}", path.display())]
    Io {
        /// `read` or `write`.
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The file holds no rates.
    #[error(
        "failed to read rates from {}: expected what `epwatch detector calibrate` writes",
        path.display()
    )]
    Malformed {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
}

impl BaseRates {
    /// Reads a file that `epwatch detector calibrate` wrote.
    ///
    /// # Errors
    /// The file does not exist, or holds something else.
    pub fn read(path: &Path) -> Result<Self, BaseRatesError> {
        let text = read_config_text(path).map_err(|source| BaseRatesError::Io {
            what: "read",
            path: path.to_owned(),
            source,
        })?;
        serde_json::from_str(&text).map_err(|source| BaseRatesError::Malformed {
            path: path.to_owned(),
            source,
        })
    }

    /// Writes the file for the next start of the detector. A crash leaves the old file or the new one.
    ///
    /// # Errors
    /// The file could not be written.
    pub fn write(&self, path: &Path) -> Result<(), BaseRatesError> {
        let text = serde_json::to_string_pretty(self).expect("rates have text keys only");
        let bytes = (text + "\n").into_bytes();
        replace_readable_file(path, &bytes).map_err(|source| BaseRatesError::Io {
            what: "write",
            path: path.to_owned(),
            source,
        })
    }
}

/// Method of moments for a beta-binomial: the mean rate, and the strength that explains the variance between cohorts.
fn rate(tallies: &[Tally], built_in: f64) -> BaseRate {
    let hits: f64 = tallies.iter().map(|tally| tally.hits as f64).sum();
    let devices: f64 = tallies.iter().map(|tally| tally.devices as f64).sum();
    let mean = (hits + built_in * BUILT_IN_WEIGHT) / (devices + BUILT_IN_WEIGHT);
    let mean = mean.clamp(LEAST_RATE, 0.9);
    let (mut excess, mut possible) = (0.0, 0.0);
    for tally in tallies {
        let n = tally.devices as f64;
        let expected = n * mean * (1.0 - mean);
        let off = tally.hits as f64 - n * mean;
        excess += off * off - expected;
        possible += expected * (n - 1.0);
    }
    // Intra-cohort correlation rho = 1 / (strength + 1).
    let rho = if possible > 0.0 {
        (excess / possible).max(0.0)
    } else {
        0.0
    };
    let strength = if rho > 0.0 {
        1.0 / rho - 1.0
    } else {
        PRIOR_STRENGTH
    };
    BaseRate {
        rate: mean,
        strength: strength.clamp(LEAST_STRENGTH, PRIOR_STRENGTH),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tallies(of: &[(u64, u64)]) -> BTreeMap<SignalId, Vec<Tally>> {
        let tallies = of.iter().map(|(hits, devices)| Tally {
            hits: *hits,
            devices: *devices,
        });
        BTreeMap::from([(SignalId::Moved, tallies.collect())])
    }

    #[test]
    fn a_fleet_without_history_has_the_built_in_rates() {
        let rate = BaseRates::default().of(SignalId::Moved, 0.01);
        assert_eq!((rate.rate, rate.strength), (0.01, PRIOR_STRENGTH));
    }

    #[test]
    fn cohorts_that_differ_make_a_weak_prior_and_alike_ones_a_strong_one() {
        let alike = BaseRates::learnt(&tallies(&[(4, 200), (5, 200), (3, 200), (4, 200)]), |_| {
            0.01
        });
        let apart = BaseRates::learnt(&tallies(&[(0, 200), (60, 200), (1, 200), (0, 200)]), |_| {
            0.01
        });
        let (alike, apart) = (
            alike.of(SignalId::Moved, 0.0),
            apart.of(SignalId::Moved, 0.0),
        );
        assert!((0.015..0.025).contains(&alike.rate), "{alike:?}");
        assert_eq!(alike.strength, PRIOR_STRENGTH);
        assert!(apart.strength < 20.0, "{apart:?}");
    }

    #[test]
    fn rates_are_read_back_as_written_and_anything_else_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rates.json");
        let learnt = BaseRates::learnt(&tallies(&[(4, 200), (5, 200)]), |_| 0.01);
        learnt.write(&path).unwrap();
        assert_eq!(BaseRates::read(&path).unwrap(), learnt);
        std::fs::write(&path, "[]").unwrap();
        let error = BaseRates::read(&path).unwrap_err().to_string();
        assert!(error.contains("calibrate"), "{error}");
    }
}
