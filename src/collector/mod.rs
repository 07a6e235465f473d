//! `epwatch collector`: the collector alone, on a ClickHouse server that several may share.

mod dump;
mod key;

use std::{net::SocketAddr, process::ExitCode, sync::Arc};

use clap::Subcommand;

use epwatch_collector::Collector;
use epwatch_server::{ENDING, SystemClock};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::{
    all_in_one, fault_points, output,
    server_config::{ListenArgs, Runs, ServerArgs},
    shutdown::Shutdown,
    store::Store,
    telemetry, version,
};

/// Takes reports from devices and writes them to a ClickHouse server.
///
/// Several may write to one server; each keeps its WAL in --data-dir.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<CollectorCommand>,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    listening: ListenArgs,
    /// Print the addresses it listens on as one JSON document once it runs.
    #[arg(long)]
    json: bool,
}

/// Tasks other than running it.
#[derive(Debug, Subcommand)]
pub(crate) enum CollectorCommand {
    Dump(dump::Args),
    Key(key::Args),
}

impl CollectorCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Dump(args) => dump::run(&args),
            Self::Key(args) => key::run(&args),
        }
    }
}

/// Addresses of a running collector.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Addresses {
    /// Devices send here.
    pub(crate) collector: std::net::SocketAddr,
    /// The URL to give to devices.
    pub(crate) endpoint: String,
    /// The reason why devices do not accept it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) endpoint_warning: Option<String>,
    /// `/metrics`, `/healthz`, `/readyz`.
    pub(crate) http: std::net::SocketAddr,
    /// The embedded store, for `--clickhouse` of other commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) store: Option<String>,
}

impl Addresses {
    pub(crate) fn of(collector: &Collector, store: &Store, has_tls: bool) -> Self {
        let embedded = store.embedded.as_ref();
        let listen = collector.listen();
        let (endpoint, endpoint_warning) = endpoint(listen, has_tls, |name| {
            collector.certificate_is_for(name) != Some(false)
        });
        Self {
            collector: collector.listen(),
            endpoint,
            endpoint_warning,
            http: collector.http_listen(),
            store: embedded.map(|engine| format!("unix:{}", engine.socket().display())),
        }
    }
}

/// Returns the URL of the device port, and a warning if no device accepts it. For a wildcard address the URL has the
/// machine's name, because nothing can be sent to 0.0.0.0. If the certificate is for `localhost` instead, the URL has
/// `localhost`.
fn endpoint(
    listen: SocketAddr,
    has_tls: bool,
    is_certified: impl Fn(&str) -> bool,
) -> (String, Option<String>) {
    let scheme = if has_tls { "https" } else { "http" };
    // Linux has this file; elsewhere the address stays as it is.
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = match name.trim() {
        name if listen.ip().is_unspecified() && !name.is_empty() => name.to_owned(),
        _ => listen.ip().to_string(),
    };
    let url = |name: &str| match name.contains(':') {
        true => format!("{scheme}://[{name}]:{}", listen.port()),
        false => format!("{scheme}://{name}:{}", listen.port()),
    };
    if is_certified(&name) {
        return (url(&name), None);
    }
    let warning = format!(
        "the certificate of collector.tls.cert_file is not for {name}: give devices a name that it has"
    );
    let shown = if is_certified("localhost") {
        "localhost"
    } else {
        &name
    };
    (url(shown), Some(warning))
}

pub(crate) async fn run(mut args: Args) -> anyhow::Result<ExitCode> {
    args.server.listen = args.listening.listen;
    let mut config = args.server.load(Runs::Collector)?;
    if config.store.clickhouse.is_none() {
        anyhow::bail!(output::no_server_is_named());
    }
    let mut shutdown = Shutdown::listen(config.at_hangup())?;
    let drain = config.collector.batch.drain_timeout.0;
    let has_tls = config.collector.tls.is_some();
    version::log("collector");
    let tasks = fault_points::tasks();
    let starting = async {
        all_in_one::check_addresses(&config).await?;
        let store = Store::open_or_wait(&config.store, &config.data_dir).await?;
        config.collector.raw_retention = store.raw_retention();
        let stop = CancellationToken::new();
        let (client, clock) = (store.client(), Arc::new(SystemClock));
        let collector =
            Collector::start_in(tasks.clone(), config.collector, client, stop, clock).await?;
        anyhow::Ok((store, collector))
    };
    let Ok(started) = shutdown.unless_requested(starting).await else {
        return Ok(ExitCode::SUCCESS);
    };
    let (store, collector) = started?;
    collector.metrics().show_also(telemetry::metrics());
    let addresses = Addresses::of(&collector, &store, has_tls);
    if args.json {
        output::json(&addresses)?;
    } else {
        output::notice(format_args!("devices send to {}", addresses.endpoint));
        if let Some(warning) = &addresses.endpoint_warning {
            output::notice(warning);
        }
        output::notice(format_args!(
            "metrics and health on http://{}",
            addresses.http
        ));
    }
    let failed = tokio::select! {
        biased;
        () = shutdown.requested() => None,
        // The other tasks still stop in order.
        task = tasks.failed() => Some(all_in_one::task_ended(&task)),
        error = store.refused() => return Err(error),
        () = collector.stopped() => anyhow::bail!("the collector ended by itself; its log says why"),
        never = crate::config_file::log_changes(args.server.config) => match never {},
    };
    if failed.is_some() {
        tasks.held_back(ENDING).await;
    }
    let stopping = async {
        collector.stop().await;
        store.stop().await;
    };
    shutdown.stop(stopping, drain).await;
    failed.map_or(Ok(ExitCode::SUCCESS), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_has_a_name_of_its_certificate() {
        let everywhere: SocketAddr = "0.0.0.0:4717".parse().unwrap();
        let (plain, warning) = endpoint(everywhere, false, |_| true);
        assert!(plain.starts_with("http://") && warning.is_none(), "{plain}");
        let (local, warning) = endpoint(everywhere, true, |name| name == "localhost");
        assert_eq!(local, "https://localhost:4717");
        assert!(warning.unwrap().contains("is not for"));
        let (none, warning) = endpoint("[::1]:4717".parse().unwrap(), true, |_| false);
        assert_eq!(none, "https://[::1]:4717");
        assert!(warning.unwrap().contains("is not for ::1"));
    }
}
