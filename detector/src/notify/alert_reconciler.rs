//! Maintains alerts at an Alertmanager in addition to the news of incidents, for a leading detector. The watchdog fires
//! while windows are judged in time. Alerts of an earlier run that belong to no incident are ended.
//!
//! Only alerts whose incident this store holds are ended, because detectors of other stores may share the
//! Alertmanager.

use std::collections::BTreeSet;
use std::sync::Arc;

use epwatch_model::Incident;
use epwatch_server::Clock;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::notify::{HeldAlert, HeldAlerts, Notifier};
use crate::run::judging::Judging;
use crate::run::verdict_store::VerdictStore;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Runs until it is cancelled; returns at once for a channel that is not an Alertmanager.
pub(crate) async fn keep(
    notifier: Arc<dyn Notifier>,
    store: VerdictStore,
    (incidents, unreadable): (watch::Receiver<Arc<Vec<Incident>>>, Arc<BTreeSet<String>>),
    clock: Arc<dyn Clock>,
    judging: Arc<Judging>,
    cancel: CancellationToken,
) {
    let (Some(alertmanager), Some(every)) = (notifier.held_alerts(), notifier.repeat_every())
    else {
        return;
    };
    let (mut are_ended, mut has_failed) = (false, false);
    loop {
        let open = incidents.borrow().clone();
        let kept = async {
            // The watchdog must stop if the detector runs but judges nothing.
            if !judging.is_late() {
                alertmanager.send_watchdog(clock.now()).await?;
            }
            if !are_ended {
                end_strays(alertmanager, &store, (&open, &unreadable), clock.as_ref()).await?;
            }
            Ok::<(), Error>(())
        };
        match kept.await {
            Ok(()) => (are_ended, has_failed) = (true, false),
            // A lasting failure is logged once, because the watchdog is sent each minute.
            Err(_) if has_failed => {}
            Err(error) => {
                has_failed = true;
                let cause = error.source().map(ToString::to_string);
                let name = notifier.name();
                tracing::warn!(notifier = name, %error, cause, "the watchdog was not sent");
            }
        }
        tokio::select! {
            () = cancel.cancelled() => return,
            () = sleep(every) => {}
        }
    }
}

async fn end_strays(
    alertmanager: &dyn HeldAlerts,
    store: &VerdictStore,
    (open, unreadable): (&[Incident], &BTreeSet<String>),
    clock: &dyn Clock,
) -> Result<(), Error> {
    let is_stray = |alert: &HeldAlert| {
        let is_open = open
            .iter()
            .any(|incident| alertmanager.is_of(alert, incident));
        // The document of an open incident may be of another version, which this detector cannot read.
        !is_open && !unreadable.contains(alert.incident_id())
    };
    let held = alertmanager.held_alerts().await?;
    let mut strays: Vec<HeldAlert> = held.into_iter().filter(is_stray).collect();
    if strays.is_empty() {
        return Ok(());
    }
    let ids: Vec<&str> = strays.iter().map(HeldAlert::incident_id).collect();
    let known = store.known_incidents(&ids).await?;
    strays.retain(|alert| known.contains(alert.incident_id()));
    if strays.is_empty() {
        return Ok(());
    }
    for stray in &strays {
        tracing::info!(
            incident = stray.incident_id(),
            "ends an alert without an incident"
        );
    }
    Ok(alertmanager.end(strays, clock.now()).await?)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use clickhouse::Client;
    use epwatch_server::ManualClock;
    use futures::FutureExt;
    use futures::future::BoxFuture;
    use jiff::Timestamp;

    use super::*;
    use crate::notify::{Notification, NotifyError};
    use crate::run::config::DetectorConfig;
    use crate::run::timetable::Timetable;
    use crate::testing::at;

    type Sent = BoxFuture<'static, Result<(), NotifyError>>;

    /// An Alertmanager that counts watchdogs, and holds the alert of one incident.
    #[derive(Debug, Default)]
    struct Alerts {
        watchdogs: AtomicU64,
        ended: AtomicU64,
    }

    impl Notifier for Alerts {
        fn name(&self) -> &str {
            "alerts"
        }

        fn repeat_every(&self) -> Option<Duration> {
            Some(Duration::from_millis(5))
        }

        fn held_alerts(&self) -> Option<&dyn HeldAlerts> {
            Some(self)
        }

        fn notify<'a>(&'a self, _: &'a Notification, _: Timestamp) -> Sent {
            std::future::ready(Ok(())).boxed()
        }
    }

    impl HeldAlerts for Alerts {
        fn held_alerts(&self) -> BoxFuture<'_, Result<Vec<HeldAlert>, NotifyError>> {
            let held = serde_json::json!([{"labels": {"incident": "newer-1"}, "startsAt": ""}]);
            std::future::ready(Ok(serde_json::from_value(held).unwrap())).boxed()
        }

        fn is_of(&self, _: &HeldAlert, _: &Incident) -> bool {
            false
        }

        fn end(&self, held: Vec<HeldAlert>, _: Timestamp) -> Sent {
            self.ended.fetch_add(held.len() as u64, Ordering::SeqCst);
            std::future::ready(Ok(())).boxed()
        }

        fn send_watchdog(&self, _: Timestamp) -> Sent {
            self.watchdogs.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Ok(())).boxed()
        }
    }

    /// A detector that runs but judges nothing sends no watchdog. The alert of an incident that it cannot read stays.
    #[tokio::test]
    async fn the_watchdog_is_silent_while_windows_are_late() {
        let alerts = Arc::new(Alerts::default());
        let clock = Arc::new(ManualClock::at(at(0)));
        let timetable = Timetable::of(&DetectorConfig::for_demo());
        let judging = Arc::new(Judging::new(timetable, clock.clone()));
        let (_sender, incidents) = watch::channel(Arc::default());
        let unreadable = Arc::new(BTreeSet::from(["newer-1".to_owned()]));
        let cancel = CancellationToken::new();
        // The store is never queried in this test.
        let store = VerdictStore::new(Client::default());
        let keeping = tokio::spawn(keep(
            alerts.clone(),
            store,
            (incidents, unreadable),
            clock.clone(),
            judging.clone(),
            cancel.clone(),
        ));
        let until = async |least: u64| {
            while alerts.watchdogs.load(Ordering::SeqCst) < least {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        // The second watchdog is sent after the check for stray alerts.
        until(2).await;
        clock.set(at(3_600));
        assert!(judging.is_late());
        tokio::time::sleep(Duration::from_millis(50)).await;
        let before = alerts.watchdogs.load(Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(alerts.watchdogs.load(Ordering::SeqCst), before);
        judging.judged(at(3_597));
        until(before + 1).await;
        assert_eq!(alerts.ended.load(Ordering::SeqCst), 0);
        cancel.cancel();
        keeping.await.unwrap();
    }
}
