//! What a leading detector keeps at an Alertmanager apart from the news of incidents: its watchdog fires, and
//! alerts of an earlier run that no incident stands behind are ended.
//!
//! Only alerts whose incident this store holds are ended, because detectors of other stores may share the
//! Alertmanager.

use std::sync::Arc;

use epwatch_server::Clock;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::incident::Incident;
use crate::notify::{HeldAlert, Notifier, StandingAlerts};
use crate::verdict_store::VerdictStore;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Runs until it is cancelled; returns at once for a channel that is no Alertmanager.
pub(crate) async fn keep(
    notifier: Arc<dyn Notifier>,
    store: VerdictStore,
    incidents: watch::Receiver<Arc<Vec<Incident>>>,
    clock: Arc<dyn Clock>,
    cancel: CancellationToken,
) {
    let (Some(alertmanager), Some(every)) = (notifier.standing_alerts(), notifier.repeat_every())
    else {
        return;
    };
    let (mut are_ended, mut has_failed) = (false, false);
    loop {
        let open = incidents.borrow().clone();
        let kept = async {
            alertmanager.send_watchdog(clock.now()).await?;
            if !are_ended {
                end_strays(alertmanager, &store, &open, clock.as_ref()).await?;
            }
            Ok::<(), Error>(())
        };
        match kept.await {
            Ok(()) => (are_ended, has_failed) = (true, false),
            // One line a failure: the watchdog is sent each minute.
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
    alertmanager: &dyn StandingAlerts,
    store: &VerdictStore,
    open: &[Incident],
    clock: &dyn Clock,
) -> Result<(), Error> {
    let is_stray = |alert: &HeldAlert| {
        !open
            .iter()
            .any(|incident| alertmanager.is_of(alert, incident))
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
