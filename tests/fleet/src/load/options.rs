//! Settings of a load.

use std::time::Duration;

use crate::client::ClientTls;

/// Settings of a load: the collector, the devices and the pace.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// The collector, for example `http://127.0.0.1:4717`.
    pub endpoint: String,
    /// The app key.
    pub app_key: String,
    /// Certificates to check the collector's certificate against, and the client's own certificate.
    pub tls: ClientTls,
    /// App and environment that the key proves.
    pub app_id: String,
    /// See [`LoadOptions::app_id`].
    pub environment: String,
    /// The app version of the load's reports, which identifies them in the store.
    pub mark: String,
    /// Equal seeds give equal devices, and so conflicts with an earlier load of the same seed.
    pub seed: u64,
    /// Number of devices.
    pub devices: usize,
    /// Reports a second, over all devices; `None` sends as fast as the collector takes them.
    pub rate: Option<f64>,
    /// Reports of one request.
    pub batch: usize,
    /// Time in which requests fall due.
    pub length: Duration,
    /// Time after `length` in which unacknowledged reports are sent again.
    pub drain: Duration,
}
