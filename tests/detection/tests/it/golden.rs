//! The limit between rounding and a loss of golden outputs. `just detection FIRST_SEED 300 --only golden` has fleets.

use epwatch_detection::golden::least_cosines_of_rounding;
use epwatch_proto::ROUNDING_COSINE;

/// The limit is measured: of 100 networks none rounds beyond it.
#[test]
fn rounding_stays_above_the_limit() {
    let cosines = least_cosines_of_rounding(0, 100);
    assert!(cosines[0] >= ROUNDING_COSINE, "{:?}", &cosines[..5]);
    // Rounding modes do differ.
    assert!(cosines[50] < 0.999_9, "{}", cosines[50]);
}
