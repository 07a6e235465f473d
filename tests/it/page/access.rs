//! Who may open the page: this machine, and holders of the token.

use std::sync::Arc;

use epwatch_page::{PageConfig, PageServer};
use epwatch_server::SystemClock;
use hyper::Method;
use tokio_util::sync::CancellationToken;

use super::served::{Answer, Served};
use crate::browser::Browser;

/// Sends the form like a browser.
async fn sign_in(page: &Served, site: &str, token: &str) -> Answer {
    let body = format!("token={token}&to=%2Fincidents%3Fapp%3Da");
    let headers = [("sec-fetch-site", site)];
    page.ask(Method::POST, "/token", &headers, &body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn only_this_machine_and_the_token_open_the_page() {
    let dir = tempfile::tempdir().unwrap();
    let token_file = dir.path().join("token");
    std::fs::write(&token_file, "correct-horse-battery\n").unwrap();
    // No store runs at this address, because access is decided before the store is read.
    let target = epwatch_store::StoreTarget::unix(&dir.path().join("none.sock"), "epwatch");
    let config = PageConfig {
        token_file: Some(token_file.clone()),
        hosts: vec!["page.example".to_owned()],
        trusted_proxies: vec!["127.0.0.1".parse().unwrap()],
        ..PageConfig::default()
    };
    let page = Served::with(epwatch_store::client(&target), config.clone()).await;
    let rebound = page
        .ask(Method::GET, "/fleet", &[("host", "evil.example")], "")
        .await;
    assert_eq!(rebound.status, 421);
    assert!(!rebound.text.contains('<'), "{}", rebound.text);
    let form = page.get("/fleet").await;
    assert_eq!(form.status, 401);
    assert!(form.text.contains("name=\"token\""), "{}", form.text);
    assert_eq!(page.get("/style.css").await.status, 200);
    for method in [Method::PUT, Method::DELETE, Method::POST, Method::OPTIONS] {
        assert_eq!(page.ask(method, "/fleet", &[], "").await.status, 405);
    }

    let cross = sign_in(&page, "cross-site", "correct-horse-battery").await;
    assert_eq!(cross.status, 403);
    let wrong = sign_in(&page, "same-origin", "wrong").await;
    assert_eq!(wrong.status, 401);
    // The form leads on to where it was opened.
    assert!(
        wrong.text.contains("value=\"/incidents?app=a\""),
        "{}",
        wrong.text
    );
    let mut browser = Browser::start();
    let base = format!("http://{}", page.server.address());
    browser.check_answer(&base, ("token", "/fleet", None), 401);
    drop(browser);
    let signed_in = sign_in(&page, "same-origin", "correct-horse-battery").await;
    assert_eq!(signed_in.status, 303);
    assert_eq!(signed_in.header("location"), "/incidents?app=a");
    let cookie = signed_in.header("set-cookie").to_owned();
    for part in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    let cookie = cookie.split(';').next().unwrap();
    // The browser is admitted, and finds that the store is unreachable.
    let inside = page
        .ask(Method::GET, "/fleet", &[("cookie", cookie)], "")
        .await;
    assert_eq!(inside.status, 503, "{}", inside.text);
    let bearer = [
        ("authorization", "Bearer correct-horse-battery"),
        ("host", "page.example"),
    ];
    assert_eq!(
        page.ask(Method::HEAD, "/fleet", &bearer, "").await.status,
        503
    );

    let wrong = [("authorization", "Bearer no")];
    for _ in 0..9 {
        assert_eq!(
            page.ask(Method::GET, "/fleet", &wrong, "").await.status,
            401
        );
    }
    let limited = page.ask(Method::GET, "/fleet", &wrong, "").await;
    assert_eq!((limited.status, limited.header("retry-after")), (429, "60"));
    let inside = page
        .ask(Method::GET, "/fleet", &[("cookie", cookie)], "")
        .await;
    assert_eq!(inside.status, 503, "an open session is not limited");
    // A caller with the right token is not limited, so a stranger behind the same proxy locks no one out.
    assert_eq!(
        page.ask(Method::HEAD, "/fleet", &bearer, "").await.status,
        503
    );
    let signed_in = sign_in(&page, "same-origin", "correct-horse-battery").await;
    assert_eq!(signed_in.status, 303);
    // The test's proxy is trusted, so other browsers behind it have their own count.
    let other = [wrong[0], ("x-forwarded-for", "198.51.100.7")];
    assert_eq!(
        page.ask(Method::GET, "/fleet", &other, "").await.status,
        401
    );
    page.stop().await;

    std::fs::write(&token_file, "short\n").unwrap();
    let stop = CancellationToken::new();
    let refused = PageServer::start(
        &config,
        epwatch_store::client(&target),
        Box::new(Vec::new),
        Arc::new(SystemClock),
        stop,
    );
    let error = epwatch_proto::error_chain(&refused.await.unwrap_err());
    assert!(error.contains("16 bytes or more"), "{error}");
}
