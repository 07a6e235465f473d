//! A hand-made HTTP/1.1 client, for requests as a mobile HTTP stack sends them and for requests that no honest client
//! sends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::support::TIMEOUT;

pub(crate) const SERVICE: &str = "/epwatch.v1.CollectorService";

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        assert_eq!(self.header("content-type"), Some("application/json"));
        serde_json::from_slice(&self.body).unwrap()
    }
}

pub(crate) fn open(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Reads one answer. The server need not close the connection after it, because it may wait for the rest of a body that
/// it refused.
pub(crate) fn read_answer(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let mut some = [0; 4096];
    loop {
        // A server that refuses a request may close before all of it was sent.
        let n = stream.read(&mut some).unwrap_or(0);
        bytes.extend_from_slice(&some[..n]);
        if let Some(answer) = parsed(&bytes, n == 0) {
            return answer;
        }
        assert_ne!(n, 0, "{}", String::from_utf8_lossy(&bytes));
    }
}

/// Returns the answer once it is complete. An answer without a length ends with the connection.
fn parsed(bytes: &[u8], is_end: bool) -> Option<Answer> {
    let split = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8(bytes[..split].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let answer = Answer {
        status,
        head,
        body: bytes[split + 4..].to_vec(),
    };
    let length = answer.header("content-length");
    let is_whole = length.is_some_and(|n| answer.body.len() >= n.parse::<usize>().unwrap());
    (is_end || is_whole).then_some(answer)
}

/// Sends one request and reads its answer.
pub(crate) fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    let mut stream = open(address);
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(body);
    read_answer(stream)
}

/// A Connect call.
pub(crate) fn post(
    address: SocketAddr,
    call: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    let mut all = vec![("Connect-Protocol-Version", "1")];
    if !headers
        .iter()
        .any(|(name, _)| name.eq_ignore_ascii_case("content-type"))
    {
        all.push(("Content-Type", "application/proto"));
    }
    all.extend_from_slice(headers);
    send(address, "POST", &format!("{SERVICE}/{call}"), &all, body)
}
