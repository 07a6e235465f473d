//! A notifier that writes pages to the demo's screen.

use epwatch_detector::notify::{self, Notification, Notifier, NotifyError};
use epwatch_model::Severity;
use serde::Serialize;
use tokio::sync::mpsc;

/// Notifications that the screen has not shown yet.
const MAX_WAITING: usize = 64;

/// One notification as text.
#[derive(Debug, Serialize)]
pub(super) struct Page {
    /// Whether its severity is page, not ticket.
    pub(super) is_page: bool,
    pub(super) incident: String,
    pub(super) text: String,
}

/// A notifier that writes to the screen.
#[derive(Debug)]
pub(super) struct Pager(mpsc::Sender<Page>);

impl Pager {
    pub(super) fn new() -> (Self, mpsc::Receiver<Page>) {
        let (pages, shown) = mpsc::channel(MAX_WAITING);
        (Self(pages), shown)
    }
}

impl Notifier for Pager {
    fn name(&self) -> &str {
        "screen"
    }

    fn notify<'a>(
        &'a self,
        notification: &'a Notification,
        _now: jiff::Timestamp,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<(), NotifyError>> + Send + 'a>> {
        Box::pin(async move {
            let page = Page {
                is_page: notification.incident.severity() == Severity::Page,
                incident: notification.incident.id.clone(),
                text: notify::block(notification),
            };
            // The send fails once the demo has dropped the receiver at its end.
            let _ended = self.0.send(page).await;
            Ok(())
        })
    }
}
