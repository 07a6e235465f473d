//! Stand-ins for Slack, PagerDuty, Alertmanager and a webhook, on one port. Each answers like the real service. A
//! request that no channel makes fails the test.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    sync::{Arc, Mutex},
};

use epwatch_detector::{
    DetectorConfig,
    notify::{AlertmanagerConfig, PagerDutyConfig, SlackConfig, WebhookConfig},
};
use epwatch_server::{Clock, ManualClock};
use jiff::Timestamp;
use serde_json::{Value, json};

/// Names of the channels, by which incidents record deliveries.
pub(super) const CHANNELS: [&str; 4] = ["slack", "pagerduty", "alertmanager", "webhook"];

#[derive(Debug, Default)]
struct State {
    /// Messages that the test has not taken yet, with the channel's name.
    told: Vec<(&'static str, Value)>,
    /// Alerts that Alertmanager has, by their labels.
    alerts: Vec<Value>,
    unexpected: Vec<String>,
    is_slack_away: bool,
}

/// The four receivers.
#[derive(Debug, Clone)]
pub(super) struct Receivers {
    url: String,
    clock: Arc<ManualClock>,
    state: Arc<Mutex<State>>,
}

struct Request {
    /// Method and path, without the query.
    line: String,
    body: Value,
}

impl Receivers {
    pub(super) fn start(clock: &Arc<ManualClock>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let receivers = Self {
            url: format!("http://{}", listener.local_addr().unwrap()),
            clock: clock.clone(),
            state: Arc::default(),
        };
        let serving = receivers.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let receivers = serving.clone();
                std::thread::spawn(move || receivers.serve(stream.unwrap()));
            }
        });
        receivers
    }

    /// Returns the config of the channels; secrets are files in `dir`.
    pub(super) fn config(&self, dir: &Path) -> DetectorConfig {
        let secret = |name: &str, text: &str| {
            let path = dir.join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let slack = json!({"webhook_url_file": secret("slack", &format!("{}/slack", self.url))});
        let pagerduty = json!({
            "routing_key_file": secret("pagerduty", "R0UT1NGKEY"), "url": format!("{}/pagerduty", self.url),
        });
        let webhook = json!({
            "url": format!("{}/webhook", self.url), "key_file": secret("webhook", "0123456789abcdef0123456789abcdef"),
        });
        let slack: SlackConfig = serde_json::from_value(slack).unwrap();
        let pagerduty: PagerDutyConfig = serde_json::from_value(pagerduty).unwrap();
        let webhook: WebhookConfig = serde_json::from_value(webhook).unwrap();
        DetectorConfig {
            alertmanager: vec![AlertmanagerConfig::new(&self.url)],
            pagerduty: vec![pagerduty],
            slack: vec![slack],
            webhook: vec![webhook],
            stdout: false,
            ..DetectorConfig::default()
        }
    }

    /// Returns the address of the Alertmanager.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Makes Slack answer 503, or as usual again.
    pub(super) fn slack_is_away(&self, is_away: bool) {
        self.state.lock().unwrap().is_slack_away = is_away;
    }

    /// Takes the messages since the last call, in the order of [`CHANNELS`].
    #[track_caller]
    pub(super) fn take(&self) -> Vec<(&'static str, Value)> {
        let mut state = self.state.lock().unwrap();
        assert_eq!(state.unexpected, Vec::<String>::new());
        let mut told = std::mem::take(&mut state.told);
        let place = |name: &str| CHANNELS.iter().position(|channel| *channel == name);
        told.sort_by_key(|(name, _)| place(name));
        told
    }

    fn serve(&self, stream: TcpStream) {
        let mut stream = BufReader::new(stream);
        // A killed detector may break off its request.
        let Some(request) = read(&mut stream) else {
            return;
        };
        let (status, body) = self.answer(request);
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: {}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            if body.starts_with('[') {
                "application/json"
            } else {
                "text/plain"
            },
            body.len()
        );
        _ = stream.get_mut().write_all((head + &body).as_bytes());
    }

    fn answer(&self, request: Request) -> (&'static str, String) {
        let now = self.clock.now();
        let mut state = self.state.lock().unwrap();
        let Request { line, body } = request;
        match line.as_str() {
            "POST /slack" if state.is_slack_away => {
                return ("503 Service Unavailable", String::new());
            }
            "POST /slack" => {
                state.told.push(("slack", body));
                return ("200 OK", "ok".to_owned());
            }
            "POST /pagerduty" => {
                state.told.push(("pagerduty", body));
                return ("202 Accepted", r#"{"status":"success"}"#.to_owned());
            }
            "POST /webhook" => {
                state.told.push(("webhook", body));
                return ("200 OK", String::new());
            }
            "GET /api/v2/alerts" => {
                let held = state.alerts.iter().filter(|alert| ends_at(alert) > now);
                let held: Vec<&Value> = held.collect();
                return ("200 OK", json!(held).to_string());
            }
            "POST /api/v2/alerts" => {}
            _ => {
                state.unexpected.push(line);
                return ("501 Not Implemented", String::new());
            }
        }
        for alert in body.as_array().unwrap() {
            // The watchdog is sent by the machine's clock, so it is not recorded.
            if alert["labels"]["alertname"] == "EpwatchWatchdog" {
                continue;
            }
            let mut told = alert.clone();
            told["fires"] = (ends_at(alert) > now).into();
            let mut held = state.alerts.iter();
            let held = held.position(|held| held["labels"] == alert["labels"]);
            let held = held.map(|at| state.alerts.swap_remove(at));
            state.alerts.push(told.clone());
            // A firing alert is repeated by the machine's clock, with a later end, so repeats are not recorded.
            let is_repeated = held.is_some_and(|mut held| {
                held["endsAt"] = told["endsAt"].clone();
                held == told
            });
            if !is_repeated {
                state.told.push(("alertmanager", told));
            }
        }
        ("200 OK", String::new())
    }
}

fn ends_at(alert: &Value) -> Timestamp {
    alert["endsAt"].as_str().unwrap().parse().unwrap()
}

/// Reads one request; `None` if it is broken off.
fn read(stream: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    stream.read_line(&mut line).ok()?;
    let mut words = line.split([' ', '?']);
    let line = format!("{} {}", words.next()?, words.next()?);
    let (mut header, mut length) = (String::new(), 0);
    while stream.read_line(&mut header).ok()? > 2 {
        let (name, value) = header.split_once(':').unwrap_or_default();
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().unwrap();
        }
        header.clear();
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    let body = serde_json::from_slice(&body).unwrap_or_default();
    Some(Request { line, body })
}
