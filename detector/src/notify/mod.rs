//! Telling people: one trait, one file a channel, and the text they all share.

mod alertmanager;
mod deliver;
mod document;
mod http;
mod pagerduty;
mod secret;
mod slack;
mod stdout;
mod text;
mod webhook;

use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;

use crate::config::DetectorConfig;
use crate::incident::{Incident, State};
use crate::period::Period;
use crate::verdict::Severity;

pub use alertmanager::{Alertmanager, AlertmanagerConfig};
pub(crate) use deliver::{Deliveries, deliver};
pub(crate) use http::parse_url;
pub use pagerduty::{PagerDuty, PagerDutyConfig};
pub use slack::{Slack, SlackConfig};
pub use stdout::Stdout;
pub use text::{block, description, summary};
pub use webhook::{Webhook, WebhookConfig};

/// A channel to people.
pub trait Notifier: fmt::Debug + Send + Sync + 'static {
    /// Its name: a metric label, and the key under which incidents remember what it delivered.
    fn name(&self) -> &str;

    /// Incidents below this severity are not its business.
    fn min_severity(&self) -> Severity {
        Severity::Ticket
    }

    /// How often a firing incident is told again; `None` for channels that remember.
    fn repeat_every(&self) -> Option<Duration> {
        None
    }

    /// Tells people how an incident stands. The same news may come twice after a crash.
    ///
    /// # Errors
    /// It did not get through; [`NotifyError::retry`] says what to do.
    fn notify<'a>(
        &'a self,
        notification: &'a Notification,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<(), NotifyError>>;
}

/// An incident as it stands, and why it is told now.
#[derive(Debug, Clone, PartialEq)]
pub struct Notification {
    /// The incident.
    pub incident: Incident,
    /// Why now.
    pub occasion: Occasion,
}

/// Why an incident is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occasion {
    /// It fired.
    Firing,
    /// It grew: worse, or more chipsets.
    Grown,
    /// A directive took its devices off the NPU.
    Mitigated,
    /// It is back after that.
    Returned,
    /// Nothing new; the channel forgets.
    Repeated,
    /// It is over.
    Resolved,
}

impl Occasion {
    /// Returns the name used in payloads.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Firing => "firing",
            Self::Grown => "grown",
            Self::Mitigated => "mitigated",
            Self::Returned => "returned",
            Self::Repeated => "repeated",
            Self::Resolved => "resolved",
        }
    }
}

impl Notification {
    /// Says how a changed incident stands.
    #[must_use]
    pub fn news(incident: Incident) -> Self {
        let occasion = match incident.state {
            State::Resolved => Occasion::Resolved,
            State::Mitigated => Occasion::Mitigated,
            _ if incident.superseded.is_some() => Occasion::Grown,
            _ if incident.returned_at.is_some() => Occasion::Returned,
            _ => Occasion::Firing,
        };
        Self { incident, occasion }
    }

    /// Says again how an incident stands.
    #[must_use]
    pub fn repeated(incident: Incident) -> Self {
        Self {
            incident,
            occasion: Occasion::Repeated,
        }
    }
}

/// Makes the notifiers of a configuration; `text` is where standard output's go.
///
/// # Errors
/// A secret cannot be read, an address is none, or TLS could not be set up.
pub fn notifiers(
    config: &DetectorConfig,
    text: impl Write + Send + 'static,
) -> Result<Vec<Arc<dyn Notifier>>, NotifyError> {
    let mut notifiers: Vec<Arc<dyn Notifier>> = Vec::new();
    if config.stdout {
        notifiers.push(Arc::new(Stdout::new(text)));
    }
    let dashboard = || config.dashboard_url.clone();
    for (at, alertmanager) in config.alertmanager.iter().enumerate() {
        let name = numbered("alertmanager", at);
        let notifier = Alertmanager::new(&name, alertmanager.clone(), dashboard())?;
        notifiers.push(Arc::new(notifier));
    }
    for (at, pagerduty) in config.pagerduty.iter().enumerate() {
        let name = numbered("pagerduty", at);
        notifiers.push(Arc::new(PagerDuty::new(&name, pagerduty, dashboard())?));
    }
    for (at, slack) in config.slack.iter().enumerate() {
        let name = numbered("slack", at);
        notifiers.push(Arc::new(Slack::new(&name, slack, dashboard())?));
    }
    for (at, webhook) in config.webhook.iter().enumerate() {
        let name = numbered("webhook", at);
        notifiers.push(Arc::new(Webhook::new(&name, webhook, dashboard())?));
    }
    Ok(notifiers)
}

/// The first of a kind has the kind's name, the next has a number: incidents remember by name who
/// was told.
fn numbered(kind: &str, at: usize) -> String {
    match at {
        0 => kind.to_owned(),
        _ => format!("{kind}-{}", at + 1),
    }
}

/// The least severity a channel is for, where its configuration does not say.
fn ticket() -> Severity {
    Severity::Ticket
}

/// How long one attempt may take, where the configuration does not say.
fn timeout() -> Period {
    Period(Duration::from_secs(10))
}

/// Why a notification did not get through.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotifyError {
    /// Its secret cannot be read.
    #[error("failed to read the secret of {channel} from {path}")]
    Secret {
        /// Which channel.
        channel: String,
        /// The file that should hold it.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Its address is none.
    #[error("failed to use the address of {channel}: expected http:// or https:// and a host")]
    Address {
        /// Which channel.
        channel: String,
    },
    /// No answer.
    #[error("failed to reach {channel}")]
    Unreachable {
        /// Which channel.
        channel: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It is there and wants us to come again.
    #[error("failed to notify {channel}: it answered {status}")]
    Busy {
        /// Which channel.
        channel: String,
        /// HTTP status.
        status: u16,
        /// When it wants us, if it says so.
        after: Option<Duration>,
    },
    /// It will never take this.
    #[error("failed to notify {channel}: it refused with {status}: {detail}")]
    Refused {
        /// Which channel.
        channel: String,
        /// HTTP status.
        status: u16,
        /// The beginning of its answer.
        detail: String,
    },
    /// Nothing could be written.
    #[error("failed to write to {channel}")]
    Write {
        /// Which channel.
        channel: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// What to do about a failed notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Not again: it is a dead letter.
    Never,
    /// Later, waiting longer each time.
    WithBackoff,
    /// After this long.
    After(Duration),
}

impl NotifyError {
    /// Returns what to do about it.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            NotifyError::Unreachable { .. } | NotifyError::Write { .. } => Retry::WithBackoff,
            NotifyError::Busy { after, .. } => after.map_or(Retry::WithBackoff, Retry::After),
            NotifyError::Refused { .. }
            | NotifyError::Secret { .. }
            | NotifyError::Address { .. } => Retry::Never,
        }
    }
}

#[cfg(test)]
mod tests;
