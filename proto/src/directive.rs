//! Directives of operators to devices. Only their form is checked here. The SDK checks signature, scope and time
//! before it obeys one.

use bytes::Bytes;
use prost::Message as _;

use crate::{
    chipset::MAX_CHIPSET_BYTES,
    device::{MAX_APP_ID_BYTES, VENDOR_FINGERPRINT_HASH_CHARS},
    error::ParseError,
    ids::MAX_DIRECTIVE_ID_BYTES,
    message::{Blob, Exact, InnerOrDefault, Kind, Name, Positive32, Text, UnixMs, message, within},
    session::{MAX_MODEL_ID_BYTES, MAX_MODEL_VERSION_BYTES},
    v1,
};

/// Largest encoded directive.
pub const MAX_DIRECTIVE_BYTES: usize = 4 << 10;
/// Longest life of a directive: 90 days.
pub const MAX_LIFE_MS: i64 = 90 * 24 * 3_600_000;
/// Shortest and longest report interval: one second, seven days.
pub const REPORT_INTERVAL_MS: (u64, u64) = (1_000, 7 * 24 * 3_600_000);

/// A directive with the signature over exactly its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct SignedDirective {
    pub directive: Bytes,
    pub key_id: String,
    pub signature: [u8; 64],
}

/// One instruction with its scope and its time.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct Directive {
    pub id: String,
    pub scope: DirectiveScope,
    pub action: DirectiveAction,
    pub not_before_unix_ms: i64,
    pub expires_unix_ms: i64,
}

/// Devices that a directive is for. All fields must match; an empty field matches everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct DirectiveScope {
    pub app_id: String,
    pub model_id: String,
    pub model_version: String,
    pub chipset: String,
    pub vendor_fingerprint_hash: String,
}

/// The instruction of a directive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectiveAction {
    /// Record one run in this many, 1 or more.
    Sampling(u32),
    /// Seal a report this often, in milliseconds.
    ReportIntervalMs(u64),
    /// Do not ask for the NPU.
    NpuOff,
    /// Record nothing.
    RecordingOff,
    /// Load this variant of the model if the app has it.
    PreferredVariant(String),
    /// Forget the directive of this id.
    Revoke(String),
}

impl SignedDirective {
    /// Reads the signed bytes. The directive may be obeyed only after the signature was verified.
    ///
    /// # Errors
    /// Names the refused field.
    pub fn parse_directive(&self) -> Result<Directive, ParseError> {
        Directive::parse(&self.directive)
    }
}

impl Directive {
    /// Reads an encoded directive.
    ///
    /// # Errors
    /// Names the refused field.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        if bytes.len() > MAX_DIRECTIVE_BYTES {
            let got = bytes.len();
            return Err(ParseError::too_large("directive", MAX_DIRECTIVE_BYTES, got));
        }
        let directive = v1::Directive::decode(bytes);
        Self::try_from(directive.map_err(|e| ParseError::not_protobuf("directive", &e))?)
    }

    fn with_bounded_life(self) -> Result<Self, ParseError> {
        let begin = self.not_before_unix_ms;
        within(
            "expires_unix_ms",
            self.expires_unix_ms,
            begin + 1,
            begin + MAX_LIFE_MS,
        )?;
        Ok(self)
    }

    /// Encodes the directive into the bytes that are signed.
    pub fn to_bytes(&self) -> Vec<u8> {
        v1::Directive::from(self).encode_to_vec()
    }
}

message! {
    SignedDirective = v1::SignedDirective {
        directive: Blob<1, MAX_DIRECTIVE_BYTES>,
        key_id: Name<64>,
        signature: Exact<[u8; 64], 64>,
    }
}

message! {
    Directive = v1::Directive {
        id: Name<MAX_DIRECTIVE_ID_BYTES>,
        scope: InnerOrDefault<DirectiveScope>,
        action: DirectiveAction,
        not_before_unix_ms: UnixMs,
        expires_unix_ms: UnixMs,
    }
    rule Directive::with_bounded_life;
}

message! {
    DirectiveScope = v1::DirectiveScope {
        app_id: Text<MAX_APP_ID_BYTES>,
        model_id: Text<MAX_MODEL_ID_BYTES>,
        model_version: Text<MAX_MODEL_VERSION_BYTES>,
        chipset: Text<MAX_CHIPSET_BYTES>,
        vendor_fingerprint_hash: Text<VENDOR_FINGERPRINT_HASH_CHARS>,
    }
}

impl Kind for DirectiveAction {
    type Wire = Option<v1::directive::Action>;
    type Parsed = Self;

    fn parse(field: &str, action: Self::Wire) -> Result<Self, ParseError> {
        use v1::directive::Action;
        let (shortest, longest) = REPORT_INTERVAL_MS;
        let absent = || ParseError::malformed(field, "a value", "nothing");
        Ok(match action.ok_or_else(absent)? {
            Action::Sampling(s) => Self::Sampling(Positive32::parse("sampling.one_in", s.one_in)?),
            Action::ReportInterval(i) => {
                let field = "report_interval.interval_ms";
                Self::ReportIntervalMs(within(field, i.interval_ms, shortest, longest)?)
            }
            Action::NpuOff(v1::NpuOff {}) => Self::NpuOff,
            Action::RecordingOff(v1::RecordingOff {}) => Self::RecordingOff,
            Action::PreferredVariant(p) => {
                let field = "preferred_variant.variant";
                Self::PreferredVariant(Name::<64>::parse(field, p.variant)?)
            }
            Action::Revoke(r) => {
                let field = "revoke.directive_id";
                Self::Revoke(Name::<MAX_DIRECTIVE_ID_BYTES>::parse(
                    field,
                    r.directive_id,
                )?)
            }
        })
    }

    fn encode(action: &Self) -> Self::Wire {
        use v1::directive::Action;
        Some(match action {
            Self::Sampling(one_in) => Action::Sampling(v1::Sampling { one_in: *one_in }),
            Self::ReportIntervalMs(ms) => {
                Action::ReportInterval(v1::ReportInterval { interval_ms: *ms })
            }
            Self::NpuOff => Action::NpuOff(v1::NpuOff {}),
            Self::RecordingOff => Action::RecordingOff(v1::RecordingOff {}),
            Self::PreferredVariant(variant) => {
                let variant = variant.clone();
                Action::PreferredVariant(v1::PreferredVariant { variant })
            }
            Self::Revoke(id) => Action::Revoke(v1::Revoke {
                directive_id: id.clone(),
            }),
        })
    }
}
