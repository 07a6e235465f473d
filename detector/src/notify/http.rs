//! One POST to a channel, and what its answer means.

use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{StatusCode, Url};

use super::NotifyError;

/// How much of a refusal is kept.
const MAX_DETAIL_CHARS: usize = 300;

/// A channel that is told by HTTP.
#[derive(Debug)]
pub(super) struct HttpChannel {
    pub(super) name: String,
    http: reqwest::Client,
}

impl HttpChannel {
    /// Prepares the client; nothing is sent.
    pub(super) fn new(name: &str, timeout: Duration) -> Result<Self, NotifyError> {
        // Without a provider of the process reqwest has none; whoever came first keeps theirs.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .timeout(timeout)
            // A payload goes where it was meant to go, or nowhere.
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|source| NotifyError::Unreachable {
                channel: name.to_owned(),
                source: source.into(),
            })?;
        Ok(Self {
            name: name.to_owned(),
            http,
        })
    }

    /// Posts JSON; only `taken` means that it got through.
    pub(super) async fn post(
        &self,
        url: Url,
        mut headers: HeaderMap,
        json: Vec<u8>,
        taken: StatusCode,
    ) -> Result<(), NotifyError> {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let request = self.http.post(url).headers(headers).body(json);
        let sent = request.send().await;
        let response = sent.map_err(|source| NotifyError::Unreachable {
            channel: self.name.clone(),
            // The URL may hold a secret.
            source: source.without_url().into(),
        })?;
        let status = response.status();
        if status == taken {
            return Ok(());
        }
        let channel = self.name.clone();
        let again = status.is_server_error()
            || matches!(
                status,
                StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS
            );
        if again {
            let after = response.headers().get(RETRY_AFTER);
            let after = after.and_then(|value| value.to_str().ok()?.trim().parse().ok());
            return Err(NotifyError::Busy {
                channel,
                status: status.as_u16(),
                after: after.map(Duration::from_secs),
            });
        }
        let answer = response.text().await.unwrap_or_default();
        Err(NotifyError::Refused {
            channel,
            status: status.as_u16(),
            detail: answer.chars().take(MAX_DETAIL_CHARS).collect(),
        })
    }
}
