//! The fleet page.

use std::borrow::Cow;

use askama::Template;

use super::frame::Frame;
use crate::plot::density::{self, Comparison, Row, Side};
use crate::plot::scale::LogScale;
use crate::plot::svg::Drawing;
use crate::plot::{bars, spark, strip};
use crate::read::fleet::{FleetPage, FleetRow, ModelGroup, OpenIncident};
use crate::text::name::{Link, Name, visible};
use crate::text::number;
use crate::text::time::length;
use crate::text::words::{self, Icon, Tone};

/// Rows of the comparison on one axis.
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

/// A select's option.
struct Choosable {
    value: String,
    label: String,
    is_chosen: bool,
}

/// A model with what is drawn on one axis.
struct Multiples<'a> {
    model: &'a str,
    drawing: Drawing,
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
    let rows = || {
        page.models
            .iter()
            .flat_map(|group| group.rows.iter().chain(&group.fine))
    };
    let with = |severity: &str| {
        page.open
            .iter()
            .filter(|open| open.row.severity == severity)
            .count()
    };
    let (pages, tickets) = (with("page"), with("ticket"));
    let of_tone = |tone| rows().filter(|row| row.tone() == tone).count();
    let (fine, unknown) = (of_tone(Tone::Fine), of_tone(Tone::Quiet));
    let open = match (pages, tickets) {
        (0, 0) => "Nothing is open".to_owned(),
        (0, n) => are_open(n, "ticket"),
        (n, 0) => are_open(n, "page"),
        (n, m) => format!("{} and {} are open", things(n, "page"), things(m, "ticket")),
    };
    let quiet = pages + tickets == 0;
    let rest = match (fine, unknown, quiet) {
        (0, 0, _) => return capital(&open),
        (0, _, true) => "no chipset has enough data yet".to_owned(),
        (0, _, false) => "the others have too little data".to_owned(),
        (1, 0, true) => "the one chipset is fine".to_owned(),
        (n, 0, true) => format!("all {} chipsets are fine", number::in_words(n)),
        (1, 0, false) => "the other chipset is fine".to_owned(),
        (n, 0, false) => format!("the other {} chipsets are fine", number::in_words(n)),
        (n, m, _) => format!(
            "{} {} fine, {} {} too little data",
            things(n, "chipset"),
            if n == 1 { "is" } else { "are" },
            number::in_words(m),
            if m == 1 { "has" } else { "have" }
        ),
    };
    capital(&format!("{open}; {rest}"))
}

impl<'a> FleetHtml<'a> {
    fn headline(&self) -> String {
        headline(self.page)
    }

    fn apps(&self) -> Vec<Choosable> {
        let all = self.page.choices.iter().map(|choice| &*choice.app);
        choosable(all, self.app)
    }

    fn environments(&self) -> Vec<Choosable> {
        let all = self
            .page
            .choices
            .iter()
            .filter(|choice| choice.app == self.app);
        choosable(all.map(|choice| &*choice.environment), self.environment)
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
        spark::medians(&now, &before, row.tone() == Tone::Page, &label)
    }

    fn npu(&self, row: &FleetRow) -> Option<Drawing> {
        bars::npu(row.cohort.npu_share)
    }

    fn cohort(&self, row: &FleetRow) -> Link {
        Link::to("/cohort")
            .with("app", self.app)
            .with("environment", self.environment)
            .with("model", &row.cohort.model)
            .with("version", &row.cohort.version)
            .with("chipset", &row.cohort.chipset)
    }

    /// Returns the models whose chipsets are drawn on one axis, with their drawings.
    fn multiples(&self) -> Vec<Multiples<'a>> {
        let groups = self.page.models.iter().zip(ALONE).enumerate();
        let drawn = groups.filter_map(|(at, (group, path))| {
            let drawing = multiples(at, group)?;
            let alone = Link::to(path)
                .with("app", self.app)
                .with("environment", self.environment)
                .with("q", &self.page.query.search);
            Some(Multiples {
                model: &group.model,
                drawing,
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
        let severity = match &*self.row.severity {
            "page" => "Page",
            "ticket" => "Ticket",
            other => other,
        };
        let held = if self.row.state == "mitigated" {
            ", held by a directive"
        } else {
            ""
        };
        match self.row.started_at {
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

    /// Returns the effect: what stands between the model's and the chipset's name.
    fn effect(&self) -> String {
        match number::finite(self.row.latency_ratio) {
            Some(ratio) if ratio >= 1.05 => format!("runs {ratio:.1} times slower"),
            _ => match &*self.row.verdict {
                "wrong_outputs" => "computes wrong outputs".to_owned(),
                "npu_start_failure" => "does not start on the NPU".to_owned(),
                "cv_spike" => "varies more".to_owned(),
                other => format!("shows: {}", words::fault(other).to_lowercase()),
            },
        }
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

    fn moved(&self) -> Option<String> {
        let share = number::finite(self.row.cpu_macs_share).filter(|share| *share > 0.0)?;
        Some(format!(
            "{} of the model's work is on the CPU",
            number::share(Some(share))
        ))
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
        let since = self
            .newest_since
            .map_or_else(String::new, |at| format!(" since {}", frame.clock(&at)));
        format!(
            "{since}, on {} of {}",
            number::count(self.devices_on_newest),
            number::of_them(self.devices, "device")
        )
    }

    fn n_fine(&self) -> String {
        number::of_them(self.fine.len() as u64, "chipset")
    }
}

/// Returns each value once, and the chosen one also if it is unknown.
fn choosable<'a>(values: impl Iterator<Item = &'a str>, chosen: &'a str) -> Vec<Choosable> {
    let mut all: Vec<&str> = Vec::new();
    for value in values.chain([chosen]) {
        if !all.contains(&value) {
            all.push(value);
        }
    }
    let option = |value: &&str| Choosable {
        value: (*value).to_owned(),
        label: visible(value),
        is_chosen: *value == chosen,
    };
    all.iter().map(option).collect()
}

fn things(n: usize, noun: &str) -> String {
    let s = if n == 1 { "" } else { "s" };
    format!("{} {noun}{s}", number::in_words(n))
}

fn are_open(n: usize, noun: &str) -> String {
    format!(
        "{} {} open",
        things(n, noun),
        if n == 1 { "is" } else { "are" }
    )
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_uppercase().to_string());
    first.unwrap_or_default() + chars.as_str()
}

fn multiples(at: usize, group: &ModelGroup) -> Option<Drawing> {
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
    let rows: Vec<Row<'_>> = texts
        .iter()
        .map(|(row, now, (label, label_before), chipset)| {
            let before = row.latencies_before.as_ref();
            let medians = before.map_or_else(String::new, |before| {
                format!(", before {}", number::ms(Some(before.quantiles.p50_us)))
            });
            words.push(format!(
                "{chipset}: median {}{medians}",
                number::ms(Some(now.quantiles.p50_us))
            ));
            let side = |latencies: &'_ crate::histogram::Latencies| (latencies.quantiles.p50_us,);
            Row {
                title: chipset,
                subtitle: row.chipset_name(),
                comparison: Comparison {
                    now: Side {
                        density: &now.density,
                        label,
                        median_us: side(now).0,
                    },
                    before: before.map(|before| Side {
                        density: &before.density,
                        label: label_before,
                        median_us: side(before).0,
                    }),
                    is_bad: row.tone() == Tone::Page,
                    ratio: number::finite(row.cohort.latency_ratio),
                    words: "",
                },
            }
        })
        .collect();
    let words = words.join("; ") + ".";
    density::multiples(&format!("m{at}"), &rows, &words)
}

pub(crate) fn fleet(frame: &Frame, page: &FleetPage) -> askama::Result<String> {
    let rows = || {
        page.models
            .iter()
            .flat_map(|group| group.rows.iter().chain(&group.fine))
    };
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

/// Returns the drawing of a model over its chipsets: `latency-1` is that of the first.
pub(crate) fn drawing(page: &FleetPage, name: &str) -> Option<Drawing> {
    let number: usize = name.strip_prefix("latency-")?.parse().ok()?;
    let at = number.checked_sub(1)?;
    multiples(at, page.models.get(at)?)
}
