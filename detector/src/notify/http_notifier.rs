//! The notifier for channels that take each notification as one POST. A channel's file holds its [`Format`].

use std::fmt;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;

use crate::verdict::Severity;

use super::error::NotifyError;
use super::http::HttpChannel;
use super::notifier::{Notification, Notifier};

/// The request of one kind of channel.
pub(super) trait Format: fmt::Debug + Send + Sync + 'static {
    /// The status that means it was delivered.
    fn taken(&self) -> StatusCode {
        StatusCode::OK
    }

    /// Returns the channel's own headers, and the JSON to post.
    fn request(&self, notification: &Notification, now: Timestamp) -> (HeaderMap, Vec<u8>);
}

/// Posts notifications to one address in one format.
#[derive(Debug)]
pub(crate) struct HttpNotifier {
    channel: HttpChannel,
    format: Box<dyn Format>,
    min_severity: Severity,
    repeat_every: Option<Duration>,
}

impl HttpNotifier {
    /// Prepares requests to `url`; nothing is sent.
    pub(super) fn new(
        name: &str,
        url: &str,
        min_severity: Severity,
        format: impl Format,
    ) -> Result<Self, NotifyError> {
        Ok(Self {
            channel: HttpChannel::new(name, url)?,
            format: Box::new(format),
            min_severity,
            repeat_every: None,
        })
    }

    pub(super) fn repeated_every(self, period: Duration) -> Self {
        Self {
            repeat_every: Some(period),
            ..self
        }
    }
}

impl Notifier for HttpNotifier {
    fn name(&self) -> &str {
        self.channel.name()
    }

    fn min_severity(&self) -> Severity {
        self.min_severity
    }

    fn repeat_every(&self) -> Option<Duration> {
        self.repeat_every
    }

    fn notify<'a>(
        &'a self,
        notification: &'a Notification,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<(), NotifyError>> {
        let (headers, json) = self.format.request(notification, now);
        let taken = self.format.taken();
        self.channel.post(headers, json, taken).boxed()
    }
}
