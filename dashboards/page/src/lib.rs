//! The built-in page: shows a fleet in a browser, with nothing to install.
//!
//! It reads the store's versioned views and returns HTML and JSON over HTTP. Both are made from one struct for each
//! page. `serve`, `demo` and `epwatch page` run it. It writes only people's orders to incidents and their marks into
//! the store. A server runs at most two queries at once, and less than one on a long average; a command runs at most
//! nine. The page loads nothing from elsewhere and needs no script. Names that devices choose reach HTML, links and SQL
//! only through `text::name` and bound parameters.

mod certificates;
mod config;
mod devices;
mod histogram;
mod html;
mod orders;
mod plot;
mod read;
mod rollout;
mod server;
mod terminal;
mod text;

pub use certificates::certificates;
pub use config::PageConfig;
pub use devices::{DevicesQuery, devices};
pub use orders::{
    BadField, NewMark, NewOrder, OrderError, SubmittedMark, SubmittedOrder, UndoneMark, mark,
    order, unmark,
};
pub use read::health::{PartStatus, ReadPartStatus};
pub use rollout::{Needed, RolloutAnswer, RolloutQuery, rollout};
pub use server::tokens::TokenError;
pub use server::{PageError, PageServer};
pub use terminal::{FactsRead, TerminalAnswer, TerminalError, TerminalPage, ask};
