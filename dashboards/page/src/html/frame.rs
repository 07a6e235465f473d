//! What stands around every page: navigation, freshness, and the address of its JSON.

use jiff::Timestamp;

use crate::read::progress::Progress;
use crate::text::time::{ago, clock};
use crate::text::words::{Icon, Tone};

/// Seconds beyond two steps of the detector after which verdicts are called old.
const GRACE_SECONDS: i64 = 30;

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
    /// No token of this page has the right.
    #[default]
    Nobody,
    /// The reader has not presented the token.
    SignIn,
    /// With the token of its forms.
    May { form: String },
}

/// Head, navigation and refresh, which are the same around every page's content.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) now: Timestamp,
    pub(crate) nav: Option<Nav>,
    pub(crate) refresh: Option<u32>,
    /// Address of the same page that reads itself again, or stops to; `None` for a page that must not.
    pub(crate) refresh_link: Option<String>,
    /// Address of the same page as JSON.
    pub(crate) json: Option<String>,
    pub(crate) progress: Option<Progress>,
    pub(crate) stale: Option<Stale>,
    pub(crate) orders: OrderRight,
}

/// An entry of the navigation.
pub(crate) struct NavItem {
    pub(crate) href: &'static str,
    pub(crate) label: &'static str,
    pub(crate) is_current: bool,
}

impl Frame {
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

    /// Whether the last judgement is more than two steps old.
    pub(crate) fn is_late(&self) -> bool {
        let Some(Progress {
            judged_at: Some(judged),
            step_seconds: Some(step),
            ..
        }) = self.progress
        else {
            return false;
        };
        self.now.as_second() - judged.as_second() > 2 * step + GRACE_SECONDS
    }

    /// Returns how long ago the detector judged.
    pub(crate) fn judged_ago(&self) -> String {
        let judged = self.progress.and_then(|progress| progress.judged_at);
        judged.map_or_else(String::new, |at| self.ago(&at))
    }

    /// Whether a window that ended at `end` was judged more than two steps later.
    pub(crate) fn was_late(&self, end: Timestamp, judged_at: Timestamp) -> bool {
        let step = self.progress.and_then(|progress| progress.step_seconds);
        let late = judged_at.as_second() - end.as_second();
        step.is_some_and(|step| late > 2 * step + GRACE_SECONDS)
    }

    /// Returns what the header says of freshness, and whether it is good.
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
