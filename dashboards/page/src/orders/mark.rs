//! Marks: a person's note that something changed, on the time axis of pages.

use clickhouse::{Client, Row};
use epwatch_proto::visible;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::new_order::{BadField, MAX_WHO, text};
use super::submit::{OrderError, random_id};
use crate::read::progress::time;
use crate::read::store::{ReadError, StoreReader, filtered};

/// Longest text, in characters.
const MAX_TEXT: usize = 200;

/// Longest name of an app, environment, model or chipset, in bytes as on the wire.
const MAX_NAME: usize = 256;

/// A mark may announce a deploy, so it may lie in the future. A mark further ahead is a typing error.
const MAX_AHEAD: SignedDuration = SignedDuration::from_hours(24);

/// A mark as a person gives it, unchecked. A missing name stands for all names.
#[derive(Debug, Clone)]
pub struct NewMark {
    /// The change, in one line.
    pub text: String,
    /// Name of the person who places the mark.
    pub who: String,
    /// App, and with it its environment.
    pub app: Option<(String, String)>,
    /// Model of the app.
    pub model: Option<String>,
    /// Chipset.
    pub chipset: Option<String>,
    /// Time of the change; `None` stands for now.
    pub at: Option<Timestamp>,
}

/// A mark that is stored.
#[derive(Debug, Serialize)]
pub struct SubmittedMark {
    mark: String,
    text: String,
    who: String,
    app: Option<String>,
    environment: Option<String>,
    model: Option<String>,
    chipset: Option<String>,
    effective_at: Timestamp,
    /// Whether something with these names was judged in the last 30 days. Otherwise no page shows the mark.
    is_known: bool,
}

#[derive(Debug, Row, Serialize)]
struct MarkInsert<'a> {
    mark_id: &'a str,
    app_id: &'a str,
    environment: &'a str,
    model_id: &'a str,
    chipset: &'a str,
    text: &'a str,
    who: &'a str,
    undoes: &'a str,
    effective_at: i64,
}

/// A mark that was taken back.
#[derive(Debug, Serialize)]
pub struct UndoneMark {
    mark: String,
    text: String,
    undone_by: String,
}

#[derive(Debug, Row, Deserialize)]
struct MarkRow {
    mark: String,
    app: String,
    environment: String,
    model: String,
    chipset: String,
    text: String,
    effective_at: i64,
}

/// Reads the latest marks, which are listed when an id is unknown.
const LATEST: &str = "
SELECT m.mark_id AS mark, toString(m.app_id) AS app, toString(m.environment) AS environment, toString(m.model_id) AS model,
    toString(m.chipset) AS chipset, m.text AS text, toInt64(toUnixTimestamp64Milli(m.effective_at)) AS effective_at
FROM marks_v1 AS m
ORDER BY m.mark_id = ? DESC, m.marked_at DESC, mark
LIMIT 5";

const KNOWN: &str = "
SELECT toUInt64(count()) FROM (
    SELECT 1 FROM cohort_windows_v1 AS w
    WHERE (? = 0 OR w.app_id = ?) AND (? = 0 OR w.environment = ?) AND (? = 0 OR w.model_id = ?) AND (? = 0 OR w.chipset = ?)
      AND w.window_end > now() - INTERVAL 30 DAY
    LIMIT 1)";

/// Checks a mark and stores it.
///
/// # Errors
/// A field cannot be used, or the store does not take it.
pub async fn mark(client: Client, new: NewMark) -> Result<SubmittedMark, OrderError> {
    let now = Timestamp::now();
    let new = new.checked(now)?;
    let id = random_id().ok_or_else(|| OrderError::Store("no random bytes".to_owned()))?;
    let (app, environment) = new.app.clone().unzip();
    let effective_at = new.at.unwrap_or(now);
    let or_all = |name: &Option<String>| name.clone().unwrap_or_default();
    let row = MarkInsert {
        mark_id: &id,
        app_id: &or_all(&app),
        environment: &or_all(&environment),
        model_id: &or_all(&new.model),
        chipset: &or_all(&new.chipset),
        text: &new.text,
        who: &new.who,
        undoes: "",
        effective_at: effective_at.as_millisecond(),
    };
    insert(&client, &row).await?;
    let store = StoreReader::for_command(client);
    let known = store.rows::<u64>(KNOWN, |query| {
        let query = filtered(query, app.as_deref());
        let query = filtered(query, environment.as_deref());
        filtered(
            filtered(query, new.model.as_deref()),
            new.chipset.as_deref(),
        )
    });
    // The mark is already stored, so a failed read must not look like a failed write.
    let is_known = known.await.is_ok_and(|rows| rows.iter().any(|n| *n > 0));
    Ok(SubmittedMark {
        mark: id,
        text: new.text,
        who: new.who,
        app,
        environment,
        model: new.model,
        chipset: new.chipset,
        effective_at,
        is_known,
    })
}

async fn insert(client: &Client, row: &MarkInsert<'_>) -> Result<(), OrderError> {
    let refused = |error| OrderError::from(ReadError::from(error));
    let insert = client.insert::<MarkInsert<'_>>("marks").await;
    let mut insert = insert.map_err(refused)?;
    insert.write(row).await.map_err(refused)?;
    insert.end().await.map_err(refused)
}

/// Takes a mark back: no page shows it any more. Its rows stay in the store.
///
/// # Errors
/// No mark has the id, the name cannot be used, or the store does not take it.
pub async fn unmark(client: Client, mark: &str, who: &str) -> Result<UndoneMark, OrderError> {
    let who = text("who", who, MAX_WHO)?;
    let store = StoreReader::for_command(client.clone());
    let rows: Vec<MarkRow> = store.rows(LATEST, |query| query.bind(mark)).await?;
    let Some(found) = rows.iter().find(|row| row.mark == mark) else {
        return Err(OrderError::State(no_such_mark(mark, &rows)));
    };
    let id = random_id().ok_or_else(|| OrderError::Store("no random bytes".to_owned()))?;
    let row = MarkInsert {
        mark_id: &id,
        app_id: &found.app,
        environment: &found.environment,
        model_id: &found.model,
        chipset: &found.chipset,
        text: &found.text,
        who: &who,
        undoes: mark,
        effective_at: found.effective_at,
    };
    insert(&client, &row).await?;
    Ok(UndoneMark {
        mark: mark.to_owned(),
        text: found.text.clone(),
        undone_by: who,
    })
}

fn no_such_mark(mark: &str, latest: &[MarkRow]) -> String {
    let mut problem = format!("no mark has the id {}", visible(mark));
    match latest.is_empty() {
        true => problem += ", and there is no mark",
        false => problem += "; the latest marks:",
    }
    for row in latest {
        let at = time(row.effective_at).map_or_else(String::new, |at| format!("{at:.0}"));
        problem += &format!("\n  {}  {at}  {}", row.mark, visible(&row.text));
    }
    problem
}

impl UndoneMark {
    /// Returns a line for a person.
    #[must_use]
    pub fn text(&self) -> String {
        format!("taken back: {}", visible(&self.text))
    }
}

impl NewMark {
    fn checked(self, now: Timestamp) -> Result<Self, BadField> {
        let bad = |field, problem: String| BadField { field, problem };
        let name = |field, name: &Option<String>| match name {
            Some(name) if name.is_empty() || name.len() > MAX_NAME => Err(bad(
                field,
                format!("must have 1 to {MAX_NAME} bytes, got {}", name.len()),
            )),
            _ => Ok(()),
        };
        name("app", &self.app.as_ref().map(|(app, _)| app.clone()))?;
        name("model", &self.model)?;
        name("chipset", &self.chipset)?;
        if self.model.is_some() && self.app.is_none() {
            return Err(bad("model", "needs the app: add --app".to_owned()));
        }
        if let Some(at) = self.at
            && at.duration_since(now) > MAX_AHEAD
        {
            return Err(bad(
                "at",
                format!("must be at most a day ahead, got {at:.0}"),
            ));
        }
        Ok(Self {
            text: text("text", &self.text, MAX_TEXT)?,
            who: text("who", &self.who, MAX_WHO)?,
            ..self
        })
    }
}

impl SubmittedMark {
    /// Returns a line for a person: where and when pages show the mark.
    #[must_use]
    pub fn text(&self) -> String {
        let names = [
            self.app.as_deref().unwrap_or("all apps"),
            self.model.as_deref().unwrap_or("all models"),
            self.chipset.as_deref().unwrap_or("all chipsets"),
        ];
        let names = names.map(visible).join(", ");
        let mut text = format!(
            "marked {:.0} for {names}: {}",
            self.effective_at,
            visible(&self.text)
        );
        text += &format!("\nto take it back: epwatch mark --undo {}", self.mark);
        if !self.is_known {
            text += "\nnothing with these names was judged in the last 30 days, so no page shows it yet: `epwatch status` lists names";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new() -> NewMark {
        NewMark {
            text: " server 7 deployed ".to_owned(),
            who: "Ada".to_owned(),
            app: None,
            model: None,
            chipset: None,
            at: None,
        }
    }

    #[track_caller]
    fn refused(new: NewMark, expected: &str) {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let error = new.checked(now).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn a_mark_is_one_line_of_a_known_time() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        assert_eq!(new().checked(now).unwrap().text, "server 7 deployed");
        let text = |text: &str| NewMark {
            text: text.to_owned(),
            ..new()
        };
        refused(text(" "), "text must not be empty");
        refused(text("a\nb"), "one line");
        refused(text(&"x".repeat(201)), "at most 200 characters, got 201");
        let model = Some("m".to_owned());
        refused(NewMark { model, ..new() }, "model needs the app");
        let app = Some((String::new(), "production".to_owned()));
        refused(
            NewMark { app, ..new() },
            "app must have 1 to 256 bytes, got 0",
        );
        let at = Timestamp::from_second(1_800_000_000 + 2 * 86_400).ok();
        refused(NewMark { at, ..new() }, "at most a day ahead");
    }
}
