//! The lease: of several detectors on one store, one judges and notifies.
//!
//! Each appends beats to `detector_beats`, stamped by the store's clock. A beat says how long it holds. The store has no
//! locks, and a replica may show rows seconds after they were acknowledged, so a detector trusts only what it reads
//! back:
//!
//! - It leads once it has read its own beats over a whole beat's time, and saw no older claim meanwhile. A reader that
//!   sees its own row sees all rows before it, so an older claim cannot be hidden.
//! - Another detector is silent if this one reads back a beat of its own that is later than the end of the other's last
//!   beat. The present does not count, because rows of the last seconds may be hidden.
//! - A leader whose beats are not acknowledged for the length of the lease, less a beat, stops judging by its own
//!   clock. It returns with another id, as a new claim.
//! - The store's clock refuses a beat that arrives after that time. So a delayed beat cannot claim a lease that another
//!   detector now holds, whether its detector was frozen or the network delayed it. The spare beat covers servers of a
//!   cluster whose clocks differ.
//! - A beat counts only if the store's clock, read after it, is still within that time. Then it was stored, and no other
//!   detector can have taken over before. A pause that stopped the detector's own clock, too, is noticed here.
//!
//! If the store's clock steps forward, each leader's time is over at once. It returns with a new claim, and the oldest
//! claim leads. If the clock steps back, beats of a detector that died lie ahead of it, and a standby waits until it
//! has passed them.
//!
//! While the store is down the leader stays [`LeaseState::Unsure`], since no other detector can take over. It judges
//! nothing, but continues to deliver the incidents that it holds. If replicas show rows in another order than they were
//! written, a claim still counts as long as the difference is below a beat.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use clickhouse::{Client, Row};
use epwatch_server::{End, TaskSet};
use futures::FutureExt;
use parking_lot::Mutex;
use ring::rand::{SecureRandom, SystemRandom};
use serde::Deserialize;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Number of beats within a lease: two in a row may get lost.
const BEATS_PER_LEASE: u32 = 4;

/// Time limit of a beat; a beat that takes longer counts as lost.
const BEAT_TIMEOUT: Duration = Duration::from_secs(4);

/// A detector's state in the lease.
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

/// The beats of one detector that are visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Row, Deserialize)]
struct HolderBeats {
    holder: u64,
    /// First beat, in milliseconds of the store's clock.
    since_ms: i64,
    /// Last beat, in milliseconds of the store's clock.
    last_ms: i64,
    /// Time that the last beat holds, in milliseconds.
    lease_ms: i64,
    /// Whether it led at its last beat.
    leads: bool,
    is_gone: bool,
    /// Whether it ever led.
    has_led: bool,
    /// The store's clock when it answered.
    now_ms: i64,
}

const SEEN: &str = "
    SELECT holder, toUnixTimestamp64Milli(min(beaten_at)) AS since_ms,
        toUnixTimestamp64Milli(max(beaten_at)) AS last_ms,
        toInt64(argMax(b.lease_ms, b.beat)) AS lease_ms,
        argMax(b.leads, b.beat) AS leads, argMax(b.is_gone, b.beat) AS is_gone,
        toBool(max(b.leads)) AS has_led, toUnixTimestamp64Milli(now64(3)) AS now_ms
    FROM detector_beats AS b
    WHERE beaten_at > now64(3) - INTERVAL 1 HOUR
    GROUP BY holder";

/// The same server checks the time and stamps the beat.
const BEAT: &str = "
    INSERT INTO detector_beats (holder, beat, leads, is_gone, lease_ms, beaten_at)
    SELECT ?, ?, ?, ?, ?, now64(3) WHERE toUnixTimestamp64Milli(now64(3)) < ?";

const STORE_CLOCK: &str = "SELECT toUnixTimestamp64Milli(now64(3))";

impl HolderBeats {
    /// Whether it holds its lease or claim at a time of the store's clock up to which beats are visible.
    fn is_alive_at(&self, horizon_ms: i64) -> bool {
        !self.is_gone && horizon_ms - self.last_ms < self.lease_ms
    }

    fn rank(&self) -> (i64, u64) {
        (self.since_ms, self.holder)
    }
}

/// A detector's own part in the visible beats.
#[derive(Debug, Clone, Copy)]
struct Myself {
    /// Its id, under which it has beaten without a gap.
    holder: u64,
    was: LeaseState,
    /// Last visible beat under its earlier ids, in milliseconds of the store's clock.
    left_ms: Option<i64>,
    /// Interval of its beats.
    beat: Duration,
}

/// Returns the state of a detector, given the visible beats of all.
fn decide(me: Myself, seen: &[HolderBeats]) -> LeaseState {
    let Myself { holder, was, .. } = me;
    let Some(mine) = seen.iter().find(|one| one.holder == holder) else {
        // While its own beat is hidden, the detector knows nothing about the others.
        return was;
    };
    let horizon_ms = mine.last_ms;
    let others = || seen.iter().filter(|one| one.holder != holder);
    let alive = || others().filter(|other| other.is_alive_at(horizon_ms));
    let leading = alive().filter(|other| other.leads);
    if let Some(other) = leading.map(HolderBeats::rank).min() {
        // If two lead, the older one stays.
        let stays = was == LeaseState::Leads && mine.rank() < other;
        return if stays { was } else { LeaseState::Standby };
    }
    let left_ms = me.left_ms.unwrap_or(i64::MIN);
    match was {
        LeaseState::Leads => return was,
        // Another detector led in the meantime and is gone. Its incident states are newer.
        LeaseState::Unsure if others().any(|other| other.has_led && other.last_ms > left_ms) => {
            return LeaseState::Standby;
        }
        LeaseState::Unsure | LeaseState::Standby => {}
    }
    let beat_ms = i64::try_from(me.beat.as_millis()).unwrap_or(i64::MAX);
    let is_settled = mine.last_ms - mine.since_ms >= beat_ms;
    let is_first = alive().all(|other| mine.rank() < other.rank());
    if is_settled && is_first {
        LeaseState::Leads
    } else {
        was
    }
}

/// Name of the task that beats.
const TASK: &str = "lease";

/// A detector's lease, renewed by a task in the background. Dropping it gives the lease back, even in a panic.
#[derive(Debug)]
pub(crate) struct Lease {
    state: watch::Receiver<LeaseState>,
    held: Arc<HeldUntil>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// Time until which the last acknowledged beat allows judging.
#[derive(Debug)]
struct HeldUntil {
    until: Mutex<Instant>,
}

impl HeldUntil {
    fn is_over(&self) -> bool {
        Instant::now() >= *self.until.lock()
    }
}

impl Lease {
    /// Starts the task that beats. Another detector takes over after `lease` without a beat.
    pub(crate) fn take_part(client: Client, lease: Duration, tasks: &TaskSet) -> Self {
        let (sender, state) = watch::channel(LeaseState::Standby);
        let stop = CancellationToken::new();
        let held = Arc::new(HeldUntil {
            until: Mutex::new(Instant::now()),
        });
        let mut beats = Beats {
            client,
            lease,
            holder: random(),
            former: Vec::new(),
            n: 0,
            held: held.clone(),
            held_until_ms: None,
            store_clock: None,
        };
        let (tasks, stopped) = (tasks.clone(), stop.clone());
        tasks.note_start(TASK);
        let task = tokio::spawn(async move {
            let beating = tasks.unless_ended(TASK, beats.run(&sender, &stopped));
            let ended = AssertUnwindSafe(beating).catch_unwind().await;
            if !stopped.is_cancelled() {
                tasks.note_end(TASK, ended.map_or(End::Panic, |()| End::Return));
            }
            // However the task ended, another detector need not wait until the lease expires. The leader stops first,
            // and ends with the sender.
            let leads = sender.send_replace(LeaseState::Standby) == LeaseState::Leads;
            beats.give_back(leads).await;
        });
        Self {
            state,
            held,
            stop,
            task,
        }
    }

    /// Returns the current state, even if the task that beats was delayed.
    pub(crate) fn state(&self) -> LeaseState {
        match *self.state.borrow() {
            LeaseState::Leads if self.held.is_over() => LeaseState::Unsure,
            state => state,
        }
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

    /// Gives the lease back, so that another detector need not wait for it to expire.
    pub(crate) async fn release(mut self) {
        self.stop.cancel();
        if let Err(error) = (&mut self.task).await {
            tracing::error!(%error, "the lease ended badly");
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Waits until another detector leads, or the task that beats has ended.
pub(crate) async fn lost(state: &mut watch::Receiver<LeaseState>) {
    // An error means that the task ended, which gave the lease back.
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
    lease: Duration,
    holder: u64,
    /// Earlier ids of this detector, from before pauses of its beats.
    former: Vec<u64>,
    n: u64,
    held: Arc<HeldUntil>,
    /// The time in `held` by the store's clock; `None` before the first beat under this id counted.
    held_until_ms: Option<i64>,
    /// Latest reading of the store's clock, and when it came.
    store_clock: Option<(i64, Instant)>,
}

/// A beat that was acknowledged, which does not mean that it was stored.
struct SentBeat {
    /// Time at which sending began, by the detector's own clock.
    at: Instant,
    /// The store's clock then, or an earlier time.
    not_before_ms: i64,
}

impl Beats {
    async fn run(&mut self, state: &watch::Sender<LeaseState>, stop: &CancellationToken) {
        loop {
            self.round(state).await;
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(self.pause()) => {}
            }
        }
    }

    async fn give_back(&mut self, leads: bool) {
        let gone = self.send(leads, true);
        // A release that comes too late does no harm, because the lease is over then.
        let is_returned = matches!(timeout(BEAT_TIMEOUT, gone).await, Ok(Ok(_)));
        if leads && !is_returned {
            tracing::warn!(
                "failed to return the detector's lease: another detector takes over after {:?}",
                self.lease
            );
        }
    }

    /// Interval of the beats.
    fn pause(&self) -> Duration {
        self.lease / BEATS_PER_LEASE
    }

    /// Beats once, and publishes the new state.
    async fn round(&mut self, state: &watch::Sender<LeaseState>) {
        if self.n > 0 && self.held.is_over() {
            self.begin_again(state);
        }
        let limit = BEAT_TIMEOUT.min(self.lease - self.pause());
        match timeout(limit, self.beat(state)).await {
            Ok(Ok(now)) => publish(state, now),
            Ok(Err(error)) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(%error, cause, "failed to keep up the detector's lease");
            }
            Err(_) => tracing::warn!("the store is too slow to keep up the detector's lease"),
        }
        if self.held.is_over() {
            unsure(state);
        }
    }

    /// Takes another id. Others may count this detector as silent, so its claim under the earlier id is over. The state
    /// changes first, because the next beat extends the time that [`Lease::state`] reads.
    fn begin_again(&mut self, state: &watch::Sender<LeaseState>) {
        unsure(state);
        // Beats are read only for an hour, so a few ids are enough.
        if self.former.len() >= 1_000 {
            self.former.remove(0);
        }
        self.former.push(self.holder);
        self.holder = random();
        self.n = 0;
        self.held_until_ms = None;
    }

    async fn beat(
        &mut self,
        state: &watch::Sender<LeaseState>,
    ) -> Result<LeaseState, clickhouse::error::Error> {
        let was = *state.borrow();
        let sent = self.send(was == LeaseState::Leads, false).await?;
        let mut seen = self.client.query(SEEN).fetch_all::<HolderBeats>().await?;
        let now_ms = match seen.first() {
            Some(one) => self.note_store_clock(one.now_ms),
            None => self.read_store_clock().await?,
        };
        if !self.counts(&sent, now_ms) {
            // The next round makes a new claim.
            self.begin_again(state);
            return Ok(*state.borrow());
        }
        let is_former = |one: &HolderBeats| self.former.contains(&one.holder);
        let left = seen.iter().filter(|one| is_former(one));
        let me = Myself {
            holder: self.holder,
            was,
            left_ms: left.map(|one| one.last_ms).max(),
            beat: self.pause(),
        };
        seen.retain(|one| !is_former(one));
        let now = decide(me, &seen);
        if now == LeaseState::Leads && was != now {
            let sent = self.send(true, false).await?;
            let now_ms = self.read_store_clock().await?;
            if !self.counts(&sent, now_ms) {
                return Ok(was);
            }
        }
        Ok(now)
    }

    /// Sends a beat, which the store takes only if its time is not over.
    async fn send(
        &mut self,
        leads: bool,
        is_gone: bool,
    ) -> Result<SentBeat, clickhouse::error::Error> {
        let (read_ms, read_at) = match self.store_clock {
            Some(read) => read,
            None => (self.read_store_clock().await?, Instant::now()),
        };
        let at = Instant::now();
        let passed_ms = i64::try_from((at - read_at).as_millis()).unwrap_or(i64::MAX);
        let until_ms = self.held_until_ms.unwrap_or(i64::MAX);
        let lease_ms = u32::try_from(self.lease.as_millis()).unwrap_or(u32::MAX);
        self.n += 1;
        let insert = self.client.query(BEAT).bind(self.holder).bind(self.n);
        let insert = insert.bind(leads).bind(is_gone).bind(lease_ms);
        insert.bind(until_ms).execute().await?;
        Ok(SentBeat {
            at,
            not_before_ms: read_ms.saturating_add(passed_ms),
        })
    }

    /// Whether an acknowledged beat counts, given the store's clock after it. If so, it extends the time that it holds.
    fn counts(&mut self, sent: &SentBeat, now_ms: i64) -> bool {
        if self
            .held_until_ms
            .is_some_and(|until_ms| now_ms >= until_ms)
        {
            return false;
        }
        // The lease ends one beat early, because the clocks of store and detector, or of two servers, may differ.
        let holds = self.lease - self.pause();
        let holds_ms = i64::try_from(holds.as_millis()).unwrap_or(i64::MAX);
        // The clock may have stepped back.
        let since_ms = sent.not_before_ms.min(now_ms);
        self.held_until_ms = Some(since_ms.saturating_add(holds_ms));
        *self.held.until.lock() = sent.at + holds;
        true
    }

    async fn read_store_clock(&mut self) -> Result<i64, clickhouse::error::Error> {
        let now_ms = self.client.query(STORE_CLOCK).fetch_one::<i64>().await?;
        Ok(self.note_store_clock(now_ms))
    }

    /// Keeps a reading of the store's clock. It was taken before it arrived, and a pause may stop the detector's clock
    /// but not the store's. So the reading plus the time that passed since is never later than the store's clock.
    fn note_store_clock(&mut self, now_ms: i64) -> i64 {
        self.store_clock = Some((now_ms, Instant::now()));
        now_ms
    }
}

fn publish(state: &watch::Sender<LeaseState>, now: LeaseState) {
    if *state.borrow() != now {
        tracing::info!("{}", now.as_sentence());
        state.send_replace(now);
    }
}

/// A leader whose time is over may not judge.
fn unsure(state: &watch::Sender<LeaseState>) {
    if *state.borrow() == LeaseState::Leads {
        publish(state, LeaseState::Unsure);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use LeaseState::{Leads, Standby, Unsure};

    const BEAT: Duration = Duration::from_secs(5);

    /// Beats from one second of the store's clock to another.
    fn beats(holder: u64, since_s: i64, last_s: i64, leads: bool) -> HolderBeats {
        HolderBeats {
            holder,
            since_ms: since_s * 1_000,
            last_ms: last_s * 1_000,
            lease_ms: 20_000,
            leads,
            is_gone: false,
            has_led: leads,
            now_ms: 0,
        }
    }

    fn gone(of: HolderBeats) -> HolderBeats {
        HolderBeats {
            is_gone: true,
            ..of
        }
    }

    #[track_caller]
    fn check(holder: u64, was: LeaseState, seen: &[HolderBeats], expected: LeaseState) {
        check_after(holder, was, None, seen, expected);
    }

    #[track_caller]
    fn check_after(
        holder: u64,
        was: LeaseState,
        left_s: Option<i64>,
        seen: &[HolderBeats],
        expected: LeaseState,
    ) {
        let me = Myself {
            holder,
            was,
            left_ms: left_s.map(|left_s| left_s * 1_000),
            beat: BEAT,
        };
        assert_eq!(decide(me, seen), expected);
    }

    #[test]
    fn a_claim_counts_once_it_was_read_back_for_a_whole_beat() {
        check(1, Standby, &[], Standby);
        check(1, Standby, &[beats(1, 100, 100, false)], Standby);
        check(1, Standby, &[beats(1, 100, 104, false)], Standby);
        check(1, Standby, &[beats(1, 100, 105, false)], Leads);
        let two = [beats(1, 100, 105, false), beats(2, 99, 104, false)];
        check(1, Standby, &two, Standby);
        check(2, Standby, &two, Leads);
        // If claims have the same time, the one with the lower id is first.
        let tie = [beats(1, 100, 105, false), beats(2, 100, 105, false)];
        check(1, Standby, &tie, Leads);
        check(2, Standby, &tie, Standby);
    }

    /// The store may hide the other detector's beats as long as it hides the detector's own.
    #[test]
    fn a_detector_that_does_not_see_its_own_beats_takes_no_lease() {
        check(2, Standby, &[beats(1, 100, 105, true)], Standby);
        check(2, Leads, &[beats(1, 100, 105, false)], Leads);
        // The detector has beaten since 110, and sees its own beats only up to 121. Later beats of the other one may be
        // stored too.
        let hidden = [beats(1, 100, 105, true), beats(2, 110, 121, false)];
        check(2, Standby, &hidden, Standby);
        let silent = [beats(1, 100, 105, true), beats(2, 110, 125, false)];
        check(2, Standby, &silent, Leads);
    }

    #[test]
    fn nobody_takes_the_lease_from_a_leader_that_beats() {
        let led = [beats(1, 500, 600, true), beats(2, 400, 619, false)];
        check(2, Standby, &led, Standby);
        check(1, Leads, &led, Leads);
        let left = [gone(beats(1, 500, 600, true)), beats(2, 400, 601, false)];
        check(2, Standby, &left, Leads);
    }

    /// A beat says how long it holds: detectors may be configured differently.
    #[test]
    fn the_lease_of_the_other_one_counts() {
        let long = HolderBeats {
            lease_ms: 60_000,
            ..beats(1, 100, 105, true)
        };
        check(2, Standby, &[long, beats(2, 110, 164, false)], Standby);
        check(2, Standby, &[long, beats(2, 110, 165, false)], Leads);
    }

    /// A returning leader may deliver its incidents only if no other detector led. Its new claim has the id 3.
    #[test]
    fn a_leader_that_was_away_stays_unless_another_one_led() {
        let check = |seen: &[HolderBeats], expected| {
            check_after(3, Unsure, Some(500), seen, expected);
        };
        check(&[], Unsure);
        check(&[beats(3, 600, 604, false)], Unsure);
        check(&[beats(3, 600, 605, false)], Leads);
        check(
            &[beats(3, 600, 605, false), beats(2, 550, 603, true)],
            Standby,
        );
        let came_and_went = [beats(3, 600, 605, false), gone(beats(2, 550, 560, true))];
        check(&came_and_went, Standby);
        // Another detector led earlier.
        let earlier = [beats(3, 600, 605, false), gone(beats(2, 300, 400, true))];
        check(&earlier, Leads);
    }

    fn holding_until(held_until_ms: Option<i64>) -> Beats {
        Beats {
            client: Client::default(),
            lease: 4 * BEAT,
            holder: 1,
            former: Vec::new(),
            n: 7,
            held: Arc::new(HeldUntil {
                until: Mutex::new(Instant::now()),
            }),
            held_until_ms,
            store_clock: None,
        }
    }

    /// Its next beat extends the time that it may judge, and must not extend the term that is over.
    #[test]
    fn a_leader_whose_time_is_over_is_unsure_before_it_beats_again() {
        let (state, seen) = watch::channel(Leads);
        let mut beats = holding_until(Some(100));
        beats.begin_again(&state);
        assert_eq!(*seen.borrow(), Unsure);
        assert_eq!(
            (beats.former, beats.n, beats.held_until_ms),
            (vec![1], 0, None)
        );
    }

    #[test]
    fn a_beat_counts_while_the_time_of_the_one_before_lasts() {
        let check = |until_ms, not_before_ms, now_ms, expected| {
            let mut beats = holding_until(until_ms);
            let sent = SentBeat {
                at: Instant::now(),
                not_before_ms,
            };
            let counts = beats.counts(&sent, now_ms);
            assert_eq!(counts.then_some(beats.held_until_ms), expected);
            assert_eq!(beats.held.is_over(), !counts);
        };
        check(None, 1_000, 1_020, Some(Some(16_000)));
        check(Some(6_000), 1_000, 5_999, Some(Some(16_000)));
        // The beat may not have been stored, and another detector may lead.
        check(Some(6_000), 1_000, 6_000, None);
        // The store's clock stepped back.
        check(Some(60_000), 50_000, 1_000, Some(Some(16_000)));
    }

    #[test]
    fn of_two_leaders_one_steps_back() {
        let two = [beats(1, 500, 600, true), beats(2, 501, 600, true)];
        check(1, Leads, &two, Leads);
        check(2, Leads, &two, Standby);
    }
}
