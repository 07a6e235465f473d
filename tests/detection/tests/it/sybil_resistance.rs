//! Devices of public keys are weighed by networks and days. Forged devices cause no page, however long they wait, while
//! real fleets do.

use std::sync::Arc;

use epwatch_detection::labelled::{FamilyReport, FamilySpec, PlacementView};
use epwatch_detection::{FaultOutcome, Keys};
use epwatch_detector::read::Source;
use epwatch_detector::read::recorded::{Intake, SenderDecision};
use epwatch_detector::replay::Line;
use epwatch_detector::{NetworkHash, Sender};
use epwatch_proto::{InstallationId, Sequence};
use epwatch_runtimes::is_nightly;

use super::{
    DAY_MS, HOUR, INCIDENT, PLAIN, START_MS, check_quiet, lines_of, pages, reports, small, spec,
};

/// The day of 2.0.0, with fourteen days of history before it.
const RELEASE: u32 = 14;

const FORGED: usize = 300;
/// Days from the first report of the forged devices to the end of their claims.
const WAITING_DAYS: i64 = 8;

fn day_of(report: &FamilyReport) -> i64 {
    (report.received_ms - START_MS).div_euclid(DAY_MS)
}

/// Devices of one chipset that get 2.0.0 on the day `release`, and report on each day.
fn fleet(devices: usize, release: u32) -> FamilySpec {
    FamilySpec {
        chipsets: 1,
        devices,
        windows: (release, 2),
        presence: 1.0,
        ..spec(11, PLAIN, PlacementView::Full)
    }
}

fn with_fault(spec: FamilySpec) -> FamilySpec {
    FamilySpec {
        truth: INCIDENT,
        ..spec
    }
}

/// Returns the number of each report's device, in the order of their ids.
fn numbered(reports: &[FamilyReport]) -> impl Fn(&FamilyReport) -> u32 + use<> {
    let id = |report: &FamilyReport| report.report.key.installation;
    let mut ids: Vec<InstallationId> = reports.iter().map(id).collect();
    ids.sort_unstable();
    ids.dedup();
    move |report| u32::try_from(ids.binary_search(&id(report)).unwrap()).unwrap()
}

/// Returns the sender's data for a proven device of network `n`. Three narrow networks form a wide one.
fn mark(is_own: bool, n: u32) -> SenderDecision {
    let network = NetworkHash {
        narrow: n + 1,
        wide: n / 3 + 1,
    };
    SenderDecision {
        is_unproven: Some(false),
        sender: Some(Sender {
            is_own,
            network: Some(network),
        }),
    }
}

fn add(intake: &mut Intake, environment: &str, report: &FamilyReport, mark: SenderDecision) {
    let app = ("camera", environment);
    intake.add_marked(report.received_ms, app, &report.report, &report.sent, mark);
}

async fn judged(intake: Intake) -> Vec<Line> {
    let (recording, _) = intake.finish().unwrap();
    lines_of(Source::recorded(Arc::new(recording), 200_000)).await
}

/// Forged installations on some networks behave for six days and then claim a fallback for two, each in all of its
/// environments. There are 100 healthy phones with a history in addition. The collector admitted all of them.
async fn check_forged(networks: usize, environments: impl Fn(usize) -> Vec<String>) {
    let mut intake = Intake::new(HOUR);
    let honest = reports(fleet(100, RELEASE));
    let number = numbered(&honest);
    for report in &honest {
        let mark = mark(false, number(report) % 80);
        add(&mut intake, "production", report, mark);
    }
    let faulty = reports(with_fault(fleet(100, RELEASE)));
    let (release, end) = (i64::from(RELEASE), i64::from(RELEASE) + 2);
    for day in end - WAITING_DAYS..end {
        let claimed = if day < release { &honest } else { &faulty };
        let claims: Vec<&FamilyReport> = claimed.iter().filter(|r| day_of(r) == day).collect();
        for forged in 0..FORGED {
            let mut claim = claims[forged % claims.len()].clone();
            let key = &mut claim.report.key;
            key.installation = InstallationId::from_secret(format!("forged {forged}").as_bytes());
            // Each network is in a different wide network.
            let network = u32::try_from(forged % networks).unwrap();
            let first = claim.report.key.sequence.get() * 100;
            for (sequence, environment) in (first..).zip(environments(forged)) {
                claim.report.key.sequence = Sequence::new(sequence).unwrap();
                let mark = mark(false, 3 * (1_000 + network));
                add(&mut intake, &environment, &claim, mark);
            }
        }
    }
    check_quiet(&judged(intake).await);
}

/// Environments that no other device has: 10,200 of all forged installations.
fn made_up(forged: usize) -> Vec<String> {
    (0..34).map(|n| format!("made up {forged} {n}")).collect()
}

#[tokio::test]
async fn patient_forged_installations_do_not_page() {
    let production = |_| vec!["production".to_owned()];
    let one_of_their_own = |_| vec!["made up".to_owned()];
    for networks in [1, 3, 20] {
        check_forged(networks, production).await;
    }
    check_forged(20, one_of_their_own).await;
    if is_nightly("patient forged installations in 10,200 made-up environments") {
        for networks in [1, 3, 20] {
            check_forged(networks, one_of_their_own).await;
            check_forged(networks, made_up).await;
        }
    }
}

/// Where devices of a fleet come from.
#[derive(Debug, Clone, Copy)]
enum From {
    Networks(u32),
    OneAddressOfOurOwn,
}

/// A real fallback pages within two windows of its release.
async fn check_pages(devices: usize, from: From, release: u32, is_first_day: bool) {
    let mut sent = reports(with_fault(fleet(devices, release)));
    sent.retain(|report| !is_first_day || day_of(report) >= i64::from(release));
    let number = numbered(&sent);
    let mut intake = Intake::new(HOUR);
    for report in &sent {
        let mark = match from {
            From::Networks(n) => mark(false, number(report) % n),
            From::OneAddressOfOurOwn => mark(true, 0),
        };
        add(&mut intake, "production", report, mark);
    }
    let lines = judged(intake).await;
    let ends = [1, 2].map(|days| {
        let end_ms = START_MS + (i64::from(release) + days) * DAY_MS;
        jiff::Timestamp::from_millisecond(end_ms)
            .unwrap()
            .to_string()
    });
    let first = pages(&lines).into_iter().next().map(|(end, ..)| end);
    assert!(
        first.as_ref().is_some_and(|end| ends.contains(end)),
        "{devices} devices of {from:?}: {first:?}, not {ends:?}"
    );
}

#[tokio::test]
async fn real_fallbacks_page_within_two_windows() {
    let day_30 = match is_nightly("a fallback on day 30 of an app, instead of day 14") {
        true => 30,
        false => RELEASE,
    };
    // Day one of a new app.
    check_pages(200, From::Networks(150), RELEASE, true).await;
    check_pages(200, From::Networks(150), day_30, false).await;
    check_pages(8, From::Networks(4), day_30, false).await;
    // A fleet of robots behind one address.
    check_pages(60, From::OneAddressOfOurOwn, RELEASE, true).await;
}

/// Devices of a key of kind `own` are not weighed by network. `docs/security.md` has the cost of weighing for public
/// keys.
#[test]
fn own_keys_find_what_unweighed_devices_find() {
    let found = |keys| {
        let outcomes = small::outcomes_with(keys, &["some devices"], 3);
        let faults = outcomes.into_iter().flat_map(|outcome| outcome.faults);
        let of = |fault: FaultOutcome| (fault.seed, fault.paged_in, fault.class);
        faults.map(of).collect::<Vec<_>>()
    };
    let own = found(Keys::Own);
    assert_eq!(own, found(Keys::Unknown));
    assert!(own.iter().any(|(_, paged_in, _)| paged_in.is_some()));
}
