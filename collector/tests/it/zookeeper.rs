//! Debian's ZooKeeper on a free loopback port, for replicated tables.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::TIMEOUT;

/// Time limit of one request, which is repeated until the server answers.
const ANSWER: Duration = Duration::from_secs(2);

/// A running server; dropping it ends it.
#[derive(Debug)]
pub(crate) struct ZooKeeper {
    child: Child,
    address: SocketAddr,
    _dir: TempDir,
}

impl ZooKeeper {
    /// Returns `None` if the user chose to skip ZooKeeper.
    pub(crate) async fn start() -> Option<ZooKeeper> {
        let jars = epwatch_runtimes::zookeeper_jars()?;
        let dir = tempfile::tempdir().unwrap();
        // It has no option to choose a free port itself.
        let any_port = (Ipv4Addr::LOCALHOST, 0);
        let free = TcpListener::bind(any_port).unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let config = dir.path().join("zoo.cfg");
        let text = format!(
            "dataDir={}\nclientPortAddress={}\nclientPort={}\nadmin.enableServer=false\n",
            dir.path().join("data").display(),
            address.ip(),
            address.port()
        );
        std::fs::write(&config, text).unwrap();
        let child = epwatch_runtimes::tool("java")
            // ZooKeeper need not sync, because its data is deleted with the test.
            .args(["-Xmx128m", "-Dzookeeper.forceSync=no", "-cp"])
            .arg(jars.join("*"))
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(&config)
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut server = ZooKeeper {
            child,
            address,
            _dir: dir,
        };
        let deadline = Instant::now() + TIMEOUT;
        // A connection that is made while the server starts may never be answered, so each try uses a new one.
        while !timeout(ANSWER, server.serves()).await.unwrap_or(false) {
            let ended = server.child.try_wait().unwrap();
            assert!(ended.is_none(), "ZooKeeper ended at its start: {ended:?}");
            assert!(Instant::now() < deadline, "ZooKeeper does not answer");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Some(server)
    }

    /// The element of an engine's configuration that names this server.
    pub(crate) fn engine_config(&self) -> String {
        format!(
            "<zookeeper><node><host>{}</host><port>{}</port></node></zookeeper>",
            self.address.ip(),
            self.address.port()
        )
    }

    /// Requests the server's statistics, which it returns once it serves.
    async fn serves(&self) -> bool {
        let Ok(mut connection) = TcpStream::connect(self.address).await else {
            return false;
        };
        let mut answer = String::new();
        connection.write_all(b"srvr").await.is_ok()
            && connection.read_to_string(&mut answer).await.is_ok()
            && answer.contains("Mode: standalone")
    }
}

impl Drop for ZooKeeper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
