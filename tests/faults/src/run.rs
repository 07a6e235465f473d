//! One run: start, break things under load, rest, check. This is repeated until there were enough kills.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::check::{self, Buckets, Findings};
use crate::device::Device;
use crate::fault::{self, Fault, Lengths};
use crate::load::{Account, Order, Shared};
use crate::options::{FaultOptions, Servers};
use crate::servers::{COLLECTOR_TIMEOUT, Processes};

/// Number of kills between two checks of everything, so that a difference is found near its cause.
const KILLS_A_ROUND: u64 = 100;

/// Processes killed with SIGKILL, and spells.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Kills {
    /// Collectors, or `serve` with the engine inside.
    pub collectors: u64,
    /// The store's engine.
    pub stores: u64,
    /// Spells in which the engine was stopped.
    pub freezes: u64,
    /// Spells in which the store could not be reached.
    pub cuts: u64,
    /// Seconds of all spells.
    pub seconds_without_store: f64,
}

impl Kills {
    #[must_use]
    pub fn total(&self) -> u64 {
        self.collectors + self.stores
    }
}

/// The one document of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Document {
    /// Whether no report was lost, counted twice, refused or left open.
    pub ok: bool,
    /// The seed, as given or chosen.
    pub seed: u64,
    pub servers: Servers,
    /// Number of faults of each kind.
    pub kills: Kills,
    #[serde(flatten)]
    pub account: Account,
    /// Starts of collector processes.
    pub collector_starts: u64,
    /// Number of these processes that ended by themselves.
    pub collectors_ended_by_themselves: u64,
    /// Checks of everything: one after each round of kills, and one at the end.
    pub checks: u64,
    /// Wall-clock time.
    pub seconds: f64,
    /// The differences of the last check.
    pub findings: Findings,
}

/// Runs to the end, or to the first check that finds something. WALs, store and logs are below `dir`. `say` gets a line
/// now and then; cancelling `stop` ends the faults early, and everything is still checked.
///
/// # Errors
/// The processes cannot be started, or the store cannot be read at the end.
pub async fn run(
    options: &FaultOptions,
    dir: &Path,
    mut say: impl FnMut(&str),
    stop: CancellationToken,
) -> anyhow::Result<Document> {
    let began = Instant::now();
    let processes = Processes::start(options, dir).await?;
    let shared = Arc::new(Shared::new());
    let mut devices = JoinSet::new();
    for _ in 0..options.devices {
        let device = Device::new(processes.addresses(), shared.clone());
        devices.spawn(device.live(options.pause.0));
    }
    let mut run = Run {
        options,
        processes: &processes,
        shared: &shared,
        chance: fastrand::Rng::with_seed(options.seed),
        kills: Kills::default(),
        checks: 0,
        until: Instant::now() + options.length.0,
        stop,
    };
    let mut findings = Findings::default();
    while !run.is_over() {
        run.round(&mut say).await?;
        findings = run.check(&mut say).await?;
        if !findings.is_clean() {
            break;
        }
        shared.order.send_replace(Order::Send);
    }
    shared.order.send_replace(Order::End);
    while devices.join_next().await.is_some() {}
    if findings.is_clean() {
        say("the collectors are told to drain and end");
        run.processes.all_listen().await?;
        // `serve` also ends the store, so the store is read before.
        let buckets = match options.servers {
            Servers::Collectors => {
                processes.stop_collectors().await?;
                Buckets::StayOpen
            }
            Servers::Serve => Buckets::Close,
        };
        run.checks += 1;
        findings = run.look(buckets, options.drain.0).await?;
        if options.servers == Servers::Serve {
            processes.stop_collectors().await?;
        }
    }
    let document = run.document(began.elapsed(), findings);
    processes.stop_store().await;
    Ok(document)
}

struct Run<'a> {
    options: &'a FaultOptions,
    processes: &'a Processes,
    shared: &'a Shared,
    chance: fastrand::Rng,
    kills: Kills,
    checks: u64,
    until: Instant,
    stop: CancellationToken,
}

impl Run<'_> {
    fn is_over(&self) -> bool {
        self.kills.total() >= self.options.kills
            || Instant::now() >= self.until
            || self.stop.is_cancelled()
    }

    /// Breaks things until a round's worth of kills is reached.
    async fn round(&mut self, say: &mut impl FnMut(&str)) -> anyhow::Result<()> {
        let enough = self.kills.total() + KILLS_A_ROUND;
        let lengths = Lengths {
            pause: self.options.fault_pause.0,
            spell: self.options.spell.0,
            collector_timeout: COLLECTOR_TIMEOUT,
        };
        let mut said = Instant::now();
        while !self.is_over() && self.kills.total() < enough {
            let (pause, fault) = fault::next(&mut self.chance, lengths);
            sleep(pause).await;
            self.inflict(fault).await?;
            if said.elapsed() >= Duration::from_secs(5) {
                said = Instant::now();
                let account = self.shared.account();
                say(&format!(
                    "{} kills, {} reports acknowledged, {} sent again",
                    self.kills.total(),
                    account.acked.len(),
                    account.retried
                ));
            }
        }
        Ok(())
    }

    async fn inflict(&mut self, fault: Fault) -> anyhow::Result<()> {
        let processes = self.processes;
        match fault {
            Fault::KillCollector { index, down } => {
                self.kills.collectors += u64::from(processes.kill_collector(index, down).await);
            }
            Fault::KillStore => self.kills.stores += u64::from(processes.kill_store().await?),
            Fault::KillAll => {
                self.kills.stores += u64::from(processes.kill_store().await?);
                self.kills.collectors += processes.kill_collectors().await;
            }
            Fault::Freeze(spell) => {
                if processes.freeze_store(spell).await {
                    self.kills.freezes += 1;
                    self.kills.seconds_without_store += spell.as_secs_f64();
                }
            }
            Fault::CutOff(spell) => {
                if let Some(killed) = processes.cut_store_off(spell).await {
                    self.kills.cuts += 1;
                    self.kills.collectors += killed;
                    self.kills.seconds_without_store += spell.as_secs_f64();
                }
            }
        }
        Ok(())
    }

    /// Lets the devices settle all reports, and checks the store.
    async fn check(&mut self, say: &mut impl FnMut(&str)) -> anyhow::Result<Findings> {
        self.shared.order.send_replace(Order::Rest);
        let far = *self.shared.give_up.borrow();
        self.rested().await?;
        self.shared.give_up.send_replace(far);
        self.processes.all_listen().await?;
        self.checks += 1;
        let findings = self.look(Buckets::Close, self.options.drain.0).await?;
        let word = if findings.is_clean() {
            "once each"
        } else {
            "WRONG"
        };
        say(&format!(
            "after {} kills: {} reports in every view, {word}",
            self.kills.total(),
            findings.expected
        ));
        Ok(findings)
    }

    /// Waits until every device rests. Slow machines get the time they need: devices give up only if nothing was
    /// acknowledged for the whole `drain` time.
    async fn rested(&mut self) -> anyhow::Result<()> {
        // A device's last call may end this long after that.
        const LAST_CALL: Duration = Duration::from_secs(60);
        let mut n_acked = self.shared.account().acked.len();
        let max_wait = self.options.drain.0;
        let mut until = Instant::now() + max_wait;
        let n_devices = usize::from(self.options.devices);
        let mut resting = self.shared.resting.subscribe();
        loop {
            self.shared.give_up.send_replace(until);
            let all_rest = resting.wait_for(|n| *n >= n_devices);
            if timeout(Duration::from_secs(1), all_rest).await.is_ok() {
                return Ok(());
            }
            let n_now = self.shared.account().acked.len();
            if n_now > n_acked {
                n_acked = n_now;
                until = Instant::now() + max_wait;
            }
            anyhow::ensure!(
                Instant::now() < until + LAST_CALL,
                "the devices did not come to rest"
            );
        }
    }

    /// Checks until the store is as expected, or until it came no nearer to that for `max_wait`.
    async fn look(&mut self, buckets: Buckets, max_wait: Duration) -> anyhow::Result<Findings> {
        const A_WHILE: Duration = Duration::from_secs(10);
        let account = self.shared.account().clone();
        let mut deadline = Instant::now() + max_wait;
        let mut nearest = u64::MAX;
        loop {
            let store = self.processes.client()?;
            let findings = check::settled(&store, &account, buckets, A_WHILE).await;
            let distance = findings.as_ref().map_or(u64::MAX, Findings::distance);
            if distance < nearest {
                nearest = distance;
                deadline = Instant::now() + max_wait;
            }
            if distance == 0 || Instant::now() >= deadline {
                return findings.context("failed to read the store back");
            }
        }
    }

    fn document(&self, took: Duration, findings: Findings) -> Document {
        let account = self.shared.account();
        let states: Vec<_> = self
            .processes
            .states()
            .iter()
            .map(|s| s.borrow().clone())
            .collect();
        Document {
            ok: findings.is_clean()
                && self.checks > 0
                && !account.acked.is_empty()
                && account.given_up == 0
                && account.refused.is_empty(),
            seed: self.options.seed,
            servers: self.options.servers,
            kills: self.kills.clone(),
            account: account.clone(),
            collector_starts: states.iter().map(|state| state.starts).sum(),
            collectors_ended_by_themselves: states.iter().map(|s| s.ended_by_itself).sum(),
            checks: self.checks,
            seconds: took.as_secs_f64(),
            findings,
        }
    }
}

impl std::fmt::Display for Document {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (kills, account, findings) = (&self.kills, &self.account, &self.findings);
        writeln!(
            f,
            "{} collectors and {} stores killed in {:.0} s; {} freezes and {} cuts of the store, {:.0} s without it",
            kills.collectors,
            kills.stores,
            self.seconds,
            kills.freezes,
            kills.cuts,
            kills.seconds_without_store
        )?;
        writeln!(
            f,
            "{} reports acknowledged, {} sent again, {} deleted with {} installations, {} checks",
            account.acked.len(),
            account.retried,
            account.deleted_reports,
            account.deleted.len(),
            self.checks
        )?;
        for (outcome, n) in &account.refused {
            writeln!(f, "{n} refused: {outcome}")?;
        }
        let verdict = if self.ok {
            "as it must be"
        } else {
            "that is WRONG"
        };
        write!(
            f,
            "{} lost, {} counted twice, {} unexpected: {verdict}",
            findings.lost, findings.counted_twice, findings.unexpected
        )?;
        for count in &findings.wrong_views {
            let (view, expected, found) = (&count.view, count.expected, count.found);
            write!(f, "\n{view}: {expected} expected, {found} found")?;
        }
        Ok(())
    }
}
