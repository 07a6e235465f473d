//! The demo's devices with real sessions: one process for each phone, because the emulator cannot run several chipsets
//! in one process.

use std::{collections::BTreeMap, fmt, path::Path, process::Stdio, time::Duration};

use anyhow::Context;
use epwatch_engines::Engine;
use epwatch_fleet::Chipset;
use epwatch_proto::{Placement, v1};
use prost::Message;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use super::{
    access::CollectorAccess,
    device::{Orders, Phone, SessionLine},
    models::{MODEL, Story},
    summary::{EpNodes, RealSession},
};
use crate::engines;

/// Two sessions take a second or two; a busy machine needs longer.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for a device to upload its reports and end.
const FINISH_TIMEOUT: Duration = Duration::from_secs(20);

/// A session of ONNX Runtime and QNN.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) chipset: Chipset,
    pub(super) version: String,
    pub(super) placement: Placement,
}

/// Running device processes and the sessions they made.
#[derive(Debug)]
pub(super) struct RealDevices {
    children: Vec<Child>,
    sessions: Vec<Session>,
}

impl RealDevices {
    /// Starts one process for each chipset and waits for its sessions.
    pub(super) async fn start(
        story: Story,
        access: &CollectorAccess,
        dir: &Path,
    ) -> anyhow::Result<Self> {
        let ort = engines::ensure(Engine::OnnxRuntime).await?.ort_library();
        let qnn = engines::ensure(Engine::OnnxRuntimeQnn).await?;
        let models = story.models();
        let mut paths = Vec::new();
        for model in &models {
            paths.push((model.version.to_owned(), model.write(dir)?));
        }
        let mut devices = Self {
            children: Vec::new(),
            sessions: Vec::new(),
        };
        for phone in Phone::ALL {
            let orders = Orders {
                chipset: phone.chipset.name().to_owned(),
                soc_model: phone.soc_model.to_owned(),
                endpoint: access.endpoint.clone(),
                app_key: access.app_key.0.clone(),
                dir: dir.join(phone.chipset.name()),
                ort: ort.clone(),
                qnn_provider: qnn.qnn_provider_library(),
                qnn_version: qnn.version().to_owned(),
                qnn_backend: qnn.qnn_htp_library(),
                models: paths.clone(),
            };
            // The pipe closes when the demo ends in any way, and then the device ends.
            let mut child = Command::new(std::env::current_exe()?)
                .arg("demo-device")
                // Ctrl-C in the terminal ends the demo only, so that the device can upload its reports.
                .process_group(0)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::inherit())
                .kill_on_drop(true)
                .spawn()
                .context("failed to start a device process")?;
            let stdin = child
                .stdin
                .as_mut()
                .context("the device has no standard input")?;
            stdin
                .write_all(format!("{}\n", serde_json::to_string(&orders)?).as_bytes())
                .await?;
            let stdout = child
                .stdout
                .take()
                .context("the device has no standard output")?;
            devices.children.push(child);
            let lines = BufReader::new(stdout).lines();
            let sessions = timeout(START_TIMEOUT, sessions(lines, phone.chipset, models.len()))
                .await
                .with_context(|| format!("{} made no sessions in time", phone.chipset.name()))??;
            devices.sessions.extend(sessions);
        }
        Ok(devices)
    }

    pub(super) fn sessions(&self) -> &[Session] {
        &self.sessions
    }

    /// Lets the devices upload their reports and end.
    pub(super) async fn finish(mut self) -> Vec<RealSession> {
        for child in &mut self.children {
            drop(child.stdin.take());
        }
        for child in &mut self.children {
            if timeout(FINISH_TIMEOUT, child.wait()).await.is_err() {
                tracing::warn!("a device process did not end in time");
            }
        }
        self.sessions.iter().map(Session::summary).collect()
    }
}

async fn sessions(
    mut lines: Lines<BufReader<ChildStdout>>,
    chipset: Chipset,
    n_sessions: usize,
) -> anyhow::Result<Vec<Session>> {
    let mut sessions = Vec::new();
    while sessions.len() < n_sessions {
        let Some(line) = lines.next_line().await? else {
            anyhow::bail!(
                "the process of {} ended early; its errors are above",
                chipset.name()
            );
        };
        // QNN's libraries also write to standard output.
        if !line.starts_with('{') {
            continue;
        }
        let line: SessionLine = serde_json::from_str(&line)?;
        let placement = v1::Placement::decode(line.placement.as_slice())?;
        let placement = Placement::try_from(placement)?;
        sessions.push(Session {
            chipset,
            version: line.version,
            placement,
        });
    }
    // Later lines are read and dropped, since a full pipe would block the process.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    Ok(sessions)
}

impl Session {
    fn summary(&self) -> RealSession {
        let eps: BTreeMap<String, EpNodes> = self
            .placement
            .eps
            .iter()
            .map(|share| {
                let nodes = EpNodes {
                    nodes: share.n_nodes,
                    partitions: share.n_partitions,
                };
                (share.ep.clone(), nodes)
            })
            .collect();
        RealSession {
            chipset: self.chipset.name().to_owned(),
            model: MODEL.to_owned(),
            version: self.version.clone(),
            placement_source: self.placement.source.as_str().to_owned(),
            eps,
            cpu_ops: self
                .placement
                .cpu_ops()
                .into_iter()
                .map(str::to_owned)
                .collect(),
        }
    }
}

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "real session: {} version {}:",
            self.chipset.name(),
            self.version
        )?;
        for share in &self.placement.eps {
            write!(f, " {} {} nodes", share.ep, share.n_nodes)?;
        }
        let ops = self.placement.cpu_ops();
        if !ops.is_empty() {
            write!(f, "; on the CPU: {}", ops.join(", "))?;
            if let Some(share) = self.placement.cpu_macs_share() {
                write!(f, " ({:.1} % of the MACs)", share * 100.0)?;
            }
        }
        Ok(())
    }
}
