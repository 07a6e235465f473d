//! The notifier for channels that take each notification as one POST. A channel's file holds its [`Format`].

use std::fmt;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::HeaderMap;
use jiff::Timestamp;

use super::audience::Audience;
use super::error::NotifyError;
use super::expected::Expected;
use super::http::HttpChannel;
use super::notifier::{Notification, Notifier};

/// The request of one kind of channel.
pub(super) trait Format: fmt::Debug + Send + Sync + 'static {
    /// Returns the answer that means "delivered".
    fn expected(&self) -> Expected;

    /// Returns a request that notifies no one, and the answer of a receiver that would accept a page. `None` if the
    /// channel has no such request.
    fn probe(&self) -> Option<(Vec<u8>, Expected)> {
        None
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

    fn probe(&self, _now: Timestamp) -> BoxFuture<'_, Option<Result<(), NotifyError>>> {
        async move {
            let (json, expected) = self.format.probe()?;
            Some(self.channel.post(HeaderMap::new(), json, &expected).await)
        }
        .boxed()
    }

    fn notify<'a>(
        &'a self,
        notification: &'a Notification,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<(), NotifyError>> {
        let (headers, json) = self.format.request(notification, now);
        let expected = self.format.expected();
        async move { self.channel.post(headers, json, &expected).await }.boxed()
    }
}
