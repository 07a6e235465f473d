//! The retry delay of a refusal: `google.rpc.RetryInfo` in the status's details, and gRFC A6 pushback for clients that
//! read only the pushback. A refusal with neither is final, except for codes of the transport.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tonic::{Code, Status};

/// The pushback header of gRFC A6, in milliseconds.
pub(crate) const PUSHBACK: &str = "grpc-retry-pushback-ms";
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, prost::Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, prost::Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, prost::Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<ProtoDuration>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, PartialEq, prost::Message)]
struct ProtoDuration {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// Encodes a delay as `RetryInfo`.
pub(crate) fn retry_info(delay: Duration) -> Vec<u8> {
    let retry_delay = Some(ProtoDuration {
        seconds: i64::try_from(delay.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(delay.subsec_nanos()).expect("below 1e9"),
    });
    RetryInfo { retry_delay }.encode_to_vec()
}

/// Returns a refusal whose call may succeed after `delay`.
pub(crate) fn later(code: Code, message: impl Into<String>, delay: Duration) -> Status {
    let message = message.into();
    let details = RpcStatus {
        code: code.into(),
        message: message.clone(),
        details: vec![Any {
            type_url: RETRY_INFO.to_owned(),
            value: retry_info(delay),
        }],
    };
    let details = Bytes::from(details.encode_to_vec());
    let mut status = Status::with_details(code, message, details);
    let millis = delay.as_millis().to_string();
    let value = millis.parse().expect("digits are a metadata value");
    status.metadata_mut().insert(PUSHBACK, value);
    status
}

pub(crate) fn delay_of(status: &Status) -> Option<Duration> {
    let millis = status.metadata().get(PUSHBACK)?.to_str().ok()?;
    millis.parse().ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes written by hand from the encoding rules: field 1, a message of 8 bytes, its field 1
    /// varint 2 and field 2 varint 500,000,000.
    #[test]
    fn retry_info_is_what_the_field_reads() {
        let bytes = retry_info(Duration::from_millis(2_500));
        assert_eq!(
            bytes,
            [0x0a, 0x08, 0x08, 0x02, 0x10, 0x80, 0xca, 0xb5, 0xee, 0x01]
        );
    }

    #[test]
    fn a_delay_is_read_back() {
        let status = later(Code::Unavailable, "full", Duration::from_millis(750));
        assert_eq!(delay_of(&status), Some(Duration::from_millis(750)));
        let details = RpcStatus::decode(status.details()).unwrap();
        assert_eq!(details.code, 14);
        assert_eq!(details.details[0].type_url, RETRY_INFO);
        assert_eq!(delay_of(&Status::internal("")), None);
    }
}
