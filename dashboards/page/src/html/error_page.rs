//! Pages without data: an unknown name, a store that does not answer, and the form for the token.

use std::fmt;

use askama::Template;
use jiff::Timestamp;

use super::frame::Frame;
use crate::read::store::ReadError;

/// The reason for an error page.
#[derive(Debug)]
pub(crate) enum NoPage {
    /// A name is unknown; the word says what kind of thing was asked for.
    Unknown(&'static str),
    /// The link was in a test notification, which was sent at this time.
    Test(Timestamp),
    Store {
        error: ReadError,
        /// When the store last answered.
        since: Option<Timestamp>,
    },
}

impl fmt::Display for NoPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(what) => write!(f, "there is no such {what}"),
            Self::Test(at) => write!(f, "a test of {at}, and no incident"),
            Self::Store { error, .. } => error.fmt(f),
        }
    }
}

#[derive(Template)]
#[template(path = "error_page.html")]
struct NoPageHtml<'a> {
    frame: &'a Frame,
    why: &'a NoPage,
}

impl NoPageHtml<'_> {
    /// Whether the store has failed; otherwise it has no data to show.
    fn is_alarm(&self) -> bool {
        matches!(self.why, NoPage::Store { .. })
    }

    fn title(&self) -> String {
        match self.why {
            NoPage::Unknown(what) => format!("There is no such {what}"),
            NoPage::Test(at) => format!("This was a test, sent at {} UTC", self.frame.clock(at)),
            NoPage::Store { error, .. } => match error {
                ReadError::Away(_) => "The store does not answer".to_owned(),
                ReadError::Slow => "The store did not answer in time".to_owned(),
                ReadError::Busy => "Too many pages wait for the store".to_owned(),
                ReadError::Schema(_) => "The store's schema does not fit this program".to_owned(),
                ReadError::Refused(_) => "The store refused".to_owned(),
            },
        }
    }

    fn explanation(&self) -> &'static str {
        match self.why {
            NoPage::Unknown("incident") => {
                "No incident has this id. It may be older than the store keeps incidents (396 days by default)."
            }
            NoPage::Unknown("cohort") => {
                "No window of this model's version on this chipset was judged in the last day."
            }
            NoPage::Unknown("version") => {
                "No window of this version of the model was judged in the last day. It may be too new: a version is judged once its \
                 first window is over."
            }
            NoPage::Unknown(_) => "Nothing has this address.",
            NoPage::Test(_) => {
                "You reached the right place: the page of a real incident opens here. Nothing is wrong, and nothing is \
                 to do but to resolve the test where it was sent."
            }
            NoPage::Store { error, .. } => match error {
                ReadError::Away(_) => {
                    "Devices notice nothing: collectors keep taking reports into their WAL. Nobody is paged for \
                     models until the store is back."
                }
                ReadError::Slow => {
                    "It may be busy with an evaluation or a merge. Other pages may be quicker; try again."
                }
                ReadError::Busy => {
                    "Two queries run at once, so that pages never starve the detector. Try again."
                }
                ReadError::Schema(_) => {
                    "It was made by another version of epwatch, or was not migrated yet."
                }
                ReadError::Refused(_) => "Its answer is below.",
            },
        }
    }

    fn said(&self) -> Option<&str> {
        match self.why {
            NoPage::Store {
                error: ReadError::Away(said) | ReadError::Schema(said) | ReadError::Refused(said),
                ..
            } => Some(said),
            _ => None,
        }
    }

    fn since(&self) -> Option<String> {
        match self.why {
            NoPage::Store {
                since: Some(at), ..
            } => Some(format!(
                "It last answered at {} UTC, {}.",
                self.frame.clock(at),
                self.frame.ago(at)
            )),
            _ => None,
        }
    }

    /// Returns steps as text before code, code, and text after it.
    fn steps(&self) -> Vec<(&'static str, &'static str, &'static str)> {
        let NoPage::Store { error, .. } = self.why else {
            return Vec::new();
        };
        match error {
            ReadError::Away(_) => vec![
                (
                    "Bring ClickHouse back; collectors catch up in order.",
                    "",
                    "",
                ),
                (
                    "Watch ",
                    "epwatch_collector_wal_lag_bytes",
                    "; at the WAL's limit devices are told to wait.",
                ),
            ],
            ReadError::Schema(_) => vec![
                ("See what is missing: ", "epwatch migrate --dry-run", "."),
                (
                    "Run the version of epwatch that the collectors run.",
                    "",
                    "",
                ),
            ],
            _ => Vec::new(),
        }
    }
}

pub(crate) fn error_page(frame: &Frame, why: &NoPage) -> askama::Result<String> {
    NoPageHtml { frame, why }.render()
}

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignInHtml<'a> {
    to: &'a str,
    problem: &'a str,
}

/// Returns the form for the token.
pub(crate) fn sign_in(to: &str, problem: &str) -> String {
    let page = SignInHtml { to, problem };
    page.render().unwrap_or_default()
}
