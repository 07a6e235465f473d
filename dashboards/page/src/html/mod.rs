//! Pages as HTML: a template for each, over the struct of the read model.
//!
//! Templates escape by themselves. Only `Name`, `Sentence`, `Link`, `Icon`, `Drawing` and `ChangesHtml` are inserted
//! unescaped. Each of these types escapes its own content. No template uses the filter `safe`.

mod changes;
mod choosable;
mod cohort;
mod distribution;
mod empty;
mod error_page;
mod fleet;
mod frame;
mod grafana;
mod health;
mod history;
mod incident;
mod incidents;
mod ledger;
mod orders;
mod rollout;

pub(crate) use cohort::{cohort, drawing as cohort_drawing};
pub(crate) use empty::empty;
pub(crate) use error_page::{NoPage, error_page, sign_in};
pub(crate) use fleet::{drawing as fleet_drawing, fleet, headline};
pub(crate) use frame::{Frame, Nav, OrderRight, Stale};
pub(crate) use health::{facts as health_facts, health};
pub(crate) use history::{channels, events};
pub(crate) use incident::{MOST_COHORTS, drawing as incident_drawing, incident};
pub(crate) use incidents::incidents;
pub(crate) use ledger::{drawing as ledger_drawing, ledger};
pub(crate) use orders::{orders, refused, states_of};
pub(crate) use rollout::rollout;
