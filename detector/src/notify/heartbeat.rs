//! The heartbeat: a post to an address after each evaluation. A service that expects the posts pages when they stop, so
//! that a dead detector is noticed from outside.

use http::HeaderMap;

use super::error::NotifyError;
use super::expected::Expected;
use super::http::HttpChannel;

/// Posts to the address of `detector.heartbeat`.
#[derive(Debug)]
pub(crate) struct Heartbeat(HttpChannel);

impl Heartbeat {
    /// Its name in metrics and logs.
    pub(crate) const NAME: &'static str = "heartbeat";

    /// Prepares requests to `url`; nothing is sent.
    pub(crate) fn new(url: &str) -> Result<Self, NotifyError> {
        HttpChannel::new(Self::NAME, url).map(Self)
    }

    /// Posts `{}`; any status of success means that it arrived.
    pub(crate) async fn beat(&self) -> Result<(), NotifyError> {
        let body = b"{}".to_vec();
        self.0
            .post(HeaderMap::new(), body, &Expected::SUCCESS)
            .await
    }
}
