//! Notifications of incidents: one trait, one file for each channel, and the text that all channels share.
//!
//! The run loop starts `deliver` for each notifier; it delivers the latest state of every incident. Nothing
//! here judges, and no payload holds an installation.

pub(crate) mod alert_reconciler;
mod alertmanager;
mod audience;
mod config;
mod deliver;
mod document;
mod error;
mod expected;
mod from_config;
mod heartbeat;
mod held_alerts;
mod http;
mod http_notifier;
mod links;
mod notifier;
mod pagerduty;
mod secret;
mod silences;
mod slack;
mod stdout;
mod steps;
mod test_page;
mod text;
mod webhook;

pub use audience::Audience;
pub(crate) use config::check_url;
pub use config::{AlertmanagerConfig, PagerDutyConfig, SlackConfig, WebhookConfig};
pub(crate) use deliver::{AttemptOutcome, Delivered, Deliveries, deliver};
pub use error::NotifyError;
pub(crate) use from_config::check_channels;
pub use from_config::notifiers;
pub(crate) use heartbeat::Heartbeat;
pub use held_alerts::{HeldAlert, HeldAlerts};
pub use links::page_of;
pub use notifier::{Notification, Notifier, Occasion};
pub use stdout::Stdout;
pub use test_page::test_page;
pub use text::block;
pub(crate) use text::summary;
pub(crate) use text::text_of;

#[cfg(test)]
mod tests;
