//! Notifications after people's orders.

use epwatch_model::{Order, OrderKind};

use crate::incident::apply_order;

use super::channels::{pagerduty, secret};
use super::*;

fn ordered(kinds: &[OrderKind]) -> Incident {
    let mut incident = firing();
    for (n, kind) in (1..).zip(kinds) {
        let order = Order {
            n,
            kind: *kind,
            who: "Ada \u{202e}L".into(),
            at: at(60),
            until: (*kind == OrderKind::Mute).then(|| at(3_660)),
            why: "it is <meant> so".into(),
        };
        apply_order(&mut incident, &order, false, at(60)).unwrap();
    }
    incident
}

#[test]
fn people_read_who_ordered_what() {
    use OrderKind::{Accept, Ack, False, Mute, Reopen, Resolve};
    let text = |kinds: &[OrderKind]| {
        let block = block(&Notification::news(ordered(kinds)));
        assert!(!block.contains('\u{202e}'), "{block}");
        block
    };
    let by = "by Ada [U+202E]L: it is <meant> so";
    for (kinds, title, fact) in [
        (
            &[Ack][..],
            "ACKNOWLEDGED  ",
            "taken       2027-01-15 08:01:00 UTC, ",
        ),
        (
            &[Mute],
            "MUTED  ",
            "muted       until 2027-01-15 09:01:00 UTC, ",
        ),
        (&[Resolve], "RESOLVED  ", "quiet until it grows by half"),
        (&[Accept], "RESOLVED  ", "accepted: this version is quiet"),
        (&[False], "RESOLVED  ", "called false: nothing was wrong"),
    ] {
        let block = text(kinds);
        assert!(block.starts_with(title), "{block}");
        assert!(
            block.contains(fact) && block.contains(by),
            "{fact}: {block}"
        );
    }
    let reopened = text(&[Ack, Reopen]);
    assert!(reopened.starts_with("PAGE (reopened)  "), "{reopened}");
    assert!(!reopened.contains(by), "{reopened}");
}

#[tokio::test]
async fn an_ack_acknowledges_at_pagerduty_and_a_later_one_keeps_its_key() {
    let accepted = (StatusCode::ACCEPTED, None);
    let (receiver, url) = Receiver::start_at("/v2/enqueue", &[accepted; 2]).await;
    let dir = tempfile::tempdir().unwrap();
    let pagerduty = pagerduty(&url, secret(&dir, "R0UT1NGKEY"), links());
    for kinds in [&[][..], &[OrderKind::Ack]] {
        let news = Notification::news(ordered(kinds));
        pagerduty.notify(&news, at(60)).await.unwrap();
    }
    let sent = receiver.payloads();
    let actions = sent.iter().map(|event| &event["event_action"]);
    assert_eq!(actions.collect::<Vec<_>>(), ["trigger", "acknowledge"]);
    assert_eq!(sent[0]["dedup_key"], sent[1]["dedup_key"]);
}

/// An ack is an annotation: a label would make another alert.
#[tokio::test]
async fn an_ack_changes_no_label() {
    let (receiver, url) = Receiver::start(&[OK, OK]).await;
    for kinds in [&[][..], &[OrderKind::Ack]] {
        let news = Notification::news(ordered(kinds));
        alertmanager(&url).notify(&news, at(60)).await.unwrap();
    }
    let sent = receiver.alerts();
    assert_eq!(sent[0][0]["labels"], sent[1][0]["labels"]);
    let by = &sent[1][0]["annotations"]["acknowledged"];
    assert_eq!(by, "by Ada [U+202E]L: it is <meant> so");
    assert!(sent[0][0]["annotations"]["acknowledged"].is_null());
}

#[test]
fn programs_read_orders_in_the_document() {
    let document =
        |kinds: &[OrderKind]| super::super::document::document(&ordered(kinds), &links());
    assert_eq!(
        document(&[OrderKind::Ack])["acknowledged_by"],
        "Ada \u{202e}L"
    );
    assert_eq!(document(&[OrderKind::Resolve])["ended_by"], "Ada \u{202e}L");
    let muted = document(&[OrderKind::Mute]);
    assert_eq!(muted["muted_until"], at(3_660).to_string());
    assert!(document(&[]).get("ended_by").is_none());
}
