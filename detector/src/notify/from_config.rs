//! The notifiers that a config names.

use std::io::Write;
use std::sync::Arc;

use crate::config::DetectorConfig;

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
    let links = || Links::of(config);
    for (at, channel) in config.alertmanager.iter().enumerate() {
        let name = numbered("alertmanager", at);
        notifiers.push(Arc::new(Alertmanager::new(&name, channel, links())?));
    }
    for (at, channel) in config.pagerduty.iter().enumerate() {
        let name = numbered("pagerduty", at);
        notifiers.push(Arc::new(pagerduty::notifier(&name, channel, links())?));
    }
    for (at, channel) in config.slack.iter().enumerate() {
        let name = numbered("slack", at);
        notifiers.push(Arc::new(slack::notifier(&name, channel, links())?));
    }
    for (at, channel) in config.webhook.iter().enumerate() {
        let name = numbered("webhook", at);
        notifiers.push(Arc::new(webhook::notifier(&name, channel, links())?));
    }
    Ok(notifiers)
}

/// Returns the name of the notifier: its kind, with a number from the second of a kind on. Incidents keep
/// deliveries by this name.
fn numbered(kind: &str, at: usize) -> String {
    match at {
        0 => kind.to_owned(),
        _ => format!("{kind}-{}", at + 1),
    }
}
