//! Fleets recorded with another simulator, each with its labels. They are stored next to the repository, not in it. If
//! they do not exist, a line names each fleet that is left out.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use epwatch_detector::replay::read_files;
use epwatch_model::summary::VerdictSummary;

use super::*;

/// The replay's lines of a fleet, with its labels.
struct Told {
    lines: Vec<Line>,
    /// Devices seen and hit, by `model|version|chipset` and day.
    labels: BTreeMap<String, BTreeMap<i64, (u64, u64)>>,
    first_day: i64,
}

fn day_of(time: &str) -> i64 {
    let time: jiff::Timestamp = time.parse().unwrap();
    time.as_millisecond().div_euclid(DAY_MS)
}

impl Told {
    /// Replays a fleet, with one window a day; `None` if its recording does not exist.
    async fn of(name: &str) -> Option<Self> {
        // Uses the crate's folder at run time, so that a binary that was built elsewhere finds it too.
        let here = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
        let here = here.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let folder = here.join("../../../shared/fleets");
        if !std::fs::exists(&folder).unwrap() {
            // This does not use `eprintln!`, whose lines are hidden if the test passes.
            let line = format!("left out, since ../shared/fleets does not exist: {name}\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            return None;
        }
        let packed = folder.join(format!("{name}.pb.xz"));
        let unpacked = Command::new("xz").arg("-dc").arg(packed).output();
        let unpacked = unpacked.expect("xz unpacks the recorded fleets: install xz-utils");
        assert!(unpacked.status.success(), "{unpacked:?}");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), unpacked.stdout).unwrap();
        let read = read_files(&[file.path().to_owned()], HOUR).unwrap();
        assert_eq!((read.refused, read.torn.len()), (0, 0));
        let source = Source::recorded(Arc::new(read.recording), 2_000_000);
        let options = ReplayOptions {
            from: None,
            ..options()
        };
        let lines = lines_with(source, &options).await;
        let text = std::fs::read_to_string(folder.join(format!("{name}.labels.txt"))).unwrap();
        let labels = text.split_once(" reports ").unwrap().1;
        let labels: BTreeMap<String, BTreeMap<i64, (u64, u64)>> =
            serde_json::from_str(labels).unwrap();
        let ends = lines.iter().filter_map(|line| match line {
            Line::Verdict(verdict) => Some(day_of(&verdict.window_end)),
            _ => None,
        });
        let first_day = ends.min().unwrap() - 1;
        Some(Told {
            lines,
            labels,
            first_day,
        })
    }

    fn day(&self, window_end: &str) -> i64 {
        day_of(window_end) - 1 - self.first_day
    }

    /// Returns the verdicts of this severity on chipsets.
    fn found(&self, severity: Severity) -> impl Iterator<Item = &VerdictSummary> {
        let verdicts = self.lines.iter().filter_map(|line| match line {
            Line::Verdict(verdict) => Some(&**verdict),
            _ => None,
        });
        verdicts.filter(move |verdict| verdict.severity == severity && verdict.firmware.is_empty())
    }

    /// Returns the devices seen and hit according to the label.
    fn label(&self, verdict: &VerdictSummary) -> (u64, u64) {
        let key = format!("{}|{}|{}", verdict.model, verdict.version, verdict.chipset);
        self.labels[&key][&self.day(&verdict.window_end)]
    }

    /// Returns the days and summaries of incidents that fired with this severity.
    fn fired(&self, severity: Severity) -> Vec<(i64, IncidentSummary)> {
        let changes = incidents(&self.lines).into_iter();
        let fired = changes.filter(|(_, incident)| {
            incident.state == State::Firing && incident.severity == severity
        });
        fired
            .map(|(end, incident)| (self.day(&end), incident))
            .collect()
    }

    /// Checks that no page or ticket is about a cohort that the labels call healthy, and that counts do not exceed the
    /// labels.
    fn check_cohorts(&self) {
        for severity in [Severity::Page, Severity::Ticket] {
            for verdict in self.found(severity) {
                let (seen, hit) = self.label(verdict);
                let told = format!("{} {:#?}", verdict.window_end, verdict.reasons);
                assert!(hit > 0, "{severity:?}: {told}");
                // Healthy devices are also slow at times.
                assert!(verdict.devices_hit <= hit + 2 + seen / 20, "{hit}: {told}");
                assert!(verdict.devices_seen <= seen, "{seen}: {told}");
            }
        }
    }

    /// Checks that the first page or ticket fires by this day.
    fn check_first(&self, severity: Severity, by_day: i64) {
        let fired = self.fired(severity);
        let first = fired.first().map(|(day, _)| *day);
        assert!(first.is_some_and(|day| day <= by_day), "{first:?}");
    }

    fn check_says(&self, severity: Severity, says: &str) {
        let mut reasons = self.found(severity).flat_map(|verdict| &verdict.reasons);
        assert!(reasons.any(|reason| reason.contains(says)), "{says}");
    }
}

#[tokio::test]
async fn a_fix_that_is_as_bad_does_not_end_the_incident() {
    let Some(told) = Told::of("fix-as-bad").await else {
        return;
    };
    told.check_cohorts();
    told.check_first(Severity::Page, 10);
    let changes = incidents(&told.lines);
    let resolved = changes
        .iter()
        .filter(|(_, one)| one.state == State::Resolved);
    assert_eq!(resolved.count(), 0);
    let next = told
        .found(Severity::Page)
        .filter(|verdict| verdict.version == "2.0.1");
    assert!(next.count() >= 4);
}

#[tokio::test]
async fn a_firmware_under_all_models_pages() {
    let Some(told) = Told::of("firmware-slows-all-models").await else {
        return;
    };
    told.check_cohorts();
    // Expected from the first day on which a tenth of the devices has the firmware.
    told.check_first(Severity::Page, 12);
    told.check_says(Severity::Page, "it comes with a firmware");
}

#[tokio::test]
async fn a_gain_that_a_firmware_takes_away_pages() {
    let Some(told) = Told::of("gained-and-lost").await else {
        return;
    };
    told.check_cohorts();
    told.check_first(Severity::Page, 15);
    told.check_says(Severity::Page, "same version");
    told.check_says(Severity::Page, "it comes with a firmware");
}

#[tokio::test]
async fn slow_runs_of_the_first_version_are_a_finding() {
    let Some(told) = Told::of("first-version-intermittent").await else {
        return;
    };
    told.check_cohorts();
    told.check_first(Severity::Ticket, 11);
    let after = told.lines.iter().filter_map(|line| match line {
        Line::Verdict(verdict) if told.day(&verdict.window_end) >= 10 => Some(&verdict.reasons),
        _ => None,
    });
    let mut reasons = after.flatten();
    assert!(!reasons.any(|reason| reason.contains("about as fast")));
}

#[tokio::test]
async fn a_make_that_never_had_the_npu_is_a_ticket() {
    let Some(told) = Told::of("new-make-of-phone").await else {
        return;
    };
    told.check_cohorts();
    assert!(told.fired(Severity::Page).is_empty());
    told.check_first(Severity::Ticket, 11);
    told.check_says(Severity::Ticket, "others of this chipset");
}
