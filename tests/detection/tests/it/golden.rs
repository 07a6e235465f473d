//! Golden outputs: the detector distinguishes the quantisation, an NPU, a firmware and rounding. `just detection` has
//! more fleets.

use epwatch_detection::golden::{GoldenFleet, least_cosines_of_rounding};
use epwatch_detection::stories::lines_of;
use epwatch_proto::ROUNDING_COSINE;

async fn check(fleet: GoldenFleet, seeds: std::ops::Range<u64>) {
    let n = seeds.clone().count();
    let mut wrong = Vec::new();
    for seed in seeds {
        let lines = lines_of(&fleet.reports(seed), None).await.unwrap();
        wrong.extend(fleet.wrong_in(&lines).err().map(|why| (seed, why)));
    }
    // At least nine of ten fleets must be told correctly.
    assert!(10 * wrong.len() <= n, "{}: {wrong:#?}", fleet.text());
}

/// An earlier version did not compare distances between chipsets, and blamed each NPU.
#[tokio::test]
async fn a_loss_on_all_chipsets_is_the_quantisation() {
    check(GoldenFleet::Quantisation, 0..6).await;
}

#[tokio::test]
async fn a_loss_on_one_chipset_is_its_npu() {
    check(GoldenFleet::OneChipset, 20..26).await;
}

#[tokio::test]
async fn a_loss_on_one_firmware_names_it() {
    check(GoldenFleet::OneFirmware, 40..46).await;
}

/// Each rounding mode has its own hashes. An earlier rule made a ticket of different hashes.
#[tokio::test]
async fn rounding_modes_that_differ_are_no_finding() {
    check(GoldenFleet::RoundingOnly, 60..68).await;
}

/// Measures the limit: in none of 200 networks does rounding exceed it.
#[test]
fn rounding_stays_above_the_limit() {
    let cosines = least_cosines_of_rounding(0, 200);
    assert!(cosines[0] >= ROUNDING_COSINE, "{:?}", &cosines[..5]);
    // The rounding modes really differ.
    assert!(cosines[100] < 0.999_9, "{}", cosines[100]);
}
