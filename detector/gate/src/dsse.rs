//! A signed document: DSSE 1.0 (Dead Simple Signing Envelope), as in-toto's tools write and read it. Keys stay with the
//! caller.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};

const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";

/// A payload with its signatures.
#[derive(Debug, Serialize, Deserialize)]
pub struct Envelope {
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
    /// Signs an in-toto statement. There are two entries of the same signature, one with the id of the key and one
    /// without. securesystemslib looks for its own key id. Go's dsse verifies an entry with an id only if it derives
    /// the same id.
    pub fn signed<S: AsRef<[u8]>>(
        statement: &[u8],
        key_id: String,
        sign: impl FnOnce(&[u8]) -> S,
    ) -> Self {
        let sig = STANDARD.encode(sign(&encoded(PAYLOAD_TYPE, statement)));
        let signatures = [key_id, String::new()].map(|keyid| {
            let sig = sig.clone();
            Signature { keyid, sig }
        });
        Self {
            payload: STANDARD.encode(statement),
            payload_type: PAYLOAD_TYPE.to_owned(),
            signatures: signatures.into(),
        }
    }

    /// Returns the statement if the key verifies the signature of an entry. Ids of keys are only hints, and are not
    /// used here.
    pub fn opened(&self, verifies: impl Fn(&[u8], &[u8]) -> bool) -> Option<Vec<u8>> {
        let statement = STANDARD.decode(&self.payload).ok()?;
        let bytes = encoded(&self.payload_type, &statement);
        let is_signed = self.signatures.iter().any(|signature| {
            let sig = STANDARD.decode(&signature.sig);
            sig.is_ok_and(|sig| verifies(&bytes, &sig))
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
