//! A page that a test queries over HTTP, and the checks that every answer must pass.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use clickhouse::Client;
use epwatch_page::{PageConfig, PageServer};
use epwatch_server::{Clock, SystemClock};
use epwatch_test_support::until;
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Method, Request};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

/// Names that try to break out of HTML, a link, SQL or a path.
pub(crate) const HOSTILE: [&str; 9] = [
    "\"><script>alert(1)</script>",
    "javascript:alert(1)",
    "../../etc/passwd",
    "%2f%00",
    "x\\' OR 1=1 -- ",
    "a\u{202e}b\u{2066}c",
    "",
    "</title><svg onload=alert(1)>",
    "'; DROP TABLE incidents; --",
];

/// An answer of the page.
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).map(|value| value.to_str().unwrap());
        value.unwrap_or_default()
    }
}

/// A running page that a test queries.
pub(crate) struct Served {
    pub(crate) server: PageServer,
    stop: CancellationToken,
}

impl Served {
    pub(crate) async fn start(store: Client) -> Self {
        Self::with(store, PageConfig::default()).await
    }

    /// Starts a page with timeouts that are long enough for a machine full of tests.
    pub(crate) async fn with(store: Client, mut config: PageConfig) -> Self {
        config.timeout_factor = 8;
        Self::as_is(store, config).await
    }

    pub(super) async fn as_is(store: Client, config: PageConfig) -> Self {
        Self::at(store, config, Arc::new(SystemClock)).await
    }

    /// Starts a page that takes the current time from `clock`.
    pub(crate) async fn at(store: Client, mut config: PageConfig, clock: Arc<dyn Clock>) -> Self {
        config.listen.set_port(0);
        let stop = CancellationToken::new();
        let server = PageServer::start(&config, store, Box::new(Vec::new), clock, stop.clone());
        Self {
            server: server.await.unwrap(),
            stop,
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask(Method::GET, path, &[], "").await
    }

    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let url = format!("http://{}{path}", self.server.address());
        let mut request = Request::builder().method(method).uri(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = Full::new(Bytes::copy_from_slice(body.as_bytes()));
        let client = HttpClient::builder(TokioExecutor::new()).build_http();
        let answer = client.request(request.body(body).unwrap()).await.unwrap();
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        Answer {
            status,
            headers,
            text: String::from_utf8(body.to_vec()).unwrap(),
        }
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.server.stopped().await;
    }
}

/// Checks that every page must pass, whatever it shows.
#[track_caller]
pub(crate) fn check_page(path: &str, answer: &Answer) {
    assert_eq!(answer.status, 200, "{path}: {}", answer.text);
    let text = &answer.text;
    assert!(text.starts_with("<!doctype html>"), "{path}: {text}");
    assert_eq!(text.matches("<h1>").count(), 1, "{path}");
    for wrong in [
        "<script",
        " style=",
        "http://",
        "https://",
        "<svg onload",
        "NaN",
    ] {
        assert!(!text.contains(wrong), "{path} has {wrong}: {text}");
    }
    // A form sends back exactly what it was given.
    let parts = text.split(" value=\"").enumerate();
    let shown = parts.map(|(at, part)| match at {
        0 => part,
        _ => part.split_once('"').map_or("", |(_, rest)| rest),
    });
    for part in shown {
        assert!(!part.contains(['\u{202e}', '\u{2066}']), "{path}: {part}");
    }
    // Each term has one link to its explanation, at its first occurrence, and one line at the foot.
    let parts = text.split("href=\"#term-").skip(1);
    for term in parts.filter_map(|rest| rest.split('"').next()) {
        let link = format!("href=\"#term-{term}\"><abbr title=\"");
        assert_eq!(text.matches(&link).count(), 1, "{path}: {term}");
        assert!(
            text.contains(&format!("<dt id=\"term-{term}\">")),
            "{path}: {term}"
        );
    }
    let policy = answer.header("content-security-policy");
    assert!(policy.starts_with("default-src 'none'"), "{path}: {policy}");
    assert_eq!(answer.header("x-content-type-options"), "nosniff");
    assert_eq!(answer.header("access-control-allow-origin"), "");
}

/// Returns the addresses of a page's links, without the escapes of an attribute.
pub(super) fn links(text: &str, prefix: &str) -> Vec<String> {
    let attributes = text.split("href=\"").skip(1);
    let links = attributes.filter_map(|rest| rest.split('"').next());
    let links = links.filter(|link| link.starts_with(prefix));
    links.map(|link| link.replace("&amp;", "&")).collect()
}

pub(super) fn json_of(link: &str) -> String {
    let (path, query) = link.split_once('?').unwrap();
    format!("{path}.json?{query}")
}

/// Returns a page's JSON once `condition` holds for it, and nothing is left out of it. A busy machine may need several
/// reads.
pub(super) async fn json_when(
    page: &Served,
    path: &str,
    condition: impl Fn(&Value) -> bool,
) -> Value {
    let read = Mutex::new(Value::Null);
    until(path, async || {
        let answer = page.get(path).await;
        let document = answer.json();
        let is_whole = document["left_out"].as_array().is_none_or(Vec::is_empty);
        let is_it = answer.status == 200 && is_whole && condition(&document);
        *read.lock().unwrap() = document;
        is_it
    })
    .await;
    read.into_inner().unwrap()
}

/// Like [`json_when`], returns a page once it has a part and leaves none out.
pub(super) async fn page_when(page: &Served, path: &str, part: &str) -> Answer {
    let read = Mutex::new(None);
    until(path, async || {
        let answer = page.get(path).await;
        let is_it = answer.text.contains(part) && !answer.text.contains("could not be read");
        *read.lock().unwrap() = Some(answer);
        is_it
    })
    .await;
    read.into_inner().unwrap().unwrap()
}

pub(crate) fn percent(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}
