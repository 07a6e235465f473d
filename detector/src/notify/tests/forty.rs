//! A snapshot of the texts of some forty incidents: faults, states, orders and names of every kind.

use epwatch_model::{Order, OrderKind};

use crate::incident::apply_order;
use crate::notify::steps::StepPart;

use super::*;

/// Names of real apps, and names that attackers write.
const NAMES: [(&str, &str); 5] = [
    ("segmenter", "2.0.0"),
    ("face_detector_v2 [int8]", "2026.11.27+build.4711"),
    ("<!channel> *b* `c` & @here", "--key"),
    ("\u{202e}gnp.exe\u{200b}", "$(touch x)"),
    (
        "Erkennung f\u{fc}r Gesichter und H\u{e4}nde, gro\u{df}es Modell, zweite Fassung, auf 640 Punkte",
        "1",
    ),
];

/// The window of each fault.
fn faults() -> Vec<(&'static str, CohortWindow)> {
    let total = Fleet {
        hit_placement: placed(21, 0, 25, Some(0.0)),
        ..Fleet::with_fallback(1.0)
    };
    let slow = Fleet {
        weight: 2.5,
        ..Fleet::default()
    };
    let mut no_start = Fleet::default().window();
    no_start.device_events.failed_starts = failed_starts(0..48, "f1", "backend_setup_failed");
    vec![
        ("all devices", Fleet::with_fallback(1.0).window()),
        ("some devices", Fleet::with_fallback(0.5).window()),
        ("everything on the CPU", total.window()),
        ("slow", slow.window()),
        ("no start", no_start),
        (
            "wrong",
            tested(Fleet::default().window(), 0..25, "bb", "f1", 0.4),
        ),
    ]
}

fn incidents() -> Vec<(String, Incident)> {
    let mut all = Vec::new();
    for (fault, window) in faults() {
        for (model, version) in NAMES {
            let mut window = window.clone();
            window.key.model.model_id = model.into();
            window.key.model_version = version.into();
            let sick = judged(&window, None, &reference());
            all.push((fault.to_owned(), incident_after(&[&[sick]])));
        }
    }
    for (state, incident) in [
        ("grown", grown()),
        ("resolved", resolved()),
        ("past", past()),
        ("mitigated", mitigated()),
        ("test", test_page(at(0)).incident),
    ] {
        all.push((state.to_owned(), incident));
    }
    for kind in OrderKind::ALL {
        let mut incident = firing();
        let order = Order {
            n: 1,
            kind: *kind,
            who: "Ada".into(),
            at: at(60),
            until: (*kind == OrderKind::Mute).then(|| at(3_660)),
            why: "it is known".into(),
        };
        if apply_order(&mut incident, &order, false, at(60)).is_ok() {
            all.push((kind.as_str().to_owned(), incident));
        }
    }
    let mut many = grown();
    if let Some(headline) = &mut many.headline {
        headline.chipsets = (0..7).map(|n| format!("SM{n}550")).collect();
    }
    all.push(("seven chipsets".to_owned(), many));
    let mut hashed = firing();
    hashed.model_sha256 = Some("5f70".repeat(16));
    all.push(("with a file".to_owned(), hashed));
    all
}

#[test]
fn each_text_begins_with_the_answer() {
    let all = incidents();
    assert_eq!(all.len(), 42);
    let mut whole = String::new();
    for (what, incident) in &all {
        let news = Notification::news(incident.clone());
        let block = block(&news);
        let (headline, rest) = block.split_once('\n').unwrap();
        whole += &format!("== {what}\n{block}\n");
        assert!(headline.chars().count() <= 330, "{headline}");
        assert!(!block.contains(['\u{202e}', '\u{200b}']), "{block}");
        let told = text::message_body(incident);
        let mut lines = rest.lines();
        for (n, step) in (1..).zip(&told.steps) {
            let first = lines.next().unwrap();
            let numbered = first.starts_with(&format!("  next {n} "));
            assert!(numbered, "{first}: {block}");
            for part in &step.0 {
                let StepPart::Commands(commands) = part else {
                    continue;
                };
                assert!(block.contains(&format!("\n      {}", commands.lines().next().unwrap())));
                assert!(!commands.contains('`'), "{commands}");
            }
            // Lines of the same step.
            while lines
                .clone()
                .next()
                .is_some_and(|line| line.starts_with("      "))
            {
                lines.next();
            }
        }
        // The description of an alert has the same steps first.
        if !told.steps.is_empty() {
            let description = text::description(incident);
            assert!(description.starts_with("next 1: "), "{description}");
        }
    }
    check("forty.txt", &whole);
}
