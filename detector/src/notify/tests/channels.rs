//! Tests of PagerDuty, Slack and the webhook, with receivers that fail on anything they do not expect.

use std::path::PathBuf;

use ring::hmac;

use super::super::{slack, webhook};
use super::*;

/// A file that holds a secret.
pub(super) fn secret(dir: &tempfile::TempDir, text: &str) -> PathBuf {
    let path = dir.path().join("secret");
    std::fs::write(&path, format!("{text}\n")).unwrap();
    path
}

pub(super) fn pagerduty(url: &str, routing_key_file: PathBuf, links: Links) -> HttpNotifier {
    let config = PagerDutyConfig {
        routing_key_file,
        url: format!("{url}/v2/enqueue"),
        min_severity: Severity::Page,
        apps: Vec::new(),
        environments: Vec::new(),
    };
    super::super::pagerduty::notifier("pagerduty", &config, links).unwrap()
}

#[tokio::test]
async fn pagerduty_gets_one_alert_an_incident() {
    let accepted = (StatusCode::ACCEPTED, None);
    let (receiver, url) = Receiver::start_at("/v2/enqueue", &[accepted; 3]).await;
    let dir = tempfile::tempdir().unwrap();
    let pagerduty = pagerduty(&url, secret(&dir, "R0UT1NGKEY"), links());
    assert!(!format!("{pagerduty:?}").contains("R0UT1NGKEY"));
    for incident in [firing(), grown(), resolved()] {
        let news = Notification::news(incident);
        pagerduty.notify(&news, at(30)).await.unwrap();
    }
    let sent = receiver.payloads();
    check("pagerduty-firing.json", &pretty(&sent[0]));
    check("pagerduty-resolved.json", &pretty(&sent[2]));
    // PagerDuty shows details in the order in which they are sent.
    let (_, body) = &receiver.requests()[0];
    let body = String::from_utf8(body.to_vec()).unwrap();
    let (_, details) = body.split_once("\"custom_details\":").unwrap();
    let names = [
        "next 1", "next 2", "app", "devices", "why", "how sure", "spread", "document",
    ];
    let places = names.map(|name| details.find(&format!("\"{name}\":")).unwrap());
    assert!(places.is_sorted(), "{places:?}");
    let keys: Vec<&Value> = sent.iter().map(|event| &event["dedup_key"]).collect();
    assert_eq!(keys, [&firing().id, &grown().id, &resolved().id]);
}

/// PagerDuty answers 202; a 200 comes from another server.
#[tokio::test]
async fn only_the_expected_answer_counts_as_delivered() {
    let answers = [
        OK,
        (StatusCode::TOO_MANY_REQUESTS, None),
        (StatusCode::BAD_REQUEST, None),
    ];
    let (receiver, url) = Receiver::start_at("/v2/enqueue", &answers).await;
    let dir = tempfile::tempdir().unwrap();
    let pagerduty = pagerduty(&url, secret(&dir, "key"), Links::default());
    let mut retries = Vec::new();
    for _ in answers {
        let news = Notification::news(firing());
        let error = pagerduty.notify(&news, at(0)).await.unwrap_err();
        assert!(!error.to_string().contains("key"), "{error}");
        retries.push(error.retry());
    }
    assert_eq!(retries, [Retry::Slowly, Retry::WithBackoff, Retry::Slowly]);
    assert_eq!(receiver.payloads().len(), 3);
}

#[tokio::test]
async fn slack_gets_blocks_without_links_and_marks_of_strangers() {
    let (receiver, url) = Receiver::start_at("/services/T0/B0/secret", &[OK; 2]).await;
    let dir = tempfile::tempdir().unwrap();
    let config = SlackConfig {
        webhook_url_file: secret(&dir, &format!("{url}/services/T0/B0/secret")),
        min_severity: Severity::Ticket,
        apps: Vec::new(),
        environments: Vec::new(),
    };
    let slack = slack::notifier("slack", &config, links()).unwrap();
    assert!(!format!("{slack:?}").contains("secret"));
    let mut hostile = firing();
    hostile.key.model.app_id = "*all* _well_ ~now~ `rm -rf ~` :fire:".to_owned();
    hostile.key.model.model_id = format!("<!channel> & {}", "x".repeat(4000));
    hostile.key.model_version = "<@U0>".to_owned();
    assert_eq!(hostile.cohorts.len(), 1);
    for incident in [firing(), hostile] {
        let news = Notification::news(incident);
        slack.notify(&news, at(30)).await.unwrap();
    }
    let sent = receiver.payloads();
    check("slack-firing.json", &pretty(&sent[0]));
    for opening in ["<!channel>", "<@U0>"] {
        assert!(!sent[1].to_string().contains(opening), "{opening}");
    }
    let header = sent[1]["blocks"][0]["text"]["text"].as_str().unwrap();
    assert!(header.chars().count() <= 150);
    // The part that a phone shows contains the fault's size, however long the name is.
    assert!(
        header.contains("2.9 times slower on SM8635, 60 of 60 devices"),
        "{header}"
    );
    // The name is unchanged, in texts in which Slack reads no marks.
    let all = sent[1].to_string();
    assert!(
        all.contains("*all* _well_ ~now~ `rm -rf ~` :fire:"),
        "{all}"
    );
    assert_eq!(sent[1]["mrkdwn"], false);
    let mut n_code = 0;
    for block in sent[1]["blocks"].as_array().unwrap() {
        let parts = ["elements", "fields"].map(|list| block[list].as_array());
        let parts = parts.into_iter().flatten().flatten();
        for part in std::iter::once(block).chain(parts) {
            let text = if part["text"].is_object() {
                &part["text"]
            } else {
                part
            };
            let Some(said) = text["text"].as_str() else {
                continue;
            };
            assert!(said.chars().count() <= 3000, "{said}");
            if text["type"] == "mrkdwn" {
                // Only code has marks, and no name in it ends the code.
                let code = said
                    .strip_prefix("```")
                    .and_then(|said| said.strip_suffix("```"));
                assert!(!code.unwrap().contains('`'), "{said}");
                assert_eq!(text["verbatim"], true);
                n_code += 1;
                continue;
            }
            assert_eq!(text["type"], "plain_text", "{part}");
            assert_eq!(text["emoji"], false);
        }
    }
    assert_eq!(n_code, 3);
}

#[tokio::test]
async fn a_webhook_is_signed_over_the_bytes_it_carries() {
    let (receiver, url) = Receiver::start_at("/hook", &[OK; 2]).await;
    let dir = tempfile::tempdir().unwrap();
    let config = WebhookConfig {
        url: format!("{url}/hook"),
        key_file: secret(&dir, "shared key"),
        expected_answer: None,
        min_severity: Severity::Ticket,
        apps: Vec::new(),
        environments: Vec::new(),
    };
    let webhook = webhook::notifier("webhook", &config, links()).unwrap();
    for _ in 0..2 {
        let news = Notification::news(firing());
        webhook.notify(&news, at(30)).await.unwrap();
    }
    check("webhook-firing.json", &pretty(&receiver.payloads()[0]));
    let requests = receiver.requests();
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"shared key");
    for (headers, body) in &requests {
        let text = |name: &str| headers[name].to_str().unwrap();
        let signed = [text("epwatch-timestamp").as_bytes(), b".", &body[..]].concat();
        let hex = text("epwatch-signature").strip_prefix("v1=").unwrap();
        let signature = epwatch_proto::unhex(hex).unwrap();
        hmac::verify(&key, &signed, &signature).unwrap();
        assert_eq!(text("epwatch-timestamp"), at(30).as_second().to_string());
        // A second attempt is the same delivery.
        assert_eq!(text("epwatch-delivery"), format!("{}:1", firing().id));
    }
}

/// A proxy's block page and a parked domain answer 200, too.
#[tokio::test]
async fn an_answer_of_something_else_is_no_delivery() {
    let dir = tempfile::tempdir().unwrap();
    let news = Notification::news(firing());
    let audience = |url: &str| (secret(&dir, url), Severity::Ticket);
    for (says, taken) in [
        ("ok", [true, true, true, false]),
        ("", [false, true, true, false]),
        (
            "<!DOCTYPE html><title>blocked</title>",
            [false, false, true, false],
        ),
        ("{\"queued\": true}", [false, true, true, true]),
    ] {
        let (receiver, url) = Receiver::start_saying(Some(says), "/hook", &[OK; 3]).await;
        let hook = format!("{url}/hook");
        let (webhook_url_file, min_severity) = audience(&hook);
        let slack = SlackConfig {
            webhook_url_file,
            min_severity,
            apps: Vec::new(),
            environments: Vec::new(),
        };
        let slack = slack::notifier("slack", &slack, links()).unwrap();
        let webhook = |expected_answer: Option<&str>| {
            let config = WebhookConfig {
                url: hook.clone(),
                key_file: secret(&dir, "shared key"),
                expected_answer: expected_answer.map(str::to_owned),
                min_severity,
                apps: Vec::new(),
                environments: Vec::new(),
            };
            webhook::notifier("webhook", &config, links()).unwrap()
        };
        let alerts = Receiver::start_saying(Some(says), "/api/v2/alerts", &[OK]).await;
        let channels: [Box<dyn Notifier>; 4] = [
            Box::new(slack),
            Box::new(alertmanager(&alerts.1)),
            Box::new(webhook(None)),
            Box::new(webhook(Some("queued"))),
        ];
        for (channel, is_taken) in channels.iter().zip(taken) {
            let name = channel.name();
            match channel.notify(&news, at(30)).await {
                Ok(()) => assert!(is_taken, "{name}: {says}"),
                Err(error) => {
                    assert!(!is_taken, "{name}: {error}");
                    assert_eq!(error.retry(), Retry::Slowly, "{error}");
                    let answer = error.answer();
                    assert!(answer.starts_with("200 with"), "{answer}");
                }
            }
        }
        assert_eq!(receiver.payloads().len(), 3);
    }
}

#[test]
fn a_secret_that_is_not_there_is_said_with_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let config = SlackConfig {
        webhook_url_file: dir.path().join("nothing"),
        min_severity: Severity::Ticket,
        apps: Vec::new(),
        environments: Vec::new(),
    };
    let refused =
        |config: &SlackConfig| slack::notifier("slack", config, Links::default()).unwrap_err();
    let error = refused(&config).to_string();
    assert!(
        error.contains("nothing") && error.contains("slack"),
        "{error}"
    );
    let empty = SlackConfig {
        webhook_url_file: secret(&dir, ""),
        ..config.clone()
    };
    assert!(matches!(refused(&empty), NotifyError::Secret { .. }));
    let none = SlackConfig {
        webhook_url_file: secret(&dir, "ftp://hidden"),
        ..config
    };
    let error = refused(&none).to_string();
    assert!(!error.contains("hidden"), "{error}");
}
