//! Checks that the text of a story's first page or ticket is true. Each noun in it (version, firmware, runtime, input
//! shape, counts, cause) is compared with the labels of the fleet.

use std::collections::BTreeSet;

use epwatch_detector::replay::{IncidentLine, Line};
use epwatch_model::State;
use epwatch_proto::InstallationId;
use epwatch_proto::device::vendor_fingerprint_hash;
use epwatch_proto::histogram::bucket_low_us;

use crate::labelled::FamilyReport;

use super::told::day_of;
use super::{
    CHIPSET, FIRMWARE, LARGE_SHAPE, NEW_FROM, NEW_RUNTIME, Story, THEN, day, has_firmware,
    is_of_some, is_there, luck,
};

/// Minimum share of the labelled devices hit that the first text must name. In one window some have too few runs to be
/// seen.
const LEAST_TOLD: f64 = 0.35;

/// The line that counts runs beyond the deadline.
const LATE: &str = "late:";

/// Largest difference between a share of runs in the text and its label. The text rounds, and some devices have no vote.
const SHARE_TOLERANCE: f64 = 0.05;

/// The words that a text may have, and the words that it must have.
struct Labels {
    versions: &'static [&'static str],
    firmware: Option<String>,
    runtime: bool,
    shape: bool,
    forbidden: Vec<&'static str>,
    required: Vec<&'static str>,
}

impl Story {
    fn labels(self) -> Labels {
        let since_within = matches!(
            self,
            Story::FirmwareSlowsAllModels
                | Story::GainedAndLost
                | Story::FirstVersionIntermittent
                | Story::NewMake
        );
        let is_load = matches!(self, Story::BusyOnTheFirstDay | Story::LoadThatLasts);
        let mut forbidden = vec![" 0 devices", "0 devices reported", "about as fast"];
        if since_within {
            forbidden.extend(["Compare the model with the version before", "keep version"]);
        }
        if !is_load {
            forbidden.extend(["heavier model", "larger inputs or the app"]);
        }
        if matches!(
            self,
            Story::BusyOnTheFirstDay
                | Story::FiveDevices
                | Story::ManyNames
                | Story::SlowDevicesAndRuns
        ) {
            forbidden.push("other chipset");
        }
        let firmware = matches!(
            self,
            Story::FirmwareSlowsAllModels | Story::GainedAndLost | Story::NewMake
        );
        Labels {
            versions: match self {
                Story::FirstVersionIntermittent | Story::NewMake => &["2.0.0"],
                // The other model is on the first version.
                Story::FirmwareSlowsAllModels | Story::LoadThatLasts => {
                    &["0.9.0", "1.0.0", "2.0.0"]
                }
                // The fault may be found in 2.0.1 first.
                Story::FixForNone => &["1.0.0", "2.0.0", "2.0.1"],
                _ => &["1.0.0", "2.0.0"],
            },
            firmware: firmware.then(|| vendor_fingerprint_hash(FIRMWARE)),
            runtime: self == Story::NewRuntime,
            shape: self == Story::LargeInputs,
            forbidden,
            required: match self {
                Story::GainedAndLost => vec!["same version"],
                Story::NewRuntime => vec![NEW_RUNTIME],
                Story::LargeInputs => vec![LARGE_SHAPE],
                Story::Reinstall => vec!["new installation ids", "1.0.0"],
                Story::CompiledForAnother => vec!["compiled"],
                _ => Vec::new(),
            },
        }
    }

    /// Whether the story slows down this device on this day.
    fn hits(self, report: &FamilyReport) -> bool {
        let (day, there, luck) = (day(report), is_there(report), luck(&report.report));
        match self {
            Story::RollBack => there && (NEW_FROM..THEN).contains(&day),
            Story::RollBackOfSome => is_of_some(report) && (NEW_FROM..THEN).contains(&day),
            Story::RollBackWithoutTheHit | Story::FixForNone | Story::RollBackForNone => {
                is_of_some(report) && day >= NEW_FROM
            }
            Story::Alternation => there && day >= THEN && luck < 0.3,
            Story::FixAsBad
            | Story::FixThatMends
            | Story::FiveDevices
            | Story::LargeInputs
            | Story::LateFrames => there && day >= NEW_FROM,
            // All devices, because they have one chipset under several names, or the story is on all chipsets.
            Story::ManyNames | Story::NewRuntime => day >= NEW_FROM,
            Story::FirmwareSlowsAllModels => has_firmware(report, 0.06),
            Story::GainedAndLost => has_firmware(report, 0.25),
            Story::FirstVersionIntermittent => there && day >= THEN && luck < 0.3,
            Story::NewMake => there && day >= THEN && luck < 0.25,
            Story::LoadThatLasts => there && day >= THEN,
            Story::BusyOnTheFirstDay => day == NEW_FROM && luck < 0.8,
            Story::SlowDevicesAndRuns => day >= THEN && luck < 0.6,
            Story::CompiledForAnother => there && day >= NEW_FROM && luck < 0.4,
            Story::RecountedMacs | Story::Reinstall => false,
        }
    }

    /// Compares the text of the first page or ticket with the labels.
    ///
    /// # Errors
    /// The first wrong noun, with the text.
    pub fn wrong_noun_in(
        self,
        reports: &[FamilyReport],
        deadline_ms: Option<f64>,
        lines: &[Line],
    ) -> Result<(), String> {
        let Some(first) = first_told(lines) else {
            return Ok(());
        };
        let text = &*first.text;
        let wrong = |what: String| Err(format!("{what}\n{text}"));
        let labels = self.labels();
        for phrase in &labels.forbidden {
            if text.contains(phrase) {
                return wrong(format!("it says {phrase:?}"));
            }
        }
        for phrase in labels
            .required
            .iter()
            .copied()
            .chain(labels.firmware.as_deref())
        {
            if !text.contains(phrase) {
                return wrong(format!("it does not say {phrase:?}"));
            }
        }
        // The last lines are statistics, with ids and hashes.
        let told: Vec<&str> = text.lines().filter(|line| !is_statistic(line)).collect();
        for word in told.iter().flat_map(|line| words(line)) {
            let is_true = match noun(word) {
                Some(Noun::Version) => labels.versions.contains(&word),
                Some(Noun::Runtime) => labels.runtime,
                Some(Noun::Firmware) => labels.firmware.as_deref() == Some(word),
                Some(Noun::Shape) => labels.shape && word == LARGE_SHAPE,
                None => true,
            };
            if !is_true {
                return wrong(format!("it names {word:?}"));
            }
        }
        let at = day_of(&first.window_end);
        let chipsets = &first.incident.chipsets;
        let named = |report: &&FamilyReport| {
            day(report) == at
                && (is_there(report) || !chipsets.contains(&CHIPSET.to_owned()) || self.is_on_all())
        };
        let devices = |matches: &dyn Fn(&&FamilyReport) -> bool| {
            let found = reports.iter().filter(named).filter(matches);
            let devices = found.map(|report| report.report.key.installation);
            devices.collect::<BTreeSet<InstallationId>>().len() as u64
        };
        let (seen, hit) = (devices(&|_| true), devices(&|report| self.hits(report)));
        if self == Story::Reinstall {
            return Ok(());
        }
        // The skipped lines count runs, not devices.
        let of_devices = told.iter().filter(|line| !line.starts_with(LATE));
        for (part, of) in of_devices.flat_map(|line| counts(line)) {
            if part > of || of > seen {
                return wrong(format!(
                    "it counts {part} of {of}, and {seen} devices reported"
                ));
            }
        }
        if let Some(deadline_ms) = deadline_ms {
            let is_late = |line: &&&str| line.starts_with(LATE);
            let line = told.iter().find(is_late);
            let said = line.and_then(|line| counts(line).into_iter().next());
            let label = share_beyond(deadline_ms, reports.iter().filter(named));
            let is_right = said.is_some_and(|(part, of)| {
                (part as f64 / of as f64 - label).abs() <= SHARE_TOLERANCE
            });
            if !is_right {
                return wrong(format!(
                    "{:.1} % of the runs take longer than {deadline_ms} ms",
                    100.0 * label
                ));
            }
        }
        if labels.shape {
            let said = told.iter().find_map(|line| share_with_the_shape(line));
            let label = share_of_shape(LARGE_SHAPE, reports.iter().filter(named));
            if said.is_none_or(|said| (said - label).abs() > SHARE_TOLERANCE) {
                return wrong(format!(
                    "{:.1} % of the runs have the input shape {LARGE_SHAPE}",
                    100.0 * label
                ));
            }
        }
        let told_hit = first.incident.devices_hit;
        // Healthy devices are also slow at times.
        let is_too_many = told_hit > hit + 2 + seen / 20;
        let told_share = told_hit as f64 / first.incident.devices_compared.max(1) as f64;
        let is_too_few = told_share < LEAST_TOLD * hit as f64 / seen.max(1) as f64;
        if is_too_many || is_too_few && !self.is_on_all() {
            return wrong(format!(
                "it counts {told_hit} devices as hit, and the label says {hit} of {seen}"
            ));
        }
        for line in told.iter().filter(|line| line.starts_with("devices:")) {
            let of_headline = told.first().and_then(|line| headline_count(line));
            let is_same = of_headline.is_none() || counts(line).first() == of_headline.as_ref();
            if !is_same {
                return wrong(format!("the headline counts {of_headline:?}"));
            }
        }
        Ok(())
    }

    /// Whether the labels cover all chipsets, or all names of one chipset.
    fn is_on_all(self) -> bool {
        matches!(self, Story::ManyNames | Story::NewRuntime)
    }
}

/// Returns the share of the clean runs that take longer than the deadline.
fn share_beyond<'a>(deadline_ms: f64, reports: impl Iterator<Item = &'a FamilyReport>) -> f64 {
    let (mut late, mut all) = (0, 0);
    let series = reports.flat_map(|report| &report.report.series);
    for series in series.filter(|series| series.stratum.is_clean()) {
        for (index, count) in series.histogram.buckets() {
            all += count;
            if bucket_low_us(index) as f64 >= 1_000.0 * deadline_ms {
                late += count;
            }
        }
    }
    late as f64 / all.max(1) as f64
}

/// Returns the share of the clean runs that have the input shape.
fn share_of_shape<'a>(shape: &str, reports: impl Iterator<Item = &'a FamilyReport>) -> f64 {
    let (mut of_shape, mut all) = (0, 0);
    let series = reports.flat_map(|report| &report.report.series);
    for series in series.filter(|series| series.stratum.is_clean()) {
        all += series.n;
        if series.stratum.shape_key == shape {
            of_shape += series.n;
        }
    }
    of_shape as f64 / all.max(1) as f64
}

/// Returns the share of the runs that a line gives for the input shape: `35 % of their runs have it`.
fn share_with_the_shape(line: &str) -> Option<f64> {
    let (before, _) = line.split_once(" % of their runs have it")?;
    let percent: f64 = before.rsplit(' ').next()?.parse().ok()?;
    Some(percent / 100.0)
}

/// Returns the first incident that is sent, with its text.
fn first_told(lines: &[Line]) -> Option<&IncidentLine> {
    lines.iter().find_map(|line| match line {
        Line::Incident(told) => {
            let incident = &told.incident;
            let is_sent = incident.state == State::Firing && incident.part_of.is_none();
            is_sent.then_some(&**told)
        }
        _ => None,
    })
}

fn is_statistic(line: &str) -> bool {
    let names = [
        "how sure", "spread", "worst", "model", "incident", "more", "ends", "since", "fired", "app",
    ];
    names.iter().any(|name| {
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(':'))
    })
}

/// A word that names something of a device.
#[derive(Debug, PartialEq)]
enum Noun {
    Version,
    Runtime,
    Firmware,
    Shape,
}

fn noun(word: &str) -> Option<Noun> {
    let is_version = |text: &str| {
        let parts: Vec<&str> = text.split('.').collect();
        let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        parts.len() == 3 && parts.iter().all(is_number)
    };
    let is_hash = word.len() == vendor_fingerprint_hash(FIRMWARE).len()
        && word
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if is_version(word) {
        Some(Noun::Version)
    } else if word
        .split_once('/')
        .is_some_and(|(ort, ep)| is_version(ort) || is_version(ep))
    {
        Some(Noun::Runtime)
    } else if is_hash {
        Some(Noun::Firmware)
    } else if word.starts_with("x:") {
        Some(Noun::Shape)
    } else {
        None
    }
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split_whitespace();
    words.map(|word| {
        word.trim_matches(|c: char| ",;.()`?".contains(c))
            .trim_end_matches(':')
    })
}

/// Returns the devices that a headline counts.
fn headline_count(line: &str) -> Option<(u64, u64)> {
    counts(line).into_iter().next()
}

/// Returns the counts of a line: `36 of 60`, `36 of the 60`, `27 hit of 60`.
fn counts(line: &str) -> Vec<(u64, u64)> {
    let words: Vec<&str> = words(line).collect();
    let mut found = Vec::new();
    for (at, word) in words.iter().enumerate().filter(|(_, word)| **word == "of") {
        let _ = word;
        let before = at.checked_sub(1).map(|at| words[at]);
        let before = match before {
            Some("hit") => at.checked_sub(2).map(|at| words[at]),
            before => before,
        };
        let after = match words.get(at + 1) {
            Some(&("the" | "its" | "those")) => words.get(at + 2),
            after => after,
        };
        let both = before.zip(after.copied());
        let both = both.and_then(|(part, of)| Some((part.parse().ok()?, of.parse().ok()?)));
        found.extend(both);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nouns_and_counts_are_found() {
        let line =
            "why: 36 of the 60 devices on 1.31.1/2.7.0 (version 2.0.0), 33.3 % of 10; 5 hit of 7.";
        assert_eq!(counts(line), [(36, 60), (5, 7)]);
        let nouns: Vec<Noun> = words(line).filter_map(noun).collect();
        assert_eq!(nouns, [Noun::Runtime, Noun::Version]);
        assert_eq!(noun("x:1x3x640x640"), Some(Noun::Shape));
        let of_shape =
            "and: it comes with the input shape x:1x3x640x640; 35.5 % of their runs have it";
        assert_eq!(share_with_the_shape(of_shape), Some(0.355));
        assert_eq!(noun(&vendor_fingerprint_hash("f1")), Some(Noun::Firmware));
    }
}
