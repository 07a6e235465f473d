//! The message `UploadRequest`, decoded by hand to bound memory. An entry takes two bytes on the wire and up to
//! thirty-two in memory. So a request of empty reports would take sixteen times its size. Entries beyond the contract's
//! bound are skipped, except for one, which makes the parser refuse the request.

use bytes::{Buf, BufMut, Bytes};
use prost::DecodeError;
use prost::encoding::{
    DecodeContext, WireType, bytes as bytes_field, fixed64, message, skip_field, string,
};

use crate::v1;

/// Maximum number of reports of one request.
pub const MAX_REPORTS: usize = 1_000;
/// Maximum number of directives of a response, and of ids of a request.
pub const MAX_DIRECTIVES: usize = 64;

/// One call of Upload. The reports stay bytes, which is the same on the wire. The collector makes exactly the received
/// bytes durable, and compares them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BoundedUploadRequest {
    /// Encoded reports. If there are more than [`MAX_REPORTS`], decoding keeps one more than that.
    pub reports: Vec<Bytes>,
    /// The device's clocks when the call was made.
    pub clock: Option<v1::SendClock>,
    /// The SDK that sends.
    pub sdk: Option<v1::Sdk>,
    /// Ids of the directives that the device holds; bounded like the reports.
    pub held_directive_ids: Vec<String>,
    /// Proof by the platform.
    pub attestation: Option<v1::Attestation>,
    /// A random number of this call.
    pub request_id: u64,
}

impl prost::Message for BoundedUploadRequest {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        bytes_field::encode_repeated(1, &self.reports, buf);
        if let Some(clock) = &self.clock {
            message::encode(2, clock, buf);
        }
        if let Some(sdk) = &self.sdk {
            message::encode(3, sdk, buf);
        }
        string::encode_repeated(4, &self.held_directive_ids, buf);
        if let Some(attestation) = &self.attestation {
            message::encode(5, attestation, buf);
        }
        if self.request_id != 0 {
            fixed64::encode(6, &self.request_id, buf);
        }
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            1 if self.reports.len() <= MAX_REPORTS => {
                bytes_field::merge_repeated(wire_type, &mut self.reports, buf, ctx)
            }
            2 => message::merge(wire_type, self.clock.get_or_insert_default(), buf, ctx),
            3 => message::merge(wire_type, self.sdk.get_or_insert_default(), buf, ctx),
            4 if self.held_directive_ids.len() <= MAX_DIRECTIVES => {
                string::merge_repeated(wire_type, &mut self.held_directive_ids, buf, ctx)
            }
            5 => message::merge(
                wire_type,
                self.attestation.get_or_insert_default(),
                buf,
                ctx,
            ),
            6 => fixed64::merge(wire_type, &mut self.request_id, buf, ctx),
            _ => skip_field(wire_type, tag, buf, ctx),
        }
    }

    fn encoded_len(&self) -> usize {
        let clock = self.clock.as_ref();
        let sdk = self.sdk.as_ref();
        let attestation = self.attestation.as_ref();
        bytes_field::encoded_len_repeated(1, &self.reports)
            + clock.map_or(0, |clock| message::encoded_len(2, clock))
            + sdk.map_or(0, |sdk| message::encoded_len(3, sdk))
            + string::encoded_len_repeated(4, &self.held_directive_ids)
            + attestation.map_or(0, |attestation| message::encoded_len(5, attestation))
            + match self.request_id {
                0 => 0,
                id => fixed64::encoded_len(6, &id),
            }
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::UploadRequest as Parsed;

    fn sdk() -> v1::Sdk {
        v1::Sdk {
            name: "epwatch".into(),
            ..v1::Sdk::default()
        }
    }

    #[test]
    fn whole_message_round_trips() {
        let request = BoundedUploadRequest {
            reports: vec![Bytes::from_static(b"one"), Bytes::new()],
            clock: Some(v1::SendClock {
                wall_unix_ms: Some(1),
                ..v1::SendClock::default()
            }),
            sdk: Some(sdk()),
            held_directive_ids: vec!["a".into(), "b".into()],
            attestation: Some(v1::Attestation {
                kind: "k".into(),
                token: Bytes::from_static(b"t"),
            }),
            request_id: 7,
        };
        let bytes = request.encode_to_vec();
        assert_eq!(bytes.len(), request.encoded_len());
        assert_eq!(BoundedUploadRequest::decode(&bytes[..]), Ok(request));
    }

    #[test]
    fn entries_beyond_the_bound_take_no_memory_and_are_refused() {
        for (tag, field, kept) in [(1_u8, "reports", 1_001), (4, "held_directive_ids", 65)] {
            let mut bytes = [tag << 3 | 2, 0].repeat(2 << 20);
            let valid = BoundedUploadRequest {
                reports: vec![Bytes::from_static(b"one")],
                sdk: Some(sdk()),
                ..BoundedUploadRequest::default()
            };
            bytes.extend(valid.encode_to_vec());
            let request = BoundedUploadRequest::decode(&bytes[..]).unwrap();
            let lists = [request.reports.len(), request.held_directive_ids.len()];
            assert!(lists.contains(&kept), "{lists:?}");
            assert!(request.reports.capacity() <= 2_048);
            let error = Parsed::try_from(request).unwrap_err();
            assert_eq!(error.field(), field);
        }
    }
}
