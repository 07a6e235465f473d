//! The page of a roll-out: may a version go to more devices?

use askama::Template;

use super::frame::Frame;
use crate::read::rollout::{ChipsetAnswer, FirmwareAnswer, Rollout, RolloutAnswer};
use crate::text::name::{Link, Name, Sentence, visible};
use crate::text::number;
use crate::text::rollout::{groups, headline, reason, word};
use crate::text::words::{self, Icon, Tone};

#[derive(Template)]
#[template(path = "rollout.html")]
struct RolloutHtml<'a> {
    frame: &'a Frame,
    page: &'a Rollout,
}

/// The chipsets that have the same answer.
struct AnswerCount {
    answer: RolloutAnswer,
    chipsets: usize,
    devices: u64,
}

impl AnswerCount {
    fn word(&self) -> String {
        words::capital(self.answer.word())
    }

    fn is_stop(&self) -> bool {
        self.answer == RolloutAnswer::Stop
    }

    /// Returns the noun for the chipsets, and the number of devices.
    fn of(&self) -> String {
        let s = if self.chipsets == 1 { "" } else { "s" };
        format!("chipset{s}, {}", number::of_them(self.devices, "device"))
    }
}

/// Returns the address of the page about a version.
pub(super) fn link(app: &str, environment: &str, model: &str, version: &str) -> Link {
    Link::to("/rollout")
        .with("app", app)
        .with("environment", environment)
        .with("model", model)
        .with("version", version)
}

impl RolloutAnswer {
    fn tone(self) -> Tone {
        match self {
            Self::Stop => Tone::Page,
            Self::NotYet => Tone::Info,
            Self::Go => Tone::Fine,
            Self::Rare => Tone::Quiet,
        }
    }

    fn class(self) -> &'static str {
        self.tone().class()
    }

    fn icon(self) -> Icon {
        self.tone().icon()
    }

    fn word(self) -> &'static str {
        word(self)
    }
}

impl RolloutHtml<'_> {
    /// Without a recent window, the answer "go" is not shown.
    fn headline(&self) -> String {
        match self.is_stale() {
            true => "Nobody knows: the detector is late or down".to_owned(),
            false => headline(self.page),
        }
    }

    fn is_stale(&self) -> bool {
        self.page.is_late && self.page.answer == RolloutAnswer::Go
    }

    fn title(&self) -> String {
        let query = &self.page.query;
        format!(
            "May {} {} roll out?",
            visible(&query.model),
            visible(&query.version)
        )
    }

    fn fleet(&self) -> Link {
        Link::to("/fleet")
            .with("app", &self.page.query.app)
            .with("environment", &self.page.query.environment)
    }

    fn cohort(&self, of: &ChipsetAnswer) -> Link {
        let query = &self.page.query;
        Link::to("/cohort")
            .with("app", &query.app)
            .with("environment", &query.environment)
            .with("model", &query.model)
            .with("version", &query.version)
            .with("chipset", &of.chipset)
    }

    fn incident(&self, of: &ChipsetAnswer) -> Option<Link> {
        let id = of.incident.as_ref()?;
        Some(Link::to("/incident").with("id", id))
    }

    /// Returns how many chipsets have each answer, the worst first.
    fn answers(&self) -> Vec<AnswerCount> {
        let all = [
            RolloutAnswer::Stop,
            RolloutAnswer::NotYet,
            RolloutAnswer::Go,
            RolloutAnswer::Rare,
        ];
        let counts = all.into_iter().filter_map(|answer| {
            let chipsets = self.page.chipsets.iter();
            let with_it = chipsets.filter(|of| of.answer == answer);
            let devices: Vec<u64> = with_it.map(|of| of.devices).collect();
            (!devices.is_empty()).then(|| AnswerCount {
                answer,
                chipsets: devices.len(),
                devices: devices.iter().sum(),
            })
        });
        counts.collect()
    }

    /// Returns the firmwares whose answer differs from their chipset's answer. Each gets a line.
    fn apart<'a>(&self, of: &'a ChipsetAnswer) -> Vec<&'a FirmwareAnswer> {
        let firmwares = of.firmwares.iter();
        firmwares.filter(|part| part.answer != of.answer).collect()
    }

    /// Returns the firmwares with the same answer as their chipset, which are folded.
    fn alike<'a>(&self, of: &'a ChipsetAnswer) -> Vec<&'a FirmwareAnswer> {
        let firmwares = of.firmwares.iter();
        firmwares.filter(|part| part.answer == of.answer).collect()
    }

    fn alike_words(&self, of: &ChipsetAnswer) -> String {
        let firmwares = words::things(self.alike(of).len(), "firmware");
        let (firmwares, chipset) = (words::capital(&firmwares), visible(&of.chipset));
        format!("{firmwares} of {chipset}: {}, too", of.answer.word())
    }

    fn of_devices(&self, n: &u64) -> String {
        number::of_them(*n, "device")
    }

    fn why(&self, of: &ChipsetAnswer) -> String {
        reason(of)
    }

    fn chipset_name(&self, of: &ChipsetAnswer) -> &'static str {
        words::chipset_name(&of.chipset)
    }

    fn groups(&self) -> Option<String> {
        groups(self.page)
    }

    fn count(&self, n: &u64) -> String {
        number::count(*n)
    }

    fn ms(&self, us: &Option<f64>) -> String {
        number::ms(*us)
    }

    fn times(&self, ratio: &Option<f64>) -> String {
        number::times(*ratio)
    }

    fn share(&self, share: &Option<f64>) -> String {
        number::share(*share)
    }
}

pub(crate) fn rollout(frame: &Frame, page: &Rollout) -> askama::Result<String> {
    RolloutHtml { frame, page }.render()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::read::rollout::{Needed, RolloutQuery};

    fn firmware(name: &str, answer: RolloutAnswer) -> FirmwareAnswer {
        FirmwareAnswer {
            firmware: name.to_owned(),
            answer,
            devices: 17,
            compared: 17,
            p50_us: Some(60_000.0),
            latency_ratio: Some(3.8),
            npu_share: Some(0.74),
            why: format!("why of {name}"),
        }
    }

    fn chipset(name: &str, answer: RolloutAnswer, firmwares: Vec<FirmwareAnswer>) -> ChipsetAnswer {
        ChipsetAnswer {
            chipset: name.to_owned(),
            answer,
            devices: 47,
            compared: 47,
            needed: 8,
            devices_on_chipset: 60,
            seconds_left: None,
            p50_us: Some(60_000.0),
            latency_ratio: Some(3.9),
            npu_share: Some(0.74),
            certified_npu_share: None,
            incident: None,
            why: "why".to_owned(),
            firmwares,
        }
    }

    /// Firmwares with a different answer are visible at once; the others are folded.
    #[test]
    fn answers_are_counted_and_firmwares_with_their_chipsets_answer_are_folded() {
        use RolloutAnswer::{Go, Stop};
        let firmwares = vec![
            firmware("f1", Stop),
            firmware("f2", Go),
            firmware("f3", Stop),
        ];
        let page = Rollout {
            query: RolloutQuery {
                app: "camera".to_owned(),
                environment: "production".to_owned(),
                model: "scenes".to_owned(),
                version: "2".to_owned(),
            },
            answer: Stop,
            needed: Needed::OF_THE_DETECTOR,
            judged_until: Timestamp::UNIX_EPOCH,
            is_late: false,
            chipsets: vec![
                chipset("SM8635", Stop, firmwares),
                chipset("SM8650", Go, Vec::new()),
                chipset("SM8550", Go, Vec::new()),
            ],
            groups: None,
        };
        let text = rollout(&Frame::new(Timestamp::UNIX_EPOCH, None), &page).unwrap();
        for part in [
            "<dt>Stop</dt><dd class=\"hot\">1 <small>chipset, 47 devices</small></dd>",
            "<dt>Go</dt><dd>2 <small>chipsets, 94 devices</small></dd>",
            "<summary>Two firmwares of SM8635: stop, too</summary>",
            "why of f2",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(
            !text.contains("why of f1") && !text.contains("Not yet"),
            "{text}"
        );
        assert_eq!(
            text.matches("<summary>").count(),
            2,
            "and the words of the page"
        );
    }
}
