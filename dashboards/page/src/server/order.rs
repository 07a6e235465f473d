//! The form of orders: from a POST to an order in the store, or a page with the reason of a refusal.

use axum::body::{Body, to_bytes};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use clickhouse::Client;
use epwatch_model::OrderKind;
use epwatch_server::Period;
use jiff::Timestamp;
use serde::de::value::MapDeserializer;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

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
    let read = match sent.is_some_and(|kind| kind.as_bytes().starts_with(b"application/json")) {
        true => json_fields(&body),
        false => form_fields(&body),
    };
    let fields = match read {
        Ok(fields) => fields,
        Err(problem) => return refused(StatusCode::BAD_REQUEST, "", &problem, is_json),
    };
    let incident = fields.incident.0.clone();
    if let OrderRight::May { form } = &admitted.right
        && !form.is_empty()
        && fields.form.0 != *form
    {
        let problem = "The form is of another session. Open the incident again.";
        return refused(StatusCode::FORBIDDEN, &incident, problem, is_json);
    }
    let placed = match new_order(fields) {
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

/// The fields of a form or a JSON object. An unknown field, or one that occurs twice, is refused: it may be a misspelt
/// one.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct OrderFields {
    incident: Text,
    kind: Text,
    who: Text,
    why: Text,
    /// How long a mute lasts, for example `8h`; other orders have none.
    r#for: Text,
    /// The number of the last order that the sender saw.
    #[serde(deserialize_with = "given")]
    seen: Option<Text>,
    /// The token of a session's forms.
    form: Text,
}

/// A text, or a number as its digits, as a form has it.
#[derive(Debug, Default, Deserialize)]
#[serde(try_from = "Value")]
struct Text(String);

impl TryFrom<Value> for Text {
    type Error = &'static str;

    fn try_from(value: Value) -> Result<Self, Self::Error> {
        match value {
            Value::String(text) => Ok(Self(text)),
            Value::Number(number) => Ok(Self(number.to_string())),
            _ => Err("each field must be text or a number"),
        }
    }
}

/// Reads a field that was sent. The texts of a form cannot be read as an `Option`.
fn given<'de, D: Deserializer<'de>>(field: D) -> Result<Option<Text>, D::Error> {
    Text::deserialize(field).map(Some)
}

fn form_fields(body: &[u8]) -> Result<OrderFields, String> {
    if body.trim_ascii_start().starts_with(b"{") {
        return Err("expected a form; for JSON send `Content-Type: application/json`".to_owned());
    }
    let fields = url::form_urlencoded::parse(body)
        .map(|(name, value)| (name.into_owned(), value.into_owned()));
    OrderFields::deserialize(MapDeserializer::new(fields))
        .map_err(|error: serde::de::value::Error| error.to_string())
}

fn json_fields(body: &[u8]) -> Result<OrderFields, String> {
    let expected = "expected an object like {\"incident\": \"...\", \"kind\": \"ack\", \"who\": \"...\", \"why\": \"...\"}";
    let value = body.trim_ascii_start();
    match value.starts_with(b"{") {
        true => serde_json::from_slice(body).map_err(|error| format!("{error}; {expected}")),
        false => Err(expected.to_owned()),
    }
}

fn new_order(fields: OrderFields) -> Result<NewOrder, BadField> {
    let bad = |field, problem| BadField { field, problem };
    let kind = OrderKind::parse(&fields.kind.0).ok_or_else(|| {
        let names: Vec<&str> = OrderKind::ALL.iter().map(|kind| kind.as_str()).collect();
        bad("kind", format!("must be one of {}", names.join(", ")))
    })?;
    // The form sends the length of a mute with every button, so other kinds ignore it.
    let mute_for = match kind {
        OrderKind::Mute if !fields.r#for.0.is_empty() => {
            let length = fields.r#for.0.parse::<Period>();
            Some(length.map_err(|error| bad("for", error.to_string()))?.0)
        }
        _ => None,
    };
    let seen = match fields.seen {
        None => None,
        Some(Text(seen)) => Some(
            seen.parse()
                .map_err(|_| bad("seen", "must be the number of an order".to_owned()))?,
        ),
    };
    Ok(NewOrder {
        incident: fields.incident.0,
        kind,
        who: fields.who.0,
        why: fields.why.0,
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
