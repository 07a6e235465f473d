//! Pages for a terminal: the structs of the read model as JSON, and as text.

mod cohort;
mod error;
mod fleet;
mod incident;
mod names;
mod operator;
mod question;
mod rollout;
#[cfg(test)]
mod steps;
mod sums;
mod table;

use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use clickhouse::Client;
use epwatch_server::Clock;
use jiff::Timestamp;

use crate::read::cohort::CohortQuery;
use crate::read::fleet::FleetQuery;
use crate::read::health::{self, PartStatus};
use crate::read::ledger::{LedgerQuery, MAX_DAYS};
use crate::read::progress::Progress;
use crate::read::scope::AppScope;
use crate::read::store::{LeftOut, StoreReader};
use crate::server::answer::{Missing, Page, Pages, Target};
use crate::text::time::ago;

pub use error::TerminalError;
pub(crate) use names::no_such;
pub use question::TerminalPage;
pub(crate) use rollout::rollout_text;
pub(crate) use table::{head, table};

/// A page in the forms that a command prints.
#[derive(Debug)]
pub struct TerminalAnswer {
    /// The JSON that the page also returns at its address with `.json`.
    pub json: Bytes,
    /// Lines for people; an incident's text is also valid Markdown.
    pub text: String,
    /// Equal for two answers that differ only in values that age: the time of the read, and running times.
    pub state: Bytes,
}

impl Page {
    /// Returns the answer with the `state` of its JSON, without the values that age.
    fn state(mut self) -> Bytes {
        let facts = match &mut self {
            Self::Fleet(page) => Some(&mut page.facts),
            Self::Health(page) => Some(&mut page.facts),
            _ => None,
        };
        for fact in facts.into_iter().flatten() {
            fact.running.clear();
        }
        serde_json::to_vec(&self).unwrap_or_default().into()
    }
}

/// Statuses of servers that the caller reads while the store answers.
pub type FactsRead<'a> = Pin<Box<dyn Future<Output = Vec<PartStatus>> + 'a>>;

/// Reads a page and returns its forms. Ages in them are relative to the clock's current time.
///
/// # Errors
/// The name is unknown, or the store does not answer.
pub async fn ask(
    store: Client,
    question: TerminalPage,
    facts: FactsRead<'_>,
    clock: Arc<dyn Clock>,
) -> Result<TerminalAnswer, TerminalError> {
    answer(StoreReader::for_command(store), question, facts, clock).await
}

/// On a busy machine a command mostly waits for the store. So queries that do not need each other's rows run at the
/// same time.
async fn answer(
    store: StoreReader,
    question: TerminalPage,
    facts: FactsRead<'_>,
    clock: Arc<dyn Clock>,
) -> Result<TerminalAnswer, TerminalError> {
    let (progress, facts) = tokio::join!(Progress::read(&store), facts);
    let progress = progress?;
    let pages = Pages::over(store, Box::new(move || facts.clone()), clock.clone());
    let (target, scope) = (target(&question), AppScope::all());
    let arrivals = async {
        match &question {
            TerminalPage::Fleet { .. } => health::arrivals(pages.store(), &scope).await.ok(),
            _ => None,
        }
    };
    let (read, arrivals) = tokio::join!(pages.read(&target, progress, &scope), arrivals);
    let read = match read {
        Ok(reading) => reading.page,
        Err(Missing::Unknown) => {
            let unknown = names::unknown(&pages, progress, &question, None).await?;
            return Err(unknown.unwrap_or(TerminalError::Unknown));
        }
        Err(error) => return Err(error.into()),
    };
    if let Page::Fleet(page) = &read.page
        && let Some(unknown) = names::unknown(&pages, progress, &question, Some(page)).await?
    {
        return Err(unknown);
    }
    let now = clock.now();
    // Parts of the last line.
    let mut last = Vec::new();
    let mut text = match &read.page {
        Page::Fleet(page) => fleet::fleet(page),
        Page::Cohort(page) => cohort::cohort(page),
        Page::Incidents(page) => incident::incidents(page, now),
        Page::Incident(page) => {
            let (link, is_ticket) = match &question {
                TerminalPage::Incident {
                    link, is_ticket, ..
                } => (link.as_deref(), *is_ticket),
                _ => (None, false),
            };
            incident::incident(page, link, is_ticket, now)
        }
        Page::Orders(page) => operator::orders(page, now),
        Page::Ledger(page) => operator::ledger(page),
        Page::Rollout(page) => rollout_text(page),
        Page::Health(page) => operator::health(page, progress, now),
    };
    if !matches!(
        question,
        TerminalPage::Incident {
            is_ticket: true,
            ..
        }
    ) {
        if let Some(unweighed) = arrivals.and_then(|of| of.unweighed()) {
            _ = writeln!(text, "\n{unweighed}");
        }
        last.extend(judged(&read.page, progress, now));
    }
    last.extend(read.page.left_out().into_iter().flat_map(LeftOut::lines));
    // The command prints the final line break itself.
    text.truncate(text.trim_end().len());
    if !last.is_empty() {
        _ = write!(text, "\n\n{}", last.join("; "));
    }
    Ok(TerminalAnswer {
        json: read.json,
        text,
        state: read.page.state(),
    })
}

/// Returns a sentence about the last judgement. `None` if the page's text already says that nothing was judged.
fn judged(page: &Page, progress: Progress, now: Timestamp) -> Option<String> {
    match (progress.judged_at, page) {
        (Some(at), _) => Some(format!("judged {}", ago(at, now))),
        (None, Page::Fleet(_) | Page::Health(_)) => None,
        (None, _) => Some("nothing is judged yet".to_owned()),
    }
}

fn target(question: &TerminalPage) -> Target {
    match question.clone() {
        TerminalPage::Fleet {
            app,
            environment,
            search,
        } => Target::Fleet(FleetQuery {
            app,
            environment,
            only_open: false,
            search,
        }),
        TerminalPage::Incidents { app } => Target::Incidents { app },
        TerminalPage::Incident { id, .. } => Target::Incident { id },
        TerminalPage::Ledger {
            app,
            environment,
            days,
        } => Target::Ledger(LedgerQuery {
            app,
            environment,
            days: days.clamp(1, MAX_DAYS),
            runs: false,
            largest: true,
        }),
        TerminalPage::Health => Target::Health,
        TerminalPage::Orders { app } => Target::Orders { app },
        TerminalPage::Cohort {
            app,
            environment,
            model,
            version,
            chipset,
        } => Target::Cohort(CohortQuery {
            app,
            environment,
            model,
            version,
            chipset,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::fleet::FleetPage;
    use crate::read::incident_list::IncidentsPage;

    /// The fleet's and the health page's texts say it instead of their numbers.
    #[test]
    fn that_nothing_is_judged_is_said_once() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let count = |page: &Page, text: String| {
            let last = judged(page, Progress::default(), now);
            let whole = text + &last.unwrap_or_default();
            whole.matches("s judged yet").count()
        };
        let fleet = FleetPage::default();
        let text = fleet::fleet(&fleet);
        assert_eq!(count(&Page::Fleet(Box::new(fleet)), text), 1);
        let health = health::HealthPage {
            progress: Progress::default(),
            arrivals: None,
            outcomes: Vec::new(),
            verdicts: Vec::new(),
            last_window: None,
            facts: Vec::new(),
            left_out: Default::default(),
        };
        let text = operator::health(&health, Progress::default(), now);
        assert_eq!(count(&Page::Health(health), text), 1);
        let incidents = IncidentsPage {
            days: 30,
            ..IncidentsPage::default()
        };
        let text = incident::incidents(&incidents, now);
        assert_eq!(count(&Page::Incidents(incidents), text), 1);
        let judged_at = Progress {
            judged_at: Some(now),
            ..Progress::default()
        };
        let page = Page::Fleet(Box::default());
        assert_eq!(judged(&page, judged_at, now).unwrap(), "judged 0 s ago");
    }

    #[test]
    fn running_seconds_are_no_new_state() {
        let page = |text: &str, running: &str| {
            let fact = PartStatus {
                part: "Detector",
                text: text.to_owned(),
                running: running.to_owned(),
                is_fine: true,
            };
            Page::Fleet(Box::new(FleetPage {
                facts: vec![fact],
                ..FleetPage::default()
            }))
        };
        let state = page("Judges.", "The next one ends in 9 s.").state();
        assert_eq!(state, page("Judges.", "The next one ends in 7 s.").state());
        assert_ne!(
            state,
            page("Is stuck.", "The next one ends in 9 s.").state()
        );
    }
}
