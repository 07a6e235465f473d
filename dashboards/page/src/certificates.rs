//! Certificates for a terminal, as text and JSON.

use std::fmt::Write as _;

use bytes::Bytes;
use clickhouse::Client;
use jiff::Timestamp;
use serde::Serialize;

use crate::read::certificates::{self, CertificateRow, MOST};
use crate::read::store::StoreReader;
use crate::terminal::{TerminalAnswer, TerminalError, head, table};
use crate::text::name::visible;
use crate::text::time::ago;

/// Number of digits of a hash in the list; the JSON has all.
const SHORT: usize = 12;

#[derive(Serialize)]
struct Certificates {
    certificates: Vec<CertificateRow>,
}

/// Answers `epwatch certificates`: the placements that models were certified with, the latest first.
///
/// # Errors
/// The store does not answer.
pub async fn certificates(
    store: Client,
    app: Option<&str>,
) -> Result<TerminalAnswer, TerminalError> {
    let store = StoreReader::for_command(store);
    let certificates = certificates::list(&store, app).await?;
    let text = listed(&certificates, Timestamp::now());
    let json = serde_json::to_vec(&Certificates { certificates }).unwrap_or_default();
    let json = Bytes::from(json);
    Ok(TerminalAnswer {
        state: json.clone(),
        json,
        text,
    })
}

fn listed(certificates: &[CertificateRow], now: Timestamp) -> String {
    if certificates.is_empty() {
        return "No placement is certified; `epwatch gate MODEL --soc .. --certify URL` stores one.\n"
            .to_owned();
    }
    let mut rows = vec![head(&[
        "APP",
        "MODEL",
        "VERSION",
        "CHIPSET",
        "FIRMWARE",
        "RUNTIME",
        "NPU MACS",
        "PARTITIONS",
        "ON CPU",
        "FILE",
        "BY",
        "STORED",
    ])];
    rows.extend(certificates.iter().map(|row| {
        let share = row.npu_macs_share;
        let file: String = row.model_sha256.chars().take(SHORT).collect();
        let stored = Timestamp::from_millisecond(row.stored_at_ms);
        vec![
            visible(&row.app),
            visible(&row.model),
            visible(&row.version),
            visible(&row.chipset),
            match &*row.firmware {
                "" => "-".to_owned(),
                firmware => visible(&firmware.chars().take(SHORT).collect::<String>()),
            },
            visible(&row.runtime),
            // Without a MAC on the NPU the share may be -0.
            share.map_or("-".to_owned(), |share| {
                format!("{:.1} %", 100.0 * share + 0.0)
            }),
            row.npu_partitions.to_string(),
            row.cpu_nodes.to_string(),
            match row.is_replaced {
                true => format!("{file} (replaced)"),
                false => file,
            },
            visible(&row.certified_by),
            stored.map_or_else(|_| String::new(), |at| ago(at, now)),
        ]
    }));
    let mut text = table(&rows);
    if certificates.len() == MOST {
        _ = writeln!(
            text,
            "The {MOST} that were stored last. `--app` shows the certificates of one app."
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_of_another_file_is_marked() {
        let mut row = CertificateRow {
            app: "demo.camera".into(),
            environment: "production".into(),
            model: "scene".into(),
            version: "3".into(),
            chipset: "SM8635".into(),
            firmware: "cd".repeat(16),
            runtime: "1.31.1/2.7.0".into(),
            model_sha256: "ab".repeat(32),
            certified_by: "ci run 7".into(),
            stored_at_ms: 0,
            npu_macs_share: Some(0.726),
            npu_partitions: 1,
            cpu_nodes: 5,
            latency_launches: 0,
            latency_p50_us: 0,
            is_replaced: false,
        };
        let now = Timestamp::from_second(120).unwrap();
        let text = listed(std::slice::from_ref(&row), now);
        for words in [
            "scene",
            "cdcdcdcdcdcd ",
            "72.6 %",
            "abababababab ",
            "ci run 7",
        ] {
            assert!(text.contains(words), "{words} is not in {text}");
        }
        row.is_replaced = true;
        assert!(listed(&[row], now).contains("abababababab (replaced)"));
        assert!(listed(&[], now).contains("--certify"));
    }
}
