//! Answers on the port for readers, to requests as third parties send them.

use std::net::SocketAddr;
use std::process::Command;

use epwatch_store::embedded::{EmbeddedStore, ReaderAccess};
use epwatch_test_support::{engine_config, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{kill, pid_of, ready};

const PASSWORD: &str = "a long password";

struct Readers {
    store: EmbeddedStore,
    address: SocketAddr,
    dir: tempfile::TempDir,
}

impl Readers {
    /// An engine with the table `t.rows` of 100,000 rows.
    async fn start() -> Readers {
        let dir = tempfile::tempdir().unwrap();
        let access = ReaderAccess::new("127.0.0.1:0".parse().unwrap(), PASSWORD).unwrap();
        let mut config = engine_config(dir.path());
        config.readers = Some(access);
        let store = ready(config).await;
        let owner = store.client("");
        for sql in [
            "CREATE DATABASE t",
            "CREATE TABLE t.rows (id UInt64, name LowCardinality(String), \
             tags Array(LowCardinality(Nullable(String))), hist Map(UInt16, UInt64), \
             at DateTime64(3, 'UTC'), maybe Nullable(Float64), pair Tuple(a UInt8, b String), \
             fixed FixedString(3), money Decimal(18, 4), kind Enum8('x' = 1, 'y' = 2)) \
             ENGINE = MergeTree ORDER BY id",
            "INSERT INTO t.rows SELECT number, concat('n', toString(number % 7)), \
             [NULL, concat('t', toString(number % 3))], map(number % 5, number), \
             fromUnixTimestamp64Milli(toInt64(number)), if(number % 2 = 0, NULL, number / 4), \
             (number % 256, toString(number)), 'abc', number / 8, if(number % 2 = 0, 'x', 'y') \
             FROM numbers(100000)",
        ] {
            owner.query(sql).execute().await.unwrap();
        }
        let address = store.readers().unwrap();
        Readers {
            store,
            address,
            dir,
        }
    }

    /// Sends a request with these headers; returns the status and the body.
    async fn ask(&self, headers: &str, url: &str, body: &str) -> (u16, String) {
        let mut stream = tokio::net::TcpStream::connect(self.address).await.unwrap();
        let length = body.len();
        let request = format!(
            "POST /?{url} HTTP/1.1\r\n{headers}Connection: close\r\nContent-Length: \
             {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer)
    }

    async fn read(&self, url: &str, sql: &str) -> (u16, String) {
        let headers = format!("Host: localhost\r\nX-ClickHouse-Key: {PASSWORD}\r\n");
        self.ask(&headers, url, sql).await
    }
}

#[tokio::test]
async fn strangers_get_nothing() {
    let readers = Readers::start().await;
    let key = format!("X-ClickHouse-Key: {PASSWORD}\r\n");
    for (headers, expected) in [
        ("Host: localhost\r\n".to_owned(), 401),
        (
            "Host: localhost\r\nX-ClickHouse-Key: wrong\r\n".to_owned(),
            403,
        ),
        (
            "Host: localhost\r\nAuthorization: Basic !!\r\n".to_owned(),
            401,
        ),
        (format!("Host: rebound.example\r\n{key}"), 403),
        (format!("Host: localhost\r\n{key}"), 200),
    ] {
        let (status, answer) = readers.ask(&headers, "", "SELECT 123456788 + 1").await;
        assert_eq!(status, expected, "{headers}{answer}");
        assert_eq!(answer.contains("123456789"), expected == 200, "{answer}");
        assert!(!answer.contains(PASSWORD));
    }
    readers.store.stop().await;
}

#[tokio::test]
async fn readers_only_read() {
    let readers = Readers::start().await;
    let out = readers.dir.path().join("out.csv");
    let out = out.to_str().unwrap();
    for (url, sql) in [
        ("", "INSERT INTO t.rows (id) VALUES (1)"),
        ("query=INSERT+INTO+t.rows+(id)+FORMAT+TSV", "1\n"),
        ("", "DROP TABLE t.rows"),
        ("", "TRUNCATE TABLE t.rows"),
        ("", "ALTER TABLE t.rows DELETE WHERE 1"),
        ("", "CREATE TABLE t.x (a UInt8) ENGINE = Memory"),
        ("", "CREATE TEMPORARY TABLE x (a UInt8)"),
        ("", "SYSTEM FLUSH LOGS"),
        ("", "KILL QUERY WHERE 1"),
        ("", "SET readonly = 0"),
        ("", "SELECT 1; DROP TABLE t.rows"),
        ("readonly=0", "SELECT 1"),
        ("format_schema=x", "SELECT 1"),
        ("", "SELECT 1 SETTINGS readonly = 0"),
        ("", "SELECT 1 SETTINGS max_execution_time = 0"),
        ("", "SELECT * FROM file('/etc/hostname', 'LineAsString')"),
        (
            "",
            "SELECT * FROM url('http://127.0.0.1:9/', 'LineAsString')",
        ),
        ("", "WITH x AS (SELECT 1) INSERT INTO t.rows SELECT 1"),
        (
            "",
            "EXPLAIN SELECT * FROM file('/etc/hostname', 'LineAsString')",
        ),
    ] {
        let (status, answer) = readers.read(url, sql).await;
        assert!((400..500).contains(&status), "{sql}: {answer}");
    }
    let sql = format!("SELECT 1 INTO OUTFILE '{out}'");
    assert_eq!(readers.read("", &sql).await.0, 403);
    assert!(!std::fs::exists(out).unwrap());
    for (url, sql, expected) in [
        ("", "SELECT count() FROM t.rows", "100000"),
        ("max_result_rows=0&session_id=s", "SELECT 1", "1"),
        ("", "(SELECT 'in brackets')", "in brackets"),
        ("", "WITH 5 AS x SELECT x", "5"),
        ("", "SHOW TABLES FROM t", "rows"),
        ("", "DESCRIBE TABLE t.rows", "LowCardinality(String)"),
        ("", "EXISTS TABLE t.rows", "1"),
        ("param_n=7", "SELECT {n: UInt8} * 6", "42"),
    ] {
        let (status, answer) = readers.read(url, sql).await;
        assert!(
            status == 200 && answer.contains(expected),
            "{sql}: {answer}"
        );
    }
    // The limit does not apply to the owner.
    let owner = readers.store.client("t");
    owner.query("DROP TABLE rows").execute().await.unwrap();
    readers.store.stop().await;
}

/// For a read of this table the engine sends a signal to all threads, also to the child's own.
#[tokio::test]
async fn a_look_at_the_engine_s_threads_does_not_end_it() {
    let readers = Readers::start().await;
    let pid = pid_of(&readers.store).unwrap();
    let owner = readers.store.client("t");
    for _ in 0..30 {
        let sql = "SELECT count() AS n FROM (SELECT * FROM system.stack_trace)";
        let found = owner.query(sql).fetch_one::<u64>().await.unwrap();
        assert!(found > 0);
    }
    let sql = "SELECT count() FROM system.stack_trace";
    let (status, answer) = readers.read("", sql).await;
    assert!(
        status != 200 && answer.contains("ACCESS_DENIED"),
        "{answer}"
    );
    assert_eq!(pid_of(&readers.store), Some(pid));
    readers.store.stop().await;
}

/// One reader gets a sixteenth of the engine's 2 GiB.
#[tokio::test]
async fn a_reader_s_memory_is_bounded() {
    let readers = Readers::start().await;
    let sql = "SELECT length(groupArray(number)) FROM numbers(100000000)";
    let (status, answer) = readers.read("", sql).await;
    assert!(status != 200 && answer.contains("MEMORY_LIMIT"), "{answer}");
    let sql = "SELECT count() FROM (SELECT number, count() FROM numbers(500000) GROUP BY number)";
    let (status, answer) = readers.read("", sql).await;
    assert!(status == 200 && answer.contains("500000"), "{answer}");
    readers.store.stop().await;
}

/// More readers than may run at once try to use all memory, while the owner uses its part.
#[tokio::test]
async fn readers_that_want_all_memory_leave_the_owner_s_part() {
    let readers = Readers::start().await;
    let owner = readers.store.client("t");
    for _ in 0..3 {
        let all = "SELECT length(groupArray(number)) FROM numbers(100000000)";
        let asked = futures::future::join_all((0..8).map(|_| readers.read("", all)));
        let own = "SELECT length(groupArray(number)) FROM numbers(20000000)";
        let (asked, own) = tokio::join!(asked, owner.query(own).fetch_one::<u64>());
        assert_eq!(own.unwrap(), 20_000_000);
        for (status, answer) in asked {
            assert!(status != 200 && answer.contains("MEMORY_LIMIT"), "{answer}");
        }
    }
    readers.store.stop().await;
}

#[tokio::test]
async fn the_port_comes_back_with_the_engine() {
    let readers = Readers::start().await;
    kill(pid_of(&readers.store).unwrap());
    let again = until("the engine is back", async || {
        readers
            .store
            .readers()
            .filter(|_| pid_of(&readers.store).is_some())
    });
    let address = again.await;
    let back = Readers { address, ..readers };
    let ask = until("readers are served", async || {
        let address = back.store.readers()?;
        tokio::net::TcpStream::connect(address).await.ok()
    });
    drop(ask.await);
    back.store.stop().await;
}

/// The two Python clients that people use, from their own packages. `clickhouse-connect` reads over HTTP with Native
/// blocks of its protocol version. `clickhouse-driver` speaks the binary protocol, so only its block reader runs, on
/// Native blocks of the same query.
#[tokio::test]
async fn python_clients_read_every_type() {
    let readers = Readers::start().await;
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/engine/python_clients.py"
    );
    let packages = readers.dir.path().join("packages");
    let port = readers.address.port().to_string();
    let done = tokio::task::spawn_blocking(move || {
        let pip = Command::new("python3")
            .args(["-m", "pip", "install", "--quiet", "--target"])
            .arg(&packages)
            .args(["clickhouse-connect==0.8.18", "clickhouse-driver==0.2.9"])
            .status();
        assert!(pip.unwrap().success(), "pip failed to fetch the clients");
        Command::new("python3")
            .arg(script)
            .args([&port, PASSWORD])
            .env("PYTHONPATH", &packages)
            .output()
            .unwrap()
    });
    let output = done.await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    assert_eq!(text.trim(), "connect ok, driver ok");
    readers.store.stop().await;
}
