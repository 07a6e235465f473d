//! What earlier windows told, held while evaluations ask for the same of them: those of neighbouring
//! windows mostly do ([`PastSpan`]), and nobody judges the windows of days before anew.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clickhouse::Client;
use tokio::sync::OnceCell;

use crate::cohort::ModelKey;
use crate::hash::{HashMap, HashSet};

use super::queries::HISTORY;
use super::usual;
use crate::read::VersionHistory;
use crate::read::error::{SourceError, failed};
use crate::read::rows::HistoryRow;
use crate::read::span::PastSpan;
use crate::read::usual::Usual;

/// An app in an environment.
pub(super) type App = (String, String);

/// Apps whose histories are asked for at once, where nobody waits for them.
const APPS_AHEAD: usize = 16;

/// What was asked for last.
#[derive(Debug, Default)]
pub(super) struct HeldPast(Mutex<Option<Arc<Told>>>);

/// What some earlier windows told, as far as it was asked for.
#[derive(Debug)]
pub(super) struct Told {
    past: PastSpan,
    usual: OnceCell<Arc<Usual>>,
    histories: Mutex<Histories>,
}

#[derive(Debug, Default)]
struct Histories {
    /// Apps that were asked for, whether they had any or not.
    apps: HashSet<App>,
    by_model: HashMap<ModelKey, Arc<[VersionHistory]>>,
}

impl HeldPast {
    /// Returns what is held of these windows; what was held of others goes.
    pub(super) fn of(&self, past: PastSpan) -> Arc<Told> {
        let mut held = self.held();
        match &*held {
            Some(told) if told.past == past => told.clone(),
            _ => held.insert(Arc::new(Told::of(past))).clone(),
        }
    }

    fn held(&self) -> MutexGuard<'_, Option<Arc<Told>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks of these windows what was asked of others.
    pub(super) async fn look_ahead(
        &self,
        client: &Client,
        past: PastSpan,
    ) -> Result<(), SourceError> {
        let Some(known) = self.held().clone().filter(|told| told.past != past) else {
            return Ok(());
        };
        let told = self.of(past);
        told.usual(client).await?;
        let apps: Vec<App> = known.histories().apps.iter().cloned().collect();
        for some in apps.chunks(APPS_AHEAD) {
            told.ask_histories(client, some.to_vec()).await?;
        }
        Ok(())
    }
}

impl Told {
    fn of(past: PastSpan) -> Self {
        Self {
            past,
            usual: OnceCell::new(),
            histories: Mutex::default(),
        }
    }

    /// Returns what all models usually had.
    pub(super) async fn usual(&self, client: &Client) -> Result<Arc<Usual>, SourceError> {
        let read = || async { usual::read(client, &self.past).await.map(Arc::new) };
        self.usual.get_or_try_init(read).await.cloned()
    }

    /// Asks for the histories of apps, those that were not asked for before.
    pub(super) async fn ask_histories(
        &self,
        client: &Client,
        mut apps: Vec<App>,
    ) -> Result<(), SourceError> {
        apps.retain(|app| !self.histories().apps.contains(app));
        if apps.is_empty() {
            return Ok(());
        }
        let past = &self.past;
        let query = client.query(HISTORY).bind(&apps);
        let query = query.bind(past.from_s).bind(past.settled_until_s);
        let rows = past.bind(query).fetch_all::<HistoryRow>().await;
        let mut read: HashMap<ModelKey, Vec<VersionHistory>> = HashMap::default();
        for row in rows.map_err(failed("earlier verdicts"))? {
            let of_model = read.entry(row.model_key()).or_default();
            of_model.extend(VersionHistory::from_row(row));
        }
        let mut held = self.histories();
        held.apps.extend(apps);
        let read = read.into_iter();
        held.by_model
            .extend(read.map(|(model, histories)| (model, histories.into())));
        Ok(())
    }

    /// Returns a model's histories.
    pub(super) fn of_model(&self, model: &ModelKey) -> Arc<[VersionHistory]> {
        let held = self.histories();
        held.by_model.get(model).cloned().unwrap_or_default()
    }

    fn histories(&self) -> MutexGuard<'_, Histories> {
        self.histories
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
