//! The operator's public keys, given by the host.

use epwatch_proto::{DirectiveRefusal, SignedDirective};
use ring::signature::{ED25519, UnparsedPublicKey};

/// Maximum number of keys; eight are enough for the current key and its successors.
pub(crate) const MAX_KEYS: usize = 8;

/// Ed25519's points of small order without the sign bit. Anyone can sign for such a key, and a forgotten or zeroed key
/// is such a point.
const SMALL_ORDER: [[u8; 32]; 7] = [
    [0; 32],
    [
        1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0,
    ],
    [
        0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98,
        0xf0, 0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53,
        0xfc, 0x05,
    ],
    [
        0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67,
        0x0f, 0x2a, 0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac,
        0x03, 0x7a,
    ],
    small_order_near_the_prime(0xec),
    small_order_near_the_prime(0xed),
    small_order_near_the_prime(0xee),
];

const fn small_order_near_the_prime(low: u8) -> [u8; 32] {
    let mut point = [0xff; 32];
    point[0] = low;
    point[31] = 0x7f;
    point
}

/// Whether a signature under this public key proves anything.
pub(crate) fn is_sound(public_key: &[u8; 32]) -> bool {
    let mut unsigned = *public_key;
    unsigned[31] &= 0x7f;
    !SMALL_ORDER.contains(&unsigned)
}

/// Keys by id.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct DirectiveKeys(Vec<(String, [u8; 32])>);

impl DirectiveKeys {
    /// Keys that the configuration has checked.
    pub(crate) fn new(keys: Vec<(String, [u8; 32])>) -> Self {
        Self(keys)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks the signature over exactly the directive's bytes.
    pub(crate) fn verify(&self, signed: &SignedDirective) -> Result<(), DirectiveRefusal> {
        let key = self.0.iter().find(|(id, _)| *id == signed.key_id);
        let (_, key) = key.ok_or(DirectiveRefusal::UnknownKey)?;
        UnparsedPublicKey::new(&ED25519, key)
            .verify(&signed.directive, &signed.signature)
            .map_err(|_| DirectiveRefusal::BadSignature)
    }
}
