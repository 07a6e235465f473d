//! A dashboard as Grafana reads it.

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::fields;
use crate::panels::{self, Dashboard, PanelBlock};

/// Address of epwatch's page where it listens by default. People put theirs in its place.
const PAGE: &str = "http://127.0.0.1:4720";

/// A line is interrupted by a longer span without data: three buckets without data are an outage.
const LONGEST_SPAN_MS: u64 = 3 * 3_600_000;

/// Grafana's width, in its units.
const WIDTH: u64 = 24;

pub(crate) fn dashboard(dashboard: &Dashboard) -> anyhow::Result<Value> {
    let source = Source::of(dashboard);
    let head = &dashboard.head;
    let annotations = match source {
        Source::ClickHouse => vec![
            incidents(&source)?,
            new_firmwares(&source)?,
            missing_windows(&source),
        ],
        Source::Prometheus => Vec::new(),
    };
    let others = json!({
        "type": "dashboards", "title": "epwatch", "tags": ["epwatch"], "icon": "external link",
        "asDropdown": true, "includeVars": true, "keepTime": true, "targetBlank": false,
        "tooltip": "", "url": "",
    });
    let page = json!({
        "type": "link", "title": "epwatch's page", "tags": [], "icon": "external link",
        "asDropdown": false, "includeVars": false, "keepTime": false, "targetBlank": false,
        "tooltip": "", "url": format!("${{page:raw}}{}", head.word("page")?),
    });
    Ok(json!({
        "uid": head.word("uid")?,
        "title": head.word("title")?,
        "description": head.word("about")?,
        "tags": ["epwatch"],
        "schemaVersion": 39,
        "version": 1,
        "editable": false,
        "graphTooltip": 1,
        "refresh": "5m",
        "timezone": "browser",
        "time": {"from": head.word("range")?, "to": "now"},
        "templating": {"list": variables(dashboard, &source)?},
        "annotations": {"list": annotations},
        "links": [page, others],
        "panels": laid_out(dashboard, &source)?,
    }))
}

/// The data source that a dashboard's variable chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    ClickHouse,
    Prometheus,
}

impl Source {
    fn of(dashboard: &Dashboard) -> Self {
        if dashboard.is_prometheus() {
            Self::Prometheus
        } else {
            Self::ClickHouse
        }
    }

    fn plugin(self) -> &'static str {
        match self {
            Self::ClickHouse => "grafana-clickhouse-datasource",
            Self::Prometheus => "prometheus",
        }
    }

    /// The name of the variable. Links carry variables from one dashboard to the other, so the two differ.
    fn variable(self) -> &'static str {
        match self {
            Self::ClickHouse => "datasource",
            Self::Prometheus => "prometheus",
        }
    }

    fn reference(self) -> Value {
        json!({"type": self.plugin(), "uid": format!("${{{}}}", self.variable())})
    }

    /// A target of SQL.
    fn sql(self, sql: &str, is_series: bool) -> Value {
        json!({
            "datasource": self.reference(),
            "refId": "A",
            "editorType": "sql",
            "queryType": if is_series { "timeseries" } else { "table" },
            "format": if is_series { 0 } else { 1 },
            "rawSql": sql,
        })
    }
}

fn variables(dashboard: &Dashboard, source: &Source) -> anyhow::Result<Vec<Value>> {
    let mut list = vec![json!({
        "name": source.variable(), "label": "Data source", "type": "datasource",
        "query": source.plugin(), "refresh": 1, "regex": "", "options": [], "current": {},
        "includeAll": false, "multi": false, "hide": 0,
    })];
    for (name, is_multi) in dashboard.variables()? {
        let (query, definition) = match source {
            Source::ClickHouse => {
                let sql = panels::variable_sql(name)?;
                (json!(sql), sql)
            }
            Source::Prometheus => {
                let query = format!("label_values(up{{job=\"epwatch\"}}, {name})");
                let id = "PrometheusVariableQueryEditor-VariableQuery";
                (
                    json!({"qryType": 1, "query": query, "refId": id}),
                    query.clone(),
                )
            }
        };
        let all = json!({"text": ["All"], "value": ["$__all"]});
        let mut variable = json!({
            "name": name,
            "label": format!("{}{}", name[..1].to_uppercase(), &name[1..]),
            "type": "query",
            "datasource": source.reference(),
            "query": query,
            "definition": definition,
            // `refresh: 2` lists the values again when the time range changes. `sort: 0` keeps the query's order.
            "refresh": 2,
            "sort": 0,
            "regex": "",
            "multi": is_multi,
            "includeAll": is_multi,
            "current": if is_multi { all } else { json!({}) },
            "options": [],
            "hide": 0,
        });
        if *source == Source::Prometheus {
            variable["allValue"] = json!(".*");
        }
        list.push(variable);
    }
    // A URL cannot change a constant. If it could, a link could send people to any address.
    list.push(json!({
        "name": "page", "label": "Address of epwatch's page", "type": "constant", "query": PAGE,
        "current": {"text": PAGE, "value": PAGE}, "options": [], "hide": 2, "skipUrlSync": true,
    }));
    Ok(list)
}

/// Shows incidents as regions from their start to their end, or to now.
fn incidents(source: &Source) -> anyhow::Result<Value> {
    let sql = panels::expand(
        "SELECT started_at AS time, if(state = 'resolved', changed_at, now64(3)) AS timeEnd,\n    \
         concat(severity, ': ', summary) AS text, concat(model_id, ',', verdict) AS tags\n\
         FROM incidents_v1\n\
         WHERE {scope} AND severity IN ('page', 'ticket') AND started_at <= $__toTime\n  \
         AND (state != 'resolved' OR changed_at >= $__fromTime)\n\
         ORDER BY time\nLIMIT 200",
    )?;
    Ok(json!({
        "name": "Incidents", "enable": true, "hide": false, "iconColor": "red",
        "datasource": source.reference(), "target": source.sql(&sql, false),
    }))
}

/// Shows the first sight of the commonest new firmwares. A firmware of the first stored bucket need not be new. A firmware
/// that was not reported in the 14 days before the range is new again.
fn new_firmwares(source: &Source) -> anyhow::Result<Value> {
    let sql = panels::expand(
        "SELECT min(bucket) AS time, 'firmware' AS tags,\n    \
         concat('Firmware ', firmware, ' first seen on ', arrayStringConcat(arraySort(groupUniqArray(chipset)), ', ')) AS text\n\
         FROM cohort_sessions_closed_v1\n\
         WHERE {scope} AND firmware != '' AND bucket >= $__fromTime - INTERVAL 14 DAY AND bucket <= $__toTime\n\
         GROUP BY firmware\n\
         HAVING time >= $__fromTime AND time > (\n    \
         SELECT min(bucket) FROM cohort_sessions_closed_v1\n    \
         WHERE {scope} AND bucket >= $__fromTime - INTERVAL 14 DAY)\n\
         ORDER BY sum(cohort_sessions_closed_v1.sessions) DESC, firmware\nLIMIT 200",
    )?;
    Ok(json!({
        "name": "New firmwares", "enable": true, "hide": false, "iconColor": "blue",
        "datasource": source.reference(), "target": source.sql(&sql, false),
    }))
}

/// Shows times without judged windows as regions.
fn missing_windows(source: &Source) -> Value {
    let sql = "SELECT gap_from AS time, gap_until AS timeEnd,\n    \
               concat(toString(windows), ' missing: not judged, or not stored') AS text, 'missing windows' AS tags\n\
               FROM missing_windows_v1\n\
               WHERE gap_from <= $__toTime AND gap_until >= $__fromTime\n\
               ORDER BY time DESC\nLIMIT 200";
    json!({
        "name": "Missing windows", "enable": true, "hide": false, "iconColor": "gray",
        "datasource": source.reference(), "target": source.sql(sql, false),
    })
}

/// Places panels from left to right. Panels of a collapsed row lie in it and are read once it is opened.
fn laid_out(dashboard: &Dashboard, source: &Source) -> anyhow::Result<Vec<Value>> {
    let mut panels: Vec<Value> = Vec::new();
    let (mut x, mut y, mut height) = (0, 0, 0);
    let (mut is_collapsed, mut row_y) = (false, 0);
    for (id, block) in (1u64..).zip(&dashboard.blocks) {
        if let Some(title) = block.get("row") {
            // Panels of a collapsed row take no place until it is opened.
            row_y = if is_collapsed { row_y + 1 } else { y + height };
            (x, y, height) = (0, row_y + 1, 0);
            is_collapsed = block.get("folded") == Some("yes");
            panels.push(json!({
                "id": id, "type": "row", "title": title, "collapsed": is_collapsed, "panels": [],
                "gridPos": {"x": 0, "y": row_y, "w": WIDTH, "h": 1},
            }));
            continue;
        }
        let (kind, size) = block
            .word("as")?
            .split_once(' ')
            .context("a kind and a size")?;
        let (w, h) = size.split_once('x').context("a size is WxH")?;
        let (w, h): (u64, u64) = (w.parse()?, h.parse()?);
        if x + w > WIDTH {
            (x, y, height) = (0, y + height, 0);
        }
        let mut made = panel(kind, block, *source)?;
        made["id"] = json!(id);
        made["gridPos"] = json!({"x": x, "y": y, "w": w, "h": h});
        x += w;
        height = height.max(h);
        match panels.last_mut().filter(|_| is_collapsed) {
            Some(row) => row["panels"]
                .as_array_mut()
                .context("a row has panels")?
                .push(made),
            None => panels.push(made),
        }
    }
    Ok(panels)
}

fn panel(kind: &str, block: &PanelBlock, source: Source) -> anyhow::Result<Value> {
    let mut about = block.word("about")?.to_owned();
    for alert in block.get("alert").into_iter().flat_map(|a| a.split(' ')) {
        let section = alert.to_lowercase();
        about.push_str(&format!(" {alert}: docs/oncall.md#{section}."));
    }
    let is_series = matches!(kind, "timeseries" | "heatmap" | "state-timeline");
    let (targets, overrides) = match source {
        Source::ClickHouse => {
            let sql = block.sql()?;
            (
                vec![source.sql(&sql, is_series)],
                fields::overrides(kind, &sql)?,
            )
        }
        Source::Prometheus => (expressions(kind, block)?, Vec::new()),
    };
    let mut defaults = json!({
        "unit": block.get("unit").unwrap_or("none"),
        "noValue": block.word("none")?,
        "thresholds": fields::thresholds(block.get("limit")).context("a limit is `red above N`")?,
        "custom": custom(kind, block),
    });
    if kind == "state-timeline" {
        defaults["mappings"] = fields::verdicts_by_number();
    }
    let mut made = json!({
        "type": kind,
        "title": block.word("panel")?,
        "description": about,
        "datasource": source.reference(),
        "fieldConfig": {"defaults": defaults, "overrides": overrides},
        "options": options(kind, block)?,
        "targets": targets,
    });
    if source == Source::ClickHouse && is_series {
        // The usual length of a bucket and of a step: a shorter interval would leave gaps.
        made["interval"] = json!("1h");
    }
    Ok(made)
}

fn expressions(kind: &str, block: &PanelBlock) -> anyhow::Result<Vec<Value>> {
    let is_instant = kind != "timeseries";
    let targets = ('A'..='Z').zip(block.expressions());
    let targets = targets.map(|(id, (expr, legend))| {
        json!({
            "datasource": Source::Prometheus.reference(),
            "refId": id.to_string(),
            "expr": expr,
            "legendFormat": legend,
            "instant": is_instant,
            "range": !is_instant,
            "format": if kind == "table" { "table" } else { "time_series" },
        })
    });
    Ok(targets.collect())
}

fn custom(kind: &str, block: &PanelBlock) -> Value {
    let stacking = json!({"mode": block.get("stack").unwrap_or("none"), "group": "A"});
    // A query that shows gaps returns rows without values for them.
    let span_nulls = match block.get("gaps") {
        Some(_) => json!(false),
        None => json!(LONGEST_SPAN_MS),
    };
    match kind {
        "timeseries" => json!({
            "lineWidth": 1,
            "fillOpacity": if block.get("stack").is_some() { 40 } else { 0 },
            "showPoints": "auto",
            "spanNulls": span_nulls,
            "stacking": stacking,
            "thresholdsStyle": {"mode": if block.get("limit").is_some() { "line" } else { "off" }},
        }),
        // Bars are stacked by an option of the panel, and a timeline of states shows gaps by itself.
        "barchart" | "state-timeline" => json!({"fillOpacity": 80, "lineWidth": 0}),
        // Grafana's own least width of 150 makes a table of 14 columns scroll on every screen.
        "table" => json!({"align": "auto", "filterable": true, "minWidth": 80}),
        _ => json!({}),
    }
}

fn options(kind: &str, block: &PanelBlock) -> anyhow::Result<Value> {
    let tooltip = json!({"mode": "multi", "sort": "desc"});
    let legend = json!({"displayMode": "list", "placement": "bottom", "showLegend": true});
    let lines = json!({"displayMode": "table", "placement": "bottom", "showLegend": true, "calcs": ["lastNotNull", "max"]});
    Ok(match kind {
        "timeseries" => json!({"legend": lines, "tooltip": tooltip}),
        "barchart" => json!({
            "legend": legend, "tooltip": tooltip, "showValue": "never", "xTickLabelRotation": 0,
            "stacking": block.get("stack").unwrap_or("none"),
        }),
        "state-timeline" => json!({
            "legend": {"showLegend": false, "displayMode": "list", "placement": "bottom"},
            "mergeValues": true, "showValue": "never", "rowHeight": 0.9, "tooltip": {"mode": "single"},
        }),
        "heatmap" => json!({
            "calculate": false,
            "cellGap": 1,
            "color": {"mode": "scheme", "scheme": "Blues", "steps": 64, "scale": "exponential", "exponent": 0.5},
            "yAxis": {"unit": block.word("unit")?, "axisPlacement": "left"},
            "rowsFrame": {"layout": "le", "value": "runs"},
            "legend": {"show": true},
            "tooltip": {"mode": "single", "yHistogram": true},
        }),
        "stat" => json!({
            "colorMode": "value", "graphMode": "none", "justifyMode": "auto", "orientation": "auto",
            "textMode": "value_and_name",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": false},
        }),
        "table" => json!({"showHeader": true, "cellHeight": "sm"}),
        _ => bail!("no such kind of panel: {kind}"),
    })
}
