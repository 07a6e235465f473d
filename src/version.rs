//! Version of the program and of the runtimes that it uses, for `--version`, the log and the metrics.

use std::sync::LazyLock;

use epwatch_engines::Engine;
use epwatch_server::MetricTable;
use prometheus_client::metrics::{family::Family, gauge::Gauge};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit; `unknown` in development builds.
const REVISION: &str = env!("BUILD_REVISION");
/// Date of the commit.
const DATE: &str = env!("BUILD_REVISION_DATE");

/// The text of `--version` after the program's name.
pub(crate) static LONG: LazyLock<String> = LazyLock::new(|| {
    format!(
        "{VERSION}\ncommit   {REVISION}, {DATE}\nruntimes {}",
        runtimes()
    )
});

/// Returns for example `libchdb 26.7.3-stable.1, onnxruntime 1.31.1`, without runtimes that do not exist for this
/// platform.
fn runtimes() -> String {
    let named = versions().map(|(engine, version)| format!("{engine} {version}"));
    named.collect::<Vec<_>>().join(", ")
}

fn versions() -> impl Iterator<Item = (Engine, &'static str)> {
    let all = Engine::ALL.into_iter();
    all.filter_map(|engine| Some((engine, engine.version()?)))
}

/// Writes the first line of a server's log.
pub(crate) fn log(command: &str) {
    tracing::info!(
        version = VERSION,
        commit = REVISION,
        date = DATE,
        runtimes = runtimes(),
        "epwatch {command}"
    );
}

/// Adds the metric `build_info`, whose value is always 1.
pub(crate) fn add_to(table: &mut MetricTable) {
    let mut labels = vec![("version", VERSION), ("revision", REVISION), ("date", DATE)];
    labels.extend(versions().map(|(engine, version)| match engine {
        Engine::Chdb => ("libchdb", version),
        Engine::OnnxRuntime => ("onnxruntime", version),
        _ => ("onnxruntime_qnn", version),
    }));
    let info = Family::<Vec<(&str, &str)>, Gauge>::default();
    info.get_or_create(&labels).set(1);
    table.add_metric(
        "build_info",
        "Version of the program and of its runtimes",
        info,
    );
}
