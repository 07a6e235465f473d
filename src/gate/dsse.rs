//! A signed document: DSSE 1.0 (Dead Simple Signing Envelope), as in-toto's tools write and read it.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use epwatch_proto::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::signing_key::{PublicKey, SigningKey};

const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";

/// A payload with its signatures.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Envelope {
    payload: String,
    #[serde(rename = "payloadType")]
    payload_type: String,
    signatures: Vec<Signature>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Signature {
    #[serde(default)]
    keyid: String,
    sig: String,
}

impl Envelope {
    /// Signs an in-toto statement. There are two entries of the same signature: securesystemslib looks for its own key id,
    /// and Go's dsse verifies an entry with an id only if it is the one that it derives.
    pub(super) fn signed(statement: &[u8], key: &SigningKey) -> Self {
        let sig = STANDARD.encode(key.sign(&encoded(PAYLOAD_TYPE, statement)));
        let ids = [key_id(&key.public()), String::new()];
        let signatures = ids.map(|keyid| {
            let sig = sig.clone();
            Signature { keyid, sig }
        });
        Self {
            payload: STANDARD.encode(statement),
            payload_type: PAYLOAD_TYPE.to_owned(),
            signatures: signatures.into(),
        }
    }

    /// Returns the statement if the key has signed it. Ids of keys are hints, which nothing rests on.
    pub(crate) fn opened(&self, key: &PublicKey) -> Option<Vec<u8>> {
        let statement = STANDARD.decode(&self.payload).ok()?;
        let bytes = encoded(&self.payload_type, &statement);
        let is_signed = self.signatures.iter().any(|signature| {
            let sig = STANDARD.decode(&signature.sig);
            sig.is_ok_and(|sig| key.verifies(&bytes, &sig))
        });
        (is_signed && self.payload_type == PAYLOAD_TYPE).then_some(statement)
    }
}

/// DSSE's pre-authentication encoding: the bytes that are signed.
fn encoded(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let head = format!(
        "DSSEv1 {} {payload_type} {} ",
        payload_type.len(),
        payload.len()
    );
    [head.as_bytes(), payload].concat()
}

/// The id that securesystemslib gives a key: the SHA-256 of its canonical JSON.
pub(crate) fn key_id(key: &PublicKey) -> String {
    let public = hex(&key.0);
    let json =
        format!(r#"{{"keytype":"ed25519","keyval":{{"public":"{public}"}},"scheme":"ed25519"}}"#);
    hex(&Sha256::digest(json))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signing_key;

    #[test]
    fn each_flipped_byte_is_refused() {
        let (_, key) = signing_key::made(None).unwrap();
        let (_, other) = signing_key::made(None).unwrap();
        let statement = br#"{"_type":"https://in-toto.io/Statement/v1"}"#;
        let whole = serde_json::to_value(Envelope::signed(statement, &key)).unwrap();
        let open = |json: &serde_json::Value, key: &SigningKey| {
            let envelope: Envelope = serde_json::from_value(json.clone()).unwrap();
            envelope.opened(&key.public())
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
        for bytes in flipped(PAYLOAD_TYPE.as_bytes()) {
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
