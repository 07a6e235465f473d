//! The lease: of several detectors on one store, one judges and notifies.
//!
//! Each appends beats to `detector_beats`, stamped by the store's clock. A detector that sees no leader claims
//! the lease with a beat, waits until every other claim must be visible, and leads if its claim is the oldest.
//! A leader whose beats stop for 20 s loses the lease to the next claim. While the store is down the leader
//! stays, since no other detector can take over: it judges nothing, and goes on delivering the incidents that
//! it holds. If two lead for a moment all the same, both give an incident the same id.

use std::time::Duration;

use clickhouse::{Client, Row};
use ring::rand::{SecureRandom, SystemRandom};
use serde::Deserialize;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Time without a beat after which a leader has lost the lease.
const LEASE: Duration = Duration::from_secs(20);

/// Interval of the beats: three in a row may get lost.
const BEAT: Duration = Duration::from_secs(5);

/// Time from a claim until it counts: longer than an insert takes to become visible.
const SETTLE: Duration = Duration::from_millis(300);

/// Time limit of a beat; one that takes longer counts as lost.
const BEAT_TIMEOUT: Duration = Duration::from_secs(4);

/// A detector's part in the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseState {
    /// Another detector leads, or none does yet.
    Standby,
    /// It judges and notifies.
    Leads,
    /// It led, and the store has been down too long to be sure. It only delivers the incidents that it holds.
    Unsure,
}

impl LeaseState {
    /// Returns the line of log at the change to this state.
    fn as_sentence(self) -> &'static str {
        match self {
            LeaseState::Standby => "another detector leads; this one waits and sends nothing",
            LeaseState::Leads => "this detector leads: it judges and notifies",
            LeaseState::Unsure => {
                "the store was away for too long to be sure of the lease; only earlier incidents are sent"
            }
        }
    }
}

/// The stored beats of one detector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Row, Deserialize)]
struct HolderBeats {
    holder: u64,
    /// First beat, in milliseconds of the store's clock.
    since_ms: i64,
    /// Last beat, in milliseconds of the store's clock.
    last_ms: i64,
    /// Whether it led at its last beat.
    leads: bool,
    is_gone: bool,
    /// Whether it ever led.
    has_led: bool,
    /// Time of the query by the store's clock.
    now_ms: i64,
}

const SEEN: &str = "
    SELECT holder, toUnixTimestamp64Milli(min(beaten_at)) AS since_ms,
        toUnixTimestamp64Milli(max(beaten_at)) AS last_ms,
        argMax(b.leads, b.beat) AS leads, argMax(b.is_gone, b.beat) AS is_gone,
        toBool(max(b.leads)) AS has_led, toUnixTimestamp64Milli(now64(3)) AS now_ms
    FROM detector_beats AS b
    WHERE beaten_at > now64(3) - INTERVAL 1 HOUR
    GROUP BY holder";

impl HolderBeats {
    fn is_alive(&self) -> bool {
        let silent_ms = u64::try_from(self.now_ms - self.last_ms).unwrap_or(0);
        !self.is_gone && Duration::from_millis(silent_ms) < LEASE
    }

    fn rank(&self) -> (i64, u64) {
        (self.since_ms, self.holder)
    }
}

/// Returns the state of detector `me`, given the beats of all.
fn decide(me: u64, was: LeaseState, seen: &[HolderBeats]) -> LeaseState {
    let mine = seen.iter().find(|one| one.holder == me);
    let others = || seen.iter().filter(|one| one.holder != me);
    let leads_now = mine.is_some_and(|mine| mine.leads && mine.is_alive());
    let leading = others().filter(|other| other.leads && other.is_alive());
    let first_leading = leading.map(HolderBeats::rank).min();
    if let Some(other) = first_leading {
        // If two lead, the older one stays.
        let stays = leads_now && mine.is_some_and(|mine| mine.rank() < other);
        return if stays {
            LeaseState::Leads
        } else {
            LeaseState::Standby
        };
    }
    let last = mine.map_or(i64::MIN, |mine| mine.last_ms);
    let other_led = others().any(|other| other.has_led && other.last_ms > last);
    if was == LeaseState::Standby || !other_led {
        let is_settled = mine.filter(|mine| mine.is_alive()).is_some_and(|mine| {
            let mut claims = others().filter(|other| other.is_alive());
            mine.leads || claims.all(|other| mine.rank() < other.rank())
        });
        match (is_settled, was) {
            (true, _) => LeaseState::Leads,
            (false, LeaseState::Standby) => LeaseState::Standby,
            (false, _) => LeaseState::Unsure,
        }
    } else {
        LeaseState::Standby
    }
}

/// A detector's lease, renewed by a task in the background.
#[derive(Debug)]
pub(crate) struct Lease {
    state: watch::Receiver<LeaseState>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Lease {
    /// Starts the task that beats.
    pub(crate) fn take_part(client: Client) -> Self {
        let (sender, state) = watch::channel(LeaseState::Standby);
        let stop = CancellationToken::new();
        let beats = Beats {
            client,
            holder: random(),
            n: 0,
            is_new_claim: true,
        };
        let task = tokio::spawn(beats.run(sender, stop.clone()));
        Self { state, stop, task }
    }

    pub(crate) fn state(&self) -> LeaseState {
        *self.state.borrow()
    }

    /// Waits until it leads; `false` if `cancel` came first.
    pub(crate) async fn gained(&mut self, cancel: &CancellationToken) -> bool {
        tokio::select! {
            () = cancel.cancelled() => false,
            gained = self.state.wait_for(|state| *state == LeaseState::Leads) => gained.is_ok(),
        }
    }

    /// Returns a receiver of the state, for [`lost`].
    pub(crate) fn watch(&self) -> watch::Receiver<LeaseState> {
        self.state.clone()
    }

    /// Returns the lease, so that another detector need not wait for it to expire.
    pub(crate) async fn release(self) {
        self.stop.cancel();
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the lease ended badly");
        }
    }
}

/// Waits until another detector leads.
pub(crate) async fn lost(state: &mut watch::Receiver<LeaseState>) {
    // The sender outlives all receivers, so this is never an error.
    let _ = state.wait_for(|state| *state == LeaseState::Standby).await;
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    SystemRandom::new()
        .fill(&mut bytes)
        .expect("the system gives random bytes");
    u64::from_le_bytes(bytes)
}

struct Beats {
    client: Client,
    holder: u64,
    n: u64,
    /// Whether its last beat was the first, or came after the lease had expired.
    is_new_claim: bool,
}

impl Beats {
    async fn run(mut self, state: watch::Sender<LeaseState>, stop: CancellationToken) {
        let mut confirmed = Instant::now();
        loop {
            let was = *state.borrow();
            let beat = timeout(BEAT_TIMEOUT, self.beat(was)).await;
            let now = match beat {
                Ok(Ok(now)) => {
                    confirmed = Instant::now();
                    now
                }
                Ok(Err(error)) => {
                    self.is_new_claim = false;
                    let cause = std::error::Error::source(&error).map(ToString::to_string);
                    tracing::warn!(%error, cause, "failed to keep up the detector's lease");
                    unconfirmed(was, confirmed.elapsed())
                }
                Err(_) => {
                    self.is_new_claim = false;
                    tracing::warn!("the store is too slow to keep up the detector's lease");
                    unconfirmed(was, confirmed.elapsed())
                }
            };
            if now != was {
                tracing::info!("{}", now.as_sentence());
                state.send_replace(now);
            }
            let pause = if self.is_new_claim { SETTLE } else { BEAT };
            tokio::select! {
                () = stop.cancelled() => break,
                () = sleep(pause) => {}
            }
        }
        let leads = *state.borrow() == LeaseState::Leads;
        let gone = self.write(leads, true);
        let is_returned = matches!(timeout(BEAT_TIMEOUT, gone).await, Ok(Ok(())));
        if leads && !is_returned {
            tracing::warn!(
                "failed to return the detector's lease: another detector takes over after {} s",
                LEASE.as_secs()
            );
        }
    }

    async fn beat(&mut self, was: LeaseState) -> Result<LeaseState, clickhouse::error::Error> {
        let seen = self.client.query(SEEN).fetch_all::<HolderBeats>().await?;
        let now = decide(self.holder, was, &seen);
        self.write(now == LeaseState::Leads, false).await?;
        let mine = seen.iter().find(|one| one.holder == self.holder);
        self.is_new_claim = !mine.is_some_and(HolderBeats::is_alive);
        Ok(now)
    }

    async fn write(&mut self, leads: bool, is_gone: bool) -> Result<(), clickhouse::error::Error> {
        let insert = "INSERT INTO detector_beats (holder, beat, leads, is_gone) SELECT ?, ?, ?, ?";
        self.n += 1;
        let insert = self.client.query(insert).bind(self.holder).bind(self.n);
        insert.bind(leads).bind(is_gone).execute().await
    }
}

/// Returns the state after `silence` without an answer from the store.
fn unconfirmed(was: LeaseState, silence: Duration) -> LeaseState {
    match was {
        // One interval early, because the store stamped the last beat before its answer came.
        LeaseState::Leads if silence + BEAT >= LEASE => LeaseState::Unsure,
        was => was,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_000_000;

    fn seen(holder: u64, since: i64, silent: i64, leads: bool) -> HolderBeats {
        HolderBeats {
            holder,
            since_ms: since,
            last_ms: NOW - silent,
            leads,
            is_gone: false,
            has_led: leads,
            now_ms: NOW,
        }
    }

    fn gone(of: HolderBeats) -> HolderBeats {
        HolderBeats {
            is_gone: true,
            ..of
        }
    }

    #[test]
    fn the_first_claim_leads_once_it_is_settled() {
        use LeaseState::*;
        assert_eq!(decide(1, Standby, &[]), Standby, "it claims first");
        assert_eq!(decide(1, Standby, &[seen(1, 500, 300, false)]), Leads);
        let two = [seen(1, 500, 300, false), seen(2, 400, 300, false)];
        assert_eq!(decide(1, Standby, &two), Standby);
        assert_eq!(decide(2, Standby, &two), Leads);
        // Of claims at the same time the one with the lower id is first.
        let tie = [seen(1, 500, 300, false), seen(2, 500, 300, false)];
        assert_eq!(
            (decide(1, Standby, &tie), decide(2, Standby, &tie)),
            (Leads, Standby)
        );
    }

    #[test]
    fn nobody_takes_the_lease_from_a_leader_that_beats() {
        use LeaseState::*;
        let led = [seen(1, 500, 19_000, true), seen(2, 400, 300, false)];
        assert_eq!(decide(2, Standby, &led), Standby);
        assert_eq!(decide(1, Leads, &led), Leads);
    }

    #[test]
    fn a_leader_that_is_silent_or_gone_has_a_successor() {
        use LeaseState::*;
        let silent = [seen(1, 500, 20_000, true), seen(2, 400, 300, false)];
        assert_eq!(decide(2, Standby, &silent), Leads);
        let left = [gone(seen(1, 500, 100, true)), seen(2, 400, 300, false)];
        assert_eq!(decide(2, Standby, &left), Leads);
    }

    /// It may deliver its incidents only as long as no other detector led.
    #[test]
    fn a_leader_that_was_away_stays_unless_another_one_led() {
        use LeaseState::*;
        let alone = [seen(1, 500, 90_000, true)];
        assert_eq!(decide(1, Leads, &alone), Unsure);
        assert_eq!(decide(1, Unsure, &alone), Unsure);
        let succeeded = [seen(1, 500, 90_000, true), seen(2, 600, 300, true)];
        assert_eq!(decide(1, Unsure, &succeeded), Standby);
        let succeeded = [seen(1, 500, 90_000, true), gone(seen(2, 600, 5_000, true))];
        assert_eq!(decide(1, Unsure, &succeeded), Standby);
    }

    #[test]
    fn of_two_leaders_one_steps_back() {
        use LeaseState::*;
        let two = [seen(1, 500, 300, true), seen(2, 600, 300, true)];
        assert_eq!(
            (decide(1, Leads, &two), decide(2, Leads, &two)),
            (Leads, Standby)
        );
    }

    #[test]
    fn a_store_that_is_down_makes_a_leader_unsure_before_its_lease_expires() {
        let (short, long) = (BEAT, LEASE - BEAT);
        assert_eq!(unconfirmed(LeaseState::Leads, short), LeaseState::Leads);
        assert_eq!(unconfirmed(LeaseState::Leads, long), LeaseState::Unsure);
        assert_eq!(unconfirmed(LeaseState::Standby, long), LeaseState::Standby);
    }
}
