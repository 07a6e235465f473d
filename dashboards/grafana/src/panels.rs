//! The language of `panels/`: a head, then blocks `panel:` and `row:`. Comments `key: value` describe a block, the lines
//! below them are its query. Placeholders in braces stand for conditions on the dashboard's variables.
//!
//! A variable holds percent-encoded names, and a query gets them percent-encoded once more. So no character of a name
//! can end the SQL literal around it, whatever Grafana or ClickHouse escape. `epwatch_name` decodes both.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use epwatch_proto::Accelerator;
use epwatch_proto::accelerator::ACCELERATORS;

use crate::fields;

/// The description of one dashboard.
#[derive(Debug)]
pub(crate) struct Dashboard {
    pub(crate) head: PanelBlock,
    pub(crate) blocks: Vec<PanelBlock>,
}

/// A panel or a row.
#[derive(Debug, Default)]
pub(crate) struct PanelBlock {
    words: BTreeMap<String, String>,
    query: String,
}

impl Dashboard {
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let mut blocks = vec![PanelBlock::default()];
        let mut last_key = String::new();
        for line in text.lines() {
            let comment = line.strip_prefix("-- ").or(line.strip_prefix("# "));
            if comment.is_some_and(|c| c.starts_with("panel: ") || c.starts_with("row: ")) {
                blocks.push(PanelBlock::default());
            }
            let block = blocks.last_mut().context("a head is always there")?;
            match comment.map(|c| (c, c.split_once(": "))) {
                Some((more, _)) if more.starts_with("    ") => {
                    let value = block.words.get_mut(&last_key);
                    let value = value.with_context(|| format!("no key before {line:?}"))?;
                    *value = format!("{value} {}", more.trim());
                }
                Some((_, Some((key, value)))) => {
                    key.clone_into(&mut last_key);
                    block.words.insert(key.to_owned(), value.to_owned());
                }
                Some(_) => bail!("neither a key nor its continuation: {line:?}"),
                None => block.query.push_str(&format!("{line}\n")),
            }
        }
        let head = blocks.remove(0);
        Ok(Self { head, blocks })
    }

    /// Returns the variables' names, and whether each may have several values.
    pub(crate) fn variables(&self) -> anyhow::Result<Vec<(&str, bool)>> {
        let names = self.head.word("variables")?.split(' ');
        Ok(names
            .map(|name| (name.trim_end_matches('*'), name.ends_with('*')))
            .collect())
    }

    /// Whether the queries are for Prometheus, and not SQL.
    pub(crate) fn is_prometheus(&self) -> bool {
        self.blocks
            .iter()
            .all(|block| !block.query.starts_with("SELECT"))
    }
}

impl PanelBlock {
    pub(crate) fn word(&self, key: &str) -> anyhow::Result<&str> {
        self.get(key)
            .with_context(|| format!("{:?} lacks {key:?}", self.words))
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.words.get(key).map(String::as_str)
    }

    /// Returns the lines of the query, each with its trailing comment.
    pub(crate) fn expressions(&self) -> Vec<(&str, &str)> {
        let lines = self.query.trim().lines();
        lines
            .map(|line| line.split_once(" # ").unwrap_or((line, "")))
            .collect()
    }

    pub(crate) fn sql(&self) -> anyhow::Result<String> {
        expand(self.query.trim())
    }
}

/// Returns the query that lists a variable's values.
pub(crate) fn variable_sql(name: &str) -> anyhow::Result<String> {
    let of_model = "WHERE {scope} AND {model} AND firmware = '' AND $__timeFilter(window_end)";
    let values = match name {
        "app" => "app_id FROM cohort_windows_v1 WHERE window_end > now() - INTERVAL 30 DAY \
                  GROUP BY app_id ORDER BY max(window_end) DESC, app_id"
            .to_owned(),
        "environment" => {
            "environment FROM cohort_windows_v1 WHERE app_id = {name app} AND firmware = '' \
             AND window_end > now() - INTERVAL 30 DAY GROUP BY environment ORDER BY sum(devices) DESC"
                .to_owned()
        }
        "model" => "model_id FROM cohort_windows_v1 WHERE {scope} AND firmware = '' \
                    AND $__timeFilter(window_end) GROUP BY model_id ORDER BY sum(devices) DESC"
            .to_owned(),
        "version" => format!(
            "model_version FROM cohort_windows_v1 {of_model} GROUP BY model_version ORDER BY min(window_end) DESC"
        ),
        "baseline" => format!(
            "model_version FROM cohort_windows_v1 {of_model} GROUP BY model_version ORDER BY min(window_end)"
        ),
        "chipset" => format!(
            "chipset FROM cohort_windows_v1 {of_model} GROUP BY chipset ORDER BY sum(devices) DESC"
        ),
        _ => bail!("no such variable: {name}"),
    };
    let (column, rest) = values.split_once(' ').context("a column comes first")?;
    expand(&format!(
        "SELECT encodeURLComponent({column}) {rest} LIMIT 1000"
    ))
}

/// Replaces the placeholders.
pub(crate) fn expand(sql: &str) -> anyhow::Result<String> {
    let mut parts = sql.split('{');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (placeholder, rest) = part.split_once('}').context("a brace is closed")?;
        out.push_str(&expanded(placeholder)?);
        out.push_str(rest);
    }
    Ok(out)
}

/// Returns SQL for the parameters of a link, from pairs `parameter=column`.
fn parameters(pairs: &str, coded: impl Fn(&str) -> String) -> anyhow::Result<String> {
    let pairs = pairs.split(' ').map(|pair| {
        let (parameter, column) = pair.split_once('=').context("a column")?;
        Ok(format!("'&{parameter}=', {}", coded(column)))
    });
    let pairs: Vec<String> = pairs.collect::<anyhow::Result<_>>()?;
    Ok(format!("concat({})", pairs.join(", ")))
}

fn expanded(placeholder: &str) -> anyhow::Result<String> {
    let name = |variable: &str| format!("epwatch_name('${{{variable}:percentencode}}')");
    let several = |variable: &str, column: &str| {
        let names = format!("epwatch_names('${{{variable}:percentencode}}')");
        format!("$__conditionalAll(has({names}, {column}), ${variable})")
    };
    let (word, argument) = placeholder.split_once(' ').unwrap_or((placeholder, ""));
    Ok(match word {
        "name" => name(argument),
        "scope" => format!(
            "app_id = {} AND environment = {}",
            name("app"),
            name("environment")
        ),
        "model" => format!("model_id = {}", name("model")),
        "baseline" => name("baseline"),
        "version" => several("version", "model_version"),
        "chipset" => several("chipset", "chipset"),
        "last_day" => "$__timeFilter(bucket) AND bucket >= $__toTime - INTERVAL 1 DAY".to_owned(),
        "verdicts" => {
            let names = fields::VERDICTS
                .iter()
                .map(|(name, ..)| format!("'{name}'"));
            format!("[{}]", names.collect::<Vec<_>>().join(", "))
        }
        "quantile" => format!(
            "epwatch_bucket_mid_us(quantileExactWeightedArray({argument})(mapKeys(hist), mapValues(hist))) / 1000"
        ),
        // Encoded once for the variable's value, and once for the URL.
        "link:" => {
            let coded = |column: &str| format!("encodeURLComponent(encodeURLComponent({column}))");
            parameters(argument, coded)?
        }
        // Shows a code as words: `spool_full` as "spool full".
        "words" => format!("replaceAll(toString({argument}), '_', ' ')"),
        "accelerator" => accelerator_word(argument),
        // Builds the path and query of the page's URL from the names in a row.
        "incident" => "concat('/incident?id=', encodeURLComponent(incident_id))".to_owned(),
        "cohort:" => {
            let coded = |column: &str| format!("encodeURLComponent({column})");
            parameters(argument, coded)?.replacen("'&", "'/cohort?", 1)
        }
        _ => bail!("no such placeholder: {placeholder}"),
    })
}

/// Returns SQL for the word of a cohort's accelerator: NPU, or the accelerator that the brackets after the chipset
/// name.
fn accelerator_word(chipset: &str) -> String {
    let quoted = |text: &str| format!("'{text}'");
    let labels = ACCELERATORS.iter().map(|row| quoted(row.label));
    let words = ACCELERATORS.iter();
    let words = words.map(|row| quoted(&row.accelerator.in_words("NPU")));
    let (labels, words) = (
        labels.collect::<Vec<_>>().join(", "),
        words.collect::<Vec<_>>().join(", "),
    );
    let unknown = Accelerator::Unknown.in_words("NPU");
    let label = format!(r"extract(toString({chipset}), ' \\[([^\\]]*)\\]')");
    // Without the device, which QNN's own labels end with, too. The end is `\\z`, because Grafana takes a dollar sign for
    // a variable.
    let label = format!(r"replaceRegexpOne({label}, '^([^Q].*) (NPU|GPU|CPU)\\z', '\\1')");
    format!("if({label} = '', 'NPU', transform({label}, [{labels}], [{words}], '{unknown}'))")
}
