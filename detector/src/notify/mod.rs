//! Notifications of incidents: one trait, one file for each channel, and the text that all channels share.
//!
//! The run loop starts `deliver` for each notifier; it delivers the latest state of every incident. Nothing
//! here judges, and no payload holds an installation.

mod alertmanager;
mod config;
mod deliver;
mod document;
mod error;
mod from_config;
mod http;
mod http_notifier;
mod notifier;
mod pagerduty;
mod secret;
mod slack;
mod stdout;
mod text;
mod webhook;

pub(crate) use config::check_url;
pub use config::{AlertmanagerConfig, PagerDutyConfig, SlackConfig, WebhookConfig};
pub(crate) use deliver::{Deliveries, deliver};
pub use error::NotifyError;
pub use from_config::notifiers;
pub use notifier::{Notification, Notifier, Occasion};
pub use stdout::Stdout;
pub use text::block;
pub(crate) use text::summary;

#[cfg(test)]
mod tests;
