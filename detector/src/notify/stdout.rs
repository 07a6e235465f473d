//! Notifications as text blocks to a writer: a terminal, a log.

use std::fmt;
use std::io::Write;

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use parking_lot::Mutex;

use super::error::NotifyError;
use super::links::Links;
use super::notifier::{Notification, Notifier};
use super::text::{at, linked_block};

/// Writes one block for each notification.
pub struct Stdout {
    writer: Mutex<Box<dyn Write + Send>>,
    links: Links,
}

impl fmt::Debug for Stdout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stdout")
    }
}

impl Stdout {
    /// Its name as a notifier.
    pub const NAME: &'static str = "stdout";

    /// Writes to `writer`; the command passes standard output, because this library prints nothing.
    #[must_use]
    pub fn new(writer: impl Write + Send + 'static) -> Self {
        Self {
            writer: Mutex::new(Box::new(writer)),
            links: Links::default(),
        }
    }

    pub(super) fn with_links(self, links: Links) -> Self {
        Self { links, ..self }
    }

    fn write(&self, text: &str) -> std::io::Result<()> {
        let mut writer = self.writer.lock();
        writer.write_all(text.as_bytes())?;
        writer.flush()
    }
}

impl Notifier for Stdout {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn probe(&self, _now: Timestamp) -> BoxFuture<'_, Option<Result<(), NotifyError>>> {
        std::future::ready(Some(Ok(()))).boxed()
    }

    fn notify<'a>(
        &'a self,
        notification: &'a Notification,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<(), NotifyError>> {
        let (time, block) = (at(now), linked_block(notification, &self.links));
        let written = self.write(&format!("{time}  {block}\n"));
        let channel = self.name().to_owned();
        let result = written.map_err(|source| NotifyError::Write { channel, source });
        std::future::ready(result).boxed()
    }
}
