//! Answers: from an address to a page, as HTML or JSON.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use clickhouse::Client;
use epwatch_server::Clock;
use jiff::Timestamp;
use serde::Serialize;
use sha2::{Digest, Sha256};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::timeout;

use super::access::Admitted;
use super::cache::{Cache, Cached, CachedPage};
use crate::html::{self, Frame, Nav, NoPage, OrderRight};
use crate::plot::style::{DRAWING_POLICY, SHEET};
use crate::plot::svg::Drawing;
use crate::read::cohort::{self, CohortPage, CohortQuery};
use crate::read::fleet::{self, FleetPage, FleetQuery};
use crate::read::health::{self, HealthPage, ReadPartStatus};
use crate::read::incident::{self, IncidentPage};
use crate::read::incident_list::{self, IncidentsPage};
use crate::read::ledger::{self, LedgerPage, LedgerQuery};
use crate::read::orders::{self, OrdersPage};
use crate::read::progress::Progress;
use crate::read::rollout::{self, Needed, NoRollout, Rollout, RolloutQuery};
use crate::read::scope::AppScope;
use crate::read::store::{LeftOut, ReadError, StoreReader};
use crate::text::terms::linked;

/// The store's progress is read again once the last read is this old.
const PROGRESS_AGE: Duration = Duration::from_secs(1);

/// Longest time of all queries of a page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// Seconds of the refresh whose link a page offers.
const OFFERED_REFRESH: u32 = 10;

/// Allowed values of `refresh`, in seconds.
const REFRESH: std::ops::RangeInclusive<u32> = 5..=3_600;

/// An address that has a page, with its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    Fleet(FleetQuery),
    Cohort(CohortQuery),
    Incidents { app: Option<String> },
    Incident { id: String },
    Orders { app: Option<String> },
    Ledger(LedgerQuery),
    Rollout(RolloutQuery),
    Health,
}

/// The form of an answer, by the end of the address.
#[derive(Debug, Clone, Copy)]
enum Form<'a> {
    Html,
    Json,
    /// One drawing of the page: `/cohort/latency.svg`.
    Drawing(&'a str),
}

impl<'a> Form<'a> {
    /// Splits a path into the path of a page and the form.
    fn of(path: &'a str) -> (&'a str, Self) {
        if let Some(path) = path.strip_suffix(".json") {
            return (path, Self::Json);
        }
        let drawing = path.strip_suffix(".svg");
        match drawing.and_then(|path| path.rsplit_once('/')) {
            Some((page, name)) => (page, Self::Drawing(name)),
            None => (path, Self::Html),
        }
    }
}

/// A page that was read.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Page {
    Fleet(Box<FleetPage>),
    Cohort(Box<CohortPage>),
    Incidents(IncidentsPage),
    Incident(Box<IncidentPage>),
    Orders(OrdersPage),
    Ledger(LedgerPage),
    Rollout(Box<Rollout>),
    Health(HealthPage),
}

impl Page {
    pub(crate) fn left_out(&self) -> Option<&LeftOut> {
        match self {
            Self::Fleet(page) => Some(&page.left_out),
            Self::Cohort(page) => Some(&page.left_out),
            Self::Orders(_) | Self::Rollout(_) => None,
            Self::Incidents(page) => Some(&page.left_out),
            Self::Incident(page) => Some(&page.left_out),
            Self::Ledger(page) => Some(&page.left_out),
            Self::Health(page) => Some(&page.left_out),
        }
    }
}

impl Page {
    /// Returns one of the page's drawings by name, for wide screens. `None` without such a drawing or its data. The
    /// page links to each drawing.
    fn drawing(&self, frame: &Frame, name: &str) -> Option<Drawing> {
        match self {
            Self::Fleet(page) => html::fleet_drawing(page, name),
            Self::Cohort(page) => html::cohort_drawing(frame, page, name),
            Self::Incident(page) => html::incident_drawing(frame, page, name),
            Self::Ledger(page) => html::ledger_drawing(frame, page, name),
            Self::Incidents(_) | Self::Orders(_) | Self::Rollout(_) | Self::Health(_) => None,
        }
    }
}

/// A page with its JSON.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) page: Page,
    pub(crate) json: Bytes,
}

/// The JSON of a page.
#[derive(Serialize)]
struct Document<'a> {
    read_at: Timestamp,
    closed_until: Option<Timestamp>,
    judged_at: Option<Timestamp>,
    judged_until: Option<Timestamp>,
    #[serde(flatten)]
    page: &'a Page,
}

fn document(read_at: Timestamp, progress: &Progress, page: &Page) -> Bytes {
    let document = Document {
        read_at,
        closed_until: progress.closed_until,
        judged_at: progress.judged_at,
        judged_until: progress.judged_until,
        page,
    };
    serde_json::to_vec(&document).unwrap_or_default().into()
}

/// The reasons for which a page cannot be returned.
#[derive(Debug)]
pub(crate) enum Missing {
    /// Nothing in the store has the requested name.
    Unknown,
    Store(ReadError),
}

impl From<ReadError> for Missing {
    fn from(error: ReadError) -> Self {
        Self::Store(error)
    }
}

/// All pages over one store.
pub(crate) struct Pages {
    clock: Arc<dyn Clock>,
    store: StoreReader,
    timeout_factor: u32,
    facts: ReadPartStatus,
    progress: AsyncMutex<Option<(Instant, Result<Progress, ReadError>)>>,
    cache: Cache<Read>,
    /// When the store last answered, by this process.
    answered: parking_lot::Mutex<Option<Timestamp>>,
    /// Address of the Grafana that pages link to.
    grafana: Option<String>,
}

/// A request's parameters. If a name occurs twice, the first counts.
struct Parameters(HashMap<String, String>);

impl Parameters {
    fn of(uri: &Uri) -> Self {
        let mut all = HashMap::new();
        for (key, value) in url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes())
        {
            all.entry(key.into_owned())
                .or_insert_with(|| value.into_owned());
        }
        Self(all)
    }

    /// Returns the same parameters as a query, with another `refresh`.
    fn with_refresh(uri: &Uri, refresh: Option<u32>) -> String {
        let given = uri.query().unwrap_or_default().as_bytes();
        let given = url::form_urlencoded::parse(given).filter(|(key, _)| key != "refresh");
        let refresh = refresh.map(|seconds| ("refresh".into(), seconds.to_string().into()));
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(given.chain(refresh));
        query.finish()
    }

    fn get(&self, name: &str) -> Option<String> {
        self.0.get(name).cloned()
    }

    /// Returns a parameter. `None` if it is empty, because a form sends blank fields as empty parameters.
    fn filled(&self, name: &str) -> Option<String> {
        self.get(name).filter(|value| !value.is_empty())
    }
}

impl Target {
    /// Returns the page at a path. `None` if the path has no page, or a parameter is missing.
    fn of(path: &str, parameters: &Parameters) -> Option<Self> {
        // A name may be empty, so a parameter counts even without a value.
        let name = |key| parameters.get(key);
        Some(match path {
            "/" | "/fleet" => Self::Fleet(FleetQuery {
                app: name("app"),
                environment: name("environment"),
                only_open: parameters.get("show").as_deref() == Some("open"),
                search: parameters.get("q").unwrap_or_default(),
            }),
            "/cohort" => Self::Cohort(CohortQuery {
                app: name("app")?,
                environment: name("environment")?,
                model: name("model")?,
                version: name("version")?,
                chipset: name("chipset")?,
            }),
            "/rollout" => Self::Rollout(RolloutQuery {
                app: name("app")?,
                environment: name("environment").unwrap_or_else(|| "production".to_owned()),
                model: name("model")?,
                version: name("version")?,
            }),
            "/incidents" => Self::Incidents {
                app: parameters.filled("app"),
            },
            "/incident" => Self::Incident { id: name("id")? },
            "/orders" => Self::Orders {
                app: parameters.filled("app"),
            },
            "/ledger" => Self::Ledger(LedgerQuery {
                app: parameters.filled("app"),
                environment: parameters.filled("environment"),
                days: parameters
                    .get("days")
                    .and_then(|days| days.parse().ok())
                    .unwrap_or(ledger::MAX_DAYS)
                    .clamp(1, ledger::MAX_DAYS),
                runs: parameters.get("count").as_deref() == Some("runs"),
                largest: parameters.get("largest").as_deref() == Some("1"),
            }),
            "/health" => Self::Health,
            _ => return None,
        })
    }

    /// Returns the app that a page is about, if its address names one.
    fn app(&self) -> Option<&str> {
        match self {
            Self::Fleet(query) => query.app.as_deref(),
            Self::Cohort(query) => Some(&query.app),
            Self::Rollout(query) => Some(&query.app),
            Self::Incidents { app } | Self::Orders { app } => app.as_deref(),
            Self::Ledger(query) => query.app.as_deref(),
            Self::Incident { .. } | Self::Health => None,
        }
    }

    fn nav(&self) -> Nav {
        match self {
            Self::Fleet(_) | Self::Cohort(_) | Self::Rollout(_) => Nav::Fleet,
            Self::Incidents { .. } | Self::Incident { .. } => Nav::Incidents,
            Self::Orders { .. } => Nav::Orders,
            Self::Ledger(_) => Nav::Ledger,
            Self::Health => Nav::Health,
        }
    }
}

impl Pages {
    pub(crate) fn new(
        client: Client,
        facts: ReadPartStatus,
        clock: Arc<dyn Clock>,
        timeout_factor: u32,
    ) -> Self {
        Self::over(StoreReader::new(client, timeout_factor), facts, clock)
    }

    /// Returns the pages that are read through `store`.
    pub(crate) fn over(store: StoreReader, facts: ReadPartStatus, clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            timeout_factor: store.timeout_factor(),
            store,
            facts,
            progress: AsyncMutex::default(),
            cache: Cache::default(),
            answered: parking_lot::Mutex::default(),
            grafana: None,
        }
    }

    /// Makes pages link to the dashboards of the Grafana at this address.
    pub(crate) fn with_grafana(self, grafana: Option<String>) -> Self {
        Self { grafana, ..self }
    }

    /// Answers an admitted request.
    pub(crate) async fn answer(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        admitted: Admitted,
    ) -> Response {
        let scope = &admitted.scope;
        let path = uri.path();
        if path == "/style.css" {
            let head = [(header::CONTENT_TYPE, "text/css; charset=utf-8")];
            let style = (head, SHEET.as_str());
            return with_etag(headers, style.into_response(), SHEET.as_bytes());
        }
        let (path, form) = Form::of(path);
        let is_json = matches!(form, Form::Json);
        let parameters = Parameters::of(uri);
        let refresh = parameters
            .get("refresh")
            .and_then(|seconds| seconds.parse().ok());
        let refresh = refresh.filter(|seconds| REFRESH.contains(seconds));
        let now = self.clock.now();
        let mut frame = Frame::new(now, refresh);
        frame.orders = admitted.right;
        frame.grafana.clone_from(&self.grafana);
        let Some(target) = Target::of(path, &parameters) else {
            return answer_error(&frame, is_json, NoPage::Unknown("page"));
        };
        // An app out of scope answers like one that does not exist.
        if target.app().is_some_and(|app| !scope.has(app)) {
            return answer_error(&frame, is_json, NoPage::Unknown("app"));
        }
        frame.nav = Some(target.nav());
        if let Target::Incident { id } = &target
            && let Some(at) = sent_as_test(id)
        {
            return answer_error(&frame, is_json, NoPage::Test(at));
        }
        let path = if path == "/" { "/fleet" } else { path };
        let query = uri
            .query()
            .map_or_else(String::new, |query| format!("?{query}"));
        frame.json = Some(format!("{path}.json{query}"));
        // An automatic refresh would clear the form for orders while a person fills it in.
        let has_form = matches!(target, Target::Incident { .. })
            && matches!(frame.orders, OrderRight::May { .. });
        match has_form {
            true => frame.refresh = None,
            false => {
                let other = frame.refresh.map_or(Some(OFFERED_REFRESH), |_| None);
                let query = Parameters::with_refresh(uri, other);
                frame.refresh_link = Some(format!("{path}?{query}"));
            }
        }
        let address = format!("{scope:?} {target:?}");
        let read = match self.progress().await {
            Ok(progress) => {
                frame.progress = Some(progress);
                let read = async {
                    let read = self.read(&target, progress, scope);
                    let read = timeout(PAGE_TIMEOUT * self.timeout_factor, read).await;
                    read.unwrap_or(Err(Missing::Store(ReadError::Slow)))
                };
                self.cache.page(&address, progress, read).await
            }
            Err(error) => Err((Missing::Store(error), self.cache.last(&address).await)),
        };
        let mut answer = match read {
            Ok(cached) => self.shown(&frame, &cached, form, headers),
            Err((Missing::Unknown, _)) => {
                let what = match target {
                    Target::Cohort(_) => "cohort",
                    Target::Rollout(_) => "version",
                    Target::Incident { .. } => "incident",
                    _ => "page",
                };
                answer_error(&frame, is_json, NoPage::Unknown(what))
            }
            // Old verdicts are better than none, as long as the page says that they are old.
            Err((Missing::Store(error), Some(cached))) if !is_json => {
                frame.progress = Some(cached.progress);
                frame.stale = Some(html::Stale {
                    read_at: cached.read_at,
                    said: error.to_string(),
                });
                self.shown(&frame, &cached, form, headers)
            }
            Err((Missing::Store(error), _)) => {
                let since = *self.answered.lock();
                answer_error(&frame, is_json, NoPage::Store { error, since })
            }
        };
        if let Some(seconds) = frame.refresh {
            let value = HeaderValue::from(seconds);
            answer
                .headers_mut()
                .insert(header::HeaderName::from_static("refresh"), value);
        }
        answer
    }

    /// Returns the store's reader, which an order uses as well.
    pub(crate) fn store(&self) -> &StoreReader {
        &self.store
    }

    /// Makes the next request read the store's progress again, so that an order's author sees it.
    pub(crate) async fn forget_progress(&self) {
        *self.progress.lock().await = None;
    }

    /// Returns the store's progress, read at most once a second.
    pub(crate) async fn progress(&self) -> Result<Progress, ReadError> {
        let mut held = self.progress.lock().await;
        if let Some((_, progress)) = held.as_ref().filter(|(at, _)| at.elapsed() < PROGRESS_AGE) {
            return progress.clone();
        }
        let progress = Progress::read(&self.store).await;
        if progress.is_ok() {
            *self.answered.lock() = Some(self.clock.now());
        }
        *held = Some((Instant::now(), progress.clone()));
        progress
    }

    pub(crate) async fn read(
        &self,
        target: &Target,
        progress: Progress,
        scope: &AppScope,
    ) -> Result<CachedPage<Read>, Missing> {
        let (store, progress) = (&self.store, &progress);
        let page = match target.clone() {
            Target::Fleet(query) => {
                let page = fleet::read(store, progress, query, scope, (self.facts)());
                Page::Fleet(Box::new(page.await?))
            }
            Target::Cohort(query) => {
                let page = cohort::read(store, progress, query).await?;
                Page::Cohort(Box::new(page.ok_or(Missing::Unknown)?))
            }
            Target::Incidents { app } => {
                let page = incident_list::read(store, progress, app.as_deref(), scope);
                Page::Incidents(page.await?)
            }
            Target::Incident { id } => {
                let page = incident::read(store, progress, &id, scope).await?;
                Page::Incident(Box::new(page.ok_or(Missing::Unknown)?))
            }
            Target::Orders { app } => {
                Page::Orders(orders::read(store, app.as_deref(), scope).await?)
            }
            Target::Rollout(query) => {
                let now = self.clock.now();
                let found = rollout::read(store, query, Needed::OF_THE_DETECTOR, now).await;
                Page::Rollout(Box::new(found.map_err(|error| match error {
                    NoRollout::Read(error) => Missing::Store(error),
                    NoRollout::NothingJudged | NoRollout::Model(_) | NoRollout::Version(_) => {
                        Missing::Unknown
                    }
                })?))
            }
            Target::Ledger(query) => Page::Ledger(ledger::read(store, query, scope).await?),
            Target::Health => {
                Page::Health(health::read(store, progress, scope, (self.facts)()).await?)
            }
        };
        let read_at = self.clock.now();
        let json = document(read_at, progress, &page);
        let bytes = 3 * json.len();
        let is_whole = page.left_out().is_none_or(LeftOut::is_empty);
        Ok(CachedPage {
            page: Read { page, json },
            read_at,
            bytes,
            is_whole,
        })
    }

    fn shown(
        &self,
        frame: &Frame,
        cached: &Cached<Read>,
        form: Form<'_>,
        headers: &HeaderMap,
    ) -> Response {
        // This process's part statuses change even if the store does not, above all when the store is unreachable.
        let live = match &cached.page.page {
            Page::Health(page) => Some(Page::Health(page.with_facts((self.facts)()))),
            _ => None,
        };
        let page = live.as_ref().unwrap_or(&cached.page.page);
        match form {
            Form::Html => {}
            Form::Json => {
                let json = match &live {
                    Some(page) => document(cached.read_at, &cached.progress, page),
                    None => cached.page.json.clone(),
                };
                let answer = ([(header::CONTENT_TYPE, "application/json")], json.clone());
                return with_etag(headers, answer.into_response(), &json);
            }
            Form::Drawing(name) => {
                let drawing = page.drawing(frame, name);
                let Some(drawing) = drawing.map(|drawing| drawing.standalone()) else {
                    return answer_error(frame, false, NoPage::Unknown("chart"));
                };
                let head = [
                    (header::CONTENT_TYPE, "image/svg+xml"),
                    (header::CONTENT_SECURITY_POLICY, DRAWING_POLICY.as_str()),
                ];
                let answer = (head, drawing.clone()).into_response();
                return with_etag(headers, answer, drawing.as_bytes());
            }
        }
        let rendered = match page {
            Page::Fleet(page) if page.app.is_none() => html::empty(frame, page),
            Page::Fleet(page) => html::fleet(frame, page),
            Page::Cohort(page) => html::cohort(frame, page),
            Page::Incidents(page) => html::incidents(frame, page),
            Page::Incident(page) => html::incident(frame, page),
            Page::Orders(page) => html::orders(frame, page),
            Page::Ledger(page) => html::ledger(frame, page),
            Page::Rollout(page) => html::rollout(frame, page),
            Page::Health(page) => html::health(frame, page),
        };
        match rendered {
            Ok(text) => {
                let text = linked(&text);
                let answer = ([(header::CONTENT_TYPE, HTML)], text.clone()).into_response();
                with_etag(headers, answer, text.as_bytes())
            }
            Err(error) => {
                tracing::error!(%error, "a page cannot be rendered");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}

pub(super) const HTML: &str = "text/html; charset=utf-8";

/// Returns when a test notification was sent, from its incident's id: `test-` and milliseconds.
fn sent_as_test(id: &str) -> Option<Timestamp> {
    let millis = id.strip_prefix("test-")?.parse().ok()?;
    Timestamp::from_millisecond(millis).ok()
}

/// Adds an `ETag`, or answers that nothing changed.
fn with_etag(asked: &HeaderMap, mut answer: Response, body: &[u8]) -> Response {
    let digest = epwatch_proto::hex(&Sha256::digest(body)[..12]);
    let tag = format!("\"{digest}\"");
    let known = asked
        .get(header::IF_NONE_MATCH)
        .and_then(|tags| tags.to_str().ok());
    let is_known = known.is_some_and(|tags| {
        let mut tags = tags
            .split(',')
            .map(|tag| tag.trim().trim_start_matches("W/"));
        tags.any(|known| known == tag || known == "*")
    });
    if is_known {
        answer = StatusCode::NOT_MODIFIED.into_response();
    }
    let headers = answer.headers_mut();
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("private, no-cache"),
    );
    answer
}

/// The JSON of an answer without a page.
#[derive(Serialize)]
struct TroubleDocument {
    error: String,
}

fn answer_error(frame: &Frame, is_json: bool, why: NoPage) -> Response {
    let status = match &why {
        NoPage::Unknown(_) => StatusCode::NOT_FOUND,
        NoPage::Test(_) => StatusCode::OK,
        NoPage::Store { .. } => StatusCode::SERVICE_UNAVAILABLE,
    };
    if is_json {
        let document = TroubleDocument {
            error: why.to_string(),
        };
        let json = serde_json::to_vec(&document).unwrap_or_default();
        return (status, [(header::CONTENT_TYPE, "application/json")], json).into_response();
    }
    match html::error_page(frame, &why) {
        Ok(text) => (status, [(header::CONTENT_TYPE, HTML)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "a page cannot be rendered");
            status.into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(address: &str) -> Option<Target> {
        let uri: Uri = address.parse().unwrap();
        Target::of(uri.path(), &Parameters::of(&uri))
    }

    #[test]
    fn names_come_from_the_query_only() {
        let address = "/cohort?app=a&environment=&model=..%2F%252f&version=%22%3E%3Cscript%3E&chipset=x%5C%27";
        let Some(Target::Cohort(query)) = target(address) else {
            panic!("no cohort");
        };
        assert_eq!(query.environment, "");
        assert_eq!(query.model, "../%2f");
        assert_eq!(query.version, "\"><script>");
        assert_eq!(query.chipset, "x\\'");
        assert_eq!(target("/cohort?app=a"), None);
        assert_eq!(target("/../../etc/passwd"), None);
        assert_eq!(target("/incident"), None);
    }

    #[test]
    fn a_refresh_is_turned_on_and_off_beside_all_other_parameters() {
        let uri: Uri = "/cohort?model=%22%3E&refresh=5&app=a%26b".parse().unwrap();
        let query = |refresh| Parameters::with_refresh(&uri, refresh);
        assert_eq!(query(Some(10)), "model=%22%3E&app=a%26b&refresh=10");
        assert_eq!(query(None), "model=%22%3E&app=a%26b");
    }

    #[test]
    fn ranges_upside_down_are_brought_to_what_there_is() {
        for (days, expected) in [("0", 1), ("-4", 14), ("9999999", 14), ("x", 14), ("7", 7)] {
            let Some(Target::Ledger(query)) = target(&format!("/ledger?days={days}")) else {
                panic!("no ledger");
            };
            assert_eq!(query.days, expected, "{days}");
        }
    }
}
