//! The page of a roll-out: may a version go to more devices?

use askama::Template;

use super::frame::Frame;
use crate::read::rollout::{ChipsetAnswer, Rollout, RolloutAnswer};
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
    /// Without a recent window a go is none.
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
