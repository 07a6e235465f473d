//! Requests of the `clickhouse` crate, and the answers that it needs.

use clickhouse::{Compression, Row};
use epwatch_store::embedded::EmbeddedStore;
use epwatch_test_support::{engine_config, until};
use serde::{Deserialize, Serialize};

use crate::support::{TestStore, post, raw};

#[derive(Debug, Clone, PartialEq, Row, Serialize, Deserialize)]
struct Sample {
    id: u64,
    text: String,
    buckets: Vec<u16>,
    maybe: Option<i32>,
}

fn samples(n: u64) -> Vec<Sample> {
    let sample = |id: u64| Sample {
        id,
        text: format!("row {id}\n\nDROP TABLE s;\n\n; ' \\ \u{1f4c8}"),
        buckets: (0..7)
            .take_while(|bucket| u64::from(*bucket) < id % 8)
            .collect(),
        maybe: i32::try_from(id).ok().filter(|id| id % 2 == 0),
    };
    (0..n).map(sample).collect()
}

async fn insert(client: &clickhouse::Client, rows: &[Sample]) -> clickhouse::error::Result<()> {
    let mut insert = client.insert::<Sample>("s").await?;
    for row in rows {
        insert.write(row).await?;
    }
    insert.end().await
}

const TABLE: &str = "CREATE TABLE s (id UInt64, text String, buckets Array(UInt16), \
                     maybe Nullable(Int32)) ENGINE = MergeTree ORDER BY id";

/// The engine runs the text after a blank line in inline data as SQL, so rows must never be sent as inline data.
#[tokio::test]
async fn rows_with_blank_lines_and_sql_arrive_as_data() {
    let test = TestStore::start().await;
    test.execute(TABLE).await;
    let rows = samples(1_000);
    for compression in [Compression::None, Compression::Lz4] {
        let client = test.client().with_compression(compression);
        insert(&client, &rows).await.unwrap();
        let read = client
            .query("SELECT ?fields FROM s ORDER BY id")
            .fetch_all::<Sample>();
        assert_eq!(read.await.unwrap(), rows);
        test.execute("TRUNCATE TABLE s").await;
    }
    test.store.stop().await;
}

#[tokio::test]
async fn inline_values_with_blank_lines_arrive_as_data() {
    let test = TestStore::start().await;
    test.execute(TABLE).await;
    test.execute("INSERT INTO s (id, text) VALUES (1, 'a\n\nDROP TABLE s'), (2, 'b')")
        .await;
    let bound = "x\n\nDROP TABLE s;\n\n'";
    let bind = test
        .client()
        .query("INSERT INTO s (id, text) VALUES (3, ?)")
        .bind(bound);
    bind.execute().await.unwrap();
    let param = test
        .client()
        .query("INSERT INTO s (id, text) SELECT 4, {text: String}");
    param.param("text", bound).execute().await.unwrap();
    let texts = test
        .client()
        .query("SELECT text FROM s ORDER BY id")
        .fetch_all::<String>();
    assert_eq!(
        texts.await.unwrap(),
        ["a\n\nDROP TABLE s", "b", bound, bound]
    );
    test.store.stop().await;
}

#[tokio::test]
async fn rows_in_the_body_of_an_insert_arrive_as_data() {
    let test = TestStore::start().await;
    test.execute(TABLE).await;
    let body = "INSERT INTO t.s (id, text) FORMAT CSV\n1,\"a\n\nDROP TABLE t.s\"\n2,b\n";
    let answer = raw(test.store.socket(), &post("/", "", body)).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(
        test.count("SELECT count() FROM s WHERE text LIKE '%DROP TABLE%'")
            .await,
        1
    );
    assert_eq!(test.count("SELECT count() FROM s").await, 2);
    test.store.stop().await;
}

#[tokio::test]
async fn parameters_and_settings_reach_the_engine() {
    let test = TestStore::start().await;
    let client = test.client();
    let text = "it's {a} \\ \n -- ü";
    let echo = client.query("SELECT {a: String}").param("a", text);
    assert_eq!(echo.fetch_one::<String>().await.unwrap(), text);
    let setting = client.query("SELECT toUInt64(getSetting('max_block_size'))");
    let setting = setting
        .with_setting("max_block_size", "777")
        .fetch_one::<u64>();
    assert_eq!(setting.await.unwrap(), 777);
    assert_eq!(
        client
            .query("SELECT currentDatabase()")
            .fetch_one::<String>()
            .await
            .unwrap(),
        "t"
    );
    let unknown = client
        .query("SELECT 1")
        .with_setting("no_such_setting", "1")
        .execute()
        .await;
    assert!(unknown.unwrap_err().to_string().contains("Code: 115"));
    // No state of one request is left for the next request.
    let again = "SELECT toUInt64(getSetting('max_block_size') = 777)";
    assert_eq!(test.count(again).await, 0);
    test.store.stop().await;
}

#[tokio::test]
async fn empty_results_keep_their_columns() {
    let test = TestStore::start().await;
    test.execute(TABLE).await;
    let none = test
        .client()
        .query("SELECT ?fields FROM s")
        .fetch_all::<Sample>()
        .await;
    assert_eq!(none.unwrap(), []);
    test.store.stop().await;
}

#[tokio::test]
async fn errors_come_with_their_code() {
    let test = TestStore::start().await;
    test.execute(TABLE).await;
    for (sql, code) in [
        ("SELECT * FROM missing", "Code: 60."),
        ("SELEKT 1", "Code: 62."),
        ("SELECT throwIf(1)", "Code: 395."),
        ("INSERT INTO s (id) VALUES ('no number')", "Code: "),
    ] {
        let text = test.refusal(sql).await;
        assert!(text.contains(code), "{sql}: {text}");
    }
    let rows = "INSERT INTO t.s (id) FORMAT RowBinary";
    let url = format!("/?query={}", rows.replace(' ', "+"));
    let answer = raw(test.store.socket(), &post(&url, "", "short")).await;
    assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(
        answer
            .to_lowercase()
            .contains("x-clickhouse-exception-code"),
        "{answer}"
    );
    assert_eq!(test.count("SELECT count() FROM s").await, 0);
    test.store.stop().await;
}

#[tokio::test]
async fn large_select_streams_in_bounded_memory() {
    let test = TestStore::start().await;
    let client = test.client().with_setting("max_memory_usage", "100000000");
    // Reads 800 MB through an engine that may use 100 MB of memory for the query.
    let rows = client.query("SELECT number, repeat('x', 100) FROM numbers(8000000)");
    let mut cursor = rows.fetch::<(u64, String)>().unwrap();
    let (mut n, mut sum) = (0_u64, 0_u64);
    while let Some((number, text)) = cursor.next().await.unwrap() {
        assert_eq!(text.len(), 100);
        n += 1;
        sum += number;
    }
    assert_eq!((n, sum), (8_000_000, 8_000_000 * 7_999_999 / 2));
    test.store.stop().await;
}

#[tokio::test]
async fn an_error_after_rows_is_an_error() {
    let test = TestStore::start().await;
    let sql = "SELECT number, throwIf(number = 3000000) FROM numbers(4000000)";
    let client = test.client().with_setting("max_threads", "1");
    let mut cursor = client.query(sql).fetch::<(u64, u8)>().unwrap();
    let mut n = 0_u64;
    let error = loop {
        match cursor.next().await {
            Ok(Some(_)) => n += 1,
            Ok(None) => panic!("ended like a whole result after {n} rows"),
            Err(error) => break error.to_string(),
        }
    };
    assert!(n > 0, "the error came before any row");
    assert!(error.contains("Code: 395"), "{error}");
    test.store.stop().await;
}

#[tokio::test]
async fn the_query_of_a_client_that_left_is_killed() {
    let test = TestStore::start().await;
    let client = test.client();
    // Without the kill this sleeps for 50 minutes.
    let sql = "SELECT count() FROM numbers(1000) WHERE NOT ignore(sleepEachRow(3), 'left')";
    let slow = client.query(sql).with_setting("max_block_size", "1");
    let slow = slow.with_setting("function_sleep_max_microseconds_per_block", "0");
    let slow = tokio::spawn(async move { slow.fetch_one::<u64>().await });
    let running = "SELECT count() FROM system.processes WHERE query LIKE '%\\'left\\')' \
                   AND query NOT LIKE '%system.processes%'";
    let n_running = || async { test.count(running).await };
    until("the query runs", || async {
        (n_running().await == 1).then_some(())
    })
    .await;
    slow.abort();
    until("the query ends", || async {
        (n_running().await == 0).then_some(())
    })
    .await;
    test.store.stop().await;
}

#[tokio::test]
async fn an_insert_whose_client_left_writes_nothing() {
    let test = TestStore::start().await;
    test.execute(TABLE).await;
    let client = test.client();
    let mut insert = client.insert::<Sample>("s").await.unwrap();
    for row in samples(50_000) {
        insert.write(&row).await.unwrap();
    }
    drop(insert);
    let busy = "SELECT count() FROM system.processes WHERE query LIKE 'INSERT%'";
    until("the insert ends", || async {
        (test.count(busy).await == 0).then_some(())
    })
    .await;
    assert_eq!(test.count("SELECT count() FROM s").await, 0);
    test.store.stop().await;
}

/// The engine refuses at the first row; the client is still sending and must read the reason.
#[tokio::test]
async fn an_insert_refused_half_way_says_why() {
    let test = TestStore::start().await;
    test.execute(TABLE).await;
    let sql = "INSERT INTO s (id) FORMAT CSV";
    let mut insert = test.client().insert_formatted_with(sql);
    let piece = bytes::Bytes::from("no number\n".repeat(100_000));
    let mut sent = Ok(());
    for _ in 0..50 {
        if sent.is_ok() {
            sent = insert.send(piece.clone()).await;
        }
    }
    let error = match sent {
        Ok(()) => insert.end().await.unwrap_err(),
        Err(error) => error,
    };
    assert!(error.to_string().contains("Code: 117"), "{error}");
    assert_eq!(test.count("SELECT count() FROM s").await, 0);
    test.store.stop().await;
}

#[tokio::test]
async fn a_full_queue_answers_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = engine_config(dir.path());
    config.max_concurrent_queries = 1;
    let store = EmbeddedStore::start(config).await.unwrap();
    store.ready().await.unwrap();
    // One query runs, four wait, and the others are refused.
    let asks = (0..12).map(|_| {
        store
            .client("")
            .query("SELECT sleep(0.5)")
            .fetch_one::<u8>()
    });
    let answers = futures::future::join_all(asks).await;
    let refused: Vec<String> = answers
        .iter()
        .filter_map(|a| Some(a.as_ref().err()?.to_string()))
        .collect();
    assert!(!refused.is_empty() && refused.len() <= 7, "{refused:?}");
    assert!(
        refused.iter().all(|text| text.contains("Code: 202")),
        "{refused:?}"
    );
    store.stop().await;
}

#[tokio::test]
async fn more_clients_than_slots_wait_their_turn() {
    let test = TestStore::start().await;
    let asks = (0..100_u64).map(|i| {
        let client = test.client();
        async move {
            client
                .query("SELECT toUInt64(?)")
                .bind(i)
                .fetch_one::<u64>()
                .await
                .unwrap()
        }
    });
    let answers = futures::future::join_all(asks).await;
    assert_eq!(answers, (0..100).collect::<Vec<_>>());
    test.store.stop().await;
}

#[tokio::test]
async fn a_get_request_changes_nothing() {
    let test = TestStore::start().await;
    test.execute(TABLE).await;
    let get = |query: &str| {
        let query = query.replace(' ', "+");
        format!("GET /?query={query} HTTP/1.1\r\nHost: store\r\nConnection: close\r\n\r\n")
    };
    let read = raw(test.store.socket(), &get("SELECT 42")).await;
    assert!(read.starts_with("HTTP/1.1 200"), "{read}");
    let write = raw(test.store.socket(), &get("INSERT INTO t.s (id) VALUES (1)")).await;
    assert!(write.contains("Code: 164"), "{write}");
    let drop = raw(test.store.socket(), &get("DROP TABLE t.s")).await;
    assert!(drop.contains("Code: 164"), "{drop}");
    assert_eq!(test.count("SELECT count() FROM s").await, 0);
    test.store.stop().await;
}

#[tokio::test]
async fn oversized_queries_are_refused() {
    let test = TestStore::start().await;
    let text = test
        .refusal(&format!("SELECT '{}'", "x".repeat(2 << 20)))
        .await;
    assert!(text.contains("Code: 229"), "{text}");
    test.store.stop().await;
}

#[tokio::test]
async fn what_the_protocol_does_not_offer_is_refused() {
    let test = TestStore::start().await;
    for (url, headers, expected) in [
        ("/?session_id=a", "", "session_id"),
        ("/?compress=1", "", "compress"),
        ("/?a%27b=1", "", "setting name"),
        ("/", "Content-Encoding: gzip\r\n", "Content-Encoding"),
    ] {
        let answer = raw(test.store.socket(), &post(url, headers, "SELECT 1")).await;
        assert!(!answer.starts_with("HTTP/1.1 200"), "{url}: {answer}");
        assert!(answer.contains(expected), "{url}: {answer}");
    }
    let damaged = post(
        "/?decompress=1&query=INSERT+INTO+t.s+FORMAT+CSV",
        "",
        &"x".repeat(99),
    );
    let answer = raw(test.store.socket(), &damaged).await;
    assert!(
        answer.contains("Code: 271") || answer.contains("Code: 60"),
        "{answer}"
    );
    test.store.stop().await;
}
