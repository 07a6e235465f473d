mod channels;
mod forty;
mod orders;
mod proxies;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State as Shared;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use epwatch_model::{Cause, CohortVerdict, Incident, IncidentKey, Severity, VerdictClass};
use epwatch_server::{ManualClock, Period};
use epwatch_test_support::until;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::alertmanager::Alertmanager;
use super::error::Retry;
use super::http_notifier::HttpNotifier;
use super::links::Links;
use super::*;
use crate::incident::advance;
use crate::judge::deadline;
use crate::judge::placement::tests::placed;
use crate::judge::signals::{Controls, PeerRatios};
use crate::judge::window::CohortWindow;
use crate::run::metrics::{Delivery, Metrics};
use crate::testing::{
    Fleet, at, compiled_for_another, cosine_tests, failed_starts, judged, judged_with_controls,
    reference, tested,
};

fn verdict(fleet: &Fleet, chipset: &str, second: i64) -> CohortVerdict {
    let mut window = CohortWindow {
        end: at(second),
        ..fleet.window()
    };
    window.key.chipset = chipset.into();
    judged(&window, None, &reference())
}

/// Returns the incident after some windows of an hour.
fn incident_after(windows: &[&[CohortVerdict]]) -> Incident {
    let mut open: BTreeMap<IncidentKey, Incident> = BTreeMap::new();
    let mut last = None;
    for verdicts in windows {
        let forget = Duration::from_secs(14 * 86_400);
        let changed = advance(&mut open, verdicts, forget, verdicts[0].window_end);
        last = changed.into_iter().next().or(last);
    }
    last.unwrap()
}

fn firing() -> Incident {
    incident_after(&[&[verdict(&Fleet::with_fallback(1.0), "SM8635", 0)]])
}

/// Later windows are judged with the same delay as the first one.
#[test]
fn an_end_is_not_before_the_start() {
    let incident = Incident {
        detected_at: Some(at(5 * 3600)),
        ..firing()
    };
    let text = block(&Notification::news(incident));
    assert!(text.contains("since       2027-01-15 07:00:00"), "{text}");
    assert!(
        text.contains("2027-01-15 16:00:00 UTC at the earliest"),
        "{text}"
    );
}

fn grown() -> Incident {
    let sick = |chipset, second| verdict(&Fleet::with_fallback(0.5), chipset, second);
    incident_after(&[
        &[sick("SM8635", 0)],
        &[sick("SM8635", 3600), sick("SM7550", 3600)],
    ])
}

fn resolved() -> Incident {
    let hour = |n: i64| verdict(&Fleet::default(), "SM8635", n * 3600);
    let sick = verdict(&Fleet::with_fallback(1.0), "SM8635", 0);
    incident_after(&[&[sick], &[hour(1)], &[hour(2)], &[hour(3)]])
}

/// The fault was repaired, and one window is clean.
fn past() -> Incident {
    let sick = verdict(&Fleet::with_fallback(1.0), "SM8635", 0);
    incident_after(&[&[sick], &[verdict(&Fleet::default(), "SM8635", 3600)]])
}

/// Checks [O3]: channels that repeat an incident do so until its end, which may be days after the repair.
#[test]
fn a_past_fault_is_told_in_the_past_tense_and_asks_for_nothing() {
    let text = text::text_of(&past());
    let headline = "segmenter 2.0.0 ran 2.9 times slower on SM8635, 60 of 60 devices: ";
    assert!(text.starts_with(headline), "{text}");
    let step = "\nnext 1: Nothing to do now: the incident ends by itself after 3 clean windows, 1 so far.\n";
    assert!(text.contains(step) && !text.contains("next 2"), "{text}");
    assert!(!text.contains("epwatch directive"), "{text}");
    let end = "(1 so far): 2027-01-15 11:00:00 UTC at the earliest";
    assert!(text.contains(end), "{text}");
    let document = document::document(&past(), &links());
    let next_step = document["next_step"].as_str().unwrap();
    assert!(next_step.starts_with("Nothing to do now: "), "{next_step}");
    let document = document::document(&resolved(), &links());
    assert_eq!(document["next_step"], "");
}

/// A directive took the devices off the NPU an hour later.
fn mitigated() -> Incident {
    let gone = Fleet {
        devices: 0,
        ..Fleet::default()
    };
    let held = CohortVerdict {
        devices_directed: 60,
        ..verdict(&gone, "SM8635", 3600)
    };
    let sick = verdict(&Fleet::with_fallback(1.0), "SM8635", 0);
    incident_after(&[&[sick], &[held]])
}

/// Compares with a file that people review as prose. `EPWATCH_BLESS=1` writes it.
#[track_caller]
fn check(file: &str, text: &str) {
    let path = format!("{}/src/notify/snapshots/{file}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("EPWATCH_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{file} differs");
}

#[test]
fn people_read_what_where_since_when_how_many_and_what_next() {
    check("firing.txt", &block(&Notification::news(firing())));
    check("grown.txt", &block(&Notification::news(grown())));
    check("resolved.txt", &block(&Notification::news(resolved())));
    check("mitigated.txt", &block(&Notification::news(mitigated())));
    let slow = Fleet {
        weight: 2.5,
        ..Fleet::default()
    };
    let slow = incident_after(&[&[verdict(&slow, "SM8635", 0)]]);
    check("slow.txt", &block(&Notification::news(slow)));
}

/// The line about the deadline comes after the medians, and only once.
#[test]
fn runs_beyond_the_deadline_stand_next_to_the_latency() {
    let window = Fleet::with_fallback(0.4).window();
    let mut verdict = verdict(&Fleet::with_fallback(0.4), "SM8635", 0);
    let late = deadline::late_runs(16.0, &window, None, None, &[]);
    deadline::add_to_verdict(late, &mut verdict);
    let text = block(&Notification::news(incident_after(&[&[verdict]])));
    let lines: Vec<&str> = text.lines().collect();
    let late = "  late        4 of 10 runs are later than 16 ms on SM8635";
    let at = lines.iter().position(|line| *line == late);
    let at = at.unwrap_or_else(|| panic!("{text}"));
    assert!(lines[at - 1].starts_with("  latency "), "{text}");
    assert_eq!(text.matches(" later than ").count(), 1, "{text}");
}

/// The owner of a model opens the file that the devices have, so every channel names it next to the step.
#[test]
fn the_next_step_has_its_owner_and_the_model_file() {
    let sha256 = "5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef";
    let incident = Incident {
        model_sha256: Some(sha256.to_owned()),
        ..firing()
    };
    let text = block(&Notification::news(incident));
    let line = |name: &str| {
        let mut lines = text
            .lines()
            .filter_map(|line| line.trim_start().split_once(' '));
        let (_, fact) = lines.find(|(found, _)| *found == name).unwrap();
        fact.trim_start()
    };
    let file = format!("segmenter 2.0.0, file with SHA-256 {sha256}");
    assert_eq!(line("model"), file, "{text}");
    let (_, owner) = text.split_once("  The model's owner: ").unwrap();
    assert!(owner.contains("With the file of segmenter 2.0.0"), "{text}");
    assert!(text.contains("  next 1      On call: "), "{text}");
}

/// A reader can redo the arithmetic: text and document have one CV, standard deviation over mean of the devices' means.
#[test]
fn the_spread_is_one_ratio_in_text_and_document() {
    let fleet = Fleet::with_fallback(1.0);
    let votes = fleet.window().votes;
    let moments = votes.iter().filter_map(|vote| vote.latency.as_ref());
    let means: Vec<f64> = moments
        .filter_map(|latency| latency.moments.mean())
        .collect();
    assert_eq!(means.len(), 60);
    let mean = means.iter().sum::<f64>() / 60.0;
    let squares: f64 = means.iter().map(|one| (one - mean).powi(2)).sum();
    let between = (squares / 60.0).sqrt() / mean;

    let document = document::document(&firing(), &links());
    let text = block(&Notification::news(firing()));
    let cv = |name: &str| document[name].as_f64().unwrap();
    assert!((cv("cv_between") - between).abs() < 1e-9, "{between}");
    let told = format!(
        "CV {:.3} within a device; CV {between:.3} between devices",
        cv("cv_within")
    );
    assert!(text.contains(&told), "no {told} in {text}");
}

/// A name must not reverse the text around it.
#[test]
fn what_nobody_sees_in_a_name_is_shown() {
    let mut sick = verdict(&Fleet::with_fallback(1.0), "SM8635", 0);
    sick.key.model_version = "2\u{202e}0.1\u{200b}".into();
    let incident = incident_after(&[&[sick]]);
    let text = block(&Notification::news(incident.clone())) + &text::description(&incident);
    assert!(text.contains("2[U+202E]0.1[U+200B]"), "{text}");
    assert!(!text.contains(['\u{202e}', '\u{200b}']), "{text}");
}

/// Receivers that escape nothing show labels. Labels are also a part of the alert's identity, so they stay the same.
#[tokio::test]
async fn what_nobody_sees_is_in_no_label_and_no_field() {
    let mut sick = verdict(&Fleet::with_fallback(1.0), "SM8635", 0);
    sick.key.model_version = "2\u{202e}0.1".into();
    sick.key.model.model_id = "a\u{200b}b".into();
    sick.key.model.app_id = "c\u{feff}".into();
    let incident = incident_after(&[&[sick]]);
    let (receiver, url) = Receiver::start(&[OK]).await;
    let news = Notification::news(incident);
    alertmanager(&url).notify(&news, at(30)).await.unwrap();
    let accepted = (StatusCode::ACCEPTED, None);
    let (events, url) = Receiver::start_at("/v2/enqueue", &[accepted]).await;
    let dir = tempfile::tempdir().unwrap();
    let pagerduty = channels::pagerduty(&url, channels::secret(&dir, "key"), links());
    pagerduty.notify(&news, at(30)).await.unwrap();
    let labels = &receiver.alerts()[0][0]["labels"];
    assert_eq!(labels["model_version"], "2[U+202E]0.1");
    let payload = &events.payloads()[0]["payload"];
    assert_eq!(payload["component"], "a[U+200B]b 2[U+202E]0.1");
    assert_eq!(payload["group"], "c[U+FEFF]");
    // In the document, which the webhook sends too, programs get the names unchanged, and people the same sentences.
    let document = &payload["custom_details"]["document"];
    assert_eq!(document["model"], "a\u{200b}b");
    for sentence in ["summary", "description", "next_step"] {
        let said = document[sentence].as_str().unwrap();
        assert!(
            !said.is_empty() && !said.contains(['\u{202e}', '\u{200b}', '\u{feff}']),
            "{said}"
        );
    }
    let mut shown = payload.clone();
    shown["custom_details"]["document"] = Value::Null;
    for text in [labels.to_string(), shown.to_string()] {
        assert!(
            !text.contains(['\u{202e}', '\u{200b}', '\u{feff}']),
            "{text}"
        );
    }
}

/// Findings other than placement and latency have sentences too.
#[test]
fn people_read_of_starts_outputs_and_rules() {
    let read = |window: CohortWindow| {
        let verdict = judged(&window, None, &reference());
        block(&Notification::news(incident_after(&[&[verdict]])))
    };
    let mut window = Fleet::default().window();
    let unknown = failed_starts(40..48, "f1", "soc_model_unknown");
    window.device_events.failed_starts = failed_starts(0..40, "f1", "backend_setup_failed");
    window.device_events.failed_starts.extend(unknown);
    check("npu-start.txt", &read(window));
    let healthy = || Fleet::default().window();
    let wrong = tested(healthy(), 0..25, "bb", "f1", 0.4);
    check("wrong-outputs.txt", &read(wrong));
    let different = tested(healthy(), 0..25, "bb", "f2", 0.01);
    check("different-outputs.txt", &read(different));
    let compiled = compiled_for_another(healthy(), 0..25, "f2");
    check("compiled-model.txt", &read(compiled));
}

/// First the same loss is on two chipsets. Then it is on one of them, and the app exposes its inner outputs.
#[test]
fn people_read_whose_fault_outputs_are() {
    let with = |cosine: f64, first_off: &str| {
        let mut window = Fleet::default().window();
        window.device_events.tests = cosine_tests(0..40, cosine);
        for test in &mut window.device_events.tests {
            test.first_off = first_off.into();
        }
        window
    };
    let read = |window: &CohortWindow, other: &CohortWindow| {
        let peers = PeerRatios::default();
        let controls = Controls {
            previous: None,
            peers: &peers,
            chipsets: &[other],
        };
        let verdict = judged_with_controls(window, controls, &reference());
        block(&Notification::news(incident_after(&[&[verdict]])))
    };
    let lossy = with(0.951, "");
    check("quantisation-loss.txt", &read(&lossy, &with(0.957, "")));
    let npu = with(0.87, "/head/Softmax_output_0");
    check("npu-outputs.txt", &read(&npu, &with(0.9996, "")));
}

fn pretty(json: &Value) -> String {
    format!("{}\n", serde_json::to_string_pretty(json).unwrap())
}

fn links() -> Links {
    Links::of(&crate::DetectorConfig {
        dashboard_url: Some("http://grafana/d/epwatch-model".to_owned()),
        runbook_url: Some("https://git/epwatch/docs/oncall.md".to_owned()),
        ..crate::DetectorConfig::default()
    })
}

/// Dashboards decode names once more than URLs do.
#[test]
fn links_carry_names_as_the_dashboards_variables_hold_them() {
    let mut incident = resolved();
    incident.key.model.model_id = "odd {a,b} '\\\"%27 $app / ü 🦀".to_owned();
    let link = url::Url::parse(&links().opened(&incident).unwrap()).unwrap();
    let parameters: BTreeMap<String, String> = link.query_pairs().into_owned().collect();
    let code = "odd%20%7Ba%2Cb%7D%20%27%5C%22%2527%20%24app%20%2F%20%C3%BC%20%F0%9F%A6%80";
    assert_eq!(parameters["var-model"], code);
    assert_eq!(parameters["var-version"], incident.key.model_version);
    let from = incident.started_at.as_millisecond() - 86_400_000;
    let to = incident.resolved_at.unwrap().as_millisecond() + 3_600_000;
    assert_eq!(parameters["from"], from.to_string());
    assert_eq!(parameters["to"], to.to_string());
}

/// One click opens the page of the incident itself, also from plain text.
#[test]
fn an_address_with_a_place_for_the_id_opens_the_page() {
    let links = Links::of(&crate::DetectorConfig {
        dashboard_url: Some("https://epwatch.example/incident?id={incident}".to_owned()),
        ..crate::DetectorConfig::default()
    });
    let mut incident = firing();
    incident.id = "a b&x".to_owned();
    let expected = "https://epwatch.example/incident?id=a%20b%26x";
    assert_eq!(links.opened(&incident).as_deref(), Some(expected));
    let text = text::linked_block(&Notification::news(incident), &links);
    let line = format!("\n  open        {expected}\n");
    assert!(text.contains(&line), "{text}");
}

/// A status, and the pause that `Retry-After` asks for.
type Answer = (StatusCode, Option<&'static str>);

/// Gives the prepared answers in order. Anything other than JSON on its path fails the test.
#[derive(Clone, Default)]
struct Receiver {
    path: &'static str,
    /// The text of each answer, if it is not the channel's expected text.
    says: Option<&'static str>,
    answers: Arc<Mutex<VecDeque<Answer>>>,
    got: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
    unexpected: Arc<Mutex<Vec<String>>>,
}

impl Receiver {
    /// Starts the receiver of an Alertmanager.
    async fn start(answers: &[Answer]) -> (Receiver, String) {
        Self::start_at("/api/v2/alerts", answers).await
    }

    async fn start_at(path: &'static str, answers: &[Answer]) -> (Receiver, String) {
        Self::start_saying(None, path, answers).await
    }

    async fn start_saying(
        says: Option<&'static str>,
        path: &'static str,
        answers: &[Answer],
    ) -> (Receiver, String) {
        let receiver = Receiver {
            path,
            says,
            ..Receiver::default()
        };
        receiver.answers.lock().extend(answers);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new().fallback(receive).with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        (receiver, url)
    }

    #[track_caller]
    fn requests(&self) -> Vec<(HeaderMap, Bytes)> {
        assert_eq!(*self.unexpected.lock(), Vec::<String>::new());
        self.got.lock().clone()
    }

    #[track_caller]
    fn payloads(&self) -> Vec<Value> {
        let requests = self.requests();
        let json = |(_, body): &(HeaderMap, Bytes)| serde_json::from_slice(body).unwrap();
        requests.iter().map(json).collect()
    }

    #[track_caller]
    fn alerts(&self) -> Vec<Value> {
        let alerts = self.payloads();
        assert!(alerts.iter().all(Value::is_array));
        alerts
    }
}

async fn receive(
    Shared(receiver): Shared<Receiver>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let is_expected = method == Method::POST
        && uri == receiver.path
        && headers
            .get("content-type")
            .is_some_and(|kind| kind == "application/json");
    let is_json = serde_json::from_slice::<Value>(&body).is_ok();
    let answer = receiver.answers.lock().pop_front();
    match (is_expected && is_json, answer) {
        (true, Some((status, retry_after))) => {
            receiver.got.lock().push((headers, body));
            let text = match (receiver.says, status) {
                (Some(says), _) => says,
                (None, StatusCode::OK) => "ok",
                (None, _) => "said the receiver",
            };
            let headers = retry_after.map(|after| [("retry-after", after)]);
            match headers {
                Some(headers) => (status, headers, text).into_response(),
                None => (status, text).into_response(),
            }
        }
        _ => {
            receiver.unexpected.lock().push(format!("{method} {uri}"));
            StatusCode::NOT_IMPLEMENTED.into_response()
        }
    }
}

fn alertmanager(url: &str) -> Alertmanager {
    let config = AlertmanagerConfig::new(format!("{url}/"));
    Alertmanager::new("alertmanager", &config, links()).unwrap()
}

fn ends_at(alert: &Value) -> Timestamp {
    alert["endsAt"].as_str().unwrap().parse().unwrap()
}

const OK: Answer = (StatusCode::OK, None);

#[tokio::test]
async fn alertmanager_gets_labels_numbers_and_an_end() {
    let (receiver, url) = Receiver::start(&[OK, OK, OK]).await;
    let alertmanager = alertmanager(&url);
    for incident in [firing(), grown(), resolved()] {
        alertmanager
            .notify(&Notification::news(incident), at(30))
            .await
            .unwrap();
    }
    let sent = receiver.alerts();
    check("alertmanager-firing.json", &pretty(&sent[0]));
    check("alertmanager-resolved.json", &pretty(&sent[2]));
    // The alert with the old labels ends together with the new one.
    let grown = sent[1].as_array().unwrap();
    let chipsets = grown.iter().map(|alert| &alert["labels"]["chipset"]);
    assert_eq!(chipsets.collect::<Vec<_>>(), ["SM8635", "SM7550,SM8635"]);
    assert_eq!(ends_at(&grown[0]), at(30));
    assert_eq!(ends_at(&grown[1]), at(30 + 6 * 3600));
}

/// From some devices to all of them: the same labels, so one alert and one notification.
#[tokio::test]
async fn a_stronger_verdict_of_the_same_chipset_is_the_same_alert() {
    let some = verdict(&Fleet::with_fallback(0.5), "SM8635", 0);
    let total = Fleet {
        hit_placement: placed(21, 0, 25, Some(0.0)),
        ..Fleet::with_fallback(1.0)
    };
    let total = verdict(&total, "SM8635", 3600);
    let (receiver, url) = Receiver::start(&[OK, OK]).await;
    let alertmanager = alertmanager(&url);
    let first = incident_after(&[std::slice::from_ref(&some)]);
    let grown = incident_after(&[&[some], &[total]]);
    for incident in [first, grown] {
        let news = Notification::news(incident);
        alertmanager.notify(&news, at(30)).await.unwrap();
    }
    let sent = receiver.alerts();
    assert_eq!(sent[0][0]["labels"], sent[1][0]["labels"]);
    assert_eq!(sent[1].as_array().unwrap().len(), 1, "{sent:?}");
    let verdicts = sent
        .iter()
        .map(|alerts| &alerts[0]["annotations"]["verdict"]);
    let expected = ["some_devices_fallback", "total_fallback"];
    assert_eq!(verdicts.collect::<Vec<_>>(), expected);
    assert_eq!(sent[0][0]["labels"]["alertname"], "EpwatchFallback");
}

#[tokio::test]
async fn the_watchdog_fires_for_some_minutes() {
    let (receiver, url) = Receiver::start(&[OK]).await;
    alertmanager(&url).send_watchdog(at(0)).await.unwrap();
    let watchdog = &receiver.alerts()[0][0];
    assert_eq!(watchdog["labels"]["alertname"], "EpwatchWatchdog");
    assert_eq!(ends_at(watchdog), at(300));
}

#[tokio::test]
async fn a_heartbeat_takes_any_success() {
    let answers = [
        (StatusCode::NO_CONTENT, None),
        (StatusCode::NOT_FOUND, None),
    ];
    let (receiver, url) = Receiver::start_at("/ping", &answers).await;
    let heartbeat = Heartbeat::new(&format!("{url}/ping")).unwrap();
    heartbeat.beat().await.unwrap();
    assert_eq!(heartbeat.beat().await.unwrap_err().retry(), Retry::Slowly);
    assert_eq!(receiver.payloads().len(), 2);
}

#[test]
fn a_channel_delivers_its_apps_and_environments() {
    let incident = firing();
    let takes = |apps: &[&str], environments: &[&str]| {
        let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
        let config = AlertmanagerConfig {
            apps: texts(apps),
            environments: texts(environments),
            ..AlertmanagerConfig::new("http://a")
        };
        config.audience().takes(&incident)
    };
    assert!(takes(&[], &[]) && takes(&["mail", "camera"], &["production"]));
    assert!(!takes(&["mail"], &[]) && !takes(&["camera"], &["staging"]));
}

/// Every channel marks it, and Alertmanager ends it soon.
#[tokio::test]
async fn a_test_page_says_that_it_is_one() {
    let page = test_page(at(0));
    let text = block(&page);
    assert!(
        text.starts_with("TEST  a test of this channel; nothing is wrong"),
        "{text}"
    );
    let (receiver, url) = Receiver::start(&[OK]).await;
    alertmanager(&url).notify(&page, at(0)).await.unwrap();
    let alert = &receiver.alerts()[0][0];
    assert_eq!(alert["labels"]["alertname"], "EpwatchTest");
    assert_eq!(ends_at(alert), at(300));
}

#[tokio::test]
async fn each_answer_says_whether_to_come_again() {
    let answers = [
        (StatusCode::SERVICE_UNAVAILABLE, None),
        (StatusCode::TOO_MANY_REQUESTS, Some("7")),
        (StatusCode::BAD_REQUEST, None),
        (StatusCode::FOUND, None),
    ];
    let (receiver, url) = Receiver::start(&answers).await;
    let alertmanager = alertmanager(&url);
    let notification = Notification::news(firing());
    let mut retries = Vec::new();
    let mut texts = Vec::new();
    for _ in answers {
        let error = alertmanager.notify(&notification, at(0)).await.unwrap_err();
        retries.push(error.retry());
        texts.push(error.to_string());
    }
    let after = Retry::After(Duration::from_secs(7));
    assert_eq!(
        retries,
        [Retry::WithBackoff, after, Retry::Slowly, Retry::Slowly]
    );
    assert!(texts[2].contains("400: said the receiver"), "{texts:?}");
    assert_eq!(receiver.alerts().len(), 4);

    // No server listens there.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let nobody = AlertmanagerConfig::new(nobody);
    let nobody = Alertmanager::new("alertmanager", &nobody, Links::default()).unwrap();
    let error = nobody.notify(&notification, at(0)).await.unwrap_err();
    assert_eq!(error.retry(), Retry::WithBackoff);
}

struct Running {
    incidents: watch::Sender<Arc<Vec<Incident>>>,
    delivered: mpsc::Receiver<deliver::Delivered>,
    metrics: Arc<Metrics>,
    cancel: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    fn start(notifier: impl Notifier, incidents: Vec<Incident>) -> Running {
        let (incidents, receiver) = watch::channel(Arc::new(incidents));
        let (deliveries, delivered) = mpsc::channel(16);
        let metrics = Arc::new(Metrics::default());
        let cancel = CancellationToken::new();
        let clock = Arc::new(ManualClock::at(at(0)));
        let task = tokio::spawn(deliver(
            Arc::new(notifier),
            receiver,
            deliveries,
            clock,
            metrics.clone(),
            cancel.clone(),
        ));
        Running {
            incidents,
            delivered,
            metrics,
            cancel,
            task,
        }
    }

    /// Returns how many attempts were delivered, failed and dead letters.
    async fn stop(self) -> Vec<u64> {
        self.cancel.cancel();
        self.task.await.unwrap();
        let counted = |result: &Delivery| self.metrics.notifications("alertmanager", *result).get();
        Delivery::ALL.iter().map(counted).collect()
    }
}

#[tokio::test]
async fn a_notifier_that_was_down_gets_the_news_when_it_is_back() {
    let (receiver, url) = Receiver::start(&[(StatusCode::BAD_GATEWAY, None), OK]).await;
    let mut running = Running::start(alertmanager(&url), vec![firing()]);
    let delivered = running.delivered.recv().await.unwrap();
    assert_eq!((delivered.incident_id, delivered.news), (firing().id, 1));
    assert_eq!(receiver.alerts().len(), 2);
    assert_eq!(running.stop().await, [1, 0, 1, 0]);
}

/// A payload that is refused, or answered with 500, does not delay the payload of the next incident.
#[tokio::test]
async fn a_notification_that_fails_holds_up_no_other() {
    for status in [StatusCode::BAD_REQUEST, StatusCode::INTERNAL_SERVER_ERROR] {
        let (receiver, url) = Receiver::start(&[(status, None), OK]).await;
        let mut other = firing();
        other.id = "zzz".into();
        let mut running = Running::start(alertmanager(&url), vec![firing(), other]);
        loop {
            let done = running.delivered.recv().await.unwrap();
            if done.incident_id == "zzz" {
                assert_eq!(done.outcome, AttemptOutcome::Taken);
                break;
            }
            let AttemptOutcome::Failed { times, answer, .. } = done.outcome else {
                panic!("{status}: {:?}", done.outcome);
            };
            assert_eq!((times, answer), (1, "400".to_owned()));
        }
        assert_eq!(receiver.alerts().len(), 2);
        running.stop().await;
    }
}

/// The alert is taken; the fake Alertmanager has no silences.
#[tokio::test]
async fn silences_that_fail_hold_up_no_alert() {
    // Requests for silences also use up answers, and this receiver gives none that they accept.
    let (receiver, url) = Receiver::start(&[OK; 3]).await;
    let mut muted = firing();
    muted.orders.was_muted = true;
    let mut other = firing();
    other.id = "zzz".into();
    let mut running = Running::start(alertmanager(&url), vec![muted, other]);
    for id in [firing().id, "zzz".to_owned()] {
        let done = running.delivered.recv().await.unwrap();
        assert_eq!(
            (done.incident_id, done.outcome),
            (id, AttemptOutcome::Taken)
        );
    }
    assert!(receiver.unexpected.lock()[0].contains("/silences"));
    let counted = running.stop().await;
    assert!(counted[0] == 2 && counted[2] >= 1, "{counted:?}");
}

#[tokio::test]
async fn a_firing_incident_is_repeated_and_a_resolved_one_is_not() {
    let (receiver, url) = Receiver::start(&[OK; 40]).await;
    let config = AlertmanagerConfig {
        repeat_every: Period(Duration::from_millis(20)),
        ..AlertmanagerConfig::new(url)
    };
    let running = Running::start(
        Alertmanager::new("alertmanager", &config, Links::default()).unwrap(),
        vec![firing()],
    );
    until("three repeats", async || receiver.alerts().len() >= 4).await;
    running.incidents.send_replace(Arc::new(vec![resolved()]));
    let ended = |json: &Value| ends_at(&json[0]) == at(3 * 3600);
    until("the end", async || {
        receiver.alerts().last().is_some_and(ended)
    })
    .await;
    let ends = receiver.alerts().iter().filter(|json| ended(json)).count();
    // Two news items were delivered, whatever the number of repeats.
    let counted = running.stop().await;
    assert_eq!((ends, counted[0]), (1, 2));
    assert!(counted[1] >= 3 && counted[2..] == [0, 0], "{counted:?}");
}

#[tokio::test]
async fn deliveries_that_are_stored_are_not_repeated() {
    let (receiver, url) = Receiver::start(&[]).await;
    let mut incident = resolved();
    incident
        .delivered
        .insert("alertmanager".into(), incident.news);
    let running = Running::start(alertmanager(&url), vec![incident]);
    running.stop().await;
    assert_eq!(receiver.alerts(), Vec::<Value>::new());
}

/// A writer that can be read.
#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Page {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn text_goes_to_the_writer_block_by_block() {
    let page = Page::default();
    let stdout = Stdout::new(page.clone());
    let notification = Notification::news(firing());
    stdout.notify(&notification, at(0)).await.unwrap();
    stdout.notify(&notification, at(0)).await.unwrap();
    let written = String::from_utf8(page.0.lock().clone()).unwrap();
    let page = format!("2027-01-15 08:00:00 UTC  {}\n", block(&notification));
    assert_eq!(written, page.repeat(2));
}

/// A link of a notification, and of a rule, leads to a section.
#[test]
fn every_alert_and_verdict_has_a_section_in_the_runbook() {
    let file = |path: &str| {
        let path = format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap()
    };
    let (runbook, rules) = (
        file("docs/oncall.md"),
        file("dashboards/prometheus/alerts.yml"),
    );
    let names = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    let mut names: Vec<&str> = names.collect();
    names.extend(VerdictClass::ALL.iter().map(|class| class.as_str()));
    let causes = VerdictClass::ALL
        .iter()
        .filter_map(|class| Cause::of(*class));
    names.extend(causes.map(|cause| cause.alert_name()));
    names.extend(["EpwatchWatchdog", "EpwatchTest"]);
    for name in names {
        let is_section = |line: &str| line.starts_with('#') && line.ends_with(&format!(" {name}"));
        assert!(
            runbook.lines().any(is_section),
            "docs/oncall.md has no section {name}"
        );
    }
}

#[test]
fn a_configuration_makes_notifiers_with_names_of_their_own() {
    let config = crate::DetectorConfig {
        alertmanager: vec![
            AlertmanagerConfig::new("http://a"),
            AlertmanagerConfig::new("http://b"),
        ],
        ..crate::DetectorConfig::default()
    };
    let notifiers = notifiers(&config, std::io::sink()).unwrap();
    let names: Vec<&str> = notifiers.iter().map(|notifier| notifier.name()).collect();
    assert_eq!(names, ["stdout", "alertmanager", "alertmanager-2"]);
}
