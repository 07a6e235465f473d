//! New installations of a window.

use super::arrivals::Arrivals;
use super::{Source, SourceError, Span};

impl Source {
    /// Returns who is new in the window, and who of them is beyond what is usual.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn arrivals(&self, span: &Span) -> Result<Arrivals, SourceError> {
        let held = self.reader.held_arrivals(span);
        let held = held.map(|rows| Arrivals::from_rows(rows, span));
        let mut arrivals = match held {
            Some(held) if !held.has_unproven() => held,
            // Then times within a bucket decide, which are not held.
            _ => Arrivals::from_rows(self.reader.arrivals(span).await?, span),
        };
        for (app, flood) in arrivals.floods() {
            let rows = self
                .reader
                .arrivals_in(&app, &flood, span)
                .await?
                .into_iter();
            let new = rows.map(|row| (row.at_ms, row.installation)).collect();
            arrivals.name_flooded(&app, &flood, new);
        }
        Ok(arrivals)
    }
}
