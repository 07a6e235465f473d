//! The notifier for channels that take each notification as one POST. A channel's file holds its [`Format`].

use std::fmt;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;

use super::audience::Audience;
use super::error::NotifyError;
use super::http::HttpChannel;
use super::notifier::{Notification, Notifier};

/// The request of one kind of channel.
pub(super) trait Format: fmt::Debug + Send + Sync + 'static {
    /// Returns whether a status means that it was delivered.
    fn is_taken(&self) -> fn(StatusCode) -> bool {
        |status| status == StatusCode::OK
    }

    /// Returns the channel's own headers, and the JSON to post.
    fn request(&self, notification: &Notification, now: Timestamp) -> (HeaderMap, Vec<u8>);
}

/// Posts notifications to one address in one format.
#[derive(Debug)]
pub(crate) struct HttpNotifier {
    channel: HttpChannel,
    format: Box<dyn Format>,
    audience: Audience,
}

impl HttpNotifier {
    /// Prepares requests to `url`; nothing is sent.
    pub(super) fn new(
        name: &str,
        url: &str,
        audience: Audience,
        format: impl Format,
    ) -> Result<Self, NotifyError> {
        Ok(Self {
            channel: HttpChannel::new(name, url)?,
            format: Box::new(format),
            audience,
        })
    }
}

impl Notifier for HttpNotifier {
    fn name(&self) -> &str {
        self.channel.name()
    }

    fn audience(&self) -> Audience {
        self.audience.clone()
    }

    fn notify<'a>(
        &'a self,
        notification: &'a Notification,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<(), NotifyError>> {
        let (headers, json) = self.format.request(notification, now);
        let is_taken = self.format.is_taken();
        self.channel.post(headers, json, is_taken).boxed()
    }
}
