//! Counts a command's sequential queries against a fake store that delays its answers.

use std::sync::Arc;
use std::time::Duration;

use clickhouse::Client;
use epwatch_server::SystemClock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::{TerminalPage, answer};
use crate::read::store::StoreReader;

/// The queries of `status`, each recognised by the first of these texts in it.
const NAMES: [(&str, &str); 8] = [
    ("progress", "FROM store_progress_v1"),
    ("choices", "UNION ALL"),
    ("arrivals", "FROM settled_reports_v1"),
    ("latest", "w.signal_fires"),
    ("evidence", "FROM cohort_evidence_v1"),
    ("first judged", "INTERVAL 30 DAY\n"),
    ("ledger", "FROM loss_ledger_read_v1"),
    ("open incidents", "i.document AS document"),
];

/// Even on a busy machine, a test ends long before this.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// A query that waits for its answer.
struct Waiting {
    name: &'static str,
    answer: oneshot::Sender<Vec<u8>>,
}

/// Hands each query of a connection to the test, and sends its answer.
async fn serve(mut stream: TcpStream, queries: mpsc::Sender<Waiting>) -> Option<()> {
    loop {
        let mut request = Vec::new();
        let body = loop {
            stream
                .read_buf(&mut request)
                .await
                .ok()
                .filter(|n| *n > 0)?;
            let text = String::from_utf8_lossy(&request);
            let Some((head, body)) = text.split_once("\r\n\r\n") else {
                continue;
            };
            let head = head.to_ascii_lowercase();
            let (_, length) = head.split_once("content-length: ")?;
            let length: usize = length.lines().next()?.parse().ok()?;
            if body.len() >= length {
                break body.to_owned();
            }
        };
        let named = NAMES.iter().find(|(_, part)| body.contains(part));
        let (name, _) = named.unwrap_or_else(|| panic!("no name for {body}"));
        let (answer, answered) = oneshot::channel();
        queries.send(Waiting { name, answer }).await.ok()?;
        stream.write_all(&answered.await.ok()?).await.ok()?;
    }
}

/// One row of columns in ClickHouse's RowBinaryWithNamesAndTypes.
fn row(columns: &[(&str, &str, &[u8])]) -> Vec<u8> {
    let mut body = vec![u8::try_from(columns.len()).unwrap()];
    let mut text = |text: &str| {
        body.push(u8::try_from(text.len()).unwrap());
        body.extend_from_slice(text.as_bytes());
    };
    columns.iter().for_each(|(name, _, _)| text(name));
    columns.iter().for_each(|(_, kind, _)| text(kind));
    columns
        .iter()
        .for_each(|(_, _, value)| body.extend_from_slice(value));
    let mut answer =
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
    answer.extend(body);
    answer
}

fn answer_to(name: &str) -> Vec<u8> {
    let seconds = 1_800_000_000_u32.to_le_bytes();
    let ms = 1_800_000_000_000_i64.to_le_bytes();
    let n = 7_u64.to_le_bytes();
    let time = |name: &'static str| (name, "DateTime64(3, 'UTC')", ms.as_slice());
    match name {
        "progress" => row(&[
            ("closed_until", "DateTime('UTC')", seconds.as_slice()),
            time("judged_at"),
            time("judged_until"),
            time("judged_before"),
            time("handled_at"),
        ]),
        "choices" => row(&[
            ("app", "String", b"\x03cam"),
            ("environment", "String", b"\x04prod"),
            ("devices", "UInt64", &n),
            ("pages", "UInt64", &n),
        ]),
        _ => b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n".to_vec(),
    }
}

/// The fake store answers only when all queries of a step wait. A query that needs another one of its step would hang.
#[tokio::test]
async fn queries_that_do_not_need_each_other_wait_together() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (send, mut queries) = mpsc::channel(32);
    let serving = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, send.clone()));
        }
    });
    let store = StoreReader::with_places(Client::default().with_url(url), 8, 100);
    let (facts_asked, facts) = oneshot::channel();
    let question = TerminalPage::Fleet {
        app: None,
        environment: None,
        search: String::new(),
    };
    let read_facts = async move {
        let _ = facts_asked.send(());
        Vec::new()
    };
    let asked = answer(store, question, Box::pin(read_facts), Arc::new(SystemClock));
    let steps: [&[&str]; 3] = [
        &["progress"],
        &["arrivals", "choices"],
        &[
            "evidence",
            "first judged",
            "latest",
            "ledger",
            "open incidents",
        ],
    ];
    let answers = async {
        let mut facts = Some(facts);
        for step in steps {
            let mut waiting: Vec<Waiting> = Vec::new();
            while waiting.len() < step.len() {
                let query = timeout(LONGEST_WAIT, queries.recv()).await;
                waiting.push(query.expect("a query waits for another one").unwrap());
            }
            if let Some(facts) = facts.take() {
                timeout(LONGEST_WAIT, facts).await.unwrap().unwrap();
            }
            let mut names: Vec<&str> = waiting.iter().map(|query| query.name).collect();
            names.sort_unstable();
            assert_eq!(names, step);
            for query in waiting {
                let _ = query.answer.send(answer_to(query.name));
            }
        }
    };
    let (asked, ()) = tokio::join!(asked, answers);
    // Without the rows of the third step there is no page.
    asked.expect_err("the store refused the cohorts");
    assert!(queries.try_recv().is_err());
    serving.abort();
}
