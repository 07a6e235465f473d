//! Stories of the field, a few fleets of each. `just detection` has more of them.

use epwatch_detection::stories::{Story, lines_of};

async fn check(story: Story, seeds: std::ops::Range<u64>) {
    let n = seeds.clone().count();
    let mut wrong = Vec::new();
    for seed in seeds {
        let lines = lines_of(&story.reports(seed)).await.unwrap();
        wrong.extend(story.wrong_in(&lines).err().map(|why| (seed, why)));
    }
    // Nine of ten must be told.
    assert!(10 * wrong.len() <= n, "{}: {wrong:#?}", story.text());
}

#[tokio::test]
async fn a_fix_that_is_as_bad_keeps_the_incident_open() {
    check(Story::FixAsBad, 300..308).await;
}

#[tokio::test]
async fn a_fix_that_mends_ends_the_incident() {
    check(Story::FixThatMends, 320..328).await;
}
