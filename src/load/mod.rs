//! `epwatch load`: measures how many reports a collector accepts, and checks that it keeps each of them.

mod own_server;
mod stored;

use std::{
    collections::BTreeMap,
    io::{IsTerminal, Write},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::Context;
use epwatch_fleet::load::{self, AckLatency, LoadOptions, LoadResult};
use epwatch_server::Period;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::ledger::ReportLedger;
use crate::store_args::AddressArgs;
use crate::{
    client_tls,
    collector_key::KeySource,
    output,
    shutdown::{Hangup, Shutdown},
};
use own_server::{OwnServer, cpu_seconds};
use stored::{LedgerBefore, StoreLedger, Stored};

const KEY: KeySource = KeySource {
    option: "--key",
    variable: "EPWATCH_LOAD_KEY",
    made_by: "epwatch collector key --kind own",
};

/// Sends reports of simulated devices to a collector, and checks that each counts once.
///
/// Without --endpoint it starts a server in a temporary folder and ends it afterwards.
/// Latency counts from the moment that a request was due, so a server that stalls cannot hide it.
/// Exit code 0: each report got an answer, all acknowledged reports are in the store once, and its loss ledger closes.
/// Exit code 1: that does not hold, nothing was acknowledged, or reports were given up without an answer. Exit codes 2
/// and 3: wrong use, could not find out.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The collector to load, for example `https://collector.example:4717`; needs --key there.
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// App key that the collector accepts. A collector on this machine may have none.
    #[arg(
        long,
        value_name = "KEY",
        env = "EPWATCH_LOAD_KEY",
        hide_env_values = true
    )]
    key: Option<String>,
    /// App that the key proves.
    #[arg(long, value_name = "ID", default_value = "epwatch.load")]
    app: String,
    /// Environment that the key proves.
    #[arg(long, value_name = "NAME", default_value = "load")]
    environment: String,
    /// Certificate (PEM) that signed the collector's, where it is not a public one.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Certificate (PEM, with its chain) of this client, where the collector asks for one (`client_ca`).
    #[arg(long, value_name = "FILE", requires_all = ["client_key", "endpoint"])]
    client_cert: Option<PathBuf>,
    /// Key (PEM) of --client-cert.
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,
    /// The store of that collector, which is checked at the end.
    #[command(flatten)]
    store: AddressArgs,
    /// Devices to simulate.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    devices: u32,
    /// Reports a second over all devices; 0 if they are sent as fast as they are taken.
    #[arg(long, value_name = "N", default_value_t = 500.0)]
    rate: f64,
    /// Reports in one request.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    batch: u16,
    /// How long to send, for example 30s or 10m.
    #[arg(long, value_name = "TIME", default_value = "10s")]
    duration: Period,
    /// How long after that to wait for reports that are not acknowledged, or not yet in the store.
    #[arg(long, value_name = "TIME", default_value = "60s")]
    drain: Period,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// The one document of `load --json`.
#[derive(Debug, Serialize)]
struct LoadDocument {
    /// Distinct reports that were sent.
    sent: u64,
    /// Distinct reports that were acknowledged.
    acked: u64,
    /// Distinct reports that were refused for good, by outcome.
    refused: BTreeMap<String, u64>,
    /// Reports sent again, counted each time.
    retried: u64,
    /// Reports neither acknowledged nor refused when time was up.
    given_up: u64,
    seconds: f64,
    /// Acknowledged reports a second.
    reports_per_second: f64,
    ack_ms: Option<AckLatency>,
    /// User and system time of the server process that the load started; `null` with --endpoint.
    server_cpu_seconds: Option<f64>,
    /// `null` without a store.
    store: Option<Stored>,
    /// This load's own counts, whose sum must close.
    ledger: Option<ReportLedger>,
    /// Counts of the store's loss ledger during this load.
    store_ledger: Option<StoreLedger>,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    if !args.rate.is_finite() || args.rate < 0.0 {
        anyhow::bail!(output::WrongUse(format!(
            "--rate must be 0 or more reports a second, got {}",
            args.rate
        )));
    }
    if args.store.clickhouse.is_some() && args.endpoint.is_none() {
        anyhow::bail!(output::WrongUse(
            "--clickhouse is the store of the collector at --endpoint, which is missing".to_owned()
        ));
    }
    let mut shutdown = Shutdown::listen(Hangup::Ends)?;
    let mut own = match &args.endpoint {
        Some(_) => None,
        None => Some(OwnServer::start()?),
    };
    let document = match &mut own {
        Some(own) => match shutdown.unless_requested(own.ready()).await {
            Ok(Ok(())) => load(&args, Some(own), &mut shutdown).await,
            Ok(Err(error)) => Err(error),
            Err(interrupted) => Err(interrupted.into()),
        },
        None => load(&args, None, &mut shutdown).await,
    };
    if let Some(own) = &mut own {
        // A second Ctrl-C kills the server.
        shutdown.unless_requested(own.stop()).await??;
    }
    let document = document?;
    let is_kept = document.is_kept();
    if args.json {
        output::json(&document)?;
    } else {
        output::line(&document)?;
    }
    Ok(match is_kept {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(output::NO),
    })
}

async fn load(
    args: &Args,
    own: Option<&OwnServer>,
    shutdown: &mut Shutdown,
) -> anyhow::Result<LoadDocument> {
    let options = options(args, own)?;
    let store = match own {
        Some(own) => Some(own.store()?),
        None => args.store.target().await?,
    };
    let store = match store {
        Some(target) => {
            let client = epwatch_store::client(&target);
            let before = LedgerBefore::read(&client, &options).await;
            Some((client, before.context("failed to read the store's ledger")?))
        }
        None => None,
    };
    let pid = own.map(OwnServer::pid);
    let cpu_before = pid.and_then(cpu_seconds);
    let stop = CancellationToken::new();
    let mut running = std::pin::pin!(load::run(&options, progress, stop.clone()));
    let result = tokio::select! {
        result = &mut running => result,
        // Ctrl-C ends the sending; sent reports are still checked. A second one ends the command.
        () = shutdown.requested() => {
            stop.cancel();
            shutdown.unless_requested(running).await?
        }
    };
    if std::io::stderr().is_terminal() {
        let _ = writeln!(std::io::stderr());
    }
    let result = result?;
    let cpu_after = pid.and_then(cpu_seconds);
    let stored = match store {
        Some((client, before)) => {
            let settling = stored::settled(&client, &options, result.acked, args.drain.0);
            let stored = shutdown.unless_requested(settling).await?;
            let stored = stored.context("failed to read the store back")?;
            let ledger = before.until_now(&client, &options, args.drain.0);
            let ledger = shutdown.unless_requested(ledger).await?;
            Some((stored, ledger.context("failed to read the store's ledger")?))
        }
        None => None,
    };
    Ok(LoadDocument::new(
        &result,
        stored,
        cpu_after.zip(cpu_before),
    ))
}

fn options(args: &Args, own: Option<&OwnServer>) -> anyhow::Result<LoadOptions> {
    let endpoint = match (&args.endpoint, own) {
        (Some(endpoint), _) => endpoint.clone(),
        (None, Some(own)) => own.endpoint()?,
        (None, None) => unreachable!("without an endpoint there is a server of our own"),
    };
    let (ca, certificate) = (args.ca.as_deref(), args.client_cert.as_deref());
    let tls = client_tls::read(&endpoint, ca, certificate, args.client_key.as_deref())?;
    let seed = epwatch_sdk::simulation::random_u64();
    Ok(LoadOptions {
        app_key: KEY.key(&endpoint, args.key.as_deref())?,
        endpoint,
        tls,
        app_id: args.app.clone(),
        environment: args.environment.clone(),
        mark: format!("load-{seed:016x}"),
        seed,
        devices: usize::try_from(args.devices)?,
        rate: (args.rate > 0.0).then_some(args.rate),
        batch: args.batch.into(),
        length: args.duration.0,
        drain: args.drain.0,
    })
}

/// Redraws a progress line on a terminal; prints nothing elsewhere.
fn progress(so_far: &LoadResult) {
    let mut out = std::io::stderr();
    if out.is_terminal() {
        let LoadResult { sent, acked, .. } = so_far;
        let _ = write!(out, "\r{sent} reports sent, {acked} acknowledged ");
        let _ = out.flush();
    }
}

impl LoadDocument {
    fn new(
        result: &LoadResult,
        stored: Option<(Stored, StoreLedger)>,
        cpu: Option<(f64, f64)>,
    ) -> Self {
        let (store, store_ledger) = stored.unzip();
        let refused = result.refused.values().sum();
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 reports")]
        let reports_per_second = result.acked as f64 / result.elapsed.as_secs_f64();
        Self {
            sent: result.sent,
            acked: result.acked,
            refused: result.refused.clone(),
            retried: result.retried,
            given_up: result.given_up,
            seconds: result.elapsed.as_secs_f64(),
            reports_per_second,
            ack_ms: result.ack,
            server_cpu_seconds: cpu.map(|(after, before)| after - before),
            ledger: store.as_ref().map(|store| ReportLedger {
                recorded: result.sent,
                stored: store.distinct,
                dropped: 0,
                refused,
                duplicate: result.duplicates,
                missing: i64::try_from(result.sent).unwrap_or(i64::MAX)
                    - i64::try_from(store.distinct + refused).unwrap_or(i64::MAX),
            }),
            store,
            store_ledger,
        }
    }

    /// Whether each report got an answer, and the store, if one was read, holds every acknowledged report once.
    fn is_kept(&self) -> bool {
        let is_answered = self.is_acknowledged() && self.given_up == 0;
        is_answered && self.is_stored_once() && self.ledger_closes()
    }

    /// Whether the collector took any of the reports.
    fn is_acknowledged(&self) -> bool {
        self.acked > 0 || self.sent == 0
    }

    /// Whether the store's loss ledger agrees with the reports sent.
    fn ledger_closes(&self) -> bool {
        let refused: u64 = self.refused.values().sum();
        let distinct = self.store.map_or(0, |store| store.distinct);
        self.store_ledger
            .is_none_or(|ledger| ledger.closes(self.sent, distinct, refused + self.given_up))
    }

    /// Whether the store holds every acknowledged report, and none twice. The store may also hold an unacknowledged
    /// report, because its ack was lost.
    fn is_stored_once(&self) -> bool {
        self.store.as_ref().is_none_or(|store| {
            store.reports == store.distinct
                && (self.acked..=self.acked + self.given_up).contains(&store.distinct)
        })
    }
}

impl std::fmt::Display for LoadDocument {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "{} reports sent, {} acknowledged in {:.1} s: {:.0} a second",
            self.sent, self.acked, self.seconds, self.reports_per_second
        )?;
        if !self.is_acknowledged() {
            writeln!(
                f,
                "NOTHING was acknowledged: the collector's log and its /readyz say why"
            )?;
        }
        if let Some(ack) = &self.ack_ms {
            writeln!(
                f,
                "ack after {:.1} ms at the median, {:.1} ms at 99 %, {:.1} ms at most",
                ack.p50, ack.p99, ack.max
            )?;
        }
        for (reason, reports) in &self.refused {
            writeln!(f, "{reports} refused: {reason}")?;
        }
        if self.retried > 0 || self.given_up > 0 {
            writeln!(f, "{} sent again, {} given up", self.retried, self.given_up)?;
        }
        if self.given_up > 0 && self.is_acknowledged() {
            writeln!(
                f,
                "NOT ALL got an answer: the collector was away or slow; its log and its /readyz say why"
            )?;
        }
        if let Some(seconds) = self.server_cpu_seconds {
            writeln!(f, "the collector used {seconds:.2} s of processor time")?;
        }
        match &self.store {
            Some(store) if self.is_stored_once() => write!(
                f,
                "the store holds each acknowledged report once: {} of {}",
                store.distinct, self.acked
            )?,
            Some(store) => write!(
                f,
                "the store holds {} reports, {} distinct, of {} acknowledged: that is WRONG",
                store.reports, store.distinct, self.acked
            )?,
            None => write!(f, "the store was not looked at; name it with --clickhouse")?,
        }
        let Some(ledger) = &self.store_ledger else {
            return Ok(());
        };
        write!(
            f,
            "\nits ledger: {} recorded = {} stored + {} dropped + {} refused + {} missing",
            ledger.recorded, ledger.stored, ledger.dropped, ledger.refused, ledger.missing
        )?;
        if ledger.others > 0 {
            write!(f, "; not checked, since others sent for this app too")?;
        } else if !self.ledger_closes() {
            write!(f, ": that is WRONG for {} sent", self.sent)?;
        }
        Ok(())
    }
}
