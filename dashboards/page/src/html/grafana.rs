//! Links to Grafana's dashboard of a model, which shows the same cohorts as a page. Its tables link back.

use jiff::Timestamp;

use crate::text::name::Link;

const MODEL_ON_CHIPSET: &str = "/d/epwatch-model-per-chipset";

const HOUR_MS: i64 = 3_600_000;

/// The subject of the dashboard: a version of a model on some chipsets.
#[derive(Debug)]
pub(super) struct Shown<'a> {
    pub(super) app: &'a str,
    pub(super) environment: &'a str,
    pub(super) model: &'a str,
    pub(super) version: &'a str,
    pub(super) chipsets: &'a [String],
}

/// Returns the dashboard's address with its variables set.
pub(super) fn dashboard(address: &str, shown: &Shown<'_>) -> Link {
    let link = Link::below(address, MODEL_ON_CHIPSET)
        .with_variable("var-app", shown.app)
        .with_variable("var-environment", shown.environment)
        .with_variable("var-model", shown.model)
        .with_variable("var-version", shown.version);
    let chipsets = shown.chipsets.iter();
    chipsets.fold(link, |link, chipset| {
        link.with_variable("var-chipset", chipset)
    })
}

/// Sets the time range around an incident: from the day before its start to an hour after its end, or to now.
pub(super) fn around(link: Link, started: Timestamp, ended: Option<Timestamp>) -> Link {
    let from = started.as_millisecond() - 24 * HOUR_MS;
    let to = ended.map_or_else(
        || "now".to_owned(),
        |end| (end.as_millisecond() + HOUR_MS).to_string(),
    );
    link.with("from", &from.to_string()).with("to", &to)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A variable holds a percent-encoded name, and the address has it encoded once more.
    #[test]
    fn names_are_encoded_twice() {
        let chipsets = ["SM8635".to_owned(), "a b".to_owned()];
        let shown = Shown {
            app: "a'b",
            environment: "production",
            model: "m",
            version: "2",
            chipsets: &chipsets,
        };
        let at = |second| Timestamp::from_second(second).unwrap();
        let link = dashboard("https://grafana.example/", &shown);
        let link = around(link, at(100_000), Some(at(110_000))).to_string();
        let expected = "https://grafana.example/d/epwatch-model-per-chipset?var-app=a%2527b\
            &amp;var-environment=production&amp;var-model=m&amp;var-version=2&amp;var-chipset=SM8635\
            &amp;var-chipset=a%2520b&amp;from=13600000&amp;to=113600000";
        assert_eq!(link, expected);
    }
}
