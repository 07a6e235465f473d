//! Delivers the latest state of every incident to one notifier, without a queue that could overflow.
//!
//! A notifier that is down is tried again with growing pauses. When it is back, it gets the state of then, once
//! for each incident. News of an incident stay in order, because only the latest is sent.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use epwatch_server::{Backoff, Clock};
use jiff::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::incident::Incident;
use crate::metrics::{Delivery, Metrics};

use super::error::Retry;
use super::notifier::{Notification, Notifier};

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Records that a notifier delivered an incident up to `news`, or that its receiver refused that for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub(crate) incident_id: String,
    pub(crate) notifier: String,
    pub(crate) news: u64,
    pub(crate) is_refused: bool,
}

/// The queue by which deliveries reach the run loop.
pub(crate) type Deliveries = mpsc::Sender<Delivered>;

/// Runs until it is cancelled, then tries undelivered news once more.
pub(crate) async fn deliver(
    notifier: Arc<dyn Notifier>,
    mut incidents: watch::Receiver<Arc<Vec<Incident>>>,
    deliveries: Deliveries,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    cancel: CancellationToken,
) {
    let mut round = Round {
        notifier,
        deliveries,
        metrics,
        done: HashMap::new(),
        repeats: HashMap::new(),
        backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
        pause: None,
    };
    loop {
        let current = incidents.borrow_and_update().clone();
        let wait = round.run(&current, clock.now()).await;
        let until = Instant::now() + wait.unwrap_or(Duration::from_secs(3600));
        tokio::select! {
            changed = incidents.changed() => if changed.is_err() { break },
            () = sleep_until(until) => {}
            () = cancel.cancelled() => break,
        }
        // News do not shorten a pause, because the channel is down for all incidents.
        if round.pause.is_some() {
            tokio::select! {
                () = sleep_until(until) => {}
                () = cancel.cancelled() => break,
            }
        }
    }
    let last = incidents.borrow().clone();
    round.run(&last, clock.now()).await;
}

struct Round {
    notifier: Arc<dyn Notifier>,
    deliveries: Deliveries,
    metrics: Arc<Metrics>,
    /// News done by incident id, so that a delivery that is not stored yet is not repeated.
    done: HashMap<String, u64>,
    /// Time of the last delivery by id of a firing incident.
    repeats: HashMap<String, Instant>,
    backoff: Backoff,
    /// The pause while the channel is down.
    pause: Option<Duration>,
}

impl Round {
    /// Delivers everything that is due; returns the time until something is due again.
    async fn run(&mut self, incidents: &[Incident], now: Timestamp) -> Option<Duration> {
        let open: BTreeMap<&str, &Incident> = incidents
            .iter()
            .map(|incident| (incident.id.as_str(), incident))
            .collect();
        self.done.retain(|id, _| open.contains_key(id.as_str()));
        self.repeats.retain(|id, _| open.contains_key(id.as_str()));
        let audience = self.notifier.audience();
        // Alerts that the channel holds go on under a silence; other channels are told when the mute is over.
        let holds_alerts = self.notifier.standing_alerts().is_some();
        let is_silent = |incident: &Incident| {
            !holds_alerts && incident.state.is_open() && incident.orders.is_muted(now)
        };
        let mine = incidents.iter().filter(|incident| {
            incident.news > 0 && audience.takes(incident) && !is_silent(incident)
        });
        for incident in mine {
            let name = self.notifier.name();
            let stored = incident.delivered.get(name).copied().unwrap_or(0);
            let done = self.done.get(&incident.id).copied().unwrap_or(0);
            let is_news = stored.max(done) < incident.news;
            if !is_news && !self.repeat_is_due(incident) {
                continue;
            }
            let notification = if is_news {
                Notification::news(incident.clone())
            } else {
                Notification::repeated(incident.clone())
            };
            let result = self.notifier.notify(&notification, now).await;
            let retry = match &result {
                Ok(()) => {
                    let result = match is_news {
                        true => Delivery::Delivered,
                        false => Delivery::Repeated,
                    };
                    self.metrics.notified(name, result);
                    None
                }
                Err(error) => {
                    let retry = error.retry();
                    let (result, text) = match retry {
                        Retry::Never => (Delivery::DeadLetter, "notification refused for good"),
                        _ => (Delivery::Failed, "notification failed"),
                    };
                    self.metrics.notified(name, result);
                    let cause = std::error::Error::source(error).map(ToString::to_string);
                    tracing::warn!(notifier = name, incident = incident.id, %error, cause, text);
                    Some(retry)
                }
            };
            match retry {
                Some(Retry::WithBackoff) => {
                    self.pause = Some(self.backoff.pause());
                    return self.pause;
                }
                Some(Retry::After(pause)) => {
                    self.pause = Some(pause.min(LONGEST_PAUSE * 10));
                    return self.pause;
                }
                Some(Retry::Never) | None => {
                    self.mark_done(incident);
                    if is_news {
                        self.record(incident, retry.is_some()).await;
                    }
                }
            }
        }
        self.is_up();
        let next = self.repeats.values().min().copied();
        let every = self.notifier.repeat_every()?;
        next.map(|last| (last + every).saturating_duration_since(Instant::now()))
    }

    fn repeat_is_due(&self, incident: &Incident) -> bool {
        let Some(every) = self.notifier.repeat_every() else {
            return false;
        };
        let last = self.repeats.get(&incident.id);
        incident.state.is_notified() && last.is_none_or(|last| last.elapsed() >= every)
    }

    fn is_up(&mut self) {
        self.pause = None;
        self.backoff.reset();
    }

    fn mark_done(&mut self, incident: &Incident) {
        self.is_up();
        if incident.state.is_notified() {
            self.repeats.insert(incident.id.clone(), Instant::now());
        } else {
            self.repeats.remove(&incident.id);
        }
        self.done.insert(incident.id.clone(), incident.news);
    }

    async fn record(&self, incident: &Incident, is_refused: bool) {
        let delivered = Delivered {
            incident_id: incident.id.clone(),
            notifier: self.notifier.name().to_owned(),
            news: incident.news,
            is_refused,
        };
        // The queue is closed only while the detector stops; the next start delivers it again.
        let _ = self.deliveries.send(delivered).await;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use futures::FutureExt;
    use futures::future::BoxFuture;
    use jiff::SignedDuration;
    use parking_lot::Mutex;

    use super::*;
    use crate::incident::{Order, OrderKind, State, advance};
    use crate::notify::{NotifyError, Occasion};
    use crate::testing::{Fleet, at, judged, reference};
    use crate::verdict::CohortVerdict;

    /// Returns "busy" for an hour.
    #[derive(Debug, Default)]
    struct DownForAnHour {
        attempts: Mutex<u32>,
        received: Mutex<Vec<(Occasion, Vec<String>)>>,
    }

    impl Notifier for DownForAnHour {
        fn name(&self) -> &str {
            "pager"
        }

        fn notify<'a>(
            &'a self,
            notification: &'a Notification,
            now: Timestamp,
        ) -> BoxFuture<'a, Result<(), NotifyError>> {
            *self.attempts.lock() += 1;
            let is_down = now < at(3_600);
            let result = if is_down {
                Err(NotifyError::Busy {
                    channel: "pager".into(),
                    status: 503,
                    after: None,
                })
            } else {
                let chipsets = notification.incident.chipsets();
                let mut received = self.received.lock();
                received.push((notification.occasion, chipsets));
                Ok(())
            };
            std::future::ready(result).boxed()
        }
    }

    fn round(pager: &Arc<DownForAnHour>) -> (Round, mpsc::Receiver<Delivered>) {
        let (deliveries, delivered) = mpsc::channel(8);
        let round = Round {
            notifier: pager.clone(),
            deliveries,
            metrics: Arc::new(Metrics::default()),
            done: HashMap::new(),
            repeats: HashMap::new(),
            backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            pause: None,
        };
        (round, delivered)
    }

    /// Time advances only by the pauses that the round returns.
    #[tokio::test]
    async fn a_channel_that_is_down_for_an_hour_gets_the_latest_state_once() {
        let sick = |chipset: &str, second| {
            let mut window = Fleet::with_fallback(0.5).window();
            (window.key.chipset, window.end) = (chipset.into(), at(second));
            judged(&window, None, &reference())
        };
        let mut open = BTreeMap::new();
        let mut incidents = |verdicts: &[CohortVerdict]| {
            let forget = Duration::from_secs(86_400);
            advance(&mut open, verdicts, forget, verdicts[0].window_end);
            open.values().cloned().collect::<Vec<_>>()
        };
        let first = incidents(&[sick("SM8635", 0)]);
        let grown = incidents(&[sick("SM8635", 1_800), sick("SM7550", 1_800)]);
        assert_eq!((first[0].news, grown[0].news), (1, 2));

        let pager = Arc::new(DownForAnHour::default());
        let (mut round, mut delivered) = round(&pager);
        let mut now = at(0);
        while now < at(2 * 3_600) {
            let current = if now < at(1_800) { &first } else { &grown };
            let wait = round.run(current, now).await;
            let wait = wait.unwrap_or(LONGEST_PAUSE);
            assert!(wait <= LONGEST_PAUSE, "{wait:?}");
            now += SignedDuration::try_from(wait).unwrap();
        }
        let received = pager.received.lock().clone();
        assert_eq!(received.len(), 1, "{received:?}");
        assert_eq!(received[0].1, ["SM7550", "SM8635"]);
        // Six pauses to reach a minute, then one attempt a minute.
        let attempts = *pager.attempts.lock();
        assert!((60..=70).contains(&attempts), "{attempts}");
        let done = delivered.recv().await.unwrap();
        assert_eq!((&done.incident_id, done.news), (&grown[0].id, 2));
        assert!(delivered.try_recv().is_err());
    }

    /// A channel without alerts of its own hears nothing of a muted incident but its end.
    #[tokio::test]
    async fn a_muted_incident_is_silent_until_it_or_the_mute_ends() {
        let window = Fleet::with_fallback(0.5).window();
        let sick = judged(&window, None, &reference());
        let mut incidents = BTreeMap::new();
        let forget = Duration::from_secs(86_400);
        let changed = advance(&mut incidents, &[sick], forget, at(0));
        let mut incident = changed[0].clone();
        let order = Order {
            n: 1,
            kind: OrderKind::Mute,
            who: "Ada".into(),
            at: at(4_000),
            until: Some(at(8_000)),
            why: "known".into(),
        };
        incident.obey(&order, false, at(4_000)).unwrap();
        let pager = Arc::new(DownForAnHour::default());
        let (mut round, _delivered) = round(&pager);
        let occasions = || {
            let received = pager.received.lock();
            received
                .iter()
                .map(|(occasion, _)| *occasion)
                .collect::<Vec<_>>()
        };
        round.run(std::slice::from_ref(&incident), at(4_000)).await;
        round.run(std::slice::from_ref(&incident), at(7_999)).await;
        assert_eq!(occasions(), []);
        let mut over = incident.clone();
        assert!(over.expire_mute(at(8_000)));
        round.run(&[over], at(8_000)).await;
        assert_eq!(occasions(), [Occasion::Reopened]);

        incident.state = State::Resolved;
        incident.news += 2;
        round.run(&[incident], at(5_000)).await;
        assert_eq!(occasions(), [Occasion::Reopened, Occasion::Resolved]);
    }
}
