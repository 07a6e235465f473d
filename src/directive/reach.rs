//! Counts the devices that a directive fits, and the devices that got, obeyed or refused it. Collectors count the
//! devices that it was sent to. Reports of the last day show which devices obeyed or refused.

use std::collections::{BTreeMap, HashMap};

use anyhow::Context;
use clickhouse::{Client, query::Query};
use epwatch_proto::DirectiveScope;

/// Counts the devices that a scope fits. An empty field of the scope matches everything.
const FITTING: &str = "
SELECT toUInt64(uniq(installation)) FROM device_sessions_v1
WHERE received_at >= now() - INTERVAL 1 DAY
  AND ({app: String} = '' OR app_id = {app: String})
  AND ({model: String} = '' OR model_id = {model: String})
  AND ({version: String} = '' OR model_version = {version: String})
  AND ({chipset: String} = '' OR chipset = {chipset: String} OR startsWith(chipset, concat({chipset: String}, ' [')))
  AND ({firmware: String} = '' OR firmware = {firmware: String})";

const OBEYED: &str = "
SELECT toString(directive_id) AS id, toUInt64(uniq(installation)) AS devices FROM device_sessions_v1
WHERE received_at >= now() - INTERVAL 1 DAY AND directive_id != ''
GROUP BY directive_id";

const SENT: &str = "SELECT toString(directive_id) AS id, toUInt64(devices_sent) AS devices FROM directive_deliveries_v1";

/// Reports do not name a refused directive. They only have the number of refusals by reason.
const REFUSED: &str = "
SELECT toString(reason) AS reason, toUInt64(uniq(installation)) AS devices
FROM counted_reports_v1
ARRAY JOIN mapKeys(health_directives_refused) AS reason, mapValues(health_directives_refused) AS n_refused
WHERE received_at >= now() - INTERVAL 1 DAY
  AND received_at >= fromUnixTimestamp64Milli({since_ms: Int64}, 'UTC')
  AND n_refused > 0
  AND ({app: String} = '' OR app_id = {app: String})
  AND ({chipset: String} = '' OR chipset = {chipset: String})
  AND ({firmware: String} = '' OR firmware = {firmware: String})
  AND arrayExists(
        (model, version) -> ({model: String} = '' OR model = {model: String})
            AND ({version: String} = '' OR version = {version: String}),
        session_model_id, session_model_version)
GROUP BY reason";

/// Devices that got and obeyed the published directives, by id.
pub(super) struct Counted {
    pub(super) sent: HashMap<String, u64>,
    /// Devices of the last day with a session that the directive changed.
    pub(super) obeyed: HashMap<String, u64>,
}

impl Counted {
    pub(super) async fn fetch(client: &Client) -> anyhow::Result<Self> {
        let sent = by_id(client, SENT).await;
        let obeyed = by_id(client, OBEYED).await;
        Ok(Self {
            sent: sent.context("failed to count the devices that directives were sent to")?,
            obeyed: obeyed.context("failed to count the devices that obeyed a directive")?,
        })
    }
}

async fn by_id(
    client: &Client,
    sql: &str,
) -> Result<HashMap<String, u64>, clickhouse::error::Error> {
    let rows = client.query(sql).fetch_all::<(String, u64)>().await?;
    Ok(rows.into_iter().collect())
}

fn scoped(client: &Client, sql: &str, scope: &DirectiveScope) -> Query {
    client
        .query(sql)
        .param("app", &scope.app_id)
        .param("model", &scope.model_id)
        .param("version", &scope.model_version)
        .param("chipset", &scope.chipset)
        .param("firmware", &scope.vendor_fingerprint_hash)
}

/// Returns how many devices of the last day have a session that the scope fits.
pub(super) async fn fitting(client: &Client, scope: &DirectiveScope) -> anyhow::Result<u64> {
    let devices = scoped(client, FITTING, scope).fetch_one().await;
    devices.context("failed to count the devices that the directive fits")
}

/// Returns how many devices of the scope refused directives since that time, at most for a day, by reason.
pub(super) async fn refused(
    client: &Client,
    scope: &DirectiveScope,
    since_unix_ms: i64,
) -> anyhow::Result<BTreeMap<String, u64>> {
    let query = scoped(client, REFUSED, scope).param("since_ms", since_unix_ms);
    let rows = query.fetch_all::<(String, u64)>().await;
    let rows = rows.context("failed to count the devices that refused directives")?;
    Ok(rows.into_iter().collect())
}
