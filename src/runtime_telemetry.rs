//! Keeps ONNX Runtime's own telemetry off in each process of epwatch that loads it. `main` calls it before it starts a
//! thread.

use std::{env, os::unix::process::CommandExt, process::Command};

use anyhow::{Context, bail};
use epwatch_sdk::runtime::TELEMETRY_SWITCH;

/// Returns if the switch is set, otherwise starts this process again with it. The user's own value does not count.
///
/// ONNX Runtime reads the variable from the process, and only `unsafe` code could set it here.
pub(crate) fn turn_off() -> anyhow::Result<()> {
    if env::var_os(TELEMETRY_SWITCH).is_some_and(|value| value == "1") {
        return Ok(());
    }
    let mut words = env::args_os();
    let Some(name) = words.next() else {
        bail!("failed to find the name of this command");
    };
    let error = Command::new(env::current_exe()?)
        .arg0(name)
        .args(words)
        .env(TELEMETRY_SWITCH, "1")
        .exec();
    Err(error).with_context(|| format!("failed to start again with {TELEMETRY_SWITCH}=1"))
}
