//! Asks who is new in a window: of what is held, of the store or of what was recorded.

use crate::window::Installation;

use super::arrivals::{Arrivals, Flood};
use super::queries::{ARRIVALS, FLOODED};
use super::rows::ArrivalRow;
use super::{Reads, Source, SourceError, Span, failed};

impl Source {
    /// Returns who is new in the window, and who of them is beyond what is usual.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn arrivals(&self, span: &Span) -> Result<Arrivals, SourceError> {
        let mut arrivals = match self.held_arrivals(span) {
            Some(held) => held,
            None => Arrivals::from_rows(self.arrival_rows(span).await?, span),
        };
        for (app, flood) in arrivals.floods() {
            let new = self.new_in(&app, &flood, span).await?;
            arrivals.name_flooded(&app, &flood, new);
        }
        Ok(arrivals)
    }

    /// From the look-back that is held; `None` where times within a bucket decide, which it does not
    /// have.
    fn held_arrivals(&self, span: &Span) -> Option<Arrivals> {
        let Reads::Store(store) = &self.reads else {
            return None;
        };
        let rows = store.counted.presence.as_ref()?.arrivals(span)?;
        let arrivals = Arrivals::from_rows(rows, span);
        (!arrivals.has_unproven()).then_some(arrivals)
    }

    async fn arrival_rows(&self, span: &Span) -> Result<Vec<ArrivalRow>, SourceError> {
        Ok(match &self.reads {
            Reads::Store(store) => {
                let length_ms = span.window.as_millis().max(1);
                let length_ms = i64::try_from(length_ms).unwrap_or(i64::MAX);
                let query = store.counted.query(ARRIVALS).bind(span.start_s() * 1_000);
                let query = query.bind(length_ms).bind(length_ms);
                let query = query.bind(span.earliest_s()).bind(span.end_s());
                let rows = query.bind(span.earliest_s());
                let rows = rows.fetch_all::<ArrivalRow>().await;
                rows.map_err(failed("new installations"))?
            }
            Reads::Recorded(recording) => recording.arrivals(span),
        })
    }

    /// Returns who of an app was new in an earlier window, and when.
    async fn new_in(
        &self,
        (app_id, environment): &(String, String),
        flood: &Flood,
        span: &Span,
    ) -> Result<Vec<(i64, Installation)>, SourceError> {
        let rows = match &self.reads {
            Reads::Store(store) => {
                let query = store.counted.query(FLOODED).bind(app_id).bind(environment);
                let query = query.bind(span.earliest_s()).bind(span.end_s());
                let query = query.bind(span.earliest_s());
                let query = query.bind(flood.from_ms).bind(flood.to_ms);
                let rows = query.fetch_all::<ArrivalRow>().await;
                rows.map_err(failed("installations of a flood"))?
            }
            Reads::Recorded(recording) => {
                let mut rows = recording.arrivals(span);
                rows.retain(|row| {
                    let is_app = (&row.app_id, &row.environment) == (app_id, environment);
                    is_app && (flood.from_ms..flood.to_ms).contains(&row.at_ms)
                });
                rows
            }
        };
        let named = rows.into_iter();
        Ok(named.map(|row| (row.at_ms, row.installation)).collect())
    }
}
