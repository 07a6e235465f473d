//! The pages that a command can print.

/// A page that a command prints, with its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TerminalPage {
    /// Open incidents, and each model by chipset with its verdict.
    Fleet {
        /// The app. The default is the app with an open page, else the one with most devices.
        app: Option<String>,
        /// The environment, chosen like the app.
        environment: Option<String>,
        /// Text to search in models' and chipsets' names.
        search: String,
    },
    /// The list of incidents.
    Incidents {
        /// Restricts the answer to this app.
        app: Option<String>,
    },
    /// An incident with its evidence, devices, history and orders.
    Incident {
        /// The full id, as in lists and notifications.
        id: String,
        /// Address of the incident's page, which the text shows.
        link: Option<String>,
        /// Whether the text is for a ticket, and so has no ages.
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
        /// The version's name in the app.
        version: String,
        /// The chipset's normalised name, for example `SM8635`.
        chipset: String,
    },
}
