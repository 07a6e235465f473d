//! The next fault, chosen by the seed alone.

use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A collector is killed, and started again after `down`.
    KillCollector {
        /// Index of the collector, modulo their number.
        index: usize,
        /// Time until the collector is started again.
        down: Duration,
    },
    /// The store's process is killed; its supervisor starts another.
    KillStore,
    /// Collectors and store are killed at the same moment.
    KillAll,
    /// For a spell the store is stopped, with its connections open.
    Freeze(Duration),
    /// For a spell the store cannot be reached, and collectors are killed.
    CutOff(Duration),
}

/// The lengths of a fault's parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lengths {
    /// Mean time between two faults.
    pub(crate) pause: Duration,
    /// Mean time without a store.
    pub(crate) spell: Duration,
    /// After this time away, other collectors no longer wait for a collector.
    pub(crate) collector_timeout: Duration,
}

/// Returns the next fault, and its delay after the fault before.
pub(crate) fn next(chance: &mut fastrand::Rng, lengths: Lengths) -> (Duration, Fault) {
    // The pause is exponential, so faults come in clusters, as in reality.
    let pause = lengths.pause.mul_f64(-(1.0 - chance.f64()).ln());
    let spell = lengths.spell.mul_f64(0.5 + chance.f64());
    let index = chance.usize(..1 << 16);
    let fault = match chance.u32(..1000) {
        0..580 => Fault::KillCollector {
            index,
            down: Duration::ZERO,
        },
        // The collector stays away until the others close buckets without it.
        580..600 => Fault::KillCollector {
            index,
            down: lengths.collector_timeout.mul_f64(1.5),
        },
        600..900 => Fault::KillStore,
        900..980 => Fault::KillAll,
        980..990 => Fault::Freeze(spell),
        _ => Fault::CutOff(spell),
    };
    (pause.min(lengths.pause * 4), fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_chooses_every_kind_of_fault_and_always_the_same() {
        let lengths = Lengths {
            pause: Duration::from_millis(10),
            spell: Duration::from_secs(1),
            collector_timeout: Duration::from_secs(4),
        };
        let chosen = |seed| {
            let mut chance = fastrand::Rng::with_seed(seed);
            (0..2_000)
                .map(move |_| next(&mut chance, lengths))
                .collect::<Vec<_>>()
        };
        assert_eq!(chosen(1), chosen(1));
        let faults = chosen(1);
        let has = |kind: fn(&Fault) -> bool| faults.iter().any(|(_, fault)| kind(fault));
        assert!(has(
            |f| matches!(f, Fault::KillCollector { down, .. } if down.is_zero())
        ));
        assert!(has(
            |f| matches!(f, Fault::KillCollector { down, .. } if !down.is_zero())
        ));
        assert!(has(|f| matches!(f, Fault::KillStore)));
        assert!(has(|f| matches!(f, Fault::KillAll)));
        assert!(has(|f| matches!(f, Fault::Freeze(_))));
        assert!(has(|f| matches!(f, Fault::CutOff(_))));
    }
}
