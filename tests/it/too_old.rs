//! Every command that opens a store refuses a ClickHouse older than the minimum version.

use std::path::Path;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
};

use crate::support::{check_fails, epwatch, server};

/// Answers like a server of 2024, as far as clients query it before they know its version.
async fn answer(mut stream: UnixStream) {
    loop {
        let mut request = Vec::new();
        let is_whole = |request: &[u8]| {
            let text = String::from_utf8_lossy(request);
            let Some((head, body)) = text.split_once("\r\n\r\n") else {
                return false;
            };
            let head = head.to_ascii_lowercase();
            let length = head.split("content-length: ").nth(1);
            let length = length.map_or(0, |rest| rest.lines().next().unwrap().parse().unwrap());
            body.len() >= length
        };
        while !is_whole(&request) {
            match stream.read_buf(&mut request).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
        let asked = String::from_utf8_lossy(&request);
        // RowBinaryWithNamesAndTypes: the number of columns, their names, their types, rows.
        let body: &[u8] = if asked.contains("SELECT version()") {
            b"\x01\x09version()\x06String\x0824.8.1.1"
        } else if asked.contains("SELECT name, engine_full") {
            b"\x02\x04name\x0bengine_full\x06String\x06String"
        } else {
            panic!("asked before its version is known: {asked}")
        };
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        let answer = [head.as_bytes(), body].concat();
        if stream.write_all(&answer).await.is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_command_refuses_it_and_names_both_versions() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("old.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let serving = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream));
        }
    });
    let to = format!("--clickhouse unix:{}", socket.display());
    let refuses = |mut command: std::process::Command| {
        let expected = "the store is ClickHouse 24.8.1.1, expected 25.8 or newer";
        tokio::task::block_in_place(|| check_fails(&mut command, 3, expected));
    };
    for words in ["collector", "serve"] {
        let data = dir.path().join(words);
        refuses(server(&format!("{words} {to}"), &data));
    }
    let mut detector = epwatch(&format!("detector {to}"));
    detector.env("EPWATCH_DETECTOR__HTTP_LISTEN", "127.0.0.1:0");
    refuses(detector);
    for words in [
        "migrate",
        "migrate --dry-run",
        "page --listen 127.0.0.1:0",
        "status",
        "show app model",
        "incident",
        "incident ack some --who it --why read",
        "devices",
        "ledger",
        "health",
        "orders",
        "replay",
        "directive list",
    ] {
        refuses(epwatch(&format!("{words} {to}")));
    }
    assert!(Path::new(&socket).exists() && !serving.is_finished());
}
