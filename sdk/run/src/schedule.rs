//! The order of launches, and which of them are made again.

use epwatch_gate::run::Arm;

/// Maximum number of tries of one launch, if the device throttles it or a signal ends it.
pub(crate) const MOST_TRIES: u32 = 3;

/// Returns the launches in their order: the launches of each model are numbered from 1. Two models take turns, A B B A,
/// so that a device that gets warm slows both.
pub(crate) fn order(launches: u32, has_baseline: bool) -> Vec<(Arm, u32)> {
    let mut order = Vec::new();
    for n in 1..=launches {
        match (has_baseline, n % 2) {
            (false, _) => order.push((Arm::Candidate, n)),
            (true, 1) => order.extend([(Arm::Candidate, n), (Arm::Baseline, n)]),
            (true, _) => order.extend([(Arm::Baseline, n), (Arm::Candidate, n)]),
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_models_take_turns() {
        let letters = |launches, has_baseline| -> String {
            let order = order(launches, has_baseline);
            let each = order.iter().map(|(arm, n)| match arm {
                Arm::Candidate => format!("A{n}"),
                Arm::Baseline => format!("B{n}"),
            });
            each.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(letters(3, true), "A1 B1 B2 A2 A3 B3");
        assert_eq!(letters(2, false), "A1 A2");
    }
}
