//! A version that ships a compiled model (EPContext), which was made for another chipset or runtime than some devices have.

use epwatch_detection::labelled::{FamilyReport, PlacementView};
use epwatch_detector::replay::Line;
use epwatch_model::{Severity, State, VerdictClass};
use epwatch_proto::{GraphKind, ReasonCode, device::vendor_fingerprint_hash};

use super::{PLAIN, check_quiet, incidents, is_new, replayed, reports, spec, verdicts};

/// Every session loads a compiled model. The sessions of the new version that `is_for_another` picks say that it was made for
/// other devices. Nobody is slower.
fn compiled(seed: u64, is_for_another: impl Fn(&FamilyReport) -> bool) -> Vec<FamilyReport> {
    let mut received = reports(spec(seed, PLAIN, PlacementView::Full));
    for one in &mut received {
        let says = is_new(one) && is_for_another(one);
        for session in &mut one.report.sessions {
            session.placement.graph_kind = GraphKind::EpContext;
            if says && session.model.version == "2.0.0" {
                let reason = ReasonCode::EpcontextForAnother;
                session.placement.reasons.push(reason);
            }
        }
    }
    received
}

fn is_on(received: &FamilyReport, chipset: &str, firmware: &str) -> bool {
    let device = &received.report.device;
    device.chipset.as_str() == chipset
        && device.vendor_fingerprint_hash == vendor_fingerprint_hash(firmware)
}

/// The driver of firmware f2 would rather compile again. Two devices in three have it.
#[tokio::test]
async fn a_compiled_model_of_another_firmware_is_a_ticket_for_it() {
    let lines = replayed(&compiled(1, |one| is_on(one, "SM8650", "f2"))).await;
    check_quiet(&lines);
    let changes = incidents(&lines);
    let mut tickets = changes.iter().filter(|(_, incident)| {
        incident.state == State::Firing
            && incident.verdict == Some(VerdictClass::CompiledForAnother)
    });
    let (_, ticket) = tickets.next().unwrap_or_else(|| panic!("{changes:#?}"));
    assert_eq!(ticket.severity, Severity::Ticket);
    assert_eq!(
        (&*ticket.version, &ticket.chipsets[..]),
        ("2.0.0", &["SM8650".to_owned()][..])
    );
    let firmware = vendor_fingerprint_hash("f2");
    let why = format!("devices on {firmware} are hit, and 0 of");
    let is_told = |line: &Line| match line {
        Line::Verdict(verdict) => verdict.reasons.iter().any(|text| text.contains(&why)),
        _ => false,
    };
    assert!(lines.iter().any(is_told), "{why}");
    // The same file is right for the others.
    for chipset in ["SM8635", "SM8550"] {
        let class = VerdictClass::CompiledForAnother;
        assert!(!verdicts(&lines, "2.0.0", chipset).contains(&class));
    }
}

/// Single phones have a file that was meant for another one.
#[tokio::test]
async fn a_compiled_model_of_single_devices_is_no_ticket() {
    let few = compiled(2, |one| one.report.key.installation.as_bytes()[0] < 2);
    let n_saying = few.iter().filter(|one| {
        let mut sessions = one.report.sessions.iter();
        sessions.any(|session| {
            session
                .placement
                .reasons
                .contains(&ReasonCode::EpcontextForAnother)
        })
    });
    assert!(n_saying.count() > 0, "no device says so");
    let lines = replayed(&few).await;
    check_quiet(&lines);
    let class = Some(VerdictClass::CompiledForAnother);
    let changes = incidents(&lines);
    assert!(
        !changes
            .iter()
            .any(|(_, incident)| incident.verdict == class),
        "{changes:#?}"
    );
}
