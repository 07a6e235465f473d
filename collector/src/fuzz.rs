//! Fuzz targets as functions of bytes: input from outside must never cause a panic. `tests/fuzz` calls them, and a test
//! here runs them over the seeds.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use epwatch_proto::v1::{self, collector_service_server::CollectorService};
use epwatch_proto::{FastValidator, Report, UploadRequest};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::{Request, Response, Status};

use crate::config::CollectorConfig;
use crate::encode::{CardinalityLimiter, EncodedBatch, Encoder};
use crate::ingest::auth::AppKeys;
use crate::metrics::{KeyMetrics, Metrics};
use crate::server::DeviceServer;
use crate::wal::{Record, WalOffset, WalSegmentFuzz};
use crate::{deletions, encode, ingest::validate::validate_report, wal_record};

const HOUR: Duration = Duration::from_secs(3600);

/// A call's message, from the wire to its rows.
pub fn request(bytes: &[u8]) {
    let mut validator = FastValidator::default();
    let Ok(message) = v1::UploadRequest::decode(bytes) else {
        // A report alone, which is a shorter path for the fuzzer.
        return report(bytes, &epwatch_proto::SendClock::default(), &mut validator);
    };
    if let Ok(call) = UploadRequest::try_from(message) {
        for report_bytes in &call.reports {
            report(report_bytes, &call.clock, &mut validator);
        }
    }
}

/// Checks a report with the validator of its call.
fn report<'a>(
    bytes: &'a [u8],
    clock: &epwatch_proto::SendClock,
    validator: &mut FastValidator<'a>,
) {
    let alone = FastValidator::default().validate(bytes);
    // Earlier input, or the same input twice, does not change the result.
    assert_eq!(validator.validate(bytes), alone);
    assert_eq!(validator.validate(bytes), alone);
    let parsed = Report::parse(bytes);
    let checked = validate_report(bytes, validator);
    // Both validations agree, and the writer can read every report that ingest accepts.
    assert_eq!(checked.is_ok(), parsed.is_ok(), "{checked:?}");
    let (Ok(facts), Ok(report)) = (checked, parsed) else {
        return;
    };
    assert_eq!(facts.key, report.key);
    assert_eq!(facts.app_id, report.app.id);
    assert_eq!(facts.environment, report.app.environment);
    let mut payload = Vec::new();
    let app = (&*facts.app_id, &*facts.environment);
    let mark = wal_record::SenderMark {
        is_unproven: bytes.len().is_multiple_of(2),
        ..wal_record::SenderMark::default()
    };
    wal_record::write_header(&mut payload, clock, app, mark);
    payload.extend_from_slice(bytes);
    let rows = rows_of(payload.into());
    assert!(rows.unreadable.is_empty(), "{:?}", rows.unreadable);
}

fn rows_of(payload: Bytes) -> EncodedBatch {
    let record = Record::of(WalOffset(64), 1_760_000_000_000_000, payload);
    Encoder::new(7, HOUR, CardinalityLimiter::default()).encode(&[record])
}

/// The payload of a WAL record, as a newer or damaged collector may have written it.
pub fn wal_record(bytes: &[u8]) {
    if !bytes.is_empty() {
        rows_of(Bytes::copy_from_slice(bytes));
    }
}

/// A segment: the bytes themselves, then valid records that the bytes damage.
pub fn wal_segment(bytes: &[u8]) {
    let segment = WalSegmentFuzz::default();
    let n_read = segment.read(bytes.to_vec()).len();
    assert!(n_read <= bytes.len() / 24);
    let (lengths, damage) = bytes.split_at(bytes.len() / 2);
    let payloads: Vec<Vec<u8>> = lengths
        .iter()
        .take(64)
        .map(|&length| vec![length; usize::from(length) + 1])
        .collect();
    let (mut log, places) = segment.write(&payloads);
    let mut is_touched = vec![false; log.len()];
    for change in damage.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]]));
        if let Some(byte) = log.get_mut(at) {
            *byte ^= change[2];
            is_touched[at] |= change[2] != 0;
        }
    }
    let found = segment.read(log);
    // Damage loses only the records that it hits.
    let whole = places.into_iter().zip(payloads);
    let untouched = whole.filter(|(place, _)| !is_touched[place.clone()].contains(&true));
    let mut found = found.into_iter();
    for (_, payload) in untouched {
        assert!(
            found.any(|record| record == payload),
            "an untouched record is found"
        );
    }
}

/// The files `checkpoint` and `collector-id` of a WAL.
pub fn wal_checkpoint(bytes: &[u8]) {
    WalSegmentFuzz::default().checkpoint(bytes);
}

/// The file `deletions`: its promises are the same after it is replaced.
pub fn deletions(bytes: &[u8]) {
    let records = deletions::tombstones_of(bytes);
    assert!(records.len() <= 2 * bytes.len());
    assert_eq!(deletions::tombstones_of(&records), records);
}

/// The file `names`: each line that is accepted was written by a collector.
pub fn names(bytes: &[u8]) {
    let (lines, n_damaged) = encode::parse_names(bytes);
    let n_lines = lines.len() as u64 + n_damaged;
    assert!(n_lines <= bytes.len() as u64);
    let written: String = lines
        .iter()
        .map(|(_, line)| encode::line_of_name(line))
        .collect();
    assert_eq!(encode::parse_names(written.as_bytes()), (lines, 0));
}

/// Answers every call and does nothing.
#[derive(Debug)]
pub(crate) struct Nobody;

#[tonic::async_trait]
impl CollectorService for Nobody {
    async fn upload(
        &self,
        _: Request<v1::UploadRequest>,
    ) -> Result<Response<v1::UploadResponse>, Status> {
        Ok(Response::new(Default::default()))
    }

    async fn delete_installation(
        &self,
        _: Request<v1::DeleteInstallationRequest>,
    ) -> Result<Response<v1::DeleteInstallationResponse>, Status> {
        Ok(Response::new(Default::default()))
    }

    async fn put_model_manifest(
        &self,
        _: Request<v1::PutModelManifestRequest>,
    ) -> Result<Response<v1::PutModelManifestResponse>, Status> {
        Ok(Response::new(Default::default()))
    }

    async fn put_certified_placement(
        &self,
        _: Request<v1::PutCertifiedPlacementRequest>,
    ) -> Result<Response<v1::PutCertifiedPlacementResponse>, Status> {
        Err(Status::unavailable("nobody is here"))
    }
}

thread_local! {
    static FRONT: (tokio::runtime::Runtime, Arc<DeviceServer<Nobody>>) = {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let config = CollectorConfig::default();
        let keys = Arc::new(AppKeys::new(&config, KeyMetrics::default()).expect("a config without keys"));
        let front = DeviceServer::new(&config, Nobody, keys, None, Arc::new(Metrics::new()));
        (runtime.expect("a runtime"), Arc::new(front))
    };
}

/// A connection to the devices' port: these bytes, then the end.
pub fn connection(bytes: &[u8]) {
    // Far longer than any connection here takes.
    const TIMEOUT: Duration = Duration::from_secs(20);
    FRONT.with(|(runtime, front)| {
        runtime.block_on(async {
            let (mut client, server) = tokio::io::duplex(64 << 10);
            let serving = front.serve_stream(server);
            let sending = async {
                // A server that has read enough closes the connection before all bytes were sent.
                let sent: io::Result<()> = client.write_all(bytes).await;
                drop(sent);
                let _ = client.shutdown().await;
                let mut said = vec![0; 4096];
                while matches!(client.read(&mut said).await, Ok(1..)) {}
            };
            let both = async { tokio::join!(serving, sending) };
            let ended = tokio::time::timeout(TIMEOUT, both).await;
            assert!(ended.is_ok(), "the connection outlived its client");
        });
    });
}

#[cfg(test)]
#[path = "../../tests/fuzz/seeds.rs"]
mod seeds;

#[cfg(test)]
mod tests {
    use super::seeds::check;

    #[test]
    fn requests_of_the_seeds_are_taken_or_refused() {
        check("request", 50, super::request);
    }

    #[test]
    fn records_of_the_seeds_are_read_or_left_out() {
        check("wal_record", 50, super::wal_record);
    }

    #[test]
    fn segments_of_the_seeds_lose_only_what_is_damaged() {
        check("wal_segment", 50, super::wal_segment);
    }

    #[test]
    fn the_wal_s_small_files_are_read_or_damaged() {
        check("wal_checkpoint", 50, super::wal_checkpoint);
        check("deletions", 50, super::deletions);
        check("names", 50, super::names);
    }

    #[test]
    fn connections_of_the_seeds_end() {
        check("connection", 50, super::connection);
    }
}
