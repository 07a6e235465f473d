//! Silences of muted incidents at an Alertmanager. The incident's alert continues, without notifications.
//!
//! epwatch makes and ends only silences of its own. They are found by the incident and their author, so a restart
//! forgets none.

use epwatch_model::Incident;
use http::HeaderMap;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;
use url::form_urlencoded;

use super::error::NotifyError;
use super::expected::Expected;
use super::http::HttpChannel;
use super::text::by;

/// The author of silences.
const AUTHOR: &str = "epwatch";

/// The label that silences match.
const LABEL: &str = "incident";

/// The silences of one Alertmanager.
#[derive(Debug)]
pub(super) struct Silences {
    name: String,
    base: String,
    make: HttpChannel,
}

/// A silence that the Alertmanager holds.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Silence {
    id: String,
    created_by: String,
    ends_at: Timestamp,
    status: Status,
    matchers: Vec<Matcher>,
}

#[derive(Debug, Deserialize)]
struct Status {
    state: String,
}

#[derive(Debug, Deserialize)]
struct Matcher {
    name: String,
    value: String,
}

impl Silence {
    fn is_of(&self, incident: &str) -> bool {
        let is_ours = self.created_by == AUTHOR && self.status.state != "expired";
        let mut matchers = self.matchers.iter();
        is_ours && matchers.any(|one| one.name == LABEL && one.value == incident)
    }
}

impl Silences {
    pub(super) fn new(name: &str, url: &str) -> Result<Self, NotifyError> {
        let base = format!("{}/api/v2", url.trim_end_matches('/'));
        Ok(Self {
            name: name.to_owned(),
            make: HttpChannel::new(name, &format!("{base}/silences"))?,
            base,
        })
    }

    /// Makes the silence of a muted incident, and ends silences that remain from an incident that is not muted.
    pub(super) async fn keep(
        &self,
        incident: &Incident,
        now: Timestamp,
    ) -> Result<(), NotifyError> {
        let is_silent = incident.state.is_open() && incident.orders.is_muted(now);
        let until = incident.orders.muted_until().filter(|_| is_silent);
        let held = self.held(&incident.id).await?;
        // Alertmanager may round an end.
        let is_until = |silence: &Silence| {
            until.is_some_and(|until| until.duration_since(silence.ends_at).abs().as_secs() < 1)
        };
        let held = held.iter().filter(|silence| silence.is_of(&incident.id));
        let (kept, old): (Vec<&Silence>, Vec<&Silence>) = held.partition(|one| is_until(one));
        // The new silence comes first, so that no notification goes out in between.
        if let Some(until) = until.filter(|_| kept.is_empty()) {
            self.make(incident, now, until).await?;
        }
        for silence in old {
            self.end(&silence.id).await?;
        }
        Ok(())
    }

    /// Reads the silences whose matcher equals an incident's. A regular expression as the filter would find none,
    /// because Alertmanager also compares the filter's kind.
    async fn held(&self, incident: &str) -> Result<Vec<Silence>, NotifyError> {
        let filter = format!("{LABEL}={incident:?}");
        let filter: String = form_urlencoded::byte_serialize(filter.as_bytes()).collect();
        let address = format!("{}/silences?filter={filter}", self.base);
        let answer = HttpChannel::new(&self.name, &address)?.get().await?;
        serde_json::from_slice(&answer).map_err(|source| NotifyError::Unreachable {
            channel: self.name.clone(),
            source: source.into(),
        })
    }

    async fn make(
        &self,
        incident: &Incident,
        now: Timestamp,
        until: Timestamp,
    ) -> Result<(), NotifyError> {
        let mute = incident.orders.mute.as_ref();
        let silence = json!({
            "matchers": [{"name": LABEL, "value": incident.id, "isRegex": false, "isEqual": true}],
            "startsAt": now.to_string(),
            "endsAt": until.to_string(),
            "createdBy": AUTHOR,
            "comment": mute.map_or_else(String::new, by),
        });
        let json = silence.to_string().into_bytes();
        let expected = Expected::OK_WITHOUT_HTML;
        self.make.post(HeaderMap::new(), json, &expected).await
    }

    async fn end(&self, id: &str) -> Result<(), NotifyError> {
        // The id becomes a part of an address.
        if !id
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        {
            return Ok(());
        }
        let address = format!("{}/silence/{id}", self.base);
        HttpChannel::new(&self.name, &address)?.delete().await
    }
}
