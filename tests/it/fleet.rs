//! A simulated fleet whose second version falls back on SM8635, with collector and detector. Other modules check its
//! rows and its incident.

use std::{sync::Arc, time::Duration};

use epwatch_collector::{
    Client, Collector,
    config::{AppKeyConfig, CollectorConfig, KeyKind},
};
use epwatch_detector::{Detector, DetectorConfig, notify::Notifier};
use epwatch_fleet::{
    Chipset, ChipsetShare, Fleet, Live, Placements, RecordedModel, Rollout, Scenario,
};
use epwatch_server::{Period, SystemClock};
use hyper::Request;
use prost::Message;
use tokio_util::sync::CancellationToken;

use crate::support::{Store, send};

pub(crate) const APP: &str = "it.camera";
pub(crate) const MODEL: &str = "classifier";
const APP_KEY: &str = "it-app-key";
/// SHA-256 of the key.
const APP_KEY_SHA256: &str = "cd2b76828f271f39d262f9ad53fc76ab5db4d47c93fa618b3e4b3f70cc3723b1";

/// A pipeline's key of the same app.
pub(crate) const PIPELINE_KEY: &str = "it-pipeline-key";
const PIPELINE_KEY_SHA256: &str =
    "32945098f6979b5a32ce70f0b8ea7ddb1491a553750f1f78652033aa27363640";

/// A running fleet on an embedded engine of its own.
#[derive(Debug)]
pub(crate) struct WatchedFleet {
    pub(crate) store: Store,
    watched: Watched,
}

/// A running fleet with collector and detector on any store.
#[derive(Debug)]
pub(crate) struct Watched {
    live: Live,
    detector: Option<Watching>,
    collector: Collector,
}

/// A detector on the fleet's store.
#[derive(Debug)]
struct Watching {
    detector: Detector,
    stop: CancellationToken,
}

impl Watching {
    fn start(store: Client, notifiers: Vec<Arc<dyn Notifier>>) -> Self {
        let stop = CancellationToken::new();
        let config = DetectorConfig {
            // The default lease is long enough for a store that runs one statement at a time and stores beats slowly.
            lease: DetectorConfig::default().lease,
            ..DetectorConfig::for_demo()
        };
        let clock = Arc::new(SystemClock);
        let detector = Detector::start(config, store, notifiers, clock, stop.clone());
        Self {
            detector: detector.unwrap(),
            stop,
        }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.detector.stopped().await;
    }
}

impl WatchedFleet {
    pub(crate) async fn start(notifiers: Vec<Arc<dyn Notifier>>) -> Self {
        let placements =
            Placements::recorded(&[("1", RecordedModel::INT8), ("2", RecordedModel::FLOAT_HEAD)]);
        Self::of(scenario(), placements, notifiers).await
    }

    pub(crate) async fn of(
        scenario: Scenario,
        placements: Placements,
        notifiers: Vec<Arc<dyn Notifier>>,
    ) -> Self {
        let store = Store::start().await;
        let config = store.collector_config("wal");
        let client = store.client();
        let watched = Watched::start(client, config, scenario, placements, notifiers).await;
        Self { store, watched }
    }

    /// Returns the collector's address.
    pub(crate) fn collector(&self) -> String {
        self.watched.collector()
    }

    /// Stops all components, the engine last.
    pub(crate) async fn stop(self) {
        self.watched.stop().await;
        self.store.engine.stop().await;
    }

    /// Stops the detector alone.
    pub(crate) async fn stop_detector(&mut self) {
        self.watched.stop_detector().await;
    }
}

impl Watched {
    pub(crate) async fn start(
        store: Client,
        mut config: CollectorConfig,
        scenario: Scenario,
        placements: Placements,
        notifiers: Vec<Arc<dyn Notifier>>,
    ) -> Self {
        let key = |sha256: &str, kind| AppKeyConfig {
            sha256: sha256.to_owned(),
            app: APP.to_owned(),
            environment: "production".to_owned(),
            kind,
            ..AppKeyConfig::default()
        };
        // The ledger is read every six refreshes.
        config.refresh = Period(Duration::from_millis(500));
        config.keys = vec![
            key(APP_KEY_SHA256, KeyKind::Own),
            key(PIPELINE_KEY_SHA256, KeyKind::Pipeline),
        ];
        let collector = Collector::start(config, store.clone(), CancellationToken::new())
            .await
            .unwrap();
        let detector = Some(Watching::start(store, notifiers));
        let now = jiff::Timestamp::now().as_millisecond();
        let fleet = Fleet::new(scenario, placements, now).unwrap();
        let endpoint = format!("http://{}", collector.listen());
        let live = Live::start(fleet, &endpoint, APP_KEY).unwrap();
        Self {
            live,
            detector,
            collector,
        }
    }

    /// Returns the collector's address.
    pub(crate) fn collector(&self) -> String {
        format!("http://{}", self.collector.listen())
    }

    /// Makes a call of a device over Connect. It must succeed.
    pub(crate) async fn call(&self, name: &str, message: &impl Message) {
        let url = format!("{}/epwatch.v1.CollectorService/{name}", self.collector());
        let request = Request::post(url)
            .header("content-type", "application/proto")
            .header("authorization", format!("Bearer {APP_KEY}"))
            .body(message.encode_to_vec().into());
        let answer = send(request.unwrap()).await.unwrap();
        assert_eq!(answer.status, 200, "{name}: {}", answer.text);
    }

    /// Stops in the order of the path, so that no component waits for one that has ended.
    pub(crate) async fn stop(mut self) {
        drop(self.live);
        self.collector.stop().await;
        if let Some(detector) = self.detector.take() {
            detector.stop().await;
        }
    }

    /// Stops the detector alone.
    pub(crate) async fn stop_detector(&mut self) {
        if let Some(detector) = self.detector.take() {
            detector.stop().await;
        }
    }
}

pub(crate) fn scenario() -> Scenario {
    let share = |chipset| ChipsetShare {
        chipset,
        share: 1.0,
    };
    let mut scenario = Scenario::new(APP, MODEL, "1", 120);
    scenario.chipsets = vec![share(Chipset::Sm8650), share(Chipset::Sm8635)];
    scenario.runs_per_second = 12.0;
    scenario.report_interval = Duration::from_millis(1000);
    scenario.rollouts = vec![Rollout {
        version: "2".to_owned(),
        starts: Duration::from_secs(6),
        takes: Duration::from_secs(3),
        share: 0.7,
    }];
    scenario
}
