//! A proxy in front of the engine, which adds settings to each request.
//!
//! - It hides the rows of the last seconds from every read, like a replica that lags. Inserts are stored and
//!   acknowledged at once. Tests use it between the store and collectors or detectors that read back their own writes.
//!   Each table has a column with the time of its insert, and each request gets a filter on it. The engine applies the
//!   filter wherever a statement reads the table: in views, in subqueries, in the SELECT of an INSERT. So every row
//!   becomes visible after the same delay. Mutations see all rows.
//! - It also gives commands the settings of a store with two shards.
//! - It also holds requests back for a while, as a network may.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clickhouse::Client;
use epwatch_store::StoreTarget;
use epwatch_store::embedded::EmbeddedStore;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use url::form_urlencoded;

/// Longest head of a request.
const MAX_HEAD_BYTES: usize = 256 << 10;

/// The requests that the proxy holds back.
#[derive(Debug, Clone, Default)]
struct HeldRequests {
    /// Requests with one of these texts are held back.
    texts: Vec<&'static str>,
    /// Increases when the held requests may continue.
    releases: u64,
}

/// Numbers of requests that were held back.
#[derive(Debug, Clone, Copy, Default)]
struct KeptRequests {
    ever: usize,
    now: usize,
}

/// A proxy to the engine that changes or delays requests. It ends when this value is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    database: String,
    held: Arc<watch::Sender<HeldRequests>>,
    kept: watch::Receiver<KeptRequests>,
    _accepting: AbortOnDropHandle<()>,
}

impl Proxy {
    /// Starts a proxy to an engine that has the schema in this database. Rows stay hidden for `hidden_for`.
    ///
    /// # Errors
    /// The engine does not answer, or no port is free.
    pub async fn hiding_rows(
        store: &EmbeddedStore,
        database: &str,
        hidden_for: Duration,
    ) -> anyhow::Result<Self> {
        let filters = filters(&store.client(database), database, hidden_for).await?;
        Self::start(store, database, [("additional_table_filters", &*filters)]).await
    }

    /// Starts a proxy to an engine. Requests get the settings of its target, for commands that have no option for
    /// settings.
    ///
    /// # Errors
    /// No port is free.
    pub async fn with_settings_of(
        target: &StoreTarget,
        store: &EmbeddedStore,
    ) -> anyhow::Result<Self> {
        Self::start(store, target.database(), target.settings()).await
    }

    async fn start<'a>(
        store: &EmbeddedStore,
        database: &str,
        settings: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> anyhow::Result<Self> {
        let parameters = form_urlencoded::Serializer::new(String::new())
            .extend_pairs(settings)
            .finish();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let held = Arc::new(watch::Sender::new(HeldRequests::default()));
        let (count, kept) = watch::channel(KeptRequests::default());
        let way = Arc::new(Way {
            socket: store.socket().to_owned(),
            parameters,
            held: held.clone(),
            kept: count,
        });
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let way = way.clone();
                tokio::spawn(async move {
                    // A broken connection is a fault like any other, so its error is ignored.
                    let _ = way.pass(client).await;
                });
            }
        });
        Ok(Self {
            address,
            database: database.to_owned(),
            held,
            kept,
            _accepting: AbortOnDropHandle::new(accepting),
        })
    }

    /// Returns the proxy's address, for `--clickhouse`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns a client that goes through the proxy.
    #[must_use]
    pub fn client(&self) -> Client {
        let target = StoreTarget::parse(&self.url(), &self.database);
        epwatch_store::client(&target.expect("an address of this form"))
    }

    /// Holds back requests with this text, as a network may, and waits until there is one. They reach the store later,
    /// also if their client is gone by then.
    pub async fn hold(&mut self, text: &'static str) {
        self.change(|held| held.texts.push(text)).await;
    }

    /// Sends the held requests, and waits until another one is held.
    pub async fn hold_the_next(&mut self) {
        self.change(|held| held.releases += 1).await;
    }

    async fn change(&mut self, change: impl FnOnce(&mut HeldRequests)) {
        let before = self.kept.borrow().ever;
        self.held.send_modify(change);
        // This never fails, because the proxy lives as long as `self`.
        let _ = self.kept.wait_for(|kept| kept.ever > before).await;
    }

    /// Sends the held requests, and waits until the store has answered them. Further requests pass.
    pub async fn let_go(&mut self) {
        self.held.send_modify(|held| {
            held.texts.clear();
            held.releases += 1;
        });
        let _ = self.kept.wait_for(|kept| kept.now == 0).await;
    }
}

/// Keeps the replaced rows of a table. A lagging replica still has a key's earlier row. The engine behind the proxy
/// would merge that row into the hidden one, and show neither.
const KEEP_REPLACED: &str = "max_bytes_to_merge_at_max_space_in_pool = 1, max_bytes_to_merge_at_min_space_in_pool = 1, \
     parts_to_delay_insert = 100000, parts_to_throw_insert = 100000";

/// Adds the column to the tables, and returns the setting that hides their latest rows.
async fn filters(client: &Client, database: &str, hidden_for: Duration) -> anyhow::Result<String> {
    let tables = "SELECT name, engine LIKE '%Replacing%' AS replaces FROM system.tables \
                  WHERE database = currentDatabase() \
                  AND engine LIKE '%MergeTree' AND name != 'schema_migrations' ORDER BY name";
    let tables = client.query(tables).fetch_all::<(String, bool)>().await?;
    anyhow::ensure!(!tables.is_empty(), "the store has no tables");
    let hidden_ms = hidden_for.as_millis();
    let mut filters = Vec::new();
    for (table, replaces) in tables {
        let add = format!(
            "ALTER TABLE `{table}` ADD COLUMN IF NOT EXISTS late_at DateTime64(3) MATERIALIZED now64(3)"
        );
        client.query(&add).execute().await?;
        if replaces {
            let keep = format!("ALTER TABLE `{table}` MODIFY SETTING {KEEP_REPLACED}");
            client.query(&keep).execute().await?;
        }
        filters.push(format!(
            "'{database}.{table}':'late_at <= now64(3) - toIntervalMillisecond({hidden_ms})'"
        ));
    }
    Ok(format!("{{{}}}", filters.join(",")))
}

/// The data that each connection needs.
struct Way {
    socket: PathBuf,
    parameters: String,
    held: Arc<watch::Sender<HeldRequests>>,
    kept: watch::Sender<KeptRequests>,
}

impl Way {
    /// Forwards one request with the parameters, and returns its answer.
    async fn pass(&self, mut client: TcpStream) -> anyhow::Result<()> {
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
        let head = std::str::from_utf8(&bytes[..head_end]).context("the head is not text")?;
        let head = with_parameters(head, &self.parameters)?;
        let mut rest = bytes.split_off(head_end);
        let releases = self.held_since(&mut client, &head, &mut rest).await?;
        if let Some(releases) = releases {
            self.kept.send_modify(|kept| {
                kept.ever += 1;
                kept.now += 1;
            });
            let mut held = self.held.subscribe();
            let _ = held.wait_for(|held| held.releases > releases).await;
        }
        let mut store = UnixStream::connect(&self.socket).await?;
        store.write_all(head.as_bytes()).await?;
        store.write_all(&rest).await?;
        if releases.is_some() {
            let mut answer = Vec::new();
            let answered = store.read_to_end(&mut answer).await;
            self.kept.send_modify(|kept| kept.now -= 1);
            answered?;
            client.write_all(&answer).await?;
        } else {
            tokio::io::copy_bidirectional(&mut client, &mut store).await?;
        }
        Ok(())
    }

    /// If this request is to be held, returns the number of releases so far. If any text is set, `rest` then has the
    /// whole body.
    async fn held_since(
        &self,
        client: &mut TcpStream,
        head: &str,
        rest: &mut Vec<u8>,
    ) -> anyhow::Result<Option<u64>> {
        let HeldRequests { texts, releases } = self.held.borrow().clone();
        if texts.is_empty() {
            return Ok(None);
        }
        let fields = head.lines().filter_map(|line| line.split_once(':'));
        let mut lengths = fields.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        let length = lengths
            .next()
            .map_or(Ok(0), |(_, n)| n.trim().parse::<usize>())?;
        // The body follows the four bytes of the empty line.
        while rest.len() < length + 4 {
            anyhow::ensure!(client.read_buf(rest).await? > 0, "the body ends early");
        }
        // Short queries are in the head.
        let body = String::from_utf8_lossy(rest);
        let has = |text: &&str| body.contains(*text) || head.contains(*text);
        Ok(texts.iter().any(has).then_some(releases))
    }
}

/// Returns a request's head with more parameters. The connection ends with the answer, because the head of a second
/// request would pass unchanged.
fn with_parameters(head: &str, parameters: &str) -> anyhow::Result<String> {
    let (line, fields) = head.split_once("\r\n").context("a head without fields")?;
    let words: Vec<&str> = line.split(' ').collect();
    let [method, target, version] = words[..] else {
        anyhow::bail!("no request line: {line}");
    };
    let separator = if target.contains('?') { '&' } else { '?' };
    Ok(format!(
        "{method} {target}{separator}{parameters} {version}\r\nconnection: close\r\n{fields}"
    ))
}
