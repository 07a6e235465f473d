//! The apps that a reader may see. A query over several apps takes the scope as a condition. A page about one app
//! checks the scope first.

use std::collections::BTreeSet;

use clickhouse::query::Query;

/// All apps, or some.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AppScope(Option<BTreeSet<String>>);

impl AppScope {
    pub(crate) fn all() -> Self {
        Self::default()
    }

    pub(crate) fn of(apps: BTreeSet<String>) -> Self {
        Self(Some(apps))
    }

    pub(crate) fn has(&self, app: &str) -> bool {
        self.0.as_ref().is_none_or(|apps| apps.contains(app))
    }

    pub(crate) fn is_all(&self) -> bool {
        self.0.is_none()
    }

    /// Binds the two parameters of `(? = 1 OR has(?, app_id))`.
    pub(crate) fn bind(&self, query: Query) -> Query {
        // ClickHouse gives an empty list no usable type.
        let apps: Vec<&str> = match &self.0 {
            Some(apps) => apps.iter().map(String::as_str).collect(),
            None => vec![""],
        };
        query.bind(u8::from(self.is_all())).bind(apps)
    }
}
