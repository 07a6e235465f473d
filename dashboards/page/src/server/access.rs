//! Who may read the page: a request must name this machine, and hold the token if there is one.
//!
//! A page in a browser reaches loopback too, so `Host` is checked (DNS rebinding). The token comes by a form of the
//! same origin, and is kept as a random id in a cookie; programs send it as `Authorization: Bearer`. It is never in an
//! address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::tries::Tries;
use crate::config::{MIN_TOKEN_BYTES, PageConfig};
use crate::html;

/// Name of the cookie.
const COOKIE: &str = "epwatch_page";

/// Life of a cookie.
const SESSION: Duration = Duration::from_secs(12 * 3_600);

/// Open sessions; the oldest ends first.
const MAX_SESSIONS: usize = 256;

/// Largest form.
const MAX_FORM_BYTES: usize = 4_096;

/// Address of the form.
const FORM: &str = "/token";

const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self' data:; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Why the token cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// Its file cannot be read.
    #[error("failed to read page.token_file {path}")]
    Read {
        /// As the config names it.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// It can be guessed.
    #[error(
        "page.token_file {path} must hold {MIN_TOKEN_BYTES} bytes or more; make them at random"
    )]
    Short {
        /// As the config names it.
        path: PathBuf,
    },
}

/// The rules of access.
#[derive(Debug)]
pub(crate) struct Access {
    token: Option<[u8; 32]>,
    hosts: Vec<String>,
    /// Digests of cookies, with the begin of their session.
    sessions: Mutex<HashMap<[u8; 32], Instant>>,
    tries: Mutex<Tries>,
}

/// A refusal is boxed, because it is larger than what it refuses.
type Refusal = Box<Response>;

impl Access {
    pub(crate) fn of(config: &PageConfig) -> Result<Self, TokenError> {
        let token = config.token_file.as_ref().map(|path| {
            let text = std::fs::read_to_string(path).map_err(|source| TokenError::Read {
                path: path.clone(),
                source,
            })?;
            let token = text.trim();
            match token.len() < MIN_TOKEN_BYTES {
                true => Err(TokenError::Short { path: path.clone() }),
                false => Ok(digest(token)),
            }
        });
        Ok(Self {
            token: token.transpose()?,
            hosts: config
                .hosts
                .iter()
                .map(|host| host.to_ascii_lowercase())
                .collect(),
            sessions: Mutex::default(),
            tries: Mutex::default(),
        })
    }

    /// Returns a request that may be answered, or the answer to one that may not.
    pub(crate) async fn admit(&self, peer: IpAddr, request: Request) -> Result<Request, Refusal> {
        self.check_host(request.headers())?;
        let is_form = request.uri().path() == FORM && self.token.is_some();
        match *request.method() {
            Method::POST if is_form => return Err(Box::new(self.sign_in(peer, request).await)),
            Method::GET | Method::HEAD => {}
            _ => {
                let text = "this page only answers GET and HEAD\n";
                let answer = (
                    StatusCode::METHOD_NOT_ALLOWED,
                    [(header::ALLOW, "GET, HEAD")],
                    text,
                );
                return Err(Box::new(answer.into_response()));
            }
        }
        // The form needs its style.
        if self.token.is_none() || request.uri().path() == "/style.css" {
            return Ok(request);
        }
        if self.has_session(request.headers()) {
            return Ok(request);
        }
        match bearer(request.headers()) {
            Some(token) => self.check_token(peer, token).map(|()| request),
            None => {
                let asked = request
                    .uri()
                    .path_and_query()
                    .map_or("/", |asked| asked.as_str());
                Err(Box::new(form(StatusCode::UNAUTHORIZED, asked, "")))
            }
        }
    }

    /// Refuses a request that does not name this machine, or a name of the config.
    fn check_host(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let host = headers
            .get(header::HOST)
            .and_then(|host| host.to_str().ok());
        let host = host.unwrap_or_default().to_ascii_lowercase();
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => &host,
        };
        let is_loopback = |name: &str| {
            let address = name.trim_matches(['[', ']']).parse();
            address.is_ok_and(|ip: IpAddr| ip.is_loopback())
        };
        if name == "localhost"
            || is_loopback(name)
            || self
                .hosts
                .iter()
                .any(|known| known == name || *known == host)
        {
            return Ok(());
        }
        let text = "This page answers to 127.0.0.1, localhost and page.hosts of the config.\n";
        Err(Box::new(
            (StatusCode::MISDIRECTED_REQUEST, text).into_response(),
        ))
    }

    fn check_token(&self, peer: IpAddr, presented: &str) -> Result<(), Refusal> {
        let now = Instant::now();
        let mut tries = self.tries.lock();
        if !tries.may_try(peer, now) {
            let text = "too many wrong tokens; wait a minute\n";
            let answer = (
                StatusCode::TOO_MANY_REQUESTS,
                [(header::RETRY_AFTER, "60")],
                text,
            );
            return Err(Box::new(answer.into_response()));
        }
        // Digests are compared, so that the time of the comparison does not depend on the token.
        if Some(digest(presented)) == self.token {
            return Ok(());
        }
        tries.failed(peer, now);
        Err(Box::new(form(
            StatusCode::UNAUTHORIZED,
            "/",
            "That is not the token.",
        )))
    }

    /// Answers the form: a cookie and the page that was asked for, or the form again.
    async fn sign_in(&self, peer: IpAddr, request: Request) -> Response {
        let (head, body) = request.into_parts();
        let site = head
            .headers
            .get("sec-fetch-site")
            .and_then(|site| site.to_str().ok());
        // Browsers that do not send the header send Origin with a POST.
        let is_same_origin = match site {
            Some(site) => site == "same-origin",
            None => has_own_origin(&head.headers),
        };
        if !is_same_origin {
            return (StatusCode::FORBIDDEN, "the form must come from this page\n").into_response();
        }
        let Ok(body) = to_bytes(body, MAX_FORM_BYTES).await else {
            return (StatusCode::PAYLOAD_TOO_LARGE, "the form is too long\n").into_response();
        };
        let field = |name: &str| {
            let mut fields = url::form_urlencoded::parse(&body);
            fields
                .find(|(key, _)| key == name)
                .map(|(_, value)| value.into_owned())
        };
        let token = field("token").unwrap_or_default();
        if let Err(refusal) = self.check_token(peer, token.trim()) {
            return *refusal;
        }
        let Some(id) = self.begin_session() else {
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        };
        let is_tls = head
            .headers
            .get("x-forwarded-proto")
            .is_some_and(|scheme| scheme == "https");
        let secure = if is_tls { "; Secure" } else { "" };
        let seconds = SESSION.as_secs();
        let cookie =
            format!("{COOKIE}={id}; HttpOnly; SameSite=Strict; Path=/; Max-Age={seconds}{secure}");
        let to = own_path(&field("to").unwrap_or_default());
        let headers = [(header::SET_COOKIE, cookie), (header::LOCATION, to)];
        (StatusCode::SEE_OTHER, headers).into_response()
    }

    fn begin_session(&self) -> Option<String> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).ok()?;
        let id = epwatch_proto::hex(&bytes);
        let now = Instant::now();
        let mut sessions = self.sessions.lock();
        sessions.retain(|_, since| now.duration_since(*since) < SESSION);
        if sessions.len() >= MAX_SESSIONS {
            let oldest = sessions
                .iter()
                .min_by_key(|(_, since)| **since)
                .map(|(id, _)| *id);
            oldest.and_then(|id| sessions.remove(&id));
        }
        sessions.insert(digest(&id), now);
        Some(id)
    }

    fn has_session(&self, headers: &HeaderMap) -> bool {
        let sessions = self.sessions.lock();
        let cookies = headers.get_all(header::COOKIE).iter();
        let cookies = cookies.filter_map(|value| value.to_str().ok());
        let mut ids = cookies
            .flat_map(|cookies| cookies.split(';'))
            .filter_map(|cookie| cookie.trim().strip_prefix(COOKIE)?.strip_prefix('='));
        ids.any(|id| {
            sessions
                .get(&digest(id))
                .is_some_and(|since| since.elapsed() < SESSION)
        })
    }
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text).into()
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then_some(token.trim())
}

fn has_own_origin(headers: &HeaderMap) -> bool {
    let text = |name| {
        headers
            .get(name)
            .and_then(|value: &HeaderValue| value.to_str().ok())
    };
    let origin = text(header::ORIGIN).and_then(|origin| origin.split_once("://"));
    matches!((origin, text(header::HOST)), (Some((_, origin)), Some(host)) if origin == host)
}

/// Returns a path of this page; the fleet for anything else.
fn own_path(to: &str) -> String {
    let is_own = to.starts_with('/') && !to.starts_with("//") && !to.contains(['\\', '\r', '\n']);
    let is_plain = to.bytes().all(|byte| byte.is_ascii_graphic());
    match is_own && is_plain {
        true => to.to_owned(),
        false => "/".to_owned(),
    }
}

fn form(status: StatusCode, path: &str, problem: &str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::WWW_AUTHENTICATE, "Bearer realm=\"epwatch\""),
    ];
    let to = own_path(path);
    (status, headers, html::sign_in(&to, problem)).into_response()
}

/// Adds the headers that every answer has.
pub(crate) fn secured(mut answer: Response<Body>) -> Response {
    let headers = answer.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "same-origin"),
        (
            header::HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
        (
            header::HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_in_leads_only_to_this_page() {
        for (to, expected) in [
            ("/cohort?app=a&model=%2F", "/cohort?app=a&model=%2F"),
            ("//evil.example", "/"),
            ("/\\evil.example", "/"),
            ("https://evil.example", "/"),
            ("/a\r\nSet-Cookie: x", "/"),
            ("", "/"),
        ] {
            assert_eq!(own_path(to), expected, "{to}");
        }
    }

    #[test]
    fn hosts_are_loopback_or_named() {
        let config = PageConfig {
            hosts: vec!["Epwatch.example".to_owned()],
            ..PageConfig::default()
        };
        let access = Access::of(&config).unwrap();
        let is_let_in = |host: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static(host));
            access.check_host(&headers).is_ok()
        };
        for host in [
            "127.0.0.1:4720",
            "localhost",
            "[::1]:4720",
            "epwatch.example",
            "epwatch.example:8443",
        ] {
            assert!(is_let_in(host), "{host}");
        }
        for host in [
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example:4720",
            "10.0.0.1",
            "",
        ] {
            assert!(!is_let_in(host), "{host}");
        }
        assert!(access.check_host(&HeaderMap::new()).is_err());
    }
}
