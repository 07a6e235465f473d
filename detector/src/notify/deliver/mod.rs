//! Delivers the latest state of every incident to one notifier, without a queue that could overflow.
//!
//! Each incident has its own turn and pause, so that a payload that the receiver cannot take delays no other. Incidents
//! whose news was never tried come first. A failed attempt is repeated with growing pauses for as long as the incident
//! lives. Delivery of an incident's end is given up after a day of refusals. News of an incident stay in order, because
//! only the latest is sent.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use epwatch_model::{Incident, State};
use epwatch_server::{Backoff, Clock};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::run::metrics::{Delivery, Metrics};

use super::error::{NotifyError, Retry};
use super::notifier::{Notification, Notifier};

/// First pause after a failed attempt: the receiver is away or busy.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// First pause after a refusal: a person has to correct an address or a key.
const FIRST_REFUSAL_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_REFUSAL_PAUSE: Duration = Duration::from_secs(15 * 60);

/// The longest pause that a receiver may ask for.
const LONGEST_ASKED_PAUSE: Duration = Duration::from_secs(600);

/// How long the end of an incident is sent to a receiver that refuses it.
const KEPT_AFTER_END: SignedDuration = SignedDuration::from_hours(24);

/// Number of attempts in a row that may fail before they are recorded, so that a receiver that restarts costs no row. A
/// refusal is recorded at once.
const UNRECORDED_ATTEMPTS: u64 = 5;

/// Interval at which repeated failures are recorded. Each record is a row in the store.
const RECORD_PERIOD: Duration = Duration::from_secs(600);

/// The result of attempts to deliver an incident's news up to `news`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub(crate) incident_id: String,
    pub(crate) notifier: String,
    pub(crate) news: u64,
    pub(crate) outcome: AttemptOutcome,
}

/// The result of one attempt, or of several that failed alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AttemptOutcome {
    /// The receiver has the news.
    Taken,
    /// The receiver does not have the news; another attempt follows.
    Failed {
        times: u64,
        at: Timestamp,
        /// The answer of the last one, in a few words.
        answer: String,
    },
    /// The incident is long over, and the receiver refused its end.
    GivenUp,
}

/// The queue by which deliveries reach the run loop.
pub(crate) type Deliveries = mpsc::Sender<Delivered>;

/// Runs until it is cancelled, then tries news once more that is not in a pause. Other news waits for the next start.
pub(crate) async fn deliver(
    notifier: Arc<dyn Notifier>,
    mut incidents: watch::Receiver<Arc<Vec<Incident>>>,
    deliveries: Deliveries,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    cancel: CancellationToken,
) {
    let mut channel = ChannelDelivery::new(notifier, deliveries, metrics);
    while !cancel.is_cancelled() {
        // Incidents are read before each attempt, so that new ones wait for one attempt at most.
        let current = incidents.borrow_and_update().clone();
        let until = match channel.next(&current, clock.now(), Instant::now()) {
            Some(Next::Now(job)) => {
                channel.attempt(&job, clock.now(), &Instant::now).await;
                continue;
            }
            Some(Next::At(until)) => until,
            None => Instant::now() + Duration::from_secs(3600),
        };
        tokio::select! {
            changed = incidents.changed() => if changed.is_err() { break },
            () = sleep_until(until) => {}
            () = cancel.cancelled() => break,
        }
    }
    let last = incidents.borrow().clone();
    while let Some(Next::Now(job)) = channel.next(&last, clock.now(), Instant::now())
        && job.is_news
    {
        channel.attempt(&job, clock.now(), &Instant::now).await;
    }
}

/// One notifier with the turns of its incidents.
struct ChannelDelivery {
    notifier: Arc<dyn Notifier>,
    deliveries: Deliveries,
    metrics: Arc<Metrics>,
    /// The turns by incident id.
    turns: HashMap<String, Turn>,
}

/// Deliveries of one incident to a channel since the start.
#[derive(Debug)]
struct Turn {
    /// News delivered or given up, so that a delivery that is not stored yet is not repeated.
    done: u64,
    /// News of the last attempt.
    tried: u64,
    /// Time of the last delivery of a firing incident.
    repeated_at: Option<Instant>,
    /// End of the pause after a failed attempt.
    paused_until: Option<Instant>,
    failures: Backoff,
    refusals: Backoff,
    /// Failed attempts that are not recorded in the incident yet.
    unrecorded: u64,
    /// When failed attempts were recorded last; `None` after a success.
    recorded_at: Option<Instant>,
}

impl Default for Turn {
    fn default() -> Self {
        Self {
            done: 0,
            tried: 0,
            repeated_at: None,
            paused_until: None,
            failures: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            refusals: Backoff::new(FIRST_REFUSAL_PAUSE, LONGEST_REFUSAL_PAUSE),
            unrecorded: 0,
            recorded_at: None,
        }
    }
}

impl Turn {
    /// Returns when an incident is to be sent again without news; `None` if it is not.
    fn repeat_at(
        &self,
        incident: &Incident,
        every: Option<Duration>,
        clock: Instant,
    ) -> Option<Instant> {
        let every = every.filter(|_| incident.state.is_notified())?;
        Some(self.repeated_at.map_or(clock, |last| last + every))
    }
}

/// The attempt that comes next.
#[derive(Debug)]
struct Job {
    incident: Incident,
    is_news: bool,
}

#[derive(Debug)]
enum Next {
    Now(Box<Job>),
    At(Instant),
}

impl ChannelDelivery {
    fn new(notifier: Arc<dyn Notifier>, deliveries: Deliveries, metrics: Arc<Metrics>) -> Self {
        Self {
            notifier,
            deliveries,
            metrics,
            turns: HashMap::new(),
        }
    }

    /// Returns the attempt that is due, or the time of the next one; `None` if none will be.
    fn next(&mut self, incidents: &[Incident], now: Timestamp, clock: Instant) -> Option<Next> {
        let held: HashSet<&str> = incidents.iter().map(|incident| &*incident.id).collect();
        self.turns.retain(|id, _| held.contains(id.as_str()));
        let audience = self.notifier.audience();
        let every = self.notifier.repeat_every();
        // Alerts that the channel holds continue under a silence. Other channels are notified when the mute is over.
        let holds_alerts = self.notifier.held_alerts().is_some();
        let is_silent = |incident: &Incident| {
            !holds_alerts && incident.state.is_open() && incident.orders.is_muted(now)
        };
        let mine = incidents.iter().filter(|incident| {
            incident.news > 0 && audience.takes(incident) && !is_silent(incident)
        });
        let due = mine.filter_map(|incident| {
            let turn = self.turns.entry(incident.id.clone()).or_default();
            let stored = incident.delivered.get(self.notifier.name());
            let done = stored.copied().unwrap_or(0).max(turn.done);
            let is_news = done < incident.news;
            let at = match is_news {
                true => clock,
                false => turn.repeat_at(incident, every, clock)?,
            };
            let at = turn.paused_until.map_or(at, |until| at.max(until));
            let was_tried = !is_news || turn.tried > 0;
            Some(((at > clock, was_tried, at), incident, is_news))
        });
        let ((is_later, _, at), incident, is_news) = due.min_by_key(|(order, ..)| *order)?;
        if is_later {
            return Some(Next::At(at));
        }
        let incident = incident.clone();
        Some(Next::Now(Box::new(Job { incident, is_news })))
    }

    /// Makes one attempt. `clock` returns the time of its end, at which pauses begin.
    async fn attempt(&mut self, job: &Job, now: Timestamp, clock: &(dyn Fn() -> Instant + Sync)) {
        let Job { incident, is_news } = job;
        let notification = match is_news {
            true => Notification::news(incident.clone()),
            false => Notification::repeated(incident.clone()),
        };
        let result = self.notifier.notify(&notification, now).await;
        let (ended, name) = (clock(), self.notifier.name());
        if let Err(error) = &result {
            let retry = error.retry();
            let (result, text) = match retry {
                Retry::Slowly => (Delivery::Refused, "a notification is refused"),
                _ => (Delivery::Failed, "a notification failed"),
            };
            self.metrics.notified(name, result);
            let cause = std::error::Error::source(error).map(ToString::to_string);
            tracing::warn!(notifier = name, incident = incident.id, %error, cause, text);
        }
        let turn = self.turns.entry(incident.id.clone()).or_default();
        turn.tried = incident.news;
        turn.paused_until = result.as_ref().err().map(|error| {
            let pause = match error.retry() {
                Retry::WithBackoff => turn.failures.pause(),
                Retry::Slowly => turn.refusals.pause(),
                Retry::After(pause) => pause.min(LONGEST_ASKED_PAUSE),
            };
            ended + pause
        });
        let outcome = match result {
            Ok(()) => {
                let result = match is_news {
                    true => Delivery::Delivered,
                    false => Delivery::Repeated,
                };
                self.metrics.notified(name, result);
                let had_failed = turn.recorded_at.is_some() || incident.failing.contains_key(name);
                *turn = Turn {
                    done: incident.news,
                    tried: incident.news,
                    repeated_at: Some(ended),
                    ..Turn::default()
                };
                (*is_news || had_failed).then_some(AttemptOutcome::Taken)
            }
            // The alert itself arrived. Its silence is tried again with the next repeat, after the pause.
            Err(NotifyError::Silence { .. }) => {
                turn.done = incident.news;
                turn.repeated_at = None;
                if *is_news {
                    self.metrics.notified(name, Delivery::Delivered);
                }
                is_news.then_some(AttemptOutcome::Taken)
            }
            Err(error) if error.retry() == Retry::Slowly && is_long_over(incident, now) => {
                turn.done = incident.news;
                Some(AttemptOutcome::GivenUp)
            }
            Err(error) => {
                turn.unrecorded += 1;
                let is_due = match turn.recorded_at {
                    None => turn.unrecorded >= UNRECORDED_ATTEMPTS,
                    Some(at) => ended.duration_since(at) >= RECORD_PERIOD,
                };
                (is_due || error.retry() == Retry::Slowly).then(|| {
                    turn.recorded_at = Some(ended);
                    AttemptOutcome::Failed {
                        times: std::mem::take(&mut turn.unrecorded),
                        at: now,
                        answer: error.answer(),
                    }
                })
            }
        };
        if let Some(outcome) = outcome {
            self.record(incident, outcome).await;
        }
    }

    async fn record(&self, incident: &Incident, outcome: AttemptOutcome) {
        let delivered = Delivered {
            incident_id: incident.id.clone(),
            notifier: self.notifier.name().to_owned(),
            news: incident.news,
            outcome,
        };
        // The queue is closed only while the detector stops; the next start delivers it again.
        let _ = self.deliveries.send(delivered).await;
    }
}

/// Whether an incident ended too long ago for a notification.
fn is_long_over(incident: &Incident, now: Timestamp) -> bool {
    let ended = incident
        .resolved_at
        .filter(|_| incident.state == State::Resolved);
    ended.is_some_and(|ended| now.duration_since(ended) >= KEPT_AFTER_END)
}

#[cfg(test)]
mod tests;
