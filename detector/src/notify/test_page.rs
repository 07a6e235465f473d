//! A test page: a made-up incident that goes through the configured channels once, marked as a test.

use std::time::Duration;

use epwatch_model::{
    Cause, Headline, Incident, IncidentKey, ModelKey, Severity, State, VerdictClass,
};
use jiff::Timestamp;

use super::notifier::{Notification, Occasion};

/// The name of its alert, and of its section of the runbook.
pub(super) const ALERT: &str = "EpwatchTest";

/// Returns the notification of a page that is a test. Its id is `test-` and the time in milliseconds. The built-in page
/// recognises such ids, so the link opens a page that says that it is a test.
#[must_use]
pub fn test_page(now: Timestamp) -> Notification {
    let key = IncidentKey {
        model: ModelKey {
            app_id: Incident::TEST_APP.to_owned(),
            environment: "test".to_owned(),
            model_id: "test".to_owned(),
        },
        model_version: "0".to_owned(),
        cause: Cause::Slower,
    };
    let incident = Incident {
        id: format!("test-{}", now.as_millisecond()),
        state: State::Firing,
        fired_at: Some(now),
        news: 1,
        headline: Some(Headline {
            severity: Severity::Page,
            class: VerdictClass::TotalFallback,
            chipsets: std::collections::BTreeSet::new(),
        }),
        ..Incident::begin(key, (now, Duration::ZERO), now)
    };
    Notification {
        incident,
        occasion: Occasion::Test,
    }
}
