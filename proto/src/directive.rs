//! What an operator tells devices. Parsing says what a directive means; whether it may be obeyed
//! (signature, scope, time) is the SDK's to decide.

use bytes::Bytes;
use prost::Message;

use crate::{
    bounds::{exact_bytes, positive, required, required_text, text, unix_ms, within},
    error::{Inside, ParseError},
    report::not_protobuf,
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
pub struct SignedDirective {
    /// An encoded directive.
    pub directive: Bytes,
    /// Which public key of the app verifies it.
    pub key_id: String,
    /// Ed25519.
    pub signature: [u8; 64],
}

/// One instruction, for whom, and until when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directive {
    /// Unique for ever.
    pub id: String,
    /// Whom it is for.
    pub scope: DirectiveScope,
    /// What to do.
    pub action: DirectiveAction,
    /// Holds from then on.
    pub not_before_unix_ms: i64,
    /// Holds until then.
    pub expires_unix_ms: i64,
}

/// Whom it is for; an empty field matches everything, all fields must match.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DirectiveScope {
    /// App.
    pub app_id: String,
    /// Model.
    pub model_id: String,
    /// Model version.
    pub model_version: String,
    /// Normalised chipset.
    pub chipset: String,
    /// Firmware.
    pub vendor_fingerprint_hash: String,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectiveAction {
    /// Record one run in this many, 1 or more.
    Sampling(u32),
    /// Seal a report this often, in milliseconds.
    ReportIntervalMs(u64),
    /// Do not ask for the NPU.
    NpuOff,
    /// Load this variant of the model if the app has it.
    PreferredVariant(String),
    /// Forget the directive of this id.
    Revoke(String),
}

impl SignedDirective {
    /// Reads what is signed. Obey it only after the signature was verified.
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
        directive
            .map_err(|e| not_protobuf("directive", &e))?
            .try_into()
    }

    /// The encoded directive: what is signed.
    pub fn to_bytes(&self) -> Vec<u8> {
        v1::Directive::from(self).encode_to_vec()
    }
}

impl TryFrom<v1::SignedDirective> for SignedDirective {
    type Error = ParseError;

    fn try_from(d: v1::SignedDirective) -> Result<Self, ParseError> {
        let most = MAX_DIRECTIVE_BYTES;
        if d.directive.is_empty() || d.directive.len() > most {
            let expected = format!("1 to {most} bytes");
            return Err(ParseError::malformed(
                "directive",
                expected,
                d.directive.len(),
            ));
        }
        Ok(Self {
            directive: d.directive,
            key_id: required_text("key_id", d.key_id, 64)?,
            signature: exact_bytes("signature", &d.signature)?,
        })
    }
}

impl TryFrom<v1::Directive> for Directive {
    type Error = ParseError;

    fn try_from(d: v1::Directive) -> Result<Self, ParseError> {
        let not_before = unix_ms("not_before_unix_ms", d.not_before_unix_ms)?;
        let expires = d.expires_unix_ms;
        let latest = not_before + MAX_LIFE_MS;
        Ok(Self {
            id: required_text("id", d.id, 64)?,
            scope: DirectiveScope::try_from(d.scope.unwrap_or_default()).inside("scope")?,
            action: required("action", d.action)?.try_into()?,
            not_before_unix_ms: not_before,
            expires_unix_ms: within("expires_unix_ms", expires, not_before + 1, latest)?,
        })
    }
}

impl TryFrom<v1::DirectiveScope> for DirectiveScope {
    type Error = ParseError;

    fn try_from(s: v1::DirectiveScope) -> Result<Self, ParseError> {
        let firmware = s.vendor_fingerprint_hash;
        Ok(Self {
            app_id: text("app_id", s.app_id, 128)?,
            model_id: text("model_id", s.model_id, 128)?,
            model_version: text("model_version", s.model_version, 64)?,
            chipset: text("chipset", s.chipset, 64)?,
            vendor_fingerprint_hash: text("vendor_fingerprint_hash", firmware, 32)?,
        })
    }
}

impl TryFrom<v1::directive::Action> for DirectiveAction {
    type Error = ParseError;

    fn try_from(action: v1::directive::Action) -> Result<Self, ParseError> {
        use v1::directive::Action;
        let (shortest, longest) = REPORT_INTERVAL_MS;
        Ok(match action {
            Action::Sampling(s) => Self::Sampling(positive("sampling.one_in", s.one_in)?),
            Action::ReportInterval(i) => {
                let field = "report_interval.interval_ms";
                Self::ReportIntervalMs(within(field, i.interval_ms, shortest, longest)?)
            }
            Action::NpuOff(v1::NpuOff {}) => Self::NpuOff,
            Action::PreferredVariant(p) => {
                let field = "preferred_variant.variant";
                Self::PreferredVariant(required_text(field, p.variant, 64)?)
            }
            Action::Revoke(r) => {
                Self::Revoke(required_text("revoke.directive_id", r.directive_id, 64)?)
            }
        })
    }
}

impl From<&SignedDirective> for v1::SignedDirective {
    fn from(d: &SignedDirective) -> Self {
        Self {
            directive: d.directive.clone(),
            key_id: d.key_id.clone(),
            signature: Bytes::copy_from_slice(&d.signature),
        }
    }
}

impl From<&Directive> for v1::Directive {
    fn from(d: &Directive) -> Self {
        let scope = &d.scope;
        Self {
            id: d.id.clone(),
            scope: Some(v1::DirectiveScope {
                app_id: scope.app_id.clone(),
                model_id: scope.model_id.clone(),
                model_version: scope.model_version.clone(),
                chipset: scope.chipset.clone(),
                vendor_fingerprint_hash: scope.vendor_fingerprint_hash.clone(),
            }),
            action: Some((&d.action).into()),
            not_before_unix_ms: d.not_before_unix_ms,
            expires_unix_ms: d.expires_unix_ms,
        }
    }
}

impl From<&DirectiveAction> for v1::directive::Action {
    fn from(action: &DirectiveAction) -> Self {
        match action {
            DirectiveAction::Sampling(one_in) => Self::Sampling(v1::Sampling { one_in: *one_in }),
            DirectiveAction::ReportIntervalMs(ms) => {
                Self::ReportInterval(v1::ReportInterval { interval_ms: *ms })
            }
            DirectiveAction::NpuOff => Self::NpuOff(v1::NpuOff {}),
            DirectiveAction::PreferredVariant(variant) => {
                let variant = variant.clone();
                Self::PreferredVariant(v1::PreferredVariant { variant })
            }
            DirectiveAction::Revoke(id) => Self::Revoke(v1::Revoke {
                directive_id: id.clone(),
            }),
        }
    }
}
