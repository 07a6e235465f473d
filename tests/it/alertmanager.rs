//! A real Alertmanager from Debian, on a free loopback port.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use epwatch_detector::DetectorConfig;
use epwatch_detector::notify::{
    self, AlertmanagerConfig, HeldAlerts, Notification, Notifier, Occasion,
};
use epwatch_model::{Severity, VerdictClass};
use epwatch_runtimes::Package;
use epwatch_server::Period;
use epwatch_test_support::until;
use hyper::Request;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    fleet::{APP, MODEL, WatchedFleet},
    support::{Running, epwatch, get, send},
};

pub(crate) const CONFIG: &str = "route:\n  receiver: nobody\nreceivers:\n  - name: nobody\n";

/// A running Alertmanager.
#[derive(Debug)]
pub(crate) struct Alertmanager {
    _running: Running,
    pub(crate) url: String,
    _dir: TempDir,
}

impl Alertmanager {
    /// Starts Alertmanager; returns `None` if the user skips it.
    pub(crate) async fn start(yaml: &str) -> Option<Self> {
        let package = epwatch_runtimes::alertmanager()?;
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("alertmanager.yml");
        std::fs::write(&config, yaml).unwrap();
        // Alertmanager does not print a port that it chooses itself, so a free one is chosen here.
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let child = with_its_own_share(&package)
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.path={}", dir.path().display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .arg("--cluster.listen-address=")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let manager = Self {
            _running: Running(child),
            url: format!("http://127.0.0.1:{port}"),
            _dir: dir,
        };
        let ready = format!("{}/-/ready", manager.url);
        until("Alertmanager is ready", || async {
            get(&ready).await.is_ok_and(|page| page.status == 200)
        })
        .await;
        Some(manager)
    }

    /// Waits for the page of the fleet's incident.
    pub(crate) async fn page(&self) -> Value {
        until("a page is with Alertmanager", || async {
            self.has("SM8635").await
        })
        .await;
        let alerts = self.alerts().await;
        alerts
            .into_iter()
            .find(|alert| is_page_of(alert, "SM8635"))
            .unwrap()
    }

    /// Whether a page of this chipset fires.
    async fn has(&self, chipset: &str) -> bool {
        let alerts = self.alerts().await;
        alerts.iter().any(|alert| is_page_of(alert, chipset))
    }

    async fn post(&self, alerts: &[Value]) {
        let request = Request::post(format!("{}/api/v2/alerts", self.url))
            .header("content-type", "application/json")
            .body(serde_json::to_vec(alerts).unwrap().into())
            .unwrap();
        assert_eq!(send(request).await.unwrap().status, 200);
    }

    /// Returns how often Alertmanager queried its log of notifications.
    async fn flushes(&self) -> f64 {
        let page = get(&format!("{}/metrics", self.url)).await.unwrap().text;
        let mut lines = page.lines();
        let count = lines.find_map(|line| line.strip_prefix("alertmanager_nflog_queries_total "));
        count.unwrap().parse().unwrap()
    }

    /// Returns the alerts that Alertmanager has.
    pub(crate) async fn alerts(&self) -> Vec<Value> {
        let url = format!("{}/api/v2/alerts", self.url);
        serde_json::from_str(&get(&url).await.unwrap().text).unwrap()
    }
}

fn is_page_of(alert: &Value, chipset: &str) -> bool {
    let labels = &alert["labels"];
    let is_of = labels["chipset"]
        .as_str()
        .is_some_and(|chipsets| chipsets.contains(chipset));
    labels["severity"] == "page" && is_of
}

/// Debian's build reads its templates from `/usr/share`, where the package is not installed. A separate mount namespace
/// provides it there. Without root the kernel must allow user namespaces.
fn with_its_own_share(package: &Package) -> Command {
    const SCRIPT: &str = r#"mount --bind "$0" /usr/share && exec "$@""#;
    let mut command = epwatch_runtimes::with_own_mounts();
    command
        .args(["sh", "-c", SCRIPT])
        .arg(package.folder.join("usr/share"))
        .arg(package.folder.join("usr/bin/prometheus-alertmanager"));
    command
}

/// Returns the notifiers of a detector with these Alertmanagers.
pub(crate) fn notifiers(alertmanager: Vec<AlertmanagerConfig>) -> Vec<Arc<dyn Notifier>> {
    let config = DetectorConfig {
        alertmanager,
        stdout: false,
        ..DetectorConfig::default()
    };
    notify::notifiers(&config, std::io::sink()).unwrap()
}

fn ends_at(alert: &Value) -> Timestamp {
    alert["endsAt"].as_str().unwrap().parse().unwrap()
}

/// The whole path of a page: devices, collector, engine, detector, Alertmanager.
#[tokio::test(flavor = "multi_thread")]
async fn an_incident_arrives_at_a_real_alertmanager() {
    let Some(receiver) = Alertmanager::start(CONFIG).await else {
        return;
    };
    let fleet = WatchedFleet::start(notifiers(vec![AlertmanagerConfig::new(&receiver.url)])).await;
    let page = receiver.page().await;
    let labels = &page["labels"];
    assert_eq!(labels["alertname"], "EpwatchFallback", "{page:#}");
    assert_eq!(labels["app"], APP, "{page:#}");
    assert_eq!(labels["model"], MODEL, "{page:#}");
    assert_eq!(labels["model_version"], "2", "{page:#}");
    assert!(!labels.to_string().contains("SM8650"), "{page:#}");
    assert_eq!(
        page["annotations"]["verdict"], "partial_fallback",
        "{page:#}"
    );
    let text = page["annotations"].to_string();
    for word in [
        "LayerNormalization",
        "CV",
        "between devices",
        "docs/oncall.md#",
    ] {
        assert!(text.contains(word), "no {word} in {page:#}");
    }
    let alerts = receiver.alerts().await;
    let mut names = alerts.iter().map(|alert| &alert["labels"]["alertname"]);
    assert!(names.any(|name| name == "EpwatchWatchdog"), "{alerts:#?}");
    fleet.stop().await;
}

/// Starts the detector's process on a fleet's store with one Alertmanager, the usual time that alerts hold, and a heartbeat.
fn detector(fleet: &WatchedFleet, url: &str, heartbeat: &Receiver) -> Running {
    let dir = fleet.store.dir.path();
    let config = dir.join("detector.toml");
    let text = format!(
        "[collector.rollup]\nbucket = \"1s\"\n[detector]\nwindow = \"3s\"\nstep = \"1s\"\nlookback = \"10m\"\n\
         stdout = false\nhttp_listen = \"127.0.0.1:0\"\n[[detector.alertmanager]]\nurl = \"{url}\"\n\
         [detector.heartbeat]\nurl = \"{}\"\n",
        heartbeat.url
    );
    std::fs::write(&config, text).unwrap();
    let mut command = epwatch("detector --clickhouse");
    command.arg(fleet.store.address()).arg("--config");
    command.arg(config).stdout(Stdio::null());
    Running(command.spawn().unwrap())
}

/// A missing detector does not mean that the fault is repaired, so its alert continues, but only for a while. The next
/// detector ends alerts that belong to none of its incidents.
#[tokio::test(flavor = "multi_thread")]
async fn an_alert_outlasts_its_detector_and_the_next_one_ends_strays() {
    let (usual, brief) = tokio::join!(Alertmanager::start(CONFIG), Alertmanager::start(CONFIG));
    let (Some(usual), Some(brief)) = (usual, brief) else {
        return;
    };
    let brief_config = AlertmanagerConfig {
        hold_for: Period(Duration::from_secs(10)),
        repeat_every: Period(Duration::from_secs(1)),
        ..AlertmanagerConfig::new(&brief.url)
    };
    let mut fleet = WatchedFleet::start(notifiers(vec![brief_config])).await;
    brief.page().await;
    fleet.stop_detector().await;
    let heartbeat = Receiver::start();
    let killed = detector(&fleet, &usual.url, &heartbeat);

    let ends = ends_at(&brief.page().await);
    until("the brief alert ends", || async {
        !brief.has("SM8635").await
    })
    .await;
    assert!(Timestamp::now() >= ends, "it ended before {ends}");

    let page = usual.page().await;
    until("a window is judged, which posts the heartbeat", || async {
        heartbeat.count() > 0
    })
    .await;
    // Dropping the process kills it with SIGKILL.
    drop(killed);
    let hours = SignedDuration::from_hours(6) - SignedDuration::from_mins(10);
    let ahead = ends_at(&usual.page().await).duration_since(Timestamp::now());
    assert!(ahead >= hours, "{page:#}");

    // A leftover of an earlier run: an incident of this store, but no firing incident has these labels.
    let mut stray = page.clone();
    stray["labels"]["chipset"] = "SM8250".into();
    // An alert of a detector on another store.
    let mut foreign = page;
    foreign["labels"]["chipset"] = "SM8350".into();
    foreign["labels"]["incident"] = "00c0ffee00c0ffee-1".into();
    usual.post(&[stray, foreign]).await;
    assert!(usual.has("SM8250").await && usual.has("SM8350").await);
    let _restarted = detector(&fleet, &usual.url, &heartbeat);
    until("the stray ends", || async { !usual.has("SM8250").await }).await;
    assert!(usual.has("SM8635").await && usual.has("SM8350").await);
    fleet.stop().await;
}

/// A receiver of Alertmanager's webhooks, with the bodies that it got.
#[derive(Debug)]
struct Receiver {
    url: String,
    bodies: Arc<Mutex<Vec<Value>>>,
}

impl Receiver {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let bodies = Arc::new(Mutex::new(Vec::new()));
        let got = bodies.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let body = answered(&mut BufReader::new(stream.unwrap()));
                got.lock().unwrap().push(body);
            }
        });
        Self { url, bodies }
    }

    fn count(&self) -> usize {
        self.bodies.lock().unwrap().len()
    }
}

/// Reads one request, answers it, and returns its body.
fn answered(stream: &mut BufReader<TcpStream>) -> Value {
    let (mut line, mut length) = (String::new(), 0);
    while stream.read_line(&mut line).unwrap() > 2 {
        let (name, value) = line.split_once(':').unwrap_or_default();
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().unwrap();
        }
        line.clear();
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    stream.get_mut().write_all(answer).unwrap();
    serde_json::from_slice(&body).unwrap()
}

/// An incident that grows from some devices to all is one alert, so a person is woken once.
#[tokio::test(flavor = "multi_thread")]
async fn an_incident_that_grows_from_some_to_total_is_one_notification() {
    let receiver = Receiver::start();
    let config = format!(
        "route:\n  receiver: hook\n  group_by: [alertname, incident]\n  group_wait: 0s\n  \
         group_interval: 1s\n  repeat_interval: 1h\nreceivers:\n  - name: hook\n    \
         webhook_configs: [{{ url: \"{}\" }}]\n",
        receiver.url
    );
    let Some(manager) = Alertmanager::start(&config).await else {
        return;
    };
    let channels = notifiers(vec![AlertmanagerConfig::new(&manager.url)]);
    let send = async |page: &Notification| {
        let sent = channels[0].notify(page, Timestamp::now()).await;
        sent.unwrap();
    };
    let mut page = notify::test_page(Timestamp::now());
    page.occasion = Occasion::Firing;
    APP.clone_into(&mut page.incident.key.model.app_id);
    let mut headline = page.incident.headline.take().unwrap();
    headline.class = VerdictClass::SomeDevicesFallback;
    headline.chipsets = ["SM8635".to_owned()].into();
    page.incident.headline = Some(headline.clone());
    send(&page).await;
    until("the receiver has the page", async || receiver.count() == 1).await;
    let verdict = |alert: &Value| alert["annotations"]["verdict"].clone();
    let first = receiver.bodies.lock().unwrap()[0].clone();
    assert_eq!(verdict(&first["alerts"][0]), "some_devices_fallback");

    page.occasion = Occasion::Grown;
    page.incident.news += 1;
    page.incident.superseded = Some(headline.clone());
    headline.class = VerdictClass::TotalFallback;
    page.incident.headline = Some(headline);
    send(&page).await;
    until("Alertmanager has the growth", async || {
        verdict(&manager.page().await) == "total_fallback"
    })
    .await;
    // Each flush of the group queries the log of notifications.
    let flushes = manager.flushes().await;
    until("the group is flushed twice", async || {
        manager.flushes().await >= flushes + 2.0
    })
    .await;
    assert_eq!(receiver.count(), 1);
}

/// The example routes as its comments say. Pages go to one receiver, tickets to another, and the watchdog to a third. A
/// ticket that a page explains is suppressed.
#[tokio::test(flavor = "multi_thread")]
async fn the_example_routes_pages_tickets_and_the_watchdog() {
    let example = include_str!("../../docs/examples/alertmanager.yml");
    let Some(receiver) = Alertmanager::start(example).await else {
        return;
    };
    let channels = notifiers(vec![AlertmanagerConfig::new(&receiver.url)]);
    let now = Timestamp::now();
    let send = async |severity: Severity, cause: &str, chipset: &str| {
        let mut news = notify::test_page(now);
        news.occasion = Occasion::Firing;
        let incident = &mut news.incident;
        incident.id = format!("{chipset}-{cause}");
        APP.clone_into(&mut incident.key.model.app_id);
        incident.key.cause = serde_json::from_value(cause.into()).unwrap();
        let headline = incident.headline.as_mut().unwrap();
        headline.severity = severity;
        headline.chipsets = [chipset.to_owned()].into();
        channels[0].notify(&news, now).await.unwrap();
    };
    send(Severity::Page, "slower", "SM8635").await;
    send(Severity::Ticket, "cv_spike", "SM8650").await;
    send(Severity::Ticket, "cv_spike", "SM8635").await;
    let held: &dyn HeldAlerts = channels[0].held_alerts().unwrap();
    held.send_watchdog(now).await.unwrap();

    let of = |alerts: &[Value], name: &str, chipset: &str| {
        let label = |alert: &Value, label: &str| alert["labels"][label].as_str().map(str::to_owned);
        let is_it = |alert: &&Value| {
            label(alert, "alertname").as_deref() == Some(name)
                && label(alert, "chipset").unwrap_or_default() == chipset
        };
        alerts.iter().find(is_it).cloned().unwrap_or_default()
    };
    // The inhibitor reads alerts a moment later than the API does.
    until(
        "the ticket that the page explains is held back",
        async || {
            let ticket = of(&receiver.alerts().await, "EpwatchCvSpike", "SM8635");
            ticket["status"]["state"] == "suppressed"
        },
    )
    .await;
    let alerts = receiver.alerts().await;
    for (name, chipset, expected) in [
        ("EpwatchFallback", "SM8635", "pages"),
        ("EpwatchCvSpike", "SM8650", "tickets"),
        ("EpwatchWatchdog", "", "watchdog"),
    ] {
        let alert = of(&alerts, name, chipset);
        assert_eq!(alert["receivers"], json!([{"name": expected}]), "{alert:#}");
        assert_eq!(alert["status"]["inhibitedBy"], json!([]), "{alert:#}");
    }
}

/// A mail server that takes every mail; returns its address and the mails, with the lines that `quoted-printable` broke.
fn mail_server() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mails = Arc::new(Mutex::new(Vec::new()));
    let got = mails.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let mut next = || lines.next().and_then(Result::ok);
            stream.write_all(b"220 here\r\n").unwrap();
            while let Some(line) = next() {
                let answer = match line.split(' ').next() {
                    Some("DATA") => {
                        stream.write_all(b"354 go on\r\n").unwrap();
                        let mail = std::iter::from_fn(&mut next).take_while(|line| line != ".");
                        let mail = mail.collect::<Vec<_>>().join("\n");
                        got.lock()
                            .unwrap()
                            .push(mail.replace("=\n", "").replace("=3D", "="));
                        "250 taken"
                    }
                    Some("QUIT") => "221 bye",
                    _ => "250 ok",
                };
                if write!(stream, "{answer}\r\n").is_err() {
                    break;
                }
            }
        }
    });
    (address, mails)
}

/// Alertmanager itself escapes nothing for Slack, and its HTML mail is only as safe as its template.
#[tokio::test(flavor = "multi_thread")]
async fn the_example_escapes_names_for_slack_and_for_mail() {
    let slack = Receiver::start();
    let (smtp, mails) = mail_server();
    let mut example = include_str!("../../docs/examples/alertmanager.yml").to_owned();
    for (from, to) in [
        (
            "api_url_file: /run/secrets/slack-webhook",
            format!("api_url: {}", slack.url),
        ),
        (
            "smarthost: localhost:25",
            format!("smarthost: {smtp}\n        require_tls: false"),
        ),
        ("receiver: pages", "receiver: mail".to_owned()),
        ("group_wait: 30s", "group_wait: 0s".to_owned()),
    ] {
        assert!(example.contains(from), "{from}");
        example = example.replacen(from, &to, 1);
    }
    let Some(manager) = Alertmanager::start(&example).await else {
        return;
    };
    let channels = notifiers(vec![AlertmanagerConfig::new(&manager.url)]);
    let now = Timestamp::now();
    for severity in [Severity::Page, Severity::Ticket] {
        let mut news = notify::test_page(now);
        news.occasion = Occasion::Firing;
        let incident = &mut news.incident;
        incident.id = severity.as_str().to_owned();
        incident.key.model.app_id = "<!here>".to_owned();
        incident.key.model.model_id = "<!channel> & *\u{202e}<b>x</b>*".to_owned();
        let headline = incident.headline.as_mut().unwrap();
        headline.severity = severity;
        // A page about the same chipset would inhibit the ticket.
        headline.chipsets = [incident.id.clone()].into();
        channels[0].notify(&news, now).await.unwrap();
    }
    until("Slack and the mail server were told", async || {
        slack.count() > 0 && !mails.lock().unwrap().is_empty()
    })
    .await;
    let message = slack.bodies.lock().unwrap()[0]["attachments"][0].clone();
    let name = "&lt;!channel&gt; &amp; *[U+202E]&lt;b&gt;x&lt;/b&gt;*";
    for (part, name) in [
        ("fallback", name),
        ("title", name),
        ("text", "&lt;!here&gt;"),
    ] {
        let text = message[part].as_str().unwrap();
        assert!(text.contains(name), "{part}: {message:#}");
    }
    assert!(!message.to_string().contains('<'), "{message:#}");
    assert_eq!(message["mrkdwn_in"], json!(["pretext"]), "{message:#}");
    let mail = mails.lock().unwrap()[0].clone();
    let (head, body) = mail.split_once("\n\n").unwrap();
    assert!(head.contains("Subject: FIRING page: "), "{mail}");
    let (text, html) = body.split_once("text/html").unwrap();
    assert!(text.contains("<!channel> & *[U+202E]<b>x</b>*"), "{mail}");
    // Go's template also escapes the plus of [U+202E].
    for part in [
        "&lt;!channel&gt; &amp; *[U&#43;202E]",
        "&lt;b&gt;x&lt;/b&gt;",
    ] {
        assert!(html.contains(part), "{part}: {mail}");
    }
    assert!(
        !html.contains("<b>") && !html.contains("<!channel>"),
        "{mail}"
    );
}
