//! The built-in page: what the store shows of a fleet, in a browser with nothing installed.
//!
//! Its input are the store's versioned views, its output is HTML and JSON over HTTP, both of one struct for each page.
//! `serve`, `demo` and `epwatch page` run it. Of the store it only writes people's orders to incidents, and their
//! marks. A server runs at most two queries at once, and less than one for ever; a command runs at most nine. It loads
//! nothing from elsewhere, and needs no script. Names of devices' own making reach HTML, links and SQL only by
//! `text::name` and bound parameters.

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
