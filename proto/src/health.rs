//! The SDK's own counters, cumulative since the stream began. The loss ledger needs them to close.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use crate::{
    error::ParseError,
    message::{Checked, Count, Enum, EnumNumbers, Kind, MAX_COUNT, Maybe, at_most, message},
    v1,
    wire::{Value, each_field},
    wire_enum::{WireEnum, wire_enum},
};

wire_enum! {
    /// The device's reason for dropping reports or runs.
    #[expect(missing_docs, reason = "the .proto documents the values")]
    pub enum DropReason: DropReason {
        SpoolFull = SpoolFull "spool_full",
        SpoolAge = SpoolAge "spool_age",
        SpoolIo = SpoolIo "spool_io",
        SpoolCorrupt = SpoolCorrupt "spool_corrupt",
        Refused = Refused "refused",
        Contended = Contended "contended",
        Clipped = Clipped "clipped",
        Consent = Consent "consent",
    }
}

wire_enum! {
    /// Kind of a failed upload.
    #[expect(missing_docs, reason = "the names say it")]
    pub enum UploadFailureKind: UploadFailureKind {
        Unreachable = Unreachable "unreachable",
        Timeout = Timeout "timeout",
        Tls = Tls "tls",
        Unauthenticated = Unauthenticated "unauthenticated",
        /// The collector asked to slow down.
        PushedBack = PushedBack "pushed_back",
        Server = Server "server",
        /// The byte budget is used up.
        Budget = Budget "budget",
    }
}

wire_enum! {
    /// Reason for the refusal of a directive.
    #[expect(missing_docs, reason = "the names say it")]
    pub enum DirectiveRefusal: DirectiveRefusal {
        BadSignature = BadSignature "bad_signature",
        UnknownKey = UnknownKey "unknown_key",
        Expired = Expired "expired",
        OutOfScope = OutOfScope "out_of_scope",
        Malformed = Malformed "malformed",
    }
}

/// Losses for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct Dropped {
    pub reports: u64,
    pub runs: u64,
}

/// The SDK's own counters, cumulative since the stream began.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the .proto documents the fields")]
pub struct SdkHealth {
    pub runs_observed: u64,
    pub runs_recorded: u64,
    pub dropped: BTreeMap<DropReason, Dropped>,
    pub overflowed_keys: u64,
    pub upload_failures: BTreeMap<UploadFailureKind, u64>,
    pub spool_bytes: u64,
    pub spool_oldest_ms: Option<u64>,
    pub directives_applied: u64,
    pub directives_refused: BTreeMap<DirectiveRefusal, u64>,
    pub consent_changes: u64,
    pub internal_errors: u64,
}

/// An entry of a list that serves as a map from an enum's value to counts.
pub(crate) trait Entry: Sized {
    type Key: WireEnum + Ord;
    type Count: Copy;
    /// The key's field.
    const KEY: &'static str;

    fn split(self) -> (i32, Self::Count);

    fn counts(count: Self::Count) -> [u64; 2];

    fn join(key: i32, count: Self::Count) -> Self;
}

/// Declares the entries: message, field and type of the key, type of the counts, the counts from and to the fields.
macro_rules! entries {
    ($( $wire:ident { $key:ident: $key_type:ty, $($field:ident),+ }
        = $count:ty as { $($counts:tt)+ }, $all:expr; )+) => { $(
        impl Entry for v1::$wire {
            type Key = $key_type;
            type Count = $count;
            const KEY: &'static str = stringify!($key);

            fn split(self) -> (i32, $count) {
                let Self { $key, $($field),+ } = self;
                ($key, $($counts)+)
            }

            fn counts(count: $count) -> [u64; 2] {
                let all: fn($count) -> [u64; 2] = $all;
                all(count)
            }

            fn join($key: i32, count: $count) -> Self {
                let $($counts)+ = count;
                Self { $key, $($field),+ }
            }
        }
    )+ };
}

entries! {
    Dropped { reason: DropReason, reports, runs } = Dropped as { Dropped { reports, runs } }, |d| [d.reports, d.runs];
    UploadFailures { kind: UploadFailureKind, count } = u64 as { count }, |n| [n, 0];
    DirectivesRefused { reason: DirectiveRefusal, count } = u64 as { count }, |n| [n, 0];
}

/// Entries, each key at most once.
pub(crate) struct Counters<W>(PhantomData<W>);

impl<W: Entry> Kind for Counters<W> {
    type Wire = Vec<W>;
    type Parsed = BTreeMap<W::Key, W::Count>;

    fn parse(field: &str, entries: Vec<W>) -> Result<Self::Parsed, ParseError> {
        at_most(field, entries.len(), W::Key::VALUES.len())?;
        let mut counters = BTreeMap::new();
        for (index, entry) in entries.into_iter().enumerate() {
            let at = || format!("{field}[{index}]");
            let (key, count) = entry.split();
            if let Some(count) = W::counts(count).into_iter().find(|n| *n > MAX_COUNT) {
                let expected = format!("0 to {MAX_COUNT}");
                return Err(ParseError::malformed(&at(), expected, count));
            }
            let key = Enum::parse(W::KEY, key).map_err(|error| error.inside(&at()))?;
            if counters.insert(key, count).is_some() {
                let error = ParseError::malformed(&at(), "each at most once", "a second one");
                return Err(error);
            }
        }
        Ok(counters)
    }

    fn encode(counters: &Self::Parsed) -> Vec<W> {
        let entry = |(key, count): (&W::Key, &W::Count)| W::join(key.number(), *count);
        counters.iter().map(entry).collect()
    }
}

impl<W: Entry> Checked for Counters<W> {
    type Seen<'a> = EnumNumbers;

    /// In each of these messages field 1 is the key, and the others are counts.
    #[inline]
    fn see<'a>(seen: &mut EnumNumbers, value: Value<'a>) -> Option<()> {
        let mut key = 0;
        each_field(value.bytes()?, |number, value| {
            match number {
                1 => key = value.i32()?,
                2 | 3 if value.u64()? > MAX_COUNT => return None,
                _ => {}
            }
            Some(())
        })?;
        W::Key::from_number(key)?;
        seen.add(key)
    }
}

message! {
    mod health_fields: SdkHealth = v1::SdkHealth {
        1 runs_observed: Count,
        2 runs_recorded: Count,
        3 dropped: Counters<v1::Dropped>,
        4 overflowed_keys: Count,
        5 upload_failures: Counters<v1::UploadFailures>,
        6 spool_bytes: Count,
        7 spool_oldest_ms: Maybe<Count>,
        8 directives_applied: Count,
        9 directives_refused: Counters<v1::DirectivesRefused>,
        10 consent_changes: Count,
        11 internal_errors: Count,
    }
}
