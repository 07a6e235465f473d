use std::collections::BTreeMap;

use epwatch_model::{CohortVerdict, IncidentKey, Order, OrderKind};
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;

use super::*;
use crate::incident::{advance, apply_order, expire_mute};
use crate::notify::Occasion;
use crate::testing::{Fleet, at, judged, reference};

type Answers = dyn Fn(&Incident, Timestamp) -> Result<(), NotifyError> + Send + Sync;

/// A receiver whose answers are a function of incident and time. It records every attempt and the news that it took.
struct Pager {
    answers: Box<Answers>,
    attempts: Mutex<Vec<(String, Timestamp)>>,
    taken: Mutex<Vec<(Occasion, Vec<String>)>>,
}

impl std::fmt::Debug for Pager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pager")
    }
}

impl Notifier for Pager {
    fn name(&self) -> &str {
        "pager"
    }

    fn notify<'a>(
        &'a self,
        notification: &'a Notification,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<(), NotifyError>> {
        let incident = &notification.incident;
        self.attempts.lock().push((incident.id.clone(), now));
        let result = (self.answers)(incident, now);
        if result.is_ok() {
            let taken = (notification.occasion, incident.chipsets());
            self.taken.lock().push(taken);
        }
        std::future::ready(result).boxed()
    }
}

fn busy() -> NotifyError {
    NotifyError::Busy {
        channel: "pager".into(),
        status: 503,
        after: None,
    }
}

fn refused() -> NotifyError {
    NotifyError::Refused {
        channel: "pager".into(),
        status: 404,
        detail: "no_service".into(),
    }
}

/// A channel whose time advances only by the pauses that it returns.
struct Run {
    pager: Arc<Pager>,
    channel: ChannelDelivery,
    delivered: mpsc::Receiver<Delivered>,
    start: Instant,
    now: Timestamp,
}

impl Run {
    fn new(
        answers: impl Fn(&Incident, Timestamp) -> Result<(), NotifyError> + Send + Sync + 'static,
    ) -> Self {
        let pager = Arc::new(Pager {
            answers: Box::new(answers),
            attempts: Mutex::default(),
            taken: Mutex::default(),
        });
        let (deliveries, delivered) = mpsc::channel(10_000);
        let channel = ChannelDelivery::new(pager.clone(), deliveries, Arc::new(Metrics::default()));
        Self {
            pager,
            channel,
            delivered,
            start: Instant::now(),
            now: at(0),
        }
    }

    /// Makes the attempts that are due until `second`.
    async fn until(&mut self, second: i64, incidents: &[Incident]) {
        while self.now < at(second) {
            let passed = self.now.duration_since(at(0));
            let clock = self.start + Duration::try_from(passed).unwrap();
            match self.channel.next(incidents, self.now, clock) {
                Some(Next::Now(job)) => self.channel.attempt(&job, self.now, &|| clock).await,
                Some(Next::At(until)) => {
                    let pause = until.duration_since(clock).max(Duration::from_millis(1));
                    self.now += SignedDuration::try_from(pause).unwrap();
                }
                None => self.now = at(second),
            }
        }
        self.now = at(second);
    }

    fn attempts_of(&self, id: &str) -> Vec<Timestamp> {
        let attempts = self.pager.attempts.lock();
        let of = attempts.iter().filter(|(of, _)| of == id);
        of.map(|(_, at)| *at).collect()
    }

    fn outcomes(&mut self) -> Vec<AttemptOutcome> {
        std::iter::from_fn(|| self.delivered.try_recv().ok())
            .map(|done| done.outcome)
            .collect()
    }

    fn occasions(&self) -> Vec<Occasion> {
        let taken = self.pager.taken.lock();
        taken.iter().map(|(occasion, _)| *occasion).collect()
    }
}

fn incidents(
    open: &mut BTreeMap<IncidentKey, Incident>,
    verdicts: &[CohortVerdict],
) -> Vec<Incident> {
    let forget = Duration::from_secs(86_400);
    advance(open, verdicts, forget, verdicts[0].window_end);
    open.values().cloned().collect()
}

fn sick(chipset: &str, second: i64) -> CohortVerdict {
    let mut window = Fleet::with_fallback(0.5).window();
    (window.key.chipset, window.end) = (chipset.into(), at(second));
    judged(&window, None, &reference())
}

fn firing(id: &str) -> Incident {
    let mut incident = incidents(&mut BTreeMap::new(), &[sick("SM8635", 0)]).remove(0);
    incident.id = id.to_owned();
    incident
}

fn resolved(id: &str) -> Incident {
    let mut incident = firing(id);
    incident.state = State::Resolved;
    incident.resolved_at = Some(at(60));
    incident.news = 2;
    incident
}

#[tokio::test]
async fn a_channel_that_is_down_for_an_hour_gets_the_latest_state_once() {
    let mut open = BTreeMap::new();
    let first = incidents(&mut open, &[sick("SM8635", 0)]);
    let grown = incidents(&mut open, &[sick("SM8635", 1_800), sick("SM7550", 1_800)]);
    assert_eq!((first[0].news, grown[0].news), (1, 2));
    let mut run = Run::new(|_, now| if now < at(3_600) { Err(busy()) } else { Ok(()) });
    run.until(1_800, &first).await;
    run.until(2 * 3_600, &grown).await;
    let taken = run.pager.taken.lock().clone();
    assert_eq!(taken.len(), 1, "{taken:?}");
    assert_eq!(taken[0].1, ["SM7550", "SM8635"]);
    // Six pauses to reach a minute, then one attempt a minute.
    let attempts = run.attempts_of(&grown[0].id);
    assert!((60..=70).contains(&attempts.len()), "{attempts:?}");
    let pauses = attempts.windows(2).map(|two| two[1].duration_since(two[0]));
    assert!(pauses.max().unwrap() <= SignedDuration::from_secs(60));
    // There is a record every ten minutes, and one of the delivery.
    let outcomes = run.outcomes();
    assert_eq!(outcomes.last(), Some(&AttemptOutcome::Taken));
    assert!((6..=8).contains(&outcomes.len()), "{outcomes:?}");
}

/// No page is lost if a proxy answers 404 for a minute, or for days.
#[tokio::test]
async fn a_refusal_is_tried_again_for_as_long_as_the_incident_lives() {
    let mut run = Run::new(|_, now| if now < at(90) { Err(refused()) } else { Ok(()) });
    run.until(3_600, &[firing("a")]).await;
    assert_eq!(run.occasions(), [Occasion::Firing]);

    let mut run = Run::new(|_, _| Err(refused()));
    let three_days = 3 * 86_400;
    run.until(three_days, &[firing("a")]).await;
    let attempts = run.attempts_of("a");
    // Eight pauses to reach a quarter of an hour, then four attempts an hour.
    assert!((285..=300).contains(&attempts.len()), "{}", attempts.len());
    assert_eq!(attempts[1].duration_since(attempts[0]).as_secs(), 5);
    let outcomes = run.outcomes();
    let counted = outcomes.iter().map(|outcome| match outcome {
        AttemptOutcome::Failed { times, answer, .. } if answer == "404" => *times,
        other => panic!("{other:?}"),
    });
    assert_eq!(counted.sum::<u64>(), attempts.len() as u64);
}

/// The incident has been over for a day, so a notification of its end is useless.
#[tokio::test]
async fn the_end_of_an_incident_is_given_up_after_a_day_of_refusals() {
    let mut run = Run::new(|_, _| Err(refused()));
    run.until(3 * 86_400, &[resolved("a")]).await;
    assert_eq!(run.outcomes().last(), Some(&AttemptOutcome::GivenUp));
    let last = *run.attempts_of("a").last().unwrap();
    let after = last.duration_since(at(60));
    assert!(after >= SignedDuration::from_hours(24), "{after}");
    assert!(after <= SignedDuration::from_hours(25), "{after}");
}

#[tokio::test]
async fn a_payload_that_the_receiver_cannot_take_holds_up_no_other() {
    let is_poison = |incident: &Incident| incident.id == "a";
    let mut run = Run::new(move |incident, _| match is_poison(incident) {
        true => Err(busy()),
        false => Ok(()),
    });
    run.until(300, &[firing("a")]).await;
    // The others are delivered between two attempts of the first incident.
    run.until(310, &[firing("a"), firing("b"), firing("c")])
        .await;
    assert_eq!(run.attempts_of("b"), [at(300)]);
    assert_eq!(run.attempts_of("c"), [at(300)]);
    assert_eq!(run.occasions().len(), 2);
    assert!(run.attempts_of("a").len() >= 9);
}

/// The silence belongs to a muted incident, whose alert continues.
#[tokio::test]
async fn a_silence_that_fails_leaves_the_alert_delivered() {
    let mut run = Run::new(|_, _| {
        Err(NotifyError::Silence {
            channel: "pager".into(),
            source: Box::new(busy()),
        })
    });
    run.until(600, &[firing("a")]).await;
    assert_eq!(run.outcomes(), [AttemptOutcome::Taken]);
}

/// A channel without alerts of its own receives nothing about a muted incident except its end.
#[tokio::test]
async fn a_muted_incident_is_silent_until_it_or_the_mute_ends() {
    let mut incident = firing("a");
    let order = Order {
        n: 1,
        kind: OrderKind::Mute,
        who: "Ada".into(),
        at: at(4_000),
        until: Some(at(8_000)),
        why: "known".into(),
    };
    apply_order(&mut incident, &order, false, at(4_000)).unwrap();
    let mut run = Run::new(|_, _| Ok(()));
    run.now = at(4_000);
    run.until(7_999, std::slice::from_ref(&incident)).await;
    assert_eq!(run.occasions(), []);
    let mut over = incident.clone();
    assert!(expire_mute(&mut over, at(8_000)));
    run.now = at(8_000);
    run.until(8_001, &[over]).await;
    assert_eq!(run.occasions(), [Occasion::Reopened]);

    incident.state = State::Resolved;
    incident.news += 2;
    run.until(8_002, &[incident]).await;
    assert_eq!(run.occasions(), [Occasion::Reopened, Occasion::Resolved]);
}
