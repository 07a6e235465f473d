//! The fleet page.

use std::borrow::Cow;
use std::collections::BTreeMap;

use askama::Template;
use epwatch_model::{Severity, State, VerdictClass};

use super::choosable::{Choosable, choosable};
use super::frame::Frame;
use super::rollout;
use crate::plot::density::{self, DensityComparison, DensityRow, Side};
use crate::plot::scale::LogScale;
use crate::plot::svg::Drawing;
use crate::plot::{bars, spark, strip};
use crate::read::fleet::{FleetPage, FleetRow, ModelGroup, OpenIncident};
use crate::read::gaps;
use crate::read::ledger::MAX_DAYS;
use crate::text::name::{Link, Name, visible, visible_sentence};
use crate::text::number;
use crate::text::time::length;
use crate::text::words::{self, Icon, Tone};

/// The comparison on one axis has at most this many rows.
const MAX_MULTIPLES: usize = 8;

#[derive(Template)]
#[template(path = "fleet.html")]
struct FleetHtml<'a> {
    frame: &'a Frame,
    page: &'a FleetPage,
    app: &'a str,
    environment: &'a str,
    axis: Option<LogScale>,
}

/// A model with what is drawn on one axis.
struct Multiples<'a> {
    model: &'a str,
    drawings: [Drawing; 2],
    /// Address of the drawing alone.
    alone: Link,
}

/// Addresses of the drawings over chipsets.
const ALONE: [&str; 4] = [
    "/fleet/latency-1.svg",
    "/fleet/latency-2.svg",
    "/fleet/latency-3.svg",
    "/fleet/latency-4.svg",
];

/// Returns the answer in a sentence, made from the verdicts.
pub(crate) fn headline(page: &FleetPage) -> String {
    let with = |severity: Severity| {
        let open = page.told();
        open.filter(|open| open.row.severity == severity.as_str())
            .count()
    };
    let (pages, tickets) = (with(Severity::Page), with(Severity::Ticket));
    let open = words::open(pages, tickets);
    let rest = rest(page, pages + tickets == 0);
    match rest.is_empty() {
        true => words::capital(&open),
        false => words::capital(&format!("{open}; {rest}")),
    }
}

/// Returns the headline's part about cohorts without an open incident.
fn rest(page: &FleetPage, is_quiet: bool) -> String {
    // A model on a chipset counts once, by its worst version.
    let mut cohorts: BTreeMap<(&str, &str), Tone> = BTreeMap::new();
    for group in &page.models {
        for row in group.all_rows() {
            let name = (&*group.model, &*row.cohort.chipset);
            let worst = cohorts.entry(name).or_insert(row.tone());
            *worst = row.tone().min(*worst);
        }
    }
    let noun = match page.models.len() {
        1 => "chipset",
        _ => "cohort",
    };
    let of_tone = |tone| cohorts.values().filter(|of| **of == tone).count();
    let (fine, unknown, noted) = (
        of_tone(Tone::Fine),
        of_tone(Tone::Quiet),
        of_tone(Tone::Info),
    );
    let unconfirmed = match is_quiet {
        true => of_tone(Tone::Page) + of_tone(Tone::Ticket),
        false => 0,
    };
    match (fine, unknown, noted + unconfirmed, is_quiet) {
        (0, 0, 0, _) => return String::new(),
        (0, _, 0, true) => return format!("no {noun} has enough data yet"),
        (0, _, 0, false) => return "the others have too little data".to_owned(),
        (1, 0, 0, true) => return format!("the one {noun} is fine"),
        (n, 0, 0, true) => return format!("{} are fine", words::all_things(n, noun)),
        (1, 0, 0, false) => return format!("the other {noun} is fine"),
        (n, 0, 0, false) => return format!("the other {} {noun}s are fine", number::in_words(n)),
        _ => {}
    }
    let verb = |n: usize, one: &'static str, many: &'static str| if n == 1 { one } else { many };
    let parts = [
        (
            unconfirmed,
            verb(
                unconfirmed,
                "looks bad, not confirmed yet",
                "look bad, not confirmed yet",
            ),
        ),
        (fine, verb(fine, "is fine", "are fine")),
        (noted, verb(noted, "has a note", "have a note")),
        (
            unknown,
            verb(unknown, "has too little data", "have too little data"),
        ),
    ];
    let parts = parts.into_iter().filter(|(n, _)| *n > 0).enumerate();
    let parts = parts.map(|(at, (n, what))| match at {
        0 => format!("{} {what}", words::things(n, noun)),
        _ => format!("{} {what}", number::in_words(n)),
    });
    parts.collect::<Vec<_>>().join(", ")
}

impl<'a> FleetHtml<'a> {
    fn headline(&self) -> String {
        headline(self.page)
    }

    fn apps(&self) -> Vec<Choosable> {
        let all = self.page.choices.iter().map(|choice| &*choice.app);
        choosable(all, Some(self.app))
    }

    fn environments(&self) -> Vec<Choosable> {
        let all = self
            .page
            .choices
            .iter()
            .filter(|choice| choice.app == self.app);
        choosable(
            all.map(|choice| &*choice.environment),
            Some(self.environment),
        )
    }

    fn head(&self) -> Option<Drawing> {
        self.axis.map(strip::head)
    }

    fn since(&self) -> String {
        self.page
            .period
            .map_or_else(String::new, |period| self.frame.clock(&period.from))
    }

    fn strip(&self, row: &FleetRow) -> Option<Drawing> {
        let (axis, now) = (self.axis?, row.latencies.as_ref()?);
        let before = row.latencies_before.as_ref().map(|before| before.quantiles);
        let q = now.quantiles;
        let mut label = format!(
            "version {}: p10 {}, median {}, p90 {}",
            visible(&row.cohort.version),
            number::ms(Some(q.p10_us)),
            number::ms(Some(q.p50_us)),
            number::ms(Some(q.p90_us)),
        );
        if let (Some(version), Some(before)) = (&row.before, before) {
            label += &format!(
                "; version {}: median {}",
                visible(version),
                number::ms(Some(before.p50_us))
            );
        }
        Some(strip::row(
            axis,
            q,
            before,
            row.tone() == Tone::Page,
            &label,
        ))
    }

    fn spark(&self, row: &FleetRow) -> Option<Drawing> {
        let points = |slots: &[crate::read::windows::Slot]| -> Vec<(f64, f64)> {
            slots
                .iter()
                .filter_map(|slot| Some((slot.at, slot.p50_us?)))
                .collect()
        };
        let (now, before) = (points(&row.slots), points(&row.slots_before));
        let median = |points: &[(f64, f64)]| number::ms(points.last().map(|(_, us)| *us));
        let label = format!("median over time, {} at last", median(&now));
        let gaps = self
            .page
            .period
            .map(|period| gaps::places(&self.page.gaps, period));
        let gaps = gaps.unwrap_or_default();
        spark::medians(&now, &before, &gaps, row.tone() == Tone::Page, &label)
    }

    /// Returns a sentence on the windows that are missing.
    fn missing(&self) -> Option<String> {
        gaps::words(&self.page.gaps, |at| self.frame.clock(&at))
    }

    /// Returns what became of the app's reports, and the address of its ledger.
    fn ledger(&self) -> Option<(Link, String)> {
        let of = self.page.ledger.as_ref()?;
        let link = Link::to("/ledger")
            .with("app", &of.app)
            .with("environment", &of.environment);
        let [recorded, missing, conflict] =
            [of.recorded, of.missing, of.conflict].map(number::count);
        let text = format!(
            "{recorded} reports of {MAX_DAYS} days: {missing} missing or on the way, {conflict} in conflict"
        );
        Some((link, text))
    }

    fn npu(&self, row: &FleetRow) -> Option<Drawing> {
        bars::npu(row.cohort.npu_share, |text| {
            words::of_accelerator(&row.cohort.chipset, text)
        })
    }

    fn cohort(&self, row: &FleetRow) -> Link {
        Link::to("/cohort")
            .with("app", self.app)
            .with("environment", self.environment)
            .with("model", &row.cohort.model)
            .with("version", &row.cohort.version)
            .with("chipset", &row.cohort.chipset)
    }

    /// Returns the page that answers whether a model's newest version may go to more devices.
    fn rollout(&self, group: &ModelGroup) -> Link {
        rollout::link(self.app, self.environment, &group.model, &group.newest)
    }

    /// Returns the models whose chipsets are drawn on one axis, with their drawings.
    fn multiples(&self) -> Vec<Multiples<'a>> {
        let groups = self.page.models.iter().zip(ALONE).enumerate();
        let drawn = groups.filter_map(|(at, (group, path))| {
            let drawings = multiples(at, group, self.page)?;
            let alone = Link::to(path)
                .with("app", self.app)
                .with("environment", self.environment)
                .with("q", &self.page.query.search);
            Some(Multiples {
                model: &group.model,
                drawings,
                alone,
            })
        });
        drawn.collect()
    }

    fn tone(&self, row: &FleetRow) -> &'static str {
        row.tone().class()
    }
}

impl OpenIncident {
    fn tone(&self) -> Tone {
        Tone::of(&self.row.verdict, &self.row.severity)
    }

    fn icon(&self) -> Icon {
        self.tone().icon()
    }

    fn tag(&self, frame: &Frame) -> String {
        let severity = words::severity(&self.row.severity);
        let held = match self.row.state() {
            Some(State::Mitigated) => ", held by a directive",
            _ => "",
        };
        // The window that showed it first may have begun a day before.
        let fired_at = self.document.incident.as_ref().and_then(|of| of.fired_at);
        match fired_at.or(self.row.started_at) {
            Some(at) => {
                let seconds = frame.now.as_second() - at.as_second();
                format!("{severity}{held}, for {}", length(seconds))
            }
            None => format!("{severity}{held}"),
        }
    }

    fn link(&self) -> Link {
        Link::to("/incident").with("id", &self.row.incident)
    }

    /// Returns the effect, the words between the model's and the chipset's name.
    fn effect(&self) -> String {
        let verb = |now: &'static str, past: &'static str| match self.last_seen {
            Some(_) => past,
            None => now,
        };
        match number::times_slower(self.row.latency_ratio) {
            Some(slower) => {
                let verb = words::runs(self.versions().len(), self.last_seen.is_some());
                format!("{verb} {slower}")
            }
            None => match self.row.class() {
                Some(VerdictClass::WrongOutputs) => {
                    format!("{} wrong outputs", verb("computes", "computed"))
                }
                Some(VerdictClass::QuantisationLoss) => {
                    format!("{} its outputs by the quantisation", verb("loses", "lost"))
                }
                Some(VerdictClass::NpuStartFailure) => {
                    let chipset = self.row.chipsets.first().map_or("", String::as_str);
                    let text = format!("{} not start on the NPU", verb("does", "did"));
                    words::of_accelerator(chipset, &text)
                }
                Some(VerdictClass::CvSpike) => format!("{} more", verb("varies", "varied")),
                _ => {
                    let fault = words::within_sentence(&words::fault(&self.row.verdict));
                    format!("{} \u{201c}{fault}\u{201d}", verb("shows", "showed"))
                }
            },
        }
    }

    fn versions(&self) -> Vec<Name<'_>> {
        let versions = self.document.versions(&self.row.version).into_iter();
        versions.map(Name).collect()
    }

    /// Returns the devices and the work that moved, as a sentence up to the ops.
    fn extent(&self, frame: &Frame) -> String {
        let text = match self.moved_work() {
            Some(moved) => format!("{}, {moved}", self.devices()),
            None => self.devices(),
        };
        match self.last_seen {
            Some(at) => format!(
                "Last seen in the window until {}: {}",
                frame.clock(&at),
                words::within_sentence(&text)
            ),
            None => text,
        }
    }

    /// Returns a sentence about the versions that the devices run by now.
    fn moved(&self) -> Option<String> {
        let moved = self.last_seen.and_then(|_| self.document.moved())?;
        Some(format!("{}.", visible_sentence(&moved)))
    }

    /// Returns a sentence about how near its end is, if the fault is past.
    fn progress(&self) -> Option<String> {
        let progress = self.last_seen.and_then(|_| self.document.progress())?;
        Some(format!("{progress}."))
    }

    fn chipsets(&self) -> Vec<Name<'_>> {
        self.row
            .chipsets
            .iter()
            .map(|chipset| Name(chipset))
            .collect()
    }

    fn devices(&self) -> String {
        let (hit, seen) = (self.row.devices_hit, self.row.devices_seen);
        match hit == seen {
            true => format!("On all {} there", number::of_them(hit, "device")),
            false => format!(
                "On {} of {} there",
                number::count(hit),
                number::of_them(seen, "device")
            ),
        }
    }

    fn moved_work(&self) -> Option<String> {
        let share = number::finite(self.row.cpu_macs_share).filter(|share| *share > 0.0)?;
        let verb = if self.last_seen.is_some() {
            "was"
        } else {
            "is"
        };
        let share = number::share(Some(share));
        Some(format!("{share} of the model's work {verb} on the CPU"))
    }

    fn ops(&self) -> String {
        let ops: Vec<String> = self
            .row
            .cpu_ops
            .iter()
            .take(8)
            .map(|op| visible(op))
            .collect();
        ops.join(", ")
    }
}

impl FleetRow {
    fn icon(&self) -> Icon {
        self.tone().icon()
    }

    fn verdict(&self) -> Cow<'_, str> {
        words::verdict(&self.cohort.verdict)
    }

    fn chipset_name(&self) -> &'static str {
        words::chipset_name(&self.cohort.chipset)
    }

    fn is_page(&self) -> bool {
        self.tone() == Tone::Page
    }

    fn times(&self) -> String {
        number::times(self.cohort.latency_ratio)
    }

    fn share(&self) -> String {
        number::share(self.cohort.npu_share)
    }

    fn hit(&self) -> String {
        number::count(self.cohort.hit)
    }

    fn devices(&self) -> String {
        number::count(self.cohort.devices)
    }
}

impl ModelGroup {
    fn newest_on(&self, frame: &Frame) -> String {
        let since = self.newest_since.map_or_else(String::new, |at| {
            format!(" first judged at {}", frame.clock(&at))
        });
        format!(
            "{since}, on {} of {}",
            number::count(self.devices_on_newest),
            number::of_them(self.devices, "device")
        )
    }

    fn n_fine(&self) -> String {
        number::of_them(self.fine.len() as u64, "chipset")
    }

    pub(crate) fn n_strays(&self) -> String {
        number::of_them(self.strays.len() as u64, "chipset")
    }
}

fn multiples(at: usize, group: &ModelGroup, page: &FleetPage) -> Option<[Drawing; 2]> {
    let rows = group.rows.iter().chain(&group.fine).take(MAX_MULTIPLES);
    let texts: Vec<_> = rows
        .filter_map(|row| {
            let now = row.latencies.as_ref()?;
            let label = format!("version {}", visible(&row.cohort.version));
            let before = row.before.as_deref().map(visible).unwrap_or_default();
            let before = format!("version {before}");
            Some((row, now, (label, before), visible(&row.cohort.chipset)))
        })
        .collect();
    let mut words = Vec::new();
    let rows: Vec<DensityRow<'_>> = texts
        .iter()
        .map(|(row, now, (label, label_before), chipset)| {
            let before = row.latencies_before.as_ref();
            let medians = page.verdict_on(&row.cohort);
            let medians = medians.and_then(|verdict| verdict.numbers.medians_of_most());
            let (median, median_before) = medians.unwrap_or((
                now.quantiles.p50_us,
                before.map_or(f64::NAN, |before| before.quantiles.p50_us),
            ));
            let and_before = before.map_or_else(String::new, |_| {
                format!(", before {}", number::ms(Some(median_before)))
            });
            words.push(format!(
                "{chipset}: median {}{and_before}",
                number::ms(Some(median))
            ));
            DensityRow {
                title: chipset,
                subtitle: row.chipset_name(),
                comparison: DensityComparison {
                    now: Side {
                        density: &now.density,
                        label,
                        median_us: median,
                    },
                    before: before.map(|before| Side {
                        density: &before.density,
                        label: label_before,
                        median_us: median_before,
                    }),
                    is_bad: row.tone() == Tone::Page,
                    ratio: number::finite(row.cohort.latency_ratio),
                    small: None,
                    words: "",
                },
            }
        })
        .collect();
    let words = words.join("; ") + ".";
    density::multiples(&format!("m{at}"), &rows, &words)
}

pub(crate) fn fleet(frame: &Frame, page: &FleetPage) -> askama::Result<String> {
    let rows = || page.models.iter().flat_map(ModelGroup::all_rows);
    let all = rows().flat_map(|row| [row.latencies.as_ref(), row.latencies_before.as_ref()]);
    let axis = strip::axis_of(all.flatten().map(|latencies| latencies.quantiles));
    FleetHtml {
        frame,
        page,
        app: page.app.as_deref().unwrap_or_default(),
        environment: page.environment.as_deref().unwrap_or_default(),
        axis,
    }
    .render()
}

/// Returns the drawing of a model over its chipsets: `latency-1` is the drawing of the first model.
pub(crate) fn drawing(page: &FleetPage, name: &str) -> Option<Drawing> {
    let number: usize = name.strip_prefix("latency-")?.parse().ok()?;
    let at = number.checked_sub(1)?;
    let both = multiples(at, page.models.get(at)?, page)?;
    both.into_iter().next()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::read::incident::tests::fallback;
    use crate::read::windows::CohortRow;

    fn open(part_of: Option<&str>, last_seen: Option<Timestamp>) -> OpenIncident {
        let mut page = fallback("");
        page.row.part_of = part_of.map(str::to_owned);
        OpenIncident {
            row: page.row,
            document: page.document,
            last_seen,
        }
    }

    /// The channels got one notification for both incidents.
    #[test]
    fn an_incident_and_its_part_are_one_page() {
        let page = FleetPage {
            open: vec![open(None, None), open(Some("i-1"), None)],
            ..FleetPage::default()
        };
        assert_eq!(headline(&page), "One page is open");
    }

    /// Checks [O3].
    #[test]
    fn a_fault_that_the_last_window_does_not_show_is_in_the_past() {
        let frame = Frame::new(Timestamp::UNIX_EPOCH, None);
        let now = open(None, None);
        assert_eq!(now.effect(), "runs 4.0 times slower");
        let extent = "On 134 of 140 devices there, 26 % of the model's work is on the CPU";
        let spaces = |text: String| text.replace(['\u{202f}', '\u{a0}'], " ");
        assert_eq!(spaces(now.extent(&frame)), extent);
        let past = open(None, Some(Timestamp::UNIX_EPOCH));
        assert_eq!(past.effect(), "ran 4.0 times slower");
        let extent = "Last seen in the window until 00:00:00: on 134 of 140 devices there, 26 % of the model's work was on the CPU";
        assert_eq!(spaces(past.extent(&frame)), extent);
    }

    fn row(
        model: &str,
        version: &str,
        chipset: &str,
        (verdict, severity): (&str, &str),
    ) -> FleetRow {
        let cohort = CohortRow {
            model: model.to_owned(),
            version: version.to_owned(),
            chipset: chipset.to_owned(),
            verdict: verdict.to_owned(),
            severity: severity.to_owned(),
            devices: 10,
            ..CohortRow::default()
        };
        FleetRow {
            cohort,
            before: None,
            latencies: None,
            latencies_before: None,
            slots: Vec::new(),
            slots_before: Vec::new(),
        }
    }

    #[track_caller]
    fn check(rows: Vec<FleetRow>, expected: &str) {
        let mut page = FleetPage::default();
        for row in rows {
            let model = row.cohort.model.clone();
            match page.models.iter_mut().find(|group| group.model == model) {
                Some(group) => group.rows.push(row),
                None => page.models.push(ModelGroup {
                    model,
                    newest: String::new(),
                    newest_since: None,
                    devices_on_newest: 0,
                    devices: 0,
                    rows: vec![row],
                    strays: Vec::new(),
                    fine: Vec::new(),
                }),
            }
        }
        assert_eq!(headline(&page), expected);
    }

    const FINE: (&str, &str) = ("healthy", "none");
    const UNKNOWN: (&str, &str) = ("not_enough_data", "info");
    const NOTED: (&str, &str) = ("thermal_or_load", "info");
    const BAD: (&str, &str) = ("partial_fallback", "page");

    #[test]
    fn the_headline_counts_each_model_on_a_chipset_once() {
        check(
            vec![row("m", "2", "A", FINE), row("m", "2", "B", FINE)],
            "Nothing is open; both chipsets are fine",
        );
        // Two models on two chipsets are not four chipsets.
        let of = |model| [row(model, "2", "A", FINE), row(model, "2", "B", FINE)];
        check(
            of("m").into_iter().chain(of("n")).collect(),
            "Nothing is open; all four cohorts are fine",
        );
        check(
            vec![
                row("m", "2", "A", BAD),
                row("m", "1", "A", FINE),
                row("m", "2", "B", FINE),
                row("m", "2", "C", NOTED),
                row("m", "2", "D", UNKNOWN),
            ],
            "Nothing is open; one chipset looks bad, not confirmed yet, one is fine, one has a note, \
             one has too little data",
        );
        check(
            vec![row("m", "2", "A", UNKNOWN)],
            "Nothing is open; no chipset has enough data yet",
        );
    }
}
