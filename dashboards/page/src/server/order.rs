//! The form of orders: from a POST to an order in the store, or a page with the reason of a refusal.

use std::collections::HashMap;

use axum::body::{Body, to_bytes};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use clickhouse::Client;
use epwatch_model::OrderKind;
use epwatch_server::Period;
use jiff::Timestamp;

use super::access::{Admitted, json_refusal};
use super::answer::{HTML, Pages};
use crate::html::{self, Frame, OrderRight};
use crate::orders::{BadField, NewOrder, OrderError, submit};
use crate::text::name::Link;

/// Bound of a form's body: its texts have some 600 characters, each up to twelve bytes when percent-encoded.
const MAX_FORM_BYTES: usize = 16 << 10;

/// Answers an admitted POST: stores the order, and redirects to the incident.
pub(super) async fn answer(
    client: &Client,
    pages: &Pages,
    head: &Parts,
    body: Body,
    admitted: Admitted,
) -> Response {
    let is_json = head.uri.path().ends_with(".json");
    let Ok(body) = to_bytes(body, MAX_FORM_BYTES).await else {
        let (status, problem) = (StatusCode::PAYLOAD_TOO_LARGE, "The order is too long.");
        return refused(status, "", problem, is_json);
    };
    let sent = head.headers.get(header::CONTENT_TYPE);
    let fields = match sent.is_some_and(|kind| kind.as_bytes().starts_with(b"application/json")) {
        true => match json_fields(&body) {
            Ok(fields) => fields,
            Err(problem) => return refused(StatusCode::BAD_REQUEST, "", &problem, is_json),
        },
        false => form_fields(&body),
    };
    let field = |name: &str| fields.get(name).cloned().unwrap_or_default();
    let incident = field("incident");
    if let OrderRight::May { form } = &admitted.right
        && !form.is_empty()
        && field("form") != *form
    {
        let problem = "The form is of another session. Open the incident again.";
        return refused(StatusCode::FORBIDDEN, &incident, problem, is_json);
    }
    let placed = match new_order(&fields) {
        Ok(new) => submit(client, pages.store(), &admitted.scope, new).await,
        Err(error) => Err(error.into()),
    };
    if placed.is_ok() {
        pages.forget_progress().await;
    }
    let error = match placed {
        Ok(placed) if is_json => {
            let json = serde_json::to_vec(&placed).unwrap_or_default();
            return ([(header::CONTENT_TYPE, "application/json")], json).into_response();
        }
        Ok(_) => {
            let to = Link::to("/incident").with("id", &incident);
            let to = format!("{to}#orders");
            return (StatusCode::SEE_OTHER, [(header::LOCATION, to)]).into_response();
        }
        Err(error) => error,
    };
    let status = match &error {
        OrderError::Field(_) => StatusCode::BAD_REQUEST,
        OrderError::Unknown(_) => StatusCode::NOT_FOUND,
        OrderError::State(_) | OrderError::CameSecond { .. } => StatusCode::CONFLICT,
        OrderError::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
        OrderError::Hidden => StatusCode::GATEWAY_TIMEOUT,
    };
    refused(status, &incident, &error.to_string(), is_json)
}

/// Returns the fields of a form. If a name occurs twice, the first counts.
fn form_fields(body: &[u8]) -> HashMap<String, String> {
    let mut fields = HashMap::new();
    for (name, value) in url::form_urlencoded::parse(body) {
        fields
            .entry(name.into_owned())
            .or_insert_with(|| value.into_owned());
    }
    fields
}

/// Returns the fields of a JSON object. A number is taken as its digits, as a form has it.
fn json_fields(body: &[u8]) -> Result<HashMap<String, String>, String> {
    let expected = "expected an object like {\"incident\": \"...\", \"kind\": \"ack\", \"who\": \"...\", \"why\": \"...\"}";
    let object: HashMap<String, serde_json::Value> =
        serde_json::from_slice(body).map_err(|error| format!("{error}; {expected}"))?;
    let mut fields = HashMap::new();
    for (name, value) in object {
        let text = match value {
            serde_json::Value::String(text) => text,
            serde_json::Value::Number(number) => number.to_string(),
            _ => return Err(format!("{name}: must be text or a number; {expected}")),
        };
        fields.insert(name, text);
    }
    Ok(fields)
}

fn new_order(fields: &HashMap<String, String>) -> Result<NewOrder, BadField> {
    let field = |name: &str| fields.get(name).cloned().unwrap_or_default();
    let bad = |field, problem| BadField { field, problem };
    let kind = field("kind");
    let kind = OrderKind::parse(&kind).ok_or_else(|| {
        let names: Vec<&str> = OrderKind::ALL.iter().map(|kind| kind.as_str()).collect();
        bad("kind", format!("must be one of {}", names.join(", ")))
    })?;
    // The form sends the length of a mute with every button, so other kinds ignore it.
    let mute_for = match kind {
        OrderKind::Mute => {
            let length = field("for").parse::<Period>();
            Some(length.map_err(|error| bad("for", error.to_string()))?.0)
        }
        _ => None,
    };
    let seen = match fields.get("seen") {
        None => None,
        Some(seen) => Some(
            seen.parse()
                .map_err(|_| bad("seen", "must be the number of an order".to_owned()))?,
        ),
    };
    Ok(NewOrder {
        incident: field("incident"),
        kind,
        who: field("who"),
        why: field("why"),
        mute_for,
        seen,
        source: "page",
    })
}

fn refused(status: StatusCode, incident: &str, problem: &str, is_json: bool) -> Response {
    if is_json {
        return json_refusal(status, problem);
    }
    match html::refused(&Frame::new(Timestamp::now(), None), incident, problem) {
        Ok(text) => (status, [(header::CONTENT_TYPE, HTML)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "a page cannot be rendered");
            status.into_response()
        }
    }
}
