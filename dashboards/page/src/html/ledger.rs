//! The page of the loss ledger.

use askama::Template;

use super::choosable::{Choosable, choosable};
use super::frame::Frame;
use crate::plot::bars::{self, Part};
use crate::plot::svg::Drawing;
use crate::read::ledger::{InstallationsRow, LargestRow, LedgerDay, LedgerPage, LedgerQuery};
use crate::text::name::{Link, Name, visible};
use crate::text::number;
use crate::text::words::{self, Icon, Tone};

/// Headings of the counts in [`LedgerDay::cells`], in the same order.
const COUNT_HEADS: [&str; 7] = [
    "Recorded",
    "Stored",
    "Dropped",
    "Refused",
    "Missing",
    "Duplicate",
    "Conflict",
];

#[derive(Template)]
#[template(path = "ledger.html")]
struct LedgerHtml<'a> {
    frame: &'a Frame,
    page: &'a LedgerPage,
    sums: Vec<LedgerDay>,
    total: Option<LedgerDay>,
}

impl LedgerHtml<'_> {
    fn headline(&self) -> String {
        if self.page.left_out.has("ledger") {
            let how = self.page.left_out.how("ledger");
            return format!("The ledger could not be read{how}");
        }
        let Some(total) = &self.total else {
            return "No report was recorded in these days".to_owned();
        };
        let noun = self.noun();
        let recorded = number::count(total.recorded);
        let gone = total.dropped + total.refused;
        let missing = match total.missing {
            0 => None,
            n if n > 0 => Some(format!(
                "{} of {recorded} {noun} are missing or still on the way",
                number::count(n)
            )),
            n => Some(format!(
                "{} {noun} of earlier days came in",
                number::count(-n)
            )),
        };
        let lost = match gone {
            0 => "nothing was lost for good".to_owned(),
            n => format!("{} were given up with a reason", number::count(n)),
        };
        match missing {
            Some(missing) => format!("{missing}; {lost}"),
            None if gone == 0 => format!("All {recorded} {noun} are stored"),
            None => format!("None of {recorded} {noun} is missing; {lost}"),
        }
    }

    fn noun(&self) -> &'static str {
        match self.page.query.runs {
            true => "runs",
            false => "reports",
        }
    }

    /// Returns how fresh the figures are.
    fn read(&self) -> String {
        match &self.page.changed_at {
            Some(at) => format!(
                "A collector counts at most once a minute; the figures last changed {}.",
                self.frame.ago(at)
            ),
            None => "A collector counts at most once a minute; none has counted yet.".to_owned(),
        }
    }

    fn closes(&self) -> String {
        let open = self.sums.iter().filter(|sum| !sum.closes()).count();
        match (open, self.sums.len()) {
            (_, 0) => String::new(),
            (0, 1) => "The sum closes.".to_owned(),
            (0, n) => format!("The sum closes for {} below.", words::all_things(n, "row")),
            (n, _) => format!(
                "The sum does not close for {} below.",
                words::things(n, "row")
            ),
        }
    }

    fn bar(&self) -> Option<[Drawing; 2]> {
        let total = self.total.as_ref()?;
        let part = |class, label, n| Part { class, label, n };
        let parts = [
            part("npu", "stored", total.stored),
            part("benign", "dropped on the device", total.dropped),
            part("w-info", "refused for good", total.refused),
            part("w-ticket", "missing or on the way", total.missing),
        ];
        let words = format!(
            "{} of {} are stored, {} dropped, {} refused, {} missing or on the way.",
            number::count(total.stored),
            number::count(total.recorded),
            number::count(total.dropped),
            number::count(total.refused),
            number::count(total.missing)
        );
        bars::parts("ledger", &parts, &words)
    }

    /// Returns sentences about the commonest answers, each with the setting at its end, the most frequent answer first.
    fn reasons(&self) -> Vec<(String, &'static str)> {
        let answers = self.page.answers.iter().filter(|answer| answer.reports > 0);
        let reasons = answers.filter_map(|answer| {
            let (what, setting) = words::cause_of_answer(&answer.outcome)?;
            let times = number::of_them(answer.reports, "time");
            Some((
                format!("Collectors answered {} {times}. {what}", answer.outcome),
                setting,
            ))
        });
        reasons.take(2).collect()
    }

    fn apps(&self) -> Vec<Choosable> {
        let chosen = self.page.query.app.as_deref();
        choosable(self.page.apps.iter().map(|app| &**app), chosen)
    }

    fn days(&self) -> [(u32, bool); 3] {
        [14, 7, 1].map(|days| (days, days == self.page.query.days))
    }

    fn what(&self) -> String {
        let all = "All apps".to_owned();
        let app = self.page.query.app.as_deref().map_or(all, visible);
        match self.page.query.days {
            1 => format!("{app}, today"),
            days => format!("{app}, {days} days"),
        }
    }

    /// Returns the address of the bar alone.
    fn alone(&self) -> Link {
        self.chosen("/ledger/reports.svg")
    }

    /// Returns the address of this page with the largest installations. `None` if the page already shows them.
    fn with_largest(&self) -> Option<Link> {
        let is_asked = self.page.query.largest;
        (!is_asked).then(|| self.chosen("/ledger").with("largest", "1"))
    }

    /// Returns an address with the chosen filters.
    fn chosen(&self, path: &'static str) -> Link {
        let query = &self.page.query;
        Link::to(path)
            .with("app", query.app.as_deref().unwrap_or_default())
            .with(
                "environment",
                query.environment.as_deref().unwrap_or_default(),
            )
            .with("days", &query.days.to_string())
            .with("count", self.noun())
    }

    fn deletions(&self) -> Option<(String, String)> {
        let deletions = self.page.deletions.as_ref()?;
        Some((
            number::count(deletions.requested),
            number::count(deletions.erased),
        ))
    }
}

impl LedgerDay {
    fn link(&self, query: &LedgerQuery) -> Link {
        Link::to("/ledger")
            .with("app", &self.app)
            .with("environment", &self.environment)
            .with("days", &query.days.to_string())
            .with("count", if query.runs { "runs" } else { "reports" })
    }

    fn tone(&self) -> Tone {
        match (self.closes(), self.missing) {
            (false, _) => Tone::Page,
            (true, n) if n > 0 => Tone::Ticket,
            (true, _) => Tone::Fine,
        }
    }

    fn icon(&self) -> Icon {
        self.tone().icon()
    }

    fn word(&self) -> String {
        match self.tone() {
            Tone::Page => "does not close".to_owned(),
            Tone::Ticket => format!("{} on the way", number::count(self.missing)),
            _ => "closes".to_owned(),
        }
    }

    fn cells(&self) -> [String; COUNT_HEADS.len()] {
        [
            self.recorded,
            self.stored,
            self.dropped,
            self.refused,
            self.missing,
            self.duplicate,
            self.conflict,
        ]
        .map(number::count)
    }
}

impl LargestRow {
    fn cells(&self) -> [String; 2] {
        [self.reports, self.of_installation].map(number::count)
    }
}

impl InstallationsRow {
    fn proven(&self) -> String {
        number::count(self.installations.saturating_sub(self.unproven))
    }

    fn unproven_text(&self) -> String {
        number::count(self.unproven)
    }
}

fn html<'a>(frame: &'a Frame, page: &'a LedgerPage) -> LedgerHtml<'a> {
    LedgerHtml {
        frame,
        page,
        sums: page.by_app(),
        total: page.total(),
    }
}

pub(crate) fn ledger(frame: &Frame, page: &LedgerPage) -> askama::Result<String> {
    html(frame, page).render()
}

/// Returns a drawing of the page by its name.
pub(crate) fn drawing(frame: &Frame, page: &LedgerPage, name: &str) -> Option<Drawing> {
    match name {
        "reports" => html(frame, page).bar()?.into_iter().next(),
        _ => None,
    }
}
