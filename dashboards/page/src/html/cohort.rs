//! The cohort page.

use std::borrow::Cow;
use std::slice;

use askama::Template;
use epwatch_model::{CohortVerdict, Mixture, SignalId};
use jiff::SignedDuration;

use super::changes::{self, ChangesHtml};
use super::distribution::{distribution, short};
use super::frame::Frame;
use super::{grafana, rollout};
use crate::histogram::Latencies;
use crate::plot::bars::{self, PlacementBar};
use crate::plot::ratios::{self, RatioRow};
use crate::plot::svg::Drawing;
use crate::plot::timeline::{self, Lane, Moment, OverTime, TimelineLabel};
use crate::read::cohort::{CohortPage, CpuNodeRow};
use crate::read::evidence::PlottedEvidence;
use crate::read::gaps;
use crate::read::sessions::PlacementRow;
use crate::read::windows::{CohortRow, SignalRow, Slot};
use crate::text::name::{Link, Name, Sentence, visible, visible_sentence};
use crate::text::number;
use crate::text::time::length;
use crate::text::words::{self, Icon, Tone};

/// Ratios to a device's own past, in tenths. For each, a window has the detector's count of devices beyond it.
const BEYOND_TENTHS: [u16; 5] = [16, 20, 25, 32, 40];

/// Share of the compared devices from which a cohort moved as a whole.
const NEARLY_ALL: f64 = 0.9;

/// The drawing of devices by ratio shows at most this many other chipsets.
const MAX_CONTROLS: usize = 3;

#[derive(Template)]
#[template(path = "cohort.html")]
struct CohortHtml<'a> {
    frame: &'a Frame,
    page: &'a CohortPage,
}

/// A signal with its question.
struct Asked<'a> {
    signal: &'a SignalRow,
    question: words::Question,
}

/// A chipset's devices beyond ratios to their own past.
struct Beyond<'a> {
    row: &'a CohortRow,
    is_it: bool,
    cells: Vec<String>,
}

impl<'a> CohortHtml<'a> {
    fn cohort(&self) -> &'a CohortRow {
        &self.page.cohort
    }

    /// Returns the incident's verdict, whose numbers were sent to people.
    fn sent(&self) -> Option<&'a CohortVerdict> {
        self.page.document.of_chipset(&self.page.query.chipset)
    }

    /// Returns Grafana's dashboard of the same model.
    fn grafana(&self) -> Option<Link> {
        let query = &self.page.query;
        let shown = grafana::Shown {
            app: &query.app,
            environment: &query.environment,
            model: &query.model,
            version: &query.version,
            chipsets: slice::from_ref(&query.chipset),
        };
        Some(grafana::dashboard(self.frame.grafana.as_deref()?, &shown))
    }

    fn tone(&self) -> Tone {
        self.cohort().tone()
    }

    fn title(&self) -> String {
        let query = &self.page.query;
        format!(
            "{} {} on {}",
            visible(&query.model),
            visible(&query.version),
            visible(&query.chipset)
        )
    }

    fn icon(&self) -> Icon {
        self.tone().icon()
    }

    fn verdict(&self) -> Cow<'_, str> {
        words::verdict(&self.cohort().verdict)
    }

    fn chipset_name(&self) -> &'static str {
        words::chipset_name(&self.page.query.chipset)
    }

    fn is_page(&self) -> bool {
        self.tone() == Tone::Page
    }

    fn window(&self) -> String {
        let end = self
            .cohort()
            .window_end
            .map_or_else(String::new, |end| self.frame.clock(&end));
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a window is a few days at most"
        )]
        let seconds = self.cohort().window_seconds as i64;
        format!("Window of {} that ended at {end} UTC.", length(seconds))
    }

    fn incident(&self) -> Option<(Link, String, String)> {
        let incident = self.page.incident.as_ref()?;
        let since = incident
            .started_at
            .map_or_else(String::new, |at| self.frame.clock(&at));
        let short: String = incident.incident.chars().take(8).collect();
        let short = visible(&short);
        Some((
            Link::to("/incident").with("id", &incident.incident),
            short,
            since,
        ))
    }

    fn times(&self) -> String {
        number::times(self.cohort().latency_ratio)
    }

    /// Returns the incident's verdict on the window that the page shows.
    fn same_window(&self) -> Option<&'a CohortVerdict> {
        let is_same = |sent: &&CohortVerdict| Some(sent.window_end) == self.cohort().window_end;
        self.sent().filter(is_same)
    }

    /// Returns the verdict's medians, which its ratio was computed from.
    fn medians(&self) -> Option<(String, String)> {
        let (now, before) = self.same_window()?.numbers.medians()?;
        Some((number::bare_ms(Some(now)), number::ms(Some(before))))
    }

    fn p50(&self) -> String {
        number::ms(self.cohort().p50_us)
    }

    fn hit(&self) -> String {
        number::count(self.cohort().hit)
    }

    fn devices(&self) -> String {
        number::count(self.cohort().devices)
    }

    fn share(&self) -> String {
        number::share(self.cohort().npu_share)
    }

    /// Returns the model's deadline, and the share of the runs that take longer.
    fn late(&self) -> Option<(String, String)> {
        let deadline_us = number::finite(self.cohort().deadline_us)?;
        let share = number::finite(self.cohort().late_share)?;
        Some((number::ms(Some(deadline_us)), number::share(Some(share))))
    }

    /// Returns a text about the NPU in the word for the cohort's accelerator.
    fn said(&self, text: &str) -> String {
        words::of_accelerator(&self.page.query.chipset, text)
    }

    fn on_cpu(&self) -> Option<String> {
        let share = number::finite(self.sent()?.cpu_macs_share).filter(|share| *share > 0.0)?;
        Some(number::share(Some(share)))
    }

    fn ops(&self) -> Option<String> {
        let ops = &self.sent()?.cpu_ops;
        let shown: Vec<String> = ops.iter().take(12).map(|op| visible(op)).collect();
        (!shown.is_empty()).then(|| shown.join(", "))
    }

    fn reasons(&self) -> Vec<String> {
        let reasons = self.page.cohort.reasons.iter();
        reasons.map(|reason| words::capital(reason)).collect()
    }

    fn latencies(&self) -> Option<&'a Latencies> {
        self.page.evidence.as_ref()?.latencies.as_ref()
    }

    fn distribution(&self) -> Option<[Drawing; 2]> {
        let before = self.page.latencies_before.as_ref();
        let before = self.page.before.as_ref().zip(before);
        distribution(
            (&self.page.query.version, self.latencies()?),
            before.map(|(row, latencies)| (&*row.version, latencies)),
            self.is_page(),
            self.cohort().latency_ratio,
            self.same_window()
                .and_then(|verdict| verdict.numbers.medians_of_most()),
        )
    }

    /// Returns the window and the runs of the distribution.
    fn of_runs(&self) -> String {
        let now = self.latencies().map_or(0, |latencies| latencies.runs);
        let end = self.page.evidence.as_ref().and_then(|of| of.window_end);
        let end = end.map_or_else(String::new, |end| self.frame.clock(&end));
        let before = self
            .page
            .latencies_before
            .as_ref()
            .map(|latencies| latencies.runs);
        let before = before.map_or_else(String::new, |runs| {
            format!(", {} before", number::count(runs))
        });
        format!(
            "Shares of the clean runs in the window that ended at {end} UTC, on a log axis: {} now{before}.",
            number::of_them(now, "run")
        )
    }

    /// Returns the verdict's statement about the spread.
    fn spread(&self) -> String {
        let evidence = self.page.evidence.as_ref();
        let whole = evidence.and_then(|of| moved_as_a_whole(self.cohort(), of));
        let mut parts = Vec::new();
        if let Some(cv) = number::finite(self.cohort().cv_within).filter(|_| whole.is_none()) {
            parts.push(format!("CV {} within a device", number::cv(Some(cv))));
        }
        if let Some(cv) = number::finite(self.cohort().cv_between) {
            parts.push(format!("CV {} between devices", number::cv(Some(cv))));
        }
        if let Some(mixture) = self
            .page
            .evidence
            .as_ref()
            .and_then(|of| of.mixture.as_ref())
            && mixture.are_two()
        {
            parts.push(format!(
                "two groups of runs, {} of them around {} and the others around {}",
                number::share(Some(mixture.slow_share)),
                number::ms(Some(mixture.slow_us)),
                number::ms(Some(mixture.fast_us))
            ));
        }
        let parts =
            (!parts.is_empty()).then(|| format!("Of the last window: {}.", parts.join("; ")));
        let sentences: Vec<String> = whole.into_iter().chain(parts).collect();
        sentences.join(" ")
    }

    /// Returns the devices by ratio to their own past: this chipset, and the other chipsets as its controls.
    fn ratios(&self) -> Option<[Drawing; 2]> {
        let own = self.page.evidence.as_ref().map(|of| (self.cohort(), of));
        let others = self.page.others.iter().filter_map(|row| {
            let of = self.page.controls.get(&row.chipset)?;
            Some((row, of))
        });
        let all: Vec<_> = own.into_iter().chain(others.take(MAX_CONTROLS)).collect();
        let titles: Vec<String> = all.iter().map(|(row, _)| short(&row.chipset)).collect();
        let rows = all.iter().zip(&titles).map(|((row, of), title)| RatioRow {
            title,
            subtitle: words::chipset_name(&row.chipset),
            ratios: &of.ratios,
            slower: row.slower(),
        });
        let rows: Vec<RatioRow<'_>> = rows.collect();
        let words = self
            .page
            .evidence
            .as_ref()
            .map_or_else(String::new, |of| of.ratio_words(self.page.slower));
        ratios::devices("ratios", &rows, &words)
    }

    /// Returns the devices beyond ratios to their own past: this chipset and, as controls, the others.
    fn beyond(&self) -> Vec<Beyond<'a>> {
        let cells = |row: &CohortRow| -> Option<Vec<String>> {
            let cell = |tenths: u16| {
                let signal = row.signal(SignalId::ShiftBeyond(tenths))?;
                Some(format!(
                    "{} of {}",
                    number::count(signal.hits),
                    number::count(signal.devices)
                ))
            };
            let cells: Vec<_> = BEYOND_TENTHS.map(cell).into();
            let has_any = cells.iter().any(Option::is_some);
            has_any.then(|| {
                cells
                    .into_iter()
                    .map(|cell| cell.unwrap_or_else(|| number::NONE.to_owned()))
                    .collect()
            })
        };
        let all = std::iter::once(&self.page.cohort).chain(&self.page.others);
        all.enumerate()
            .filter_map(|(at, row)| {
                Some(Beyond {
                    row,
                    is_it: at == 0,
                    cells: cells(row)?,
                })
            })
            .collect()
    }

    fn beyond_heads(&self) -> [String; 5] {
        BEYOND_TENTHS.map(|tenths| format!("{}.{}", tenths / 10, tenths % 10))
    }

    fn link(&self, row: &CohortRow) -> Link {
        let query = &self.page.query;
        Link::to("/cohort")
            .with("app", &query.app)
            .with("environment", &query.environment)
            .with("model", &row.model)
            .with("version", &row.version)
            .with("chipset", &row.chipset)
    }

    /// Returns the address of a drawing alone.
    fn alone(&self, path: &'static str) -> Link {
        let query = &self.page.query;
        Link::to(path)
            .with("app", &query.app)
            .with("environment", &query.environment)
            .with("model", &query.model)
            .with("version", &query.version)
            .with("chipset", &query.chipset)
    }

    fn fleet(&self) -> Link {
        let query = &self.page.query;
        Link::to("/fleet")
            .with("app", &query.app)
            .with("environment", &query.environment)
    }

    /// Returns the page that answers whether the version may go to more devices.
    fn rollout(&self) -> Link {
        let query = &self.page.query;
        rollout::link(&query.app, &query.environment, &query.model, &query.version)
    }

    fn placements(&self) -> Option<[Drawing; 2]> {
        let now = self.page.placement.as_ref()?;
        let on_cpu = on_cpu(&self.page.cpu_nodes);
        let bar =
            |placement: &PlacementRow, (version, when): (&str, &str), nodes: &[CpuNodeRow]| {
                Some(PlacementBar {
                    title: format!("Version {}, {when}", short(version)),
                    subtitle: self.said(&format!(
                        "{} of {} nodes on the NPU",
                        placement.npu_nodes, placement.n_nodes
                    )),
                    note: match placement.benign_nodes {
                        0 => String::new(),
                        1 => "1 belongs on the CPU".to_owned(),
                        n => format!("{n} belong on the CPU"),
                    },
                    share: share_of(placement)?,
                    benign: benign_share(placement, nodes),
                    on_cpu: "",
                })
            };
        let mut all = Vec::new();
        let nodes = &self.page.cpu_nodes;
        if let Some(now) = bar(now, (&self.page.query.version, "now"), nodes) {
            all.push(PlacementBar {
                on_cpu: &on_cpu,
                ..now
            });
        }
        if let (Some(placement), Some(row)) = (&self.page.placement_before, &self.page.before) {
            all.extend(bar(placement, (&row.version, "before"), &[]));
        }
        if all.is_empty() {
            return None;
        }
        let words: Vec<String> = all
            .iter()
            .map(|placed| {
                let share = number::share(Some(placed.share));
                format!("{}: {share} {}", placed.title, self.said("on the NPU"))
            })
            .collect();
        Some(bars::placements(
            "place",
            &all,
            &(words.join("; ") + "."),
            &self.said("NPU"),
        ))
    }

    /// Returns what the bars count, the number of sessions with these placements, and the EPs that they requested.
    fn of_placements(&self) -> String {
        let Some(now) = &self.page.placement else {
            return String::new();
        };
        let unit = match now.npu_macs_share {
            Some(_) => "MACs by execution provider",
            None => "Nodes by execution provider, because their MACs are not known",
        };
        let share = now.sessions as f64 / now.all_sessions.max(1) as f64;
        let share = number::share(Some(share));
        let got = match now.npu_nodes {
            0 => "the CPU alone".to_owned(),
            n if n == now.n_nodes => self.said("the NPU for every node"),
            _ => self.said("the NPU and the CPU"),
        };
        let asked = match now.asked_for() {
            Some(asked) => format!(" Asked for: {}. Got: {got}.", visible_sentence(&asked)),
            None => String::new(),
        };
        let devices = match &now.devices[..] {
            [] => String::new(),
            devices => format!(" Devices: {}.", visible_sentence(&devices.join(", "))),
        };
        format!(
            "{unit}, in the commonest placement of each version; {share} of the sessions now have it.{asked}{devices}"
        )
    }

    fn n_nodes(&self) -> String {
        let nodes = number::of_them(self.page.cpu_nodes.len() as u64, "node");
        match self.page.cpu_nodes_cut {
            true => format!("The costliest {nodes}"),
            false => nodes,
        }
    }

    fn timeline(&self) -> Option<[Drawing; 2]> {
        let moments = |slots: &[Slot]| -> Vec<Moment> {
            let moment = |slot: &Slot| Moment {
                at: slot.at,
                p50_us: slot.p50_us,
                tone: Tone::of(&slot.verdict, &slot.severity),
            };
            slots.iter().map(moment).collect()
        };
        let (now, before) = (moments(&self.page.slots), moments(&self.page.slots_before));
        let mut lanes = vec![Lane {
            label: format!("version {}", short(&self.page.query.version)),
            moments: &now,
            is_now: true,
        }];
        if let Some(row) = self.page.before.as_ref().filter(|_| !before.is_empty()) {
            lanes.push(Lane {
                label: format!("version {}", short(&row.version)),
                moments: &before,
                is_now: false,
            });
        }
        let incident = self.page.incident.as_ref();
        let began = incident.and_then(|incident| incident.started_at);
        // A window is drawn at its end.
        let window = SignedDuration::try_from_secs_f64(self.cohort().window_seconds).ok();
        let first = began
            .zip(window)
            .and_then(|(began, window)| began.checked_add(window).ok());
        let mark = first.map(|at| TimelineLabel {
            at: self.page.period.at(at).clamp(0.0, 1.0),
            label: "first at fault".to_owned(),
        });
        let labels = self.page.period.labels(self.frame.now);
        let bad = now
            .iter()
            .filter(|moment| moment.tone == Tone::Page)
            .count();
        let words = format!(
            "{} of {} periods of version {} have a page.",
            bad,
            now.len(),
            short(&self.page.query.version)
        );
        let words = match self.missing() {
            Some(missing) => format!("{words} {missing}"),
            None => words,
        };
        let gaps = gaps::places(&self.page.gaps, self.page.period);
        let over = OverTime {
            gaps: &gaps,
            changes: &changes::places(&self.page.changes, self.page.period),
            labels: &labels,
        };
        timeline::windows("time", &lanes, over, mark.as_ref(), &words)
    }

    /// Returns the list of what changed.
    fn changed(&self) -> Option<ChangesHtml<'_>> {
        changes::list(self.frame, &self.page.changes, Some(self.page.period))
    }

    /// Returns a sentence on the windows that are missing.
    fn missing(&self) -> Option<String> {
        gaps::words(&self.page.gaps, |at| self.frame.clock(&at))
    }

    /// Returns the signals with their questions, firing signals first.
    fn asked(&self) -> Vec<Asked<'a>> {
        let all = self.page.cohort.signals.iter();
        let asked = all.filter_map(|signal| {
            let question = words::question(&signal.id)?;
            Some(Asked { signal, question })
        });
        let mut asked: Vec<_> = asked.collect();
        asked.sort_by(|a, b| {
            b.signal
                .fires
                .cmp(&a.signal.fires)
                .then(a.signal.p.total_cmp(&b.signal.p))
        });
        asked
    }
}

impl Asked<'_> {
    fn icon(&self) -> Icon {
        if self.signal.fires {
            Tone::Page.icon()
        } else {
            Tone::Quiet.icon()
        }
    }

    fn word(&self) -> &'static str {
        if self.signal.fires { "fires" } else { "quiet" }
    }

    fn answer(&self) -> String {
        match self.question.is_ratio {
            true => number::times(Some(self.signal.value)),
            false => number::share(Some(self.signal.value)),
        }
    }

    fn hits(&self) -> String {
        number::count(self.signal.hits)
    }

    fn devices(&self) -> String {
        number::count(self.signal.devices)
    }

    fn chance(&self) -> String {
        number::chance(Some(self.signal.p))
    }
}

impl CpuNodeRow {
    fn share(&self) -> String {
        number::share(self.macs_share.map(f64::from))
    }
}

impl Beyond<'_> {
    fn chipset_name(&self) -> &'static str {
        words::chipset_name(&self.row.chipset)
    }
}

/// Returns a sentence for a cohort whose devices are all slower and as steady as before, so that no measure of spread
/// finds it.
fn moved_as_a_whole(cohort: &CohortRow, evidence: &PlottedEvidence) -> Option<String> {
    let cv = number::finite(cohort.cv_within)?;
    let slower = cohort.slower()?;
    let are_all = slower.devices as f64 >= NEARLY_ALL * slower.compared as f64;
    let is_spread = cohort
        .signal(SignalId::CvIncrease)
        .is_some_and(|signal| signal.fires);
    let mixture = evidence.mixture.as_ref();
    let are_two = evidence.modes.is_some() || mixture.is_some_and(Mixture::are_two);
    (cohort.tone() <= Tone::Ticket && are_all && !is_spread && !are_two).then(|| {
        format!(
            "The one mode moved as a whole: each device is steady (CV {} within a device), so no measure of spread \
             gives this away.",
            number::cv(Some(cv))
        )
    })
}

/// Returns the share on the NPU: of MACs if they are known, else of nodes.
fn share_of(placement: &PlacementRow) -> Option<f64> {
    let of_nodes = (placement.n_nodes > 0)
        .then(|| f64::from(placement.npu_nodes) / f64::from(placement.n_nodes));
    number::finite(placement.npu_macs_share).or(of_nodes)
}

/// Returns the share of work that belongs on the CPU: of MACs if they are known, else of nodes.
fn benign_share(placement: &PlacementRow, nodes: &[CpuNodeRow]) -> f64 {
    match number::finite(placement.npu_macs_share) {
        Some(_) => {
            let benign = nodes.iter().filter(|node| node.benign);
            let shares = benign.filter_map(|node| number::finite(node.macs_share.map(f64::from)));
            shares.sum()
        }
        None => f64::from(placement.benign_nodes) / f64::from(placement.n_nodes.max(1)),
    }
}

/// Returns the costliest node on the CPU for a bar.
fn on_cpu(nodes: &[CpuNodeRow]) -> String {
    let costliest = nodes.iter().find(|node| !node.benign);
    costliest.map_or_else(String::new, |node| {
        format!("{} {}", visible(&node.op_type), visible(&node.name))
    })
}

pub(crate) fn cohort(frame: &Frame, page: &CohortPage) -> askama::Result<String> {
    CohortHtml { frame, page }.render()
}

/// Returns a drawing of the page by its name.
pub(crate) fn drawing(frame: &Frame, page: &CohortPage, name: &str) -> Option<Drawing> {
    let page = CohortHtml { frame, page };
    let wide = |both: [Drawing; 2]| both.into_iter().next();
    match name {
        "latency" => page.distribution().and_then(wide),
        "devices" => page.ratios().and_then(wide),
        "placement" => page.placements().and_then(wide),
        "windows" => page.timeline().and_then(wide),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::evidence::{PlottedModes, Ratios};

    fn cohort(hits: u64, severity: &str) -> CohortRow {
        let signal = |id: &str, hits, fires| SignalRow {
            id: id.to_owned(),
            value: 0.5,
            p: 0.0,
            hits,
            devices: 100,
            fires,
        };
        CohortRow {
            verdict: "partial_fallback".to_owned(),
            severity: severity.to_owned(),
            cv_within: Some(0.12),
            signals: vec![
                signal("slower_than_1.6x", hits, false),
                signal("cv_increase", 4, false),
            ],
            ..CohortRow::default()
        }
    }

    #[test]
    fn only_a_cohort_of_one_mode_moved_as_a_whole() {
        let mut evidence = PlottedEvidence {
            window_end: None,
            latencies: None,
            reference: None,
            ratios: Ratios {
                bins_per_octave: 8.0,
                first: 0,
                on_npu: Vec::new(),
                on_cpu: Vec::new(),
                without_past: 0,
            },
            mixture: None,
            modes: None,
        };
        let said = moved_as_a_whole(&cohort(99, "page"), &evidence).unwrap();
        assert!(said.contains("steady (CV 0.120 within a device)"), "{said}");
        let is_said = |cohort: &CohortRow, evidence: &PlottedEvidence| {
            moved_as_a_whole(cohort, evidence).is_some()
        };
        assert!(!is_said(&cohort(89, "page"), &evidence));
        assert!(!is_said(&cohort(99, "none"), &evidence));
        let mut varies = cohort(99, "page");
        varies.signals[1].fires = true;
        assert!(!is_said(&varies, &evidence));
        evidence.modes = Some(PlottedModes {
            fast_us: 15_000.0,
            slow_us: 60_000.0,
            valley_depth: 0.9,
        });
        assert!(!is_said(&cohort(99, "page"), &evidence));
    }
}
