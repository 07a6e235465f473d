//! What a shell asks for.

/// A page that a shell prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TerminalPage {
    /// Open incidents, and each model by chipset with its verdict.
    Fleet {
        /// The app; without it the one with an open page, or the most devices.
        app: Option<String>,
        /// The environment, chosen like the app.
        environment: Option<String>,
        /// Text in a model's or chipset's name.
        search: String,
    },
    /// The list of incidents.
    Incidents {
        /// Restricts the answer to this app.
        app: Option<String>,
    },
    /// An incident with its evidence, devices, history and orders.
    Incident {
        /// The id, whole, as lists and notifications have it.
        id: String,
        /// Address of its page, for the text.
        link: Option<String>,
        /// Whether the text is for a ticket: nothing in it ages.
        is_ticket: bool,
    },
    /// Reports by what became of them.
    Ledger {
        /// Restricts the answer to this app.
        app: Option<String>,
        /// Restricts the answer to this environment.
        environment: Option<String>,
        /// Days, today included; 14 at most.
        days: u32,
    },
    /// Whether data arrives and is judged.
    Health,
    /// Orders of people to incidents, the newest first.
    Orders {
        /// Restricts the answer to this app.
        app: Option<String>,
    },
    /// One model's version on one chipset.
    Cohort {
        /// Id of the app whose key signed the reports.
        app: String,
        /// For example `production`.
        environment: String,
        /// The model's name in the app.
        model: String,
        /// As the app named it.
        version: String,
        /// Normalised, for example `SM8635`.
        chipset: String,
    },
}
