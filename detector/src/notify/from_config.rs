//! The notifiers that a config names.

use std::io::Write;
use std::sync::Arc;

use epwatch_proto::error_chain;
use epwatch_server::Problems;

use crate::run::config::DetectorConfig;

use super::alertmanager::Alertmanager;
use super::error::NotifyError;
use super::links::Links;
use super::notifier::Notifier;
use super::stdout::Stdout;
use super::{pagerduty, slack, webhook};

/// Creates the notifiers of a configuration; the one for standard output writes to `text`.
///
/// # Errors
/// A secret cannot be read, an address is invalid, or TLS cannot be set up.
pub fn notifiers(
    config: &DetectorConfig,
    text: impl Write + Send + 'static,
) -> Result<Vec<Arc<dyn Notifier>>, NotifyError> {
    let mut notifiers: Vec<Arc<dyn Notifier>> = Vec::new();
    if config.stdout {
        notifiers.push(Arc::new(Stdout::new(text).with_links(Links::of(config))));
    }
    for (_, channel) in channels(config) {
        notifiers.push(channel?);
    }
    Ok(notifiers)
}

/// Adds the problem of each channel that cannot be used, such as a secret that cannot be read. A channel whose URL
/// [`DetectorConfig::validate`] refuses is left to it.
pub(crate) fn check_channels(problems: &mut Problems, config: &DetectorConfig) {
    let refused = config.validate().err().unwrap_or_default();
    for (key, channel) in channels(config) {
        let url = format!("{key}.url");
        let is_known = refused.0.iter().any(|known| known.key == url);
        if let Err(error) = channel
            && !is_known
        {
            problems.push(key, error_chain(&error));
        }
    }
}

type Channel = Result<Arc<dyn Notifier>, NotifyError>;

/// Returns each channel with the key of its section.
fn channels(config: &DetectorConfig) -> Vec<(String, Channel)> {
    let mut channels: Vec<(String, Channel)> = Vec::new();
    let links = || Links::of(config);
    let mut add = |kind: &str, at: usize, channel: &dyn Fn(&str) -> Channel| {
        channels.push((format!("{kind}[{at}]"), channel(&numbered(kind, at))));
    };
    for (at, of) in config.alertmanager.iter().enumerate() {
        let new = |name: &str| Ok(Arc::new(Alertmanager::new(name, of, links())?) as _);
        add("alertmanager", at, &new);
    }
    for (at, of) in config.pagerduty.iter().enumerate() {
        let new = |name: &str| Ok(Arc::new(pagerduty::notifier(name, of, links())?) as _);
        add("pagerduty", at, &new);
    }
    for (at, of) in config.slack.iter().enumerate() {
        let new = |name: &str| Ok(Arc::new(slack::notifier(name, of, links())?) as _);
        add("slack", at, &new);
    }
    for (at, of) in config.webhook.iter().enumerate() {
        let new = |name: &str| Ok(Arc::new(webhook::notifier(name, of, links())?) as _);
        add("webhook", at, &new);
    }
    channels
}

/// Returns the name of the notifier: its kind, with a number for the second and later ones of a kind. Incidents record
/// deliveries under this name.
fn numbered(kind: &str, at: usize) -> String {
    match at {
        0 => kind.to_owned(),
        _ => format!("{kind}-{}", at + 1),
    }
}
