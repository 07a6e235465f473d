//! Who may read the page, and who may order: a request must name this machine, and present a token if any is
//! configured.
//!
//! A page in a browser reaches loopback too, so `Host` is checked (DNS rebinding). A browser sends the token once, by a
//! form of the same origin. It then holds a cookie with a random session id. Programs send the token as
//! `Authorization: Bearer`. No URL contains it. An order needs the token for orders. With a cookie it also needs the
//! same origin and the session's form token.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use epwatch_server::{AddressBlock, forwarded_for, is_trusted};
use parking_lot::Mutex;

use super::login_throttle::LoginThrottle;
use super::tokens::{TokenError, Tokens, digest};
use crate::config::PageConfig;
use crate::html::{self, OrderRight};
use crate::read::scope::AppScope;

/// Name of the cookie.
const COOKIE: &str = "epwatch_page";

/// Life of a cookie.
const SESSION: Duration = Duration::from_secs(12 * 3_600);

/// Maximum number of open sessions; the oldest ends first.
const MAX_SESSIONS: usize = 256;

/// Largest body of a form that is read, in bytes.
const MAX_FORM_BYTES: usize = 4_096;

/// Address of the form.
const FORM: &str = "/token";

/// Addresses of orders, for forms and for programs.
const ORDER: [&str; 2] = ["/order", "/order.json"];

const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self' data:; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The rules of access.
#[derive(Debug)]
pub(crate) struct Access {
    /// Tokens that may read; `None` on loopback without a token file.
    tokens: Option<Tokens>,
    /// Tokens that may also order.
    orders_tokens: Option<Tokens>,
    hosts: Vec<String>,
    /// Open sessions, by the digests of their cookies.
    sessions: Mutex<HashMap<[u8; 32], Session>>,
    tries: Mutex<LoginThrottle>,
    trusted_proxies: Vec<AddressBlock>,
}

/// The rights of the holder of a token.
#[derive(Debug, Clone)]
struct Holder {
    scope: AppScope,
    may_order: bool,
}

/// The rights of the sender of a request.
#[derive(Debug, Clone)]
pub(crate) struct Admitted {
    pub(crate) scope: AppScope,
    pub(crate) right: OrderRight,
}

/// A browser that presented a token.
#[derive(Debug, Clone)]
struct Session {
    began: Instant,
    holder: Holder,
}

/// Boxed, because the response is larger than the value in `Ok`.
type Refusal = Box<Response>;

impl Access {
    pub(crate) fn of(config: &PageConfig) -> Result<Self, TokenError> {
        let read = |key, path: &Option<PathBuf>| {
            let path = path.as_deref();
            path.map(|path| Tokens::read(key, path)).transpose()
        };
        let tokens = read("page.token_file", &config.token_file)?;
        let orders_tokens = read("page.orders_token_file", &config.orders_token_file)?;
        if let (Some(tokens), Some(orders)) = (&tokens, &orders_tokens)
            && tokens.shares_one_with(orders)
        {
            return Err(TokenError::Same);
        }
        Ok(Self {
            tokens,
            orders_tokens,
            hosts: config
                .hosts
                .iter()
                .map(|host| host.to_ascii_lowercase())
                .collect(),
            sessions: Mutex::default(),
            tries: Mutex::default(),
            trusted_proxies: config.trusted_proxies.clone(),
        })
    }

    /// Returns an admitted request with its sender's rights, or the answer to a refused one.
    pub(crate) async fn admit(
        &self,
        peer: IpAddr,
        request: Request,
    ) -> Result<(Request, Admitted), Refusal> {
        let (method, path) = (request.method(), request.uri().path());
        self.check_host(request.headers(), path)?;
        let peer = self.sender(peer, request.headers());
        let has_tokens = self.tokens.is_some() || self.orders_tokens.is_some();
        match *method {
            Method::POST if path == FORM && has_tokens => {
                return Err(Box::new(self.sign_in(peer, request).await));
            }
            Method::POST if ORDER.contains(&path) => {
                let admitted = self.check_order(peer, request.headers(), path)?;
                return Ok((request, admitted));
            }
            Method::GET | Method::HEAD => {}
            _ => {
                let allowed = match path {
                    _ if ORDER.contains(&path) => "POST",
                    FORM if has_tokens => "GET, HEAD, POST",
                    _ => "GET, HEAD",
                };
                let text = format!("this address only answers {allowed}");
                let answer = refusal(StatusCode::METHOD_NOT_ALLOWED, path, &text);
                return Err(Box::new(
                    ([(header::ALLOW, allowed)], answer).into_response(),
                ));
            }
        }
        if path == FORM && has_tokens {
            let query = request.uri().query().unwrap_or_default().as_bytes();
            let mut fields = url::form_urlencoded::parse(query);
            let to = fields.find(|(key, _)| key == "to");
            let to = to.map_or_else(String::new, |(_, to)| to.into_owned());
            return Err(Box::new(form(StatusCode::OK, &to, "")));
        }
        let session = self.session(request.headers());
        let right = match (&self.orders_tokens, &session) {
            (None, _) => OrderRight::Nobody,
            (Some(_), Some((id, session))) if session.holder.may_order => OrderRight::May {
                form: form_token(id),
            },
            (Some(_), _) => OrderRight::SignIn,
        };
        if let Some((_, Session { holder, .. })) = session {
            let scope = holder.scope;
            return Ok((request, Admitted { scope, right }));
        }
        // The sign-in form needs its style sheet, so it is served without a token.
        if self.tokens.is_none() || path == "/style.css" {
            let scope = AppScope::all();
            return Ok((request, Admitted { scope, right }));
        }
        let asked = request.uri().path_and_query();
        let asked = asked.map_or("/", |asked| asked.as_str());
        match bearer(request.headers()) {
            Some(token) => {
                let scope = self.check_token(peer, token, asked)?.scope;
                Ok((request, Admitted { scope, right }))
            }
            None => Err(Box::new(form(StatusCode::UNAUTHORIZED, asked, ""))),
        }
    }

    /// Returns the rights of an order's sender, from a bearer token or from a session whose own page sent the request.
    fn check_order(
        &self,
        peer: IpAddr,
        headers: &HeaderMap,
        path: &str,
    ) -> Result<Admitted, Refusal> {
        let forbidden = |text: &str| Box::new(refusal(StatusCode::FORBIDDEN, path, text));
        if self.orders_tokens.is_none() {
            return Err(forbidden(
                "nobody may order here: page.orders_token_file of the config names no token; \
                 `epwatch incident ack` orders at a shell",
            ));
        }
        if let Some(token) = bearer(headers) {
            // A browser does not send this header by itself, so no form token is needed.
            let holder = self.check_token(peer, token, "/order.json")?;
            let form = String::new();
            return match holder.may_order {
                true => Ok(Admitted {
                    scope: holder.scope,
                    right: OrderRight::May { form },
                }),
                false => Err(forbidden("this token may read, not order")),
            };
        }
        let session = self.session(headers);
        // A program without a token gets its answer below.
        let is_program = wants_json(path) && session.is_none();
        if !is_program && !is_same_origin(headers) {
            return Err(forbidden("the form must come from this page"));
        }
        match session {
            Some((id, session)) if session.holder.may_order => Ok(Admitted {
                scope: session.holder.scope,
                right: OrderRight::May {
                    form: form_token(&id),
                },
            }),
            Some(_) => Err(forbidden("this session may read, not order")),
            None if wants_json(path) => Err(Box::new(form(StatusCode::UNAUTHORIZED, path, ""))),
            None => Err(Box::new(form(StatusCode::UNAUTHORIZED, "/incidents", ""))),
        }
    }

    /// Refuses a request that does not name this machine, or a name of the config.
    fn check_host(&self, headers: &HeaderMap, path: &str) -> Result<(), Refusal> {
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
        let text = "This page answers to 127.0.0.1, localhost and page.hosts of the config.";
        Err(Box::new(refusal(
            StatusCode::MISDIRECTED_REQUEST,
            path,
            text,
        )))
    }

    /// Returns the address of the browser or program behind a trusted proxy, or of the peer.
    fn sender(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let is_proxy = is_trusted(peer, &self.trusted_proxies);
        let forwarded = is_proxy.then(|| forwarded_for(headers, &self.trusted_proxies));
        forwarded.flatten().unwrap_or(peer)
    }

    /// Returns what the holder of a token may see and do; refuses an unknown token.
    ///
    /// The right token is accepted after any number of wrong tries from its address. So a stranger behind the same
    /// proxy locks nobody out. The form of a refusal leads on to the address `to`.
    fn check_token(&self, peer: IpAddr, presented: &str, to: &str) -> Result<Holder, Refusal> {
        for (tokens, may_order) in [(&self.orders_tokens, true), (&self.tokens, false)] {
            let tokens = tokens.as_ref();
            if let Some(scope) = tokens.and_then(|tokens| tokens.scope_of(presented)) {
                let scope = scope.clone();
                return Ok(Holder { scope, may_order });
            }
        }
        let now = Instant::now();
        let mut tries = self.tries.lock();
        if !tries.may_try(peer, now) {
            let text = "too many wrong tokens came from this address; try again in a minute";
            let answer = refusal(StatusCode::TOO_MANY_REQUESTS, to, text);
            return Err(Box::new(
                ([(header::RETRY_AFTER, "60")], answer).into_response(),
            ));
        }
        tries.failed(peer, now);
        Err(Box::new(form(
            StatusCode::UNAUTHORIZED,
            to,
            "That is not the token.",
        )))
    }

    /// Answers the form: a cookie and the page that was asked for, or the form again.
    async fn sign_in(&self, peer: IpAddr, request: Request) -> Response {
        let (head, body) = request.into_parts();
        if !is_same_origin(&head.headers) {
            let text = "the form must come from this page";
            return refusal(StatusCode::FORBIDDEN, FORM, text);
        }
        let Ok(body) = to_bytes(body, MAX_FORM_BYTES).await else {
            return refusal(StatusCode::PAYLOAD_TOO_LARGE, FORM, "the form is too long");
        };
        let field = |name: &str| {
            let mut fields = url::form_urlencoded::parse(&body);
            fields
                .find(|(key, _)| key == name)
                .map(|(_, value)| value.into_owned())
        };
        let token = field("token").unwrap_or_default();
        let to = own_path(&field("to").unwrap_or_default());
        let holder = match self.check_token(peer, token.trim(), &to) {
            Ok(holder) => holder,
            Err(refusal) => return *refusal,
        };
        let Some(id) = self.begin_session(holder) else {
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
        let headers = [(header::SET_COOKIE, cookie), (header::LOCATION, to)];
        (StatusCode::SEE_OTHER, headers).into_response()
    }

    fn begin_session(&self, holder: Holder) -> Option<String> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).ok()?;
        let id = epwatch_proto::hex(&bytes);
        let now = Instant::now();
        let mut sessions = self.sessions.lock();
        sessions.retain(|_, session| now.duration_since(session.began) < SESSION);
        if sessions.len() >= MAX_SESSIONS {
            let oldest = sessions
                .iter()
                .min_by_key(|(_, session)| session.began)
                .map(|(id, _)| *id);
            oldest.and_then(|id| sessions.remove(&id));
        }
        sessions.insert(digest(&id), Session { began: now, holder });
        Some(id)
    }

    /// Returns the session of a request with the id in its cookie.
    fn session(&self, headers: &HeaderMap) -> Option<(String, Session)> {
        let sessions = self.sessions.lock();
        let cookies = headers.get_all(header::COOKIE).iter();
        let cookies = cookies.filter_map(|value| value.to_str().ok());
        let mut ids = cookies
            .flat_map(|cookies| cookies.split(';'))
            .filter_map(|cookie| cookie.trim().strip_prefix(COOKIE)?.strip_prefix('='));
        ids.find_map(|id| {
            let session = sessions.get(&digest(id))?;
            let is_open = session.began.elapsed() < SESSION;
            is_open.then(|| (id.to_owned(), session.clone()))
        })
    }
}

/// Returns the token of a session's forms, which a page elsewhere cannot know.
fn form_token(session: &str) -> String {
    epwatch_proto::hex(&digest(&format!("form of {session}"))[..16])
}

/// Whether a request comes from a page of this server.
fn is_same_origin(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site");
    // Browsers without this header send `Origin` with a POST.
    match site.and_then(|site| site.to_str().ok()) {
        Some(site) => site == "same-origin",
        None => has_own_origin(headers),
    }
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

/// Whether a program sent the request: programs use paths that end with `.json`, and get errors as JSON.
fn wants_json(path: &str) -> bool {
    let path = path.split('?').next();
    path.is_some_and(|path| path.ends_with(".json"))
}

/// Returns the answer to a refused request: JSON for a program, and otherwise a line of text.
fn refusal(status: StatusCode, path: &str, problem: &str) -> Response {
    match wants_json(path) {
        true => json_refusal(status, problem),
        false => (status, format!("{problem}\n")).into_response(),
    }
}

/// Returns the answer to a program whose request was refused.
pub(super) fn json_refusal(status: StatusCode, problem: &str) -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    let json = serde_json::json!({ "error": problem }).to_string();
    (status, kind, json).into_response()
}

/// Returns the form for a token; for a program its error.
fn form(status: StatusCode, path: &str, problem: &str) -> Response {
    let asks = [(header::WWW_AUTHENTICATE, "Bearer realm=\"epwatch\"")];
    if wants_json(path) {
        let problem = match problem {
            "" => "a token is needed: `Authorization: Bearer TOKEN`",
            problem => problem,
        };
        return (asks, refusal(status, path, problem)).into_response();
    }
    let to = own_path(path);
    let kind = [(header::CONTENT_TYPE, "text/html; charset=utf-8")];
    (status, asks, kind, html::sign_in(&to, problem)).into_response()
}

/// Adds the headers that every answer has.
pub(crate) fn secured(mut answer: Response<Body>) -> Response {
    let headers = answer.headers_mut();
    for (name, value) in [
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
    // A drawing already has a stricter policy.
    if !headers.contains_key(header::CONTENT_SECURITY_POLICY) {
        let policy = HeaderValue::from_static(CONTENT_SECURITY_POLICY);
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
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
            access.check_host(&headers, "/").is_ok()
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
        assert!(access.check_host(&HeaderMap::new(), "/").is_err());
    }
}
