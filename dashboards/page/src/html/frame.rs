//! The frame around every page: navigation, freshness, and the address of its JSON.

use jiff::Timestamp;

use crate::read::progress::Progress;
use crate::text::terms::{TERMS, line_of};
use crate::text::time::{ago, clock};
use crate::text::words::{Icon, Tone};

/// Returns the seconds after a window's end within which it is judged. This is the wait for its reports, which is two
/// minutes for steps of an hour, plus a grace period. After the grace period the detector calls a judgement late.
fn judged_within(step: i64) -> i64 {
    (step / 30).clamp(2, 120) + (step / 4).clamp(30, 900)
}

/// A page of the navigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nav {
    Fleet,
    Incidents,
    Orders,
    Ledger,
    Health,
}

/// The page is older than it should be.
#[derive(Debug)]
pub(crate) struct Stale {
    pub(crate) read_at: Timestamp,
    pub(crate) said: String,
}

/// Whether the reader of a page may order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum OrderRight {
    /// No token may order, because none is configured.
    #[default]
    Nobody,
    /// The reader has not presented the token.
    SignIn,
    /// The reader may order; forms carry this token.
    May { form: String },
}

/// Head, navigation and refresh, which are the same around every page's content.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) now: Timestamp,
    pub(crate) nav: Option<Nav>,
    pub(crate) refresh: Option<u32>,
    /// Address that turns the automatic refresh of the same page on or off. `None` for a page that must not refresh
    /// itself.
    pub(crate) refresh_link: Option<String>,
    /// Address of the same page as JSON.
    pub(crate) json: Option<String>,
    pub(crate) progress: Option<Progress>,
    pub(crate) stale: Option<Stale>,
    pub(crate) orders: OrderRight,
    /// Address of the Grafana that has the dashboards.
    pub(crate) grafana: Option<String>,
}

/// An entry of the navigation.
pub(crate) struct NavItem {
    pub(crate) href: &'static str,
    pub(crate) label: &'static str,
    pub(crate) is_current: bool,
}

impl Frame {
    /// Returns the lines of all terms; those that the page does not have are taken out later.
    pub(super) fn terms(&self) -> Vec<String> {
        TERMS.iter().map(line_of).collect()
    }

    pub(crate) fn new(now: Timestamp, refresh: Option<u32>) -> Self {
        Self {
            now,
            nav: None,
            refresh,
            refresh_link: None,
            json: None,
            progress: None,
            stale: None,
            orders: OrderRight::Nobody,
            grafana: None,
        }
    }

    pub(crate) fn nav_items(&self) -> [NavItem; 5] {
        let item = |nav, href, label| NavItem {
            href,
            label,
            is_current: self.nav == Some(nav),
        };
        [
            item(Nav::Fleet, "/fleet", "Fleet"),
            item(Nav::Incidents, "/incidents", "Incidents"),
            item(Nav::Orders, "/orders", "Orders"),
            item(Nav::Ledger, "/ledger", "Loss ledger"),
            item(Nav::Health, "/health", "Health"),
        ]
    }

    pub(crate) fn clock(&self, at: &Timestamp) -> String {
        clock(*at, self.now)
    }

    pub(crate) fn ago(&self, at: &Timestamp) -> String {
        ago(*at, self.now)
    }

    /// Whether a window is unjudged although its time for judgement is over.
    pub(crate) fn is_late(&self) -> bool {
        let judged = self.progress.and_then(|progress| progress.judged_until);
        let step = self.progress.and_then(|progress| progress.step_seconds);
        let next = judged
            .zip(step)
            .map(|(end, step)| end.as_second() + step + judged_within(step));
        next.is_some_and(|deadline| self.now.as_second() > deadline)
    }

    /// Returns how long ago the detector judged.
    pub(crate) fn judged_ago(&self) -> String {
        let judged = self.progress.and_then(|progress| progress.judged_at);
        judged.map_or_else(String::new, |at| self.ago(&at))
    }

    /// Whether a window was judged later than its reports and an evaluation explain.
    pub(crate) fn was_late(&self, end: Timestamp, judged_at: Timestamp) -> bool {
        let step = self.progress.and_then(|progress| progress.step_seconds);
        let late = judged_at.as_second() - end.as_second();
        step.is_some_and(|step| late > judged_within(step))
    }

    /// Returns the header's text about freshness and its class, which says whether the data is fresh.
    pub(crate) fn fresh(&self) -> (&'static str, String) {
        let judged = self.progress.and_then(|progress| progress.judged_until);
        match (&self.stale, self.progress, judged) {
            (Some(stale), ..) => (
                "bad",
                format!("store away, read {} UTC", self.clock(&stale.read_at)),
            ),
            (None, None, _) => ("bad", "no data".to_owned()),
            (None, Some(_), None) => ("ok", "ready, nothing judged yet".to_owned()),
            (None, Some(_), Some(at)) => {
                let class = if self.is_late() { "late" } else { "ok" };
                (
                    class,
                    format!("judged up to {} UTC, {}", self.clock(&at), self.ago(&at)),
                )
            }
        }
    }

    pub(crate) fn ticket_icon(&self) -> Icon {
        Tone::Ticket.icon()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window of five minutes is judged ten seconds after its end, and late from 85 on.
    #[test]
    fn a_window_is_late_after_the_wait_for_its_reports_and_a_grace() {
        let at = |second: i64| Timestamp::from_second(1_800_000_000 + second).unwrap();
        let mut frame = Frame::new(at(0), None);
        assert!(!frame.is_late() && !frame.was_late(at(0), at(10_000)));
        frame.progress = Some(Progress {
            judged_until: Some(at(0)),
            judged_at: Some(at(12)),
            step_seconds: Some(300),
            ..Progress::default()
        });
        assert!(!frame.was_late(at(0), at(85)));
        assert!(frame.was_late(at(0), at(237)), "as [O1] measured");
        for (now, is_late) in [(131, false), (385, false), (386, true)] {
            frame.now = at(now);
            assert_eq!(frame.is_late(), is_late, "{now}");
            assert_eq!(frame.fresh().0, if is_late { "late" } else { "ok" });
        }
    }
}
