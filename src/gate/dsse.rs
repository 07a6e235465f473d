//! Signs and verifies evidence with Ed25519 keys.

use epwatch_gate::dsse::Envelope;

use crate::signing_key::{PublicKey, SigningKey};

pub(crate) fn signed(statement: &[u8], key: &SigningKey) -> Envelope {
    Envelope::signed(statement, key.public().evidence_id(), |bytes| {
        key.sign(bytes)
    })
}

/// Returns the statement if the key has signed it.
pub(crate) fn opened(envelope: &Envelope, key: &PublicKey) -> Option<Vec<u8>> {
    envelope.opened(|bytes, signature| key.verifies(bytes, signature))
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, engine::general_purpose::STANDARD};

    use super::*;
    use crate::signing_key;

    #[test]
    fn each_flipped_byte_is_refused() {
        let (_, key) = signing_key::made().unwrap();
        let (_, other) = signing_key::made().unwrap();
        let statement = br#"{"_type":"https://in-toto.io/Statement/v1"}"#;
        let whole = serde_json::to_value(signed(statement, &key)).unwrap();
        let open = |json: &serde_json::Value, key: &SigningKey| {
            let envelope: Envelope = serde_json::from_value(json.clone()).unwrap();
            opened(&envelope, &key.public())
        };
        assert_eq!(open(&whole, &key).as_deref(), Some(&statement[..]));
        assert_eq!(open(&whole, &other), None);
        let flipped = |bytes: &[u8]| {
            let bytes = bytes.to_vec();
            (0..bytes.len()).map(move |at| {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1;
                bytes
            })
        };
        for bytes in flipped(statement) {
            let mut json = whole.clone();
            json["payload"] = STANDARD.encode(bytes).into();
            assert_eq!(open(&json, &key), None);
        }
        let payload_type = whole["payloadType"].as_str().unwrap().as_bytes();
        for bytes in flipped(payload_type) {
            let mut json = whole.clone();
            json["payloadType"] = String::from_utf8(bytes).unwrap().into();
            assert_eq!(open(&json, &key), None);
        }
        let sig = STANDARD.decode(whole["signatures"][0]["sig"].as_str().unwrap());
        for bytes in flipped(&sig.unwrap()) {
            let mut json = whole.clone();
            for entry in json["signatures"].as_array_mut().unwrap() {
                entry["sig"] = STANDARD.encode(&bytes).into();
            }
            assert_eq!(open(&json, &key), None);
        }
        let mut one = whole.clone();
        one["signatures"].as_array_mut().unwrap().remove(0);
        assert!(open(&one, &key).is_some());
        one["signatures"] = serde_json::json!([]);
        assert_eq!(open(&one, &key), None);
    }
}
