//! A proxy before the engine that hides the rows of the last seconds from every read, like a replica that lags. Inserts
//! are stored and acknowledged at once. Tests of what reads back its own writes put it before collectors and detectors.
//!
//! Each table has a column with the time of its insert, and each request gets a filter on it, which the engine applies
//! wherever a statement reads the table: in views, in subqueries, in the SELECT of an INSERT. So every row becomes visible
//! as long after its insert as every other one. Mutations see all rows.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clickhouse::Client;
use epwatch_collector::schema::DATABASE;
use epwatch_store::StoreTarget;
use epwatch_store::embedded::EmbeddedStore;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio_util::task::AbortOnDropHandle;
use url::form_urlencoded::byte_serialize;

/// Longest head of a request.
const MAX_HEAD_BYTES: usize = 256 << 10;

/// A way to the engine for those that must not rely on their reads. It ends when this is dropped.
#[derive(Debug)]
pub struct LateReads {
    address: SocketAddr,
    _accepting: AbortOnDropHandle<()>,
}

impl LateReads {
    /// Starts before an engine that has the schema. Rows stay hidden for this long.
    ///
    /// # Errors
    /// The engine does not answer, or no port is free.
    pub async fn before(store: &EmbeddedStore, hidden_for: Duration) -> anyhow::Result<Self> {
        let parameter = filters(&store.client(DATABASE), hidden_for).await?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let socket = store.socket().to_owned();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (socket, parameter) = (socket.clone(), parameter.clone());
                tokio::spawn(async move {
                    // A connection that breaks is a fault like others.
                    let _ = pass(client, socket, &parameter).await;
                });
            }
        });
        Ok(Self {
            address,
            _accepting: AbortOnDropHandle::new(accepting),
        })
    }

    /// Returns its address, for `--clickhouse`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns a client whose reads are late.
    #[must_use]
    pub fn client(&self) -> Client {
        let target = StoreTarget::parse(&self.url(), DATABASE).expect("an address of this form");
        epwatch_store::client(&target)
    }
}

/// Adds the column to the tables, and returns the parameter that hides their latest rows.
async fn filters(client: &Client, hidden_for: Duration) -> anyhow::Result<String> {
    let tables = "SELECT name FROM system.tables WHERE database = currentDatabase() \
                  AND engine LIKE '%MergeTree' AND name != 'schema_migrations' ORDER BY name";
    let tables = client.query(tables).fetch_all::<String>().await?;
    anyhow::ensure!(!tables.is_empty(), "the store has no tables");
    let hidden_ms = hidden_for.as_millis();
    let mut filters = Vec::new();
    for table in tables {
        let add = format!(
            "ALTER TABLE `{table}` ADD COLUMN IF NOT EXISTS late_at DateTime64(3) MATERIALIZED now64(3)"
        );
        client.query(&add).execute().await?;
        filters.push(format!(
            "'{DATABASE}.{table}':'late_at <= now64(3) - toIntervalMillisecond({hidden_ms})'"
        ));
    }
    let filters = format!("{{{}}}", filters.join(","));
    let value: String = byte_serialize(filters.as_bytes()).collect();
    Ok(format!("additional_table_filters={value}"))
}

/// Passes one request on, with the parameter, and its answer back.
async fn pass(mut client: TcpStream, socket: PathBuf, parameter: &str) -> anyhow::Result<()> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at;
        }
        anyhow::ensure!(bytes.len() < MAX_HEAD_BYTES, "the head is too long");
        if client.read_buf(&mut bytes).await? == 0 {
            return Ok(());
        }
    };
    let head = std::str::from_utf8(&bytes[..head_end]).context("the head is no text")?;
    let mut store = UnixStream::connect(socket).await?;
    store
        .write_all(with_parameter(head, parameter)?.as_bytes())
        .await?;
    store.write_all(&bytes[head_end..]).await?;
    tokio::io::copy_bidirectional(&mut client, &mut store).await?;
    Ok(())
}

/// Returns a request's head with one more parameter. The connection ends with the answer, because the head of a second
/// request would pass unchanged.
fn with_parameter(head: &str, parameter: &str) -> anyhow::Result<String> {
    let (line, fields) = head.split_once("\r\n").context("a head without fields")?;
    let words: Vec<&str> = line.split(' ').collect();
    let [method, target, version] = words[..] else {
        anyhow::bail!("no request line: {line}");
    };
    let separator = if target.contains('?') { '&' } else { '?' };
    Ok(format!(
        "{method} {target}{separator}{parameter} {version}\r\nconnection: close\r\n{fields}"
    ))
}
