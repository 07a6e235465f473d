//! The page of one incident.

use std::borrow::Cow;

use askama::Template;
use epwatch_model::{CohortVerdict, IncidentCohort, State, VerdictClass};

use super::changes::{self, ChangesHtml};
use super::distribution::{distribution, short};
use super::frame::{Frame, OrderRight};
use super::grafana;
use super::history::{self, Event};
use super::orders::{OrderForm, form, states_of};
use crate::plot::golden::{self as golden_plot, GoldenDistances};
use crate::plot::ratios::{self, RatioRow};
use crate::plot::svg::Drawing;
use crate::plot::timeline::{self, OverTime};
use crate::read::gaps;
use crate::read::golden;
use crate::read::history::IncidentNews;
use crate::read::incident::IncidentPage;
use crate::read::windows::SeenIn;
use crate::text::name::{Link, MAX_SENTENCE, Name, Sentence, visible, visible_sentence};
use crate::text::number;
use crate::text::time::length;
use crate::text::words::{self, Icon, Tone};

/// The page lists at most this many cohorts of an incident.
pub(crate) const MOST_COHORTS: usize = 100;

#[derive(Template)]
#[template(path = "incident.html")]
struct IncidentHtml<'a> {
    frame: &'a Frame,
    page: &'a IncidentPage,
    lead: Option<&'a CohortVerdict>,
}

/// A part of a step.
enum StepPart {
    Text(String),
    /// A name or a setting within a sentence.
    Code(String),
    /// A command to paste: its words, an option with its value, so that a line breaks between them.
    Command(Vec<String>),
}

impl<'a> IncidentHtml<'a> {
    fn tone(&self) -> Tone {
        match self.page.row.state().is_some_and(State::is_open) {
            true => Tone::of(&self.page.row.verdict, &self.page.row.severity),
            false => Tone::Quiet,
        }
    }

    fn icon(&self) -> Icon {
        self.tone().icon()
    }

    fn title(&self) -> String {
        let row = &self.page.row;
        format!(
            "{} {}, incident {}",
            visible(row.subject()),
            visible(&row.version),
            visible(&row.incident)
        )
    }

    fn is_page(&self) -> bool {
        self.tone() == Tone::Page
    }

    fn tag(&self) -> String {
        let severity = words::severity(&self.page.row.severity);
        let state = match self.page.row.state() {
            Some(State::Mitigated) => "held by a directive",
            _ => &self.page.row.state,
        };
        let states = [severity, state].into_iter().chain(states_of(self.page));
        states.collect::<Vec<&str>>().join(", ")
    }

    fn effect(&self) -> String {
        match number::times_slower(self.page.row.latency_ratio) {
            Some(slower) => {
                let verb = words::runs(self.versions().len(), self.page.is_past());
                format!("{verb} {slower}")
            }
            None => {
                let verb = if self.page.is_past() {
                    "showed"
                } else {
                    "shows"
                };
                let fault = words::fault(&self.page.row.verdict);
                format!("{verb} \u{201c}{}\u{201d}", words::within_sentence(&fault))
            }
        }
    }

    fn versions(&self) -> Vec<Name<'a>> {
        let versions = self.page.document.versions(&self.page.row.version);
        versions.into_iter().map(Name).collect()
    }

    /// Returns the incident that it is a part of, and its address.
    fn whole(&self) -> Option<(Link, Name<'a>)> {
        let id = self.page.row.part_of.as_deref()?;
        Some((Link::to("/incident").with("id", id), Name(id)))
    }

    /// Returns a sentence about the versions that the devices run by now.
    fn moved(&self) -> Option<String> {
        let moved = self.page.document.moved()?;
        Some(format!("{}.", visible_sentence(&moved)))
    }

    /// Returns the headline's second half: why it is so, where that is known.
    fn cause(&self) -> Option<String> {
        // Without a ratio the first half has the verdict.
        number::times_slower(self.page.row.latency_ratio)?;
        let share = number::finite(self.page.row.cpu_macs_share).filter(|share| *share > 0.0);
        let is_past = self.page.is_past();
        let runs = words::runs(1, is_past);
        Some(match (self.page.row.class()?, share) {
            (VerdictClass::TotalFallback, _) => format!("its work {runs} on the CPU"),
            (VerdictClass::PartialFallback, Some(share)) => {
                let share = number::share(Some(share));
                format!("{share} of its work {runs} on the CPU")
            }
            (VerdictClass::SomeDevicesFallback, _) => {
                format!("on some devices its work {runs} on the CPU")
            }
            (VerdictClass::NpuStartFailure, _) if is_past => self.said("the NPU did not start"),
            (VerdictClass::NpuStartFailure, _) => self.said("the NPU does not start"),
            _ => return None,
        })
    }

    /// Returns a text about the NPU in the word for the accelerator of the incident's first chipset.
    fn said(&self, text: &str) -> String {
        let chipset = self.page.row.chipsets.first();
        words::of_accelerator(chipset.map_or("", String::as_str), text)
    }

    fn verdict(&self) -> String {
        self.said(&words::fault(&self.page.row.verdict))
    }

    /// Returns what the app asked for on the worst cohort's chipset.
    fn asked_for(&self) -> Option<Sentence<'a>> {
        Some(Sentence(self.page.asked_for.as_deref()?))
    }

    fn chipsets(&self) -> Vec<Name<'a>> {
        self.page
            .row
            .chipsets
            .iter()
            .map(|chipset| Name(chipset))
            .collect()
    }

    fn when(&self) -> String {
        let row = &self.page.row;
        let incident = self.page.document.incident.as_ref();
        let mut parts = Vec::new();
        if let Some(at) = row.started_at {
            let until = match row.is_open() {
                true => self.frame.now,
                false => incident
                    .and_then(|incident| incident.resolved_at)
                    .or(row.changed_at)
                    .unwrap_or(self.frame.now),
            };
            let lasted = length(until.as_second() - at.as_second());
            parts.push(format!("since {} UTC, {lasted}", self.frame.clock(&at)));
        }
        parts.extend(self.page.seen_in.map(SeenIn::words));
        if let Some(at) = self.page.last_seen {
            let at = self.frame.clock(&at);
            parts.push(format!("last seen in the window until {at}"));
            parts.extend(self.page.document.progress());
        }
        if let Some(at) = incident.and_then(|incident| incident.fired_at) {
            parts.push(format!("fired at {}", self.frame.clock(&at)));
        }
        if let Some(at) = incident.and_then(|incident| incident.mitigated_at) {
            parts.push(format!("held since {}", self.frame.clock(&at)));
        }
        if let Some(at) = incident.and_then(|incident| incident.resolved_at) {
            parts.push(format!("resolved at {}", self.frame.clock(&at)));
        }
        parts.join("; ")
    }

    fn hit(&self) -> String {
        number::count(self.page.row.devices_hit)
    }

    fn seen(&self) -> String {
        number::count(self.page.row.devices_seen)
    }

    fn median(&self) -> Option<String> {
        let us = number::finite(self.lead?.numbers.hit_p50_us)?;
        Some(number::ms(Some(us)))
    }

    fn median_before(&self) -> Option<String> {
        let us = number::finite(self.lead?.numbers.reference_p50_us)?;
        Some(number::bare_ms(Some(us)))
    }

    fn on_cpu(&self) -> Option<String> {
        let share = number::finite(self.page.row.cpu_macs_share)?;
        Some(number::share(Some(share)))
    }

    fn chance(&self) -> Option<String> {
        let p = Some(self.lead?.p).filter(|p| *p < 1.0)?;
        Some(number::chance(Some(p)))
    }

    fn fine(&self) -> Vec<Name<'a>> {
        self.page
            .fine
            .iter()
            .take(8)
            .map(|chipset| Name(chipset))
            .collect()
    }

    fn reasons(&self) -> Vec<String> {
        let reasons = self.page.reasons.iter();
        reasons.map(|reason| words::capital(reason)).collect()
    }

    fn why_heading(&self) -> String {
        match self.page.thought_until() {
            Some(at) => format!(
                "Why we thought so, in the window until {}",
                self.frame.clock(&at)
            ),
            None => "Why we think so".to_owned(),
        }
    }

    /// Whether the page can say anything about the cause.
    fn has_reasons(&self) -> bool {
        let is_known = !self.page.reasons.is_empty() || !self.page.fine.is_empty();
        is_known || self.chance().is_some() || self.page.left_out.has("reasons")
    }

    /// Returns the steps to take, each split into parts.
    fn steps(&self) -> Vec<Vec<StepPart>> {
        let steps = self.page.steps();
        steps.iter().map(|step| parts(step)).collect()
    }

    fn cohort(&self, chipset: &str) -> Link {
        let row = &self.page.row;
        Link::to("/cohort")
            .with("app", &row.app)
            .with("environment", &row.environment)
            .with("model", &row.model)
            .with("version", &row.version)
            .with("chipset", chipset)
    }

    /// Returns the address of a drawing alone.
    fn alone(&self, path: &'static str) -> Link {
        Link::to(path).with("id", &self.page.row.incident)
    }

    fn charts(&self) -> Option<Link> {
        Some(self.cohort(&self.lead?.key.chipset))
    }

    /// Returns Grafana's dashboard of the same model, around the incident.
    fn grafana(&self) -> Option<Link> {
        let row = &self.page.row;
        let shown = grafana::Shown {
            app: &row.app,
            environment: &row.environment,
            model: &row.model,
            version: &row.version,
            chipsets: &row.chipsets,
        };
        let link = grafana::dashboard(self.frame.grafana.as_deref()?, &shown);
        let incident = self.page.document.incident.as_ref();
        let ended = incident.and_then(|incident| incident.resolved_at);
        Some(match row.started_at {
            Some(started) => grafana::around(link, started, ended),
            None => link,
        })
    }

    fn growth(&self) -> Option<[Drawing; 2]> {
        let slots = &self.page.slots;
        let points: Vec<(f64, u64, Tone)> = slots
            .iter()
            .map(|slot| (slot.at, slot.hit, Tone::of(&slot.verdict, &slot.severity)))
            .collect();
        let most = slots.iter().map(|slot| slot.hit).max()?;
        let labels = self.page.period?.labels(self.frame.now);
        let words = format!("At most {} hit.", number::of_them(most, "device"));
        let words = match self.missing() {
            Some(missing) => format!("{words} {missing}"),
            None => words,
        };
        let gaps = gaps::places(&self.page.gaps, self.page.period?);
        let over = OverTime {
            gaps: &gaps,
            changes: &changes::places(&self.page.changes, self.page.period?),
            labels: &labels,
        };
        timeline::devices_hit("growth", &points, over, &words)
    }

    /// Returns the list of what changed.
    fn changed(&self) -> Option<ChangesHtml<'_>> {
        changes::list(self.frame, &self.page.changes, self.page.period)
    }

    /// Returns a sentence on the windows that are missing.
    fn missing(&self) -> Option<String> {
        gaps::words(&self.page.gaps, |at| self.frame.clock(&at))
    }

    /// Returns the devices of the worst cohort by ratio to their own past.
    fn ratios(&self) -> Option<[Drawing; 2]> {
        let (lead, evidence) = (self.lead?, self.page.evidence.as_ref()?);
        let title = short(&lead.key.chipset);
        let row = RatioRow {
            title: &title,
            subtitle: words::chipset_name(&lead.key.chipset),
            ratios: &evidence.ratios,
            slower: self.page.slower,
        };
        ratios::devices("ratios", &[row], &evidence.ratio_words(self.page.slower))
    }

    /// Returns how far each chipset's outputs are from the outputs of its devices' own CPUs.
    fn golden(&self) -> Option<[Drawing; 2]> {
        let rows = &self.page.golden;
        let titles: Vec<String> = rows.iter().map(|row| short(&row.chipset)).collect();
        let drawn = rows.iter().zip(&titles).map(|(row, title)| {
            let (median, worst) = row.drops();
            GoldenDistances {
                title,
                subtitle: words::chipset_name(&row.chipset),
                median,
                worst,
            }
        });
        let drawn: Vec<_> = drawn.collect();
        golden_plot::distances("golden", &drawn, &golden::words(rows))
    }

    /// Returns the golden input that the drawing shows.
    fn golden_input(&self) -> &str {
        self.page.golden.first().map_or("", |row| &row.input)
    }

    /// Draws the runs behind the last verdict of the worst cohort, now and before.
    fn distribution(&self) -> Option<[Drawing; 2]> {
        let evidence = self.page.evidence.as_ref()?;
        let reference = evidence.reference.as_ref();
        let before = reference.map(|of| (&*of.version, &of.latencies));
        let now = (&*self.page.row.version, evidence.latencies.as_ref()?);
        let medians = self.lead.and_then(|lead| lead.numbers.medians_of_most());
        distribution(
            now,
            before,
            self.is_page(),
            self.page.row.latency_ratio,
            medians,
        )
    }

    /// Returns the end of the window that the charts show.
    fn judged(&self) -> String {
        let end = self.page.evidence.as_ref().and_then(|of| of.window_end);
        end.map_or_else(String::new, |end| self.frame.clock(&end))
    }

    /// Returns the cohorts by chipset, each chipset's whole before its firmwares.
    fn cohorts(&self) -> Vec<ShownCohort<'a>> {
        let mut all: Vec<_> = self
            .page
            .document
            .cohorts()
            .iter()
            .map(ShownCohort)
            .collect();
        all.sort_by_key(|cohort| {
            let key = &cohort.verdict().key;
            (key.chipset.clone(), key.firmware.clone())
        });
        all.truncate(MOST_COHORTS);
        all
    }

    /// Returns a sentence on cohorts that are left out.
    fn cohorts_left_out(&self) -> Option<String> {
        let n = self.page.document.cohorts().len();
        let more = n.checked_sub(MOST_COHORTS).filter(|more| *more > 0)?;
        Some(format!(
            "{} more are left out.",
            number::count(more as i128)
        ))
    }

    /// Returns a sentence about all firmwares together, if there are several.
    fn firmwares(&self) -> Option<String> {
        let with = self
            .cohorts()
            .into_iter()
            .filter(|cohort| cohort.verdict().key.firmware.is_some());
        let classes: Vec<VerdictClass> = with.map(|cohort| cohort.verdict().class).collect();
        let first = classes.first()?;
        let alike = classes.iter().all(|class| class == first);
        let n = number::in_words(classes.len());
        Some(match (alike, classes.len()) {
            (_, 1) => "One firmware is judged apart.".to_owned(),
            (true, _) => format!("All {n} firmwares show it alike, so none of them is the cause."),
            (false, _) => format!("The {n} firmwares differ."),
        })
    }

    /// Returns the number of the last order that the detector carried out. `None` if the detector is done with the
    /// incident.
    fn last(&self) -> Option<u64> {
        self.page.last_obeyed()
    }

    fn form(&self) -> Option<OrderForm<'_>> {
        form(self.frame, self.page)
    }

    /// Returns the address of the sign-in page, which leads back here.
    fn sign_in(&self) -> Option<Link> {
        let here = format!("/incident?id={}", self.page.row.incident);
        let is_known = self.frame.orders == OrderRight::SignIn;
        is_known.then(|| Link::to("/token").with("to", &here))
    }

    fn events(&self) -> Vec<Event> {
        history::events(self.page)
    }

    fn delivered(&self) -> Vec<(&'a str, String)> {
        history::channels(self.page, self.frame.now, |at| {
            format!("{} UTC", self.frame.clock(&at))
        })
    }

    /// Returns what people were told last.
    fn last_news(&self) -> Option<&'a IncidentNews> {
        self.page.history.news.last()
    }

    /// Returns what they were told before, the latest first.
    fn earlier_news(&self) -> impl Iterator<Item = &'a IncidentNews> {
        self.page.history.news.iter().rev().skip(1)
    }
}

fn parts(step: &str) -> Vec<StepPart> {
    let parts = step.split('`').enumerate();
    let parts = parts.filter(|(_, part)| !part.trim().is_empty());
    // A truncated command would do something else.
    let is_whole = |part: &str| part.chars().count() <= MAX_SENTENCE;
    let part = |(at, part): (usize, &str)| match at % 2 {
        1 if part.starts_with("epwatch ") && is_whole(part) => {
            StepPart::Command(options(&visible_sentence(part)))
        }
        1 => StepPart::Code(visible_sentence(part)),
        _ => StepPart::Text(visible_sentence(part)),
    };
    parts.map(part).collect()
}

/// Splits a command before each option and `&&`.
fn options(command: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for word in command.split(' ') {
        match parts.last_mut() {
            Some(part) if !(word.starts_with("--") || word == "&&") => {
                part.push(' ');
                part.push_str(word);
            }
            _ => parts.push(word.to_owned()),
        }
    }
    parts
}

/// A cohort of the table.
struct ShownCohort<'a>(&'a IncidentCohort);

impl<'a> ShownCohort<'a> {
    fn verdict(&self) -> &'a CohortVerdict {
        &self.0.verdict
    }

    fn tone(&self) -> Tone {
        Tone::of(
            self.verdict().class.as_str(),
            self.verdict().severity.as_str(),
        )
    }

    fn icon(&self) -> Icon {
        self.tone().icon()
    }

    fn title(&self) -> Cow<'a, str> {
        words::fault(self.verdict().class.as_str())
    }

    fn firmware(&self) -> Option<String> {
        let firmware = self.verdict().key.firmware.as_deref()?;
        Some(firmware.chars().take(12).collect())
    }

    fn hit(&self) -> String {
        number::count(self.verdict().numbers.devices_hit)
    }

    fn seen(&self) -> String {
        number::count(self.verdict().numbers.devices_seen)
    }

    fn times(&self) -> String {
        number::times(self.verdict().numbers.latency_ratio)
    }

    fn median(&self) -> String {
        number::ms(self.verdict().numbers.hit_p50_us)
    }

    fn share(&self) -> String {
        number::share(self.verdict().numbers.npu_share)
    }

    fn cv(&self) -> String {
        number::cv(self.verdict().statistics.cv_within)
    }
}

fn html<'a>(frame: &'a Frame, page: &'a IncidentPage) -> IncidentHtml<'a> {
    IncidentHtml {
        frame,
        page,
        lead: page.lead(),
    }
}

pub(crate) fn incident(frame: &Frame, page: &IncidentPage) -> askama::Result<String> {
    html(frame, page).render()
}

/// Returns a drawing of the page by its name.
pub(crate) fn drawing(frame: &Frame, page: &IncidentPage, name: &str) -> Option<Drawing> {
    let page = html(frame, page);
    let wide = |both: [Drawing; 2]| both.into_iter().next();
    match name {
        "growth" => page.growth().and_then(wide),
        "devices" => page.ratios().and_then(wide),
        "outputs" => page.golden().and_then(wide),
        "latency" => page.distribution().and_then(wide),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::incident::tests::{fallback, over, past};

    /// A command that is copied from the page equals the detector's command, whatever characters it has.
    #[test]
    fn a_command_breaks_before_options_and_stays_itself() {
        let command = "epwatch directive make --model-version 2 --app 'a  --b' && epwatch x";
        let parts = options(command);
        assert_eq!(parts.join(" "), command);
        let first = [
            "epwatch directive make",
            "--model-version 2",
            "--app 'a ",
            "--b'",
        ];
        assert_eq!(parts[..4], first);
        assert_eq!(parts[4], "&& epwatch x");
    }

    fn rendered(page: &IncidentPage) -> String {
        let now = jiff::Timestamp::from_second(1_800_000_060).unwrap();
        incident(&Frame::new(now, None), page).unwrap()
    }

    #[test]
    fn what_to_do_is_numbered_with_each_command_in_its_step() {
        let text = rendered(&fallback(
            "On call: keep version 1.\nThe model's owner: ask why: `epwatch inspect MODEL --soc SM8635`",
        ));
        let list = "<ol class=\"steps\"><li><bdi class=\"say\">On call: keep version 1.</bdi></li>\
            <li><bdi class=\"say\">The model&#39;s owner: ask why: </bdi><pre class=\"cmd\" tabindex=\"0\">\
            <span>epwatch inspect MODEL</span> <span>--soc SM8635</span></pre></li></ol>";
        assert!(text.contains(list), "{text}");
        assert!(!rendered(&fallback("")).contains("<ol"));
    }

    /// A person who follows yesterday's link must not stop a roll-out that is mended.
    #[test]
    fn a_past_fault_has_its_reasons_in_the_past_and_no_steps() {
        let next_step = "On call: stop the roll-out of 2.";
        let text = rendered(&past(next_step));
        for part in [
            "Why we thought so, in the window until 08:00:00</h2>",
            "What to do</h2>\n<ol class=\"steps\"><li><bdi class=\"say\">Nothing to do now: ",
            "last seen in the window until 08:00:00; 1 of 3 clean windows",
            "See the cohort's charts",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("stop the roll-out"), "{text}");
        let text = rendered(&over(next_step));
        assert!(text.contains("Why we thought so"), "{text}");
        assert!(text.contains("See the cohort's charts"), "{text}");
        for gone in ["What to do", "stop the roll-out", "clean windows"] {
            assert!(!text.contains(gone), "{gone}: {text}");
        }
    }

    #[test]
    fn what_the_app_asked_for_stands_next_to_the_verdict() {
        let mut page = fallback("");
        assert!(!rendered(&page).contains("asked for"));
        page.asked_for = Some("PREFER_NPU (<QNN>)".to_owned());
        let text = rendered(&page);
        let words = "; asked for <bdi class=\"say\">PREFER_NPU (&lt;QNN&gt;)</bdi>; ";
        assert!(text.contains(words), "{text}");
    }

    #[test]
    fn outputs_are_drawn_by_chipset_where_there_are_any() {
        let mut page = fallback("");
        assert!(!rendered(&page).contains("Outputs against the CPU"));
        page.golden = [("SM8635", 0.93), ("SM8550", 0.9995)]
            .map(|(chipset, cosine)| golden::GoldenRow {
                chipset: chipset.to_owned(),
                input: "cat-1".to_owned(),
                devices: 40,
                median_cosine: cosine,
                worst_cosine: cosine,
            })
            .into();
        let text = rendered(&page);
        let words = "Input cat-1. SM8635: a median cosine of 0.9300, the worst 0.9300, 40 devices;";
        assert!(
            text.contains(words) && text.contains("rounding ends here"),
            "{text}"
        );
    }

    #[test]
    fn grafana_is_linked_where_its_address_is_known() {
        let page = fallback("");
        assert!(!rendered(&page).contains("in Grafana"));
        let now = jiff::Timestamp::from_second(1_800_000_060).unwrap();
        let mut frame = Frame::new(now, None);
        frame.grafana = Some("https://grafana.example".to_owned());
        let text = incident(&frame, &page).unwrap();
        let link = "<a href=\"https://grafana.example/d/epwatch-model-per-chipset?var-app=";
        assert!(text.contains(link), "{text}");
    }

    /// People move through the page by the names of its parts, so two parts never have the same name. Of the template's
    /// two branches only one is rendered.
    #[test]
    fn each_part_of_the_page_has_a_name_of_its_own() {
        let template = include_str!("../../templates/incident.html");
        let names = template.split("<section aria-labelledby=\"").skip(1);
        let mut names: Vec<&str> = names.filter_map(|rest| rest.split('"').next()).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert!(all > 5 && names.len() == all, "{names:?}");
        let text = rendered(&fallback("On call: keep version 1."));
        for name in names {
            let id = format!(" id=\"{name}\"");
            assert!(text.matches(&id).count() <= 1, "{name}: {text}");
        }
    }

    #[test]
    fn the_line_of_times_has_the_number_of_windows() {
        let mut page = fallback("");
        let text = rendered(&page);
        assert!(
            text.contains(" UTC, 1 min; seen in 110 windows</span>"),
            "{text}"
        );
        page.seen_in = None;
        assert!(!rendered(&page).contains("seen in"));
    }

    /// The second half names the cause, as far as the verdict has it.
    #[test]
    fn the_headline_has_the_effect_and_its_cause() {
        let mut page = fallback("");
        let heading = |page: &IncidentPage| {
            let text = rendered(page);
            let (_, rest) = text.split_once("<h1>").unwrap();
            let heading = rest.split_once("</h1>").unwrap().0;
            heading.replace("<bdi>", "").replace("</bdi>", "")
        };
        let whole =
            "scenes 2 runs 4.0 times slower on SM8635: 26\u{202f}% of its work runs on the CPU";
        assert_eq!(heading(&page), whole);
        page.row.verdict = "slow_without_placement".to_owned();
        assert_eq!(heading(&page), "scenes 2 runs 4.0 times slower on SM8635");
        page.row.latency_ratio = None;
        let verdict = "scenes 2 shows \u{201c}slower, cause unknown\u{201d} on SM8635";
        assert_eq!(heading(&page), verdict);
    }
}
