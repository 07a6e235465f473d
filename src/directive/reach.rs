//! Devices that a directive fits, and those that obeyed it, by their reports of the last day.

use std::collections::HashMap;

use anyhow::Context;
use clickhouse::Client;
use epwatch_proto::DirectiveScope;

/// An empty field of the scope matches everything.
const FITTING: &str = "
SELECT toUInt64(uniq(installation)) FROM device_sessions_v1
WHERE received_at >= now() - INTERVAL 1 DAY
  AND ({app: String} = '' OR app_id = {app: String})
  AND ({model: String} = '' OR model_id = {model: String})
  AND ({version: String} = '' OR model_version = {version: String})
  AND ({chipset: String} = '' OR chipset = {chipset: String})
  AND ({firmware: String} = '' OR firmware = {firmware: String})";

const OBEYED: &str = "
SELECT toString(directive_id) AS id, toUInt64(uniq(installation)) AS devices FROM device_sessions_v1
WHERE received_at >= now() - INTERVAL 1 DAY AND directive_id != ''
GROUP BY directive_id";

/// Returns how many devices of the last day have a session that the scope fits.
pub(super) async fn fitting(client: &Client, scope: &DirectiveScope) -> anyhow::Result<u64> {
    let query = client
        .query(FITTING)
        .param("app", &scope.app_id)
        .param("model", &scope.model_id)
        .param("version", &scope.model_version)
        .param("chipset", &scope.chipset)
        .param("firmware", &scope.vendor_fingerprint_hash);
    let devices = query.fetch_one().await;
    devices.context("failed to count the devices that the directive fits")
}

/// Returns how many devices of the last day had a session that a directive changed, by the directive's id.
pub(super) async fn obeyed(client: &Client) -> anyhow::Result<HashMap<String, u64>> {
    let rows = client.query(OBEYED).fetch_all::<(String, u64)>().await;
    let rows = rows.context("failed to count the devices that obeyed a directive")?;
    Ok(rows.into_iter().collect())
}
