//! New installations of a window.

use super::arrivals::Arrivals;
use super::{Source, SourceError, Span};

impl Source {
    /// Returns who is new in the window, and who of them is beyond what is usual.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn arrivals(&self, span: &Span) -> Result<Arrivals, SourceError> {
        let census = self.reader.census(span).await?;
        let mut arrivals = Arrivals::from_census(&census, span);
        for (app, flood) in arrivals.floods() {
            let new = self.reader.arrivals_in(&app, &flood, span).await?;
            arrivals.name_flooded(&app, &flood, new);
        }
        Ok(arrivals)
    }
}
