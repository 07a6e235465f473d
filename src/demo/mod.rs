//! `epwatch demo`: the whole product on this machine, for some minutes.
//!
//! The components of `serve` and the SDK are real. So are the sessions of ONNX Runtime and QNN on two chipsets of the
//! emulator. Some hundreds of devices with the placements of these sessions are simulated. Their latency comes from a
//! model, because the emulator's latency has no meaning. Nothing is scripted: a placement makes a device slow, and the
//! detector raises a page.

mod access;
pub(crate) mod device;
mod models;
mod pager;
mod real;
mod screen;
mod summary;

use std::{
    path::Path,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use epwatch_collector::config::{AppKeyConfig, KeyKind};
use epwatch_detector::DetectorConfig;
use epwatch_engines::Engine;
use epwatch_fleet::{Chipset, ChipsetShare, Fleet, Live, Placements, Rollout, Scenario};
use epwatch_page::PageConfig;
use epwatch_server::{ByteSize, Period};
use tokio::sync::mpsc;

use crate::{
    all_in_one::AllInOne,
    engines, output,
    page::RunningPage,
    part_status,
    server_config::ServerConfig,
    shutdown::{Hangup, Shutdown},
    temp_folder::TempFolder,
};
use access::{AppKey, CollectorAccess};
use models::{APP, FIRST_VERSION, MODEL, Story};
use pager::{Page, Pager};
use real::RealDevices;
use screen::{Counts, Screen};
use summary::Summary;

const ENVIRONMENT: &str = "production";
/// Version 2 rolls out when each device has enough runs of version 1 for a baseline.
const ROLLOUT_STARTS: Duration = Duration::from_secs(8);
const ROLLOUT_TAKES: Duration = Duration::from_secs(4);
/// Share of the devices that get version 2; the rest is the control.
const ROLLOUT_SHARE: f64 = 0.7;

/// Time to upload the reports that are still on devices when the demo ends.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);
const REFRESH: Duration = Duration::from_millis(500);

/// Shows the whole product on this machine: real sessions, a simulated fleet, and the page.
///
/// Two versions of a model: the second has a float head, which SM8650 takes whole and SM8635 drops to
/// the CPU without a word. Needs no configuration; everything lives in a temporary folder.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// End after this many seconds; without it Ctrl-C ends the demo.
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// Roll out a second version that is int8 throughout: it should not page.
    #[arg(long)]
    healthy: bool,
    /// Go without ONNX Runtime and QNN; simulated devices use placements recorded earlier.
    #[arg(long)]
    no_runtimes: bool,
    /// How many devices to simulate.
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u32).range(20..=5000))]
    devices: u32,
    /// Print one JSON document at the end, and nothing else on standard output.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut shutdown = Shutdown::listen(Hangup::Ends)?;
    shutdown.unless_requested(fetch_runtimes(&args)).await??;
    // The downloads of a first run are not part of the measured time.
    let started = Instant::now();
    let dir = TempFolder::new("epwatch-demo-")?;
    let (pager, pages) = Pager::new();
    let mut screen = Screen::new(started);
    screen.say("starting collector, detector and the embedded ClickHouse");
    let app_key = AppKey::random();
    let starting = AllInOne::start(config(dir.path(), &app_key)?, vec![Arc::new(pager)]);
    let stack = shutdown.unless_requested(starting).await??;
    let page = start_page(&stack).await?;
    screen.say(format_args!("open {} in a browser", page.url()));
    let folder = dir.path().display();
    screen.say(format_args!("other commands take --data-dir {folder}"));
    let access = CollectorAccess {
        endpoint: format!("http://{}", stack.collector.listen()),
        app_key,
    };
    let shown = ShownPages {
        url: page.url(),
        ..ShownPages::default()
    };
    let shown = show(
        &args,
        &stack,
        &mut screen,
        (pages, shown),
        (dir.path(), &access),
        (started, &mut shutdown),
    )
    .await;
    screen.finish();
    page.stop().await;
    let summary = shown?;
    // The folder is removed after this, also if the demo failed.
    shutdown.unless_requested(stack.stop()).await?;
    if args.json {
        output::json(&summary)?;
    } else {
        output::line(&summary)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts the page on its usual port, or on any free one if something else is there.
async fn start_page(stack: &AllInOne) -> anyhow::Result<RunningPage> {
    let mut config = PageConfig::default();
    let detector = DetectorConfig::for_demo();
    let store = "ClickHouse, embedded, in a temporary folder,";
    let facts = || part_status::of_this_process(stack, store.to_owned(), &detector);
    let (tasks, client) = (|| stack.tasks.clone(), || stack.store.client());
    let usual = RunningPage::start(tasks(), &config, client(), facts()).await;
    if usual.is_ok() {
        return usual;
    }
    config.listen.set_port(0);
    RunningPage::start(tasks(), &config, client(), facts()).await
}

/// Fetches missing runtimes. Without ONNX Runtime or QNN the demo continues, and shows the reason later.
async fn fetch_runtimes(args: &Args) -> anyhow::Result<()> {
    let all = [Engine::Chdb, Engine::OnnxRuntime, Engine::OnnxRuntimeQnn];
    let with_runtimes = match epwatch_engines::check_programs(&all, false) {
        _ if args.no_runtimes => false,
        Ok(()) => true,
        // A missing program is named along with the others, so that one installation is enough.
        Err(error) if epwatch_engines::check_programs(&[Engine::Chdb], false).is_err() => {
            return Err(error.into());
        }
        Err(error) => {
            output::remark(format_args!("{error}; the demo goes on without them"));
            false
        }
    };
    if with_runtimes {
        // Failures of the runtimes are shown when devices start.
        let [store, _, _] = engines::ensure_all(all).await?;
        store?;
    } else {
        engines::ensure(Engine::Chdb).await?;
    }
    Ok(())
}

/// Runs the fleet until the end, drains it, and makes the summary.
async fn show(
    args: &Args,
    stack: &AllInOne,
    screen: &mut Screen,
    (mut pages, mut shown): (mpsc::Receiver<Page>, ShownPages),
    (dir, access): (&Path, &CollectorAccess),
    (started, shutdown): (Instant, &mut Shutdown),
) -> anyhow::Result<Summary> {
    let story = if args.healthy {
        Story::Healthy
    } else {
        Story::FloatHead
    };
    let mut placements = story.recorded_placements();
    let starting = start_real(args, story, access, dir, screen);
    let real = shutdown.unless_requested(starting).await?;
    if let Ok(real) = &real {
        for session in real.sessions() {
            screen.say(session);
            placements.insert(&session.version, session.chipset, session.placement.clone());
        }
    }
    let fleet = start_fleet(args, placements, access)?;
    screen.say(format_args!(
        "{} simulated devices run version 1; version 2 begins to roll out in {} s",
        args.devices,
        ROLLOUT_STARTS.as_secs()
    ));
    let end = end_of(args.seconds, started, shutdown);
    watch(
        stack,
        &fleet,
        screen,
        (&mut pages, &mut shown),
        end,
        started,
    )
    .await?;

    screen.say(
        "draining: devices upload their last reports, and the store takes the rest of the WAL",
    );
    let draining = async {
        let real_sessions = match real {
            Ok(real) => (real.finish().await, None),
            Err(reason) => (Vec::new(), Some(reason)),
        };
        fleet.drain(DRAIN_TIMEOUT).await;
        drained(stack).await;
        real_sessions
    };
    // A second Ctrl-C ends the demo without a summary.
    let (real_sessions, no_real_sessions) = shutdown.unless_requested(draining).await?;
    // The detector judges until the end, so a page may come while the demo drains.
    while let Ok(page) = pages.try_recv() {
        shown.note(page, screen, started);
    }
    let store = stack.store.client();
    Ok(Summary {
        seconds: started.elapsed().as_secs_f64(),
        first_page_seconds: shown.first_page.map(|at| at.as_secs_f64()),
        pages: shown.pages,
        real_sessions,
        no_real_sessions,
        incidents: summary::incidents(&store).await?,
        ledger: summary::ledger(&store).await?,
    })
}

/// Refreshes the screen until the demo ends.
async fn watch(
    stack: &AllInOne,
    fleet: &Live,
    screen: &mut Screen,
    (pages, shown): (&mut mpsc::Receiver<Page>, &mut ShownPages),
    end: impl Future<Output = ()>,
    started: Instant,
) -> anyhow::Result<()> {
    let store = stack.store.client();
    let mut end = std::pin::pin!(end);
    let mut tick = tokio::time::interval(REFRESH);
    loop {
        tokio::select! {
            () = &mut end => return Ok(()),
            error = stack.failed() => return Err(error),
            Some(page) = pages.recv() => shown.note(page, screen, started),
            _ = tick.tick() => {
                let progress = fleet.progress();
                let counts = Counts {
                    devices: progress.devices,
                    reports_acked: progress.acked,
                    runs: progress.runs,
                };
                screen.refresh(counts, &store).await;
            }
        }
    }
}

/// The notifications so far.
#[derive(Debug, Default)]
struct ShownPages {
    /// Address of the built-in page.
    url: String,
    /// Time of the first one with severity page.
    first_page: Option<Duration>,
    pages: Vec<Page>,
}

impl ShownPages {
    /// Prints a notification and keeps it.
    fn note(&mut self, page: Page, screen: &mut Screen, started: Instant) {
        if page.is_page {
            self.first_page.get_or_insert_with(|| started.elapsed());
        }
        screen.say(format_args!(
            "{}  open        {}/incident?id={}\n",
            page.text, self.url, page.incident
        ));
        self.pages.push(page);
    }
}

/// The same stack as `serve`, with short windows instead of a false clock.
fn config(dir: &Path, app_key: &AppKey) -> anyhow::Result<ServerConfig> {
    let mut config = ServerConfig {
        data_dir: dir.to_owned(),
        ..ServerConfig::default()
    };
    config.collector.listen = "127.0.0.1:0".parse()?;
    config.collector.http_listen = "127.0.0.1:0".parse()?;
    config.collector.keys = vec![AppKeyConfig {
        sha256: app_key.sha256(),
        app: APP.to_owned(),
        // All installations of the fleet are new, and must vote at once. The key is not public.
        kind: KeyKind::Own,
        ..AppKeyConfig::default()
    }];
    config.collector.wal.dir = dir.join("wal");
    // Segments of 4 MiB.
    config.collector.wal.max_bytes = ByteSize(512 << 20);
    // The ledger is read every six seconds.
    config.collector.refresh = Period(Duration::from_secs(1));
    config.collector.batch.period = Period(Duration::from_millis(200));
    config.collector.rollup.bucket = Period(Duration::from_secs(1));
    config.collector.rollup.collector_timeout = Some(Period(Duration::from_secs(3600)));
    config.detector = DetectorConfig {
        stdout: false,
        ..DetectorConfig::for_demo()
    };
    Ok(config)
}

/// Starts the devices with real sessions, or returns the reason why there are none.
async fn start_real(
    args: &Args,
    story: Story,
    access: &CollectorAccess,
    dir: &Path,
    screen: &mut Screen,
) -> Result<RealDevices, String> {
    let started = if args.no_runtimes {
        Err(anyhow::anyhow!("--no-runtimes was given"))
    } else {
        RealDevices::start(story, access, dir).await
    };
    started.map_err(|error| {
        let reason = format!("{error:#}");
        screen.say(format_args!(
            "no real sessions: {reason}; simulated devices use placements recorded with \
             onnxruntime 1.31.1 and onnxruntime-qnn 2.7.0"
        ));
        reason
    })
}

fn start_fleet(
    args: &Args,
    placements: Placements,
    access: &CollectorAccess,
) -> anyhow::Result<Live> {
    let share = |chipset, share| ChipsetShare { chipset, share };
    let mut scenario = Scenario::new(APP, MODEL, FIRST_VERSION, usize::try_from(args.devices)?);
    scenario.environment = ENVIRONMENT.to_owned();
    scenario.chipsets = vec![
        share(Chipset::Sm8650, 0.35),
        share(Chipset::Sm8635, 0.30),
        share(Chipset::Sm8550, 0.20),
        share(Chipset::Sm8750, 0.15),
    ];
    scenario.runs_per_second = 12.0;
    scenario.report_interval = Duration::from_millis(1500);
    scenario.rollouts = vec![Rollout {
        version: "2".to_owned(),
        starts: ROLLOUT_STARTS,
        takes: ROLLOUT_TAKES,
        share: ROLLOUT_SHARE,
    }];
    let now = jiff::Timestamp::now().as_millisecond();
    let fleet = Fleet::new(scenario, placements, now)?;
    Ok(Live::start(fleet, &access.endpoint, &access.app_key.0)?)
}

async fn end_of(seconds: Option<u64>, started: Instant, shutdown: &mut Shutdown) {
    let time_is_up = async {
        match seconds {
            Some(seconds) => {
                tokio::time::sleep_until((started + Duration::from_secs(seconds)).into()).await;
            }
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = time_is_up => {}
        () = shutdown.requested() => {}
    }
}

/// Waits until everything acknowledged is in the store; the devices have ended by now.
async fn drained(stack: &AllInOne) {
    let until = Instant::now() + DRAIN_TIMEOUT;
    while !stack.collector.is_drained() && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
