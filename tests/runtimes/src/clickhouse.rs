//! Releases of ClickHouse that people run, as chdb's wheels for Python, each served by a child process.

use std::{
    env,
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Stdio},
};

use epwatch_proto::hex;
use sha2::{Digest, Sha256};

use crate::{PIP_DOWNLOAD, cached, only_file, run, tool};

/// Serves an unpacked wheel over ClickHouse's HTTP protocol.
const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/clickhouse.py");

/// A release line of ClickHouse, identified by the wheel with its engine.
#[derive(Debug)]
pub struct Release {
    /// `25.8`.
    pub line: &'static str,
    /// The wheel's name for pip.
    package: &'static str,
    sha256: &'static str,
}

/// The release lines, oldest first: the two lines with long-term support, and newer ones. The embedded engine is 26.7.
pub static RELEASES: [Release; 4] = [
    Release {
        line: "25.8",
        package: "chdb==3.7.2",
        sha256: "c119f0830c12438a4e4b60b8370859ba50992e8b1b01a8c681e1c57eeb2dc82d",
    },
    Release {
        line: "26.3",
        package: "chdb-core==26.3.0",
        sha256: "2b91a47a69db1185908f51aebdb32d1258cf7c0646e7dc6be3d2922cb694e3ad",
    },
    Release {
        line: "26.5",
        package: "chdb-core==26.5.0",
        sha256: "85ddbf675b4a070aa5abb79456b0a08643273dcf3977dc39f347c8acf846c804",
    },
    Release {
        line: "26.9",
        package: "chdb-core==26.9.0",
        sha256: "707e2ec3fe0f7953bac97942eaeb7a1ed1d66b1e56ecef3f0aa2130f61f6e735",
    },
];

impl Release {
    /// Returns the folder of the unpacked wheel: CPython 3.9 or newer, of Linux on x86-64 with glibc.
    fn wheel(&self) -> PathBuf {
        let platform = (env::consts::OS, env::consts::ARCH);
        assert_eq!(
            platform,
            ("linux", "x86_64"),
            "has no wheel of ClickHouse {} that is pinned here",
            self.line
        );
        let is_whole = |folder: &Path| folder.join("chdb/_chdb.abi3.so").is_file();
        let name = format!("clickhouse-{}", self.package.replace("==", "-"));
        cached(&name, &is_whole, &|work, out| {
            let platform = ["--platform", "manylinux2014_x86_64", self.package];
            run(work, PIP_DOWNLOAD, &platform);
            let wheel = only_file(work, "chdb", ".whl");
            assert_eq!(sha256(&work.join(&wheel)), self.sha256, "{}", self.package);
            let unpacked = out.to_str().unwrap();
            run(work, "python3 -m zipfile -e", &[&wheel, unpacked]);
        })
    }
}

/// Returns the hash of a file that may be too large for memory.
fn sha256(path: &Path) -> String {
    let mut file = File::open(path).unwrap();
    let mut hash = Sha256::new();
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece).unwrap() {
            0 => return hex(&hash.finalize()),
            n => hash.update(&piece[..n]),
        }
    }
}

/// A running release that answers on a Unix socket, one statement at a time. Dropping this ends the process.
#[derive(Debug)]
pub struct ClickHouse {
    child: Child,
    dir: PathBuf,
    version: String,
}

impl ClickHouse {
    /// Starts a release with its data in a folder, which must be empty.
    pub fn start(release: &Release, dir: &Path) -> Self {
        let wheel = release.wheel();
        let stderr = File::create(dir.join("stderr")).unwrap();
        // Packages of the user or the machine are not used, because they may belong to another chdb.
        let mut child = tool("python3")
            .args(["-I", "-S", SERVER])
            .arg(wheel)
            .args(["data", "store.sock", "statements"].map(|name| dir.join(name)))
            .current_dir(dir)
            .env("TZ", "UTC")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .unwrap();
        let mut version = String::new();
        // The server prints its first line once it takes requests.
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut version).unwrap();
        let server = Self {
            child,
            dir: dir.to_owned(),
            version: version.trim().to_owned(),
        };
        assert!(
            server.version.starts_with(release.line),
            "ClickHouse {} did not start: {}",
            release.line,
            server.stderr()
        );
        server
    }

    /// Returns the version that the server reports, for example `25.8.2.1`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns its socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("store.sock")
    }

    /// Returns the statements so far, a JSON document in each line with `sql`, `database` and `settings`. Inserts of rows
    /// are left out.
    pub fn statements(&self) -> String {
        fs::read_to_string(self.dir.join("statements")).unwrap()
    }

    /// Returns the lines that the server wrote to standard error.
    pub fn stderr(&self) -> String {
        let mut text = String::new();
        let file = File::open(self.dir.join("stderr"));
        file.unwrap().read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for ClickHouse {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
