//! A fleet that loads a compiled model (EPContext) of other devices: from stored reports to the verdict and the page.

use epwatch_model::{Severity, VerdictClass};
use epwatch_proto::{GraphKind, ReasonCode, Report, device::vendor_fingerprint_hash};
use epwatch_test_support::until;
use jiff::{SignedDuration, Timestamp};

use crate::{
    fleet::{APP, MODEL},
    one_fleet::{CHIPSET, DEVICES, FIRST, SECOND, Version, judge},
    page::Served,
    support::Store,
};

/// The compiled version is as fast as the one before.
const COMPILED: Version = Version {
    run_us: FIRST.run_us,
    npu_macs: FIRST.npu_macs,
    ..SECOND
};

/// Two devices in three got the firmware whose driver would rather compile again.
fn says_so(mut report: Report) -> Report {
    let is_updated = !report.key.installation.as_bytes()[0].is_multiple_of(3);
    let firmware = if is_updated { "f2" } else { "f1" };
    report.device.vendor_fingerprint_hash = vendor_fingerprint_hash(firmware);
    let placement = &mut report.sessions[0].placement;
    placement.graph_kind = GraphKind::EpContext;
    if is_updated {
        placement.reasons.push(ReasonCode::EpcontextForAnother);
    }
    report
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compiled_model_of_other_devices_is_a_ticket_on_the_page() {
    let store = Store::start().await;
    let second = Timestamp::now().as_second() - 900;
    let began = Timestamp::from_second(second - second % 60).unwrap();
    let after = |seconds| began + SignedDuration::from_secs(seconds);
    FIRST.store(store.client(), after(10)).await;
    judge(store.client(), after(60)).await;
    COMPILED
        .store_with(store.client(), after(70), says_so)
        .await;
    let verdicts = judge(store.client(), after(120)).await;

    let mut of_version = verdicts
        .iter()
        .filter(|verdict| verdict.key.model_version == COMPILED.name);
    let verdict = of_version.next().unwrap();
    let found = (verdict.class, verdict.severity);
    let class = VerdictClass::CompiledForAnother;
    assert_eq!(found, (class, Severity::Ticket), "{verdict:#?}");
    let numbers = &verdict.numbers;
    let hit = u64::from(DEVICES) * 2 / 3;
    let counted = (numbers.devices_hit, numbers.devices_seen);
    assert_eq!(counted, (hit, u64::from(DEVICES)));
    let why: Vec<String> = verdict.reason_texts().collect();
    let says = "on 20 of 30 devices the compiled model was made for another chipset or runtime";
    assert!(why[0].starts_with(says), "{why:#?}");
    let firmware = vendor_fingerprint_hash("f2");
    let of_firmware = format!("20 of 20 devices on {firmware} are hit, and 0 of 10");
    assert!(
        why.iter().any(|text| text.contains(&of_firmware)),
        "{why:#?}"
    );

    let next = &verdict.next_step;
    assert!(
        next.contains("Compile it again for these devices"),
        "{next}"
    );

    let page = Served::start(store.client()).await;
    let link = format!(
        "/cohort?app={APP}&environment=production&model={MODEL}&version={}&chipset={CHIPSET}",
        COMPILED.name
    );
    until(&link, async || page.get(&link).await.status == 200).await;
    let text = page.get(&link).await.text;
    let reason = says.trim_start_matches("on ");
    for told in [class.heading(), reason, &of_firmware] {
        assert!(text.contains(told), "{told}: {text}");
    }
    page.stop().await;
    store.engine.stop().await;
}
