//! The errors that a terminal shows instead of an answer.

use crate::read::store::ReadError;
use crate::server::answer::Missing;

/// The reasons for which a command has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TerminalError {
    /// Nothing in the store has the requested name.
    #[error(
        "nothing in the store has this name; `epwatch status` and `epwatch incident` list names and ids"
    )]
    Unknown,
    /// Nothing that was judged in the last day has this name.
    #[error("no {what} that was judged in the last day is called {asked}; {hint}")]
    NoSuch {
        /// For example `model`.
        what: &'static str,
        /// The name as it was typed.
        asked: String,
        /// The nearest known name, or the command that lists names.
        hint: String,
    },
    /// No window is over yet, or the detector does not run.
    #[error(
        "nothing is judged yet: a window is judged once it is over; `epwatch health` shows whether the detector runs"
    )]
    NothingJudged,
    /// The detector's last judgement is too old.
    #[error(
        "nothing was judged after {0}: the detector is late or down, so nobody knows; `epwatch health` shows why"
    )]
    Late(String),
    /// No report of such an installation is in the store.
    #[error(
        "no such device has reported in the last days; `epwatch devices` lists the devices of the last day"
    )]
    NoDevice,
    /// No installation reported in the last day.
    #[error(
        "no device has reported in the last day; the SDK's `explain()` prints what kept a report back as `last problem`"
    )]
    NoneYet,
    /// Text that is not an id of an installation.
    #[error(
        "{0} is not a device's id: expected 8 to 32 hexadecimal digits, as the SDK's `explain()` prints them"
    )]
    Id(String),
    /// Several installations have an id with this beginning.
    #[error("several devices' ids begin with {0}: use more digits")]
    Several(String),
    /// The store is unreachable, slow, or has another schema.
    #[error("failed to read the store: {0}")]
    Store(String),
}

impl From<Missing> for TerminalError {
    fn from(missing: Missing) -> Self {
        match missing {
            Missing::Unknown => Self::Unknown,
            Missing::Store(error) => error.into(),
        }
    }
}

impl From<ReadError> for TerminalError {
    fn from(error: ReadError) -> Self {
        Self::Store(match &error {
            ReadError::Schema(_) => format!(
                "{error}; it was made by another version of epwatch, or was not migrated yet: `epwatch migrate \
                 --dry-run` lists what is missing"
            ),
            _ => error.to_string(),
        })
    }
}
