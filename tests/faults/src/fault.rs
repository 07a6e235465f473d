//! The next fault, chosen by the seed alone.

use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A collector is killed, and started again after `down`.
    KillCollector {
        /// Which, modulo their number.
        index: usize,
        /// How long it stays away.
        down: Duration,
    },
    /// The store's process is killed; its supervisor starts another.
    KillStore,
    /// Both at one moment.
    KillAll,
    /// The store does nothing any more, for a spell, with its connections open.
    Freeze(Duration),
    /// The store cannot be reached, for a spell; collectors are killed meanwhile.
    CutOff(Duration),
}

/// How long the parts of a fault take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lengths {
    /// Mean time between two.
    pub(crate) pause: Duration,
    /// Mean time without a store.
    pub(crate) spell: Duration,
    /// What a collector may stay away for without being waited for no longer.
    pub(crate) collector_timeout: Duration,
}

/// A fault, and how long after the one before it begins.
pub(crate) fn next(chance: &mut fastrand::Rng, lengths: Lengths) -> (Duration, Fault) {
    // Exponential: faults come in clusters, as they do.
    let pause = lengths.pause.mul_f64(-(1.0 - chance.f64()).ln());
    let spell = lengths.spell.mul_f64(0.5 + chance.f64());
    let index = chance.usize(..1 << 16);
    let fault = match chance.u32(..1000) {
        0..580 => Fault::KillCollector {
            index,
            down: Duration::ZERO,
        },
        // Away until the others close buckets without it.
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
