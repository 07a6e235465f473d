//! Stories of the field, a few fleets of each. `just detection` has more of them.

use epwatch_detection::stories::{Story, lines_of};

async fn check(story: Story, seeds: std::ops::Range<u64>) {
    let n = seeds.clone().count();
    let (mut wrong, mut wrong_nouns) = (Vec::new(), Vec::new());
    for seed in seeds {
        let reports = story.reports(seed);
        let deadline_ms = story.deadline_ms(seed);
        let lines = lines_of(&reports, deadline_ms).await.unwrap();
        wrong.extend(story.wrong_in(&lines).err().map(|why| (seed, why)));
        let noun = story.wrong_noun_in(&reports, deadline_ms, &lines).err();
        wrong_nouns.extend(noun.map(|why| format!("{seed}: {why}")));
    }
    // A sentence never contradicts the labels.
    let nouns = wrong_nouns.join("\n\n");
    assert!(wrong_nouns.is_empty(), "{}: {nouns}", story.text());
    // At least nine of ten fleets must be told correctly.
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

/// The detector once called this load, because other models are slower too. Now it checks the firmware of the devices
/// hit.
#[tokio::test]
async fn a_firmware_that_slows_all_models_pages_and_is_named() {
    check(Story::FirmwareSlowsAllModels, 340..346).await;
}

#[tokio::test]
async fn slow_runs_of_a_first_version_are_told() {
    check(Story::FirstVersionIntermittent, 360..366).await;
}

#[tokio::test]
async fn a_make_without_an_npu_is_a_ticket_that_names_it() {
    check(Story::NewMake, 380..386).await;
}

/// Compared with the version before, which was as slow, the loss was not visible.
#[tokio::test]
async fn a_gain_that_is_lost_within_a_version_pages() {
    check(Story::GainedAndLost, 400..406).await;
}

/// Earlier the detector called this load for as long as it lasted, and sent no notification.
#[tokio::test]
async fn load_that_lasts_is_a_ticket() {
    check(Story::LoadThatLasts, 420..426).await;
}

#[tokio::test]
async fn load_on_the_day_of_a_roll_out_pages_nobody() {
    check(Story::BusyOnTheFirstDay, 440..448).await;
}

/// Every comparable device counts.
#[tokio::test]
async fn five_devices_page_although_some_placements_cannot_be_read() {
    check(Story::FiveDevices, 460..470).await;
}

#[tokio::test]
async fn a_runtime_that_counts_macs_otherwise_is_no_finding() {
    check(Story::RecountedMacs, 480..486).await;
}

/// Earlier the chipset's other names counted as chipsets with the same effect, and excused it.
#[tokio::test]
async fn names_of_one_chipset_do_not_excuse_it() {
    check(Story::ManyNames, 500..506).await;
}

/// Earlier the detector called this "a heavier model".
#[tokio::test]
async fn a_new_runtime_that_is_slower_everywhere_is_named() {
    check(Story::NewRuntime, 520..526).await;
}

#[tokio::test]
async fn an_input_shape_that_carries_the_fault_is_named() {
    check(Story::LargeInputs, 540..546).await;
}

/// Earlier the ticket about slower devices hid the slow runs.
#[tokio::test]
async fn slow_devices_do_not_hide_slow_runs_of_others() {
    check(Story::SlowDevicesAndRuns, 560..566).await;
}

/// Earlier the notification said that no device reported.
#[tokio::test]
async fn new_installation_ids_on_all_devices_are_told_as_a_reinstall() {
    check(Story::Reinstall, 580..584).await;
}

#[tokio::test]
async fn a_compiled_model_that_is_not_for_some_devices_is_a_ticket() {
    check(Story::CompiledForAnother, 620..626).await;
}

/// Earlier no text had the share of runs beyond the deadline, because the detector had no deadline.
#[tokio::test]
async fn runs_beyond_the_deadline_are_told_with_their_share() {
    check(Story::LateFrames, 600..606).await;
    let lines = lines_of(&Story::LateFrames.reports(600), None).await;
    let without_deadline = Story::LateFrames.wrong_in(&lines.unwrap());
    let why = without_deadline.unwrap_err();
    assert_eq!(why, "no page has the share of the late runs");
}

#[tokio::test]
async fn a_roll_back_ends_the_incident_and_is_told() {
    check(Story::RollBack, 640..648).await;
}

/// Runs that alternate by less than the limits of slow runs raise CV alone, as half of healthy fleets do.
#[tokio::test]
async fn runs_that_alternate_about_the_old_median_page_nobody() {
    check(Story::Alternation, 660..668).await;
}

/// Earlier such an incident stayed open for 14 days, because the medians of 1.0.0 and 2.0.0 are equally fast.
#[tokio::test]
async fn a_roll_back_from_a_fault_on_some_devices_ends_the_incident_and_is_told() {
    check(Story::RollBackOfSome, 680..688).await;
}

#[tokio::test]
async fn a_roll_back_of_the_healthy_devices_alone_ends_nothing() {
    check(Story::RollBackWithoutTheHit, 700..708).await;
}

#[tokio::test]
async fn a_fix_that_mends_none_of_some_devices_keeps_the_incident_open() {
    check(Story::FixForNone, 720..728).await;
}

/// The cause came with 2.0.0, and is not in it. What 1.0.0 does since then is not its past.
#[tokio::test]
async fn a_roll_back_that_mends_none_keeps_the_incident_open() {
    check(Story::RollBackForNone, 740..748).await;
}
