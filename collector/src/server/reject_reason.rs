//! Reasons why a call is refused as a whole: the label values of `requests_refused_total`.

use std::error::Error;
use std::sync::Arc;

use tonic::{Code, Status};

/// Why a call was refused. Attached to a status as its source if the code stands for several reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.label())]
pub(crate) enum RejectReason {
    /// The call has no key, or a key that is not valid now.
    Unauthenticated,
    /// The key's scope does not allow the call.
    Forbidden,
    /// The message or a header violates the contract.
    Malformed,
    /// The server does not have this call, method or encoding.
    Unsupported,
    /// The body is larger than `max_request_bytes`, compressed or inflated.
    TooLarge,
    /// The body inflates beyond the allowed ratio.
    Bomb,
    /// All bodies together use `ConnectionsConfig::max_body_bytes`.
    BodyBudget,
    /// The key's quota is used up.
    Quota,
    /// The WAL is full or closing, or too many calls of this kind are under way.
    Overloaded,
    /// The WAL's disk or the store failed.
    Unavailable,
    /// The body or the answer exceeded its time limit.
    Timeout,
    /// The client disconnected during the call.
    Cancelled,
}

impl RejectReason {
    /// The labels, in the order of the variants.
    pub(crate) const LABELS: [&str; 12] = [
        "unauthenticated",
        "forbidden",
        "malformed",
        "unsupported",
        "too_large",
        "bomb",
        "body_budget",
        "quota",
        "overloaded",
        "unavailable",
        "timeout",
        "cancelled",
    ];

    pub(crate) fn label(self) -> &'static str {
        Self::LABELS[self as usize]
    }

    /// Attaches the reason to a status.
    pub(crate) fn mark(self, mut status: Status) -> Status {
        status.set_source(Arc::new(self));
        status
    }

    /// Returns the reason of a status.
    pub(crate) fn of(status: &Status) -> Self {
        let marked = status.source().and_then(|source| source.downcast_ref());
        marked.copied().unwrap_or(match status.code() {
            Code::Unauthenticated => Self::Unauthenticated,
            Code::PermissionDenied => Self::Forbidden,
            Code::OutOfRange => Self::TooLarge,
            Code::ResourceExhausted => Self::Overloaded,
            Code::DeadlineExceeded => Self::Timeout,
            Code::Unimplemented => Self::Unsupported,
            Code::Cancelled => Self::Cancelled,
            // tonic uses `Internal` for bytes that are not a message.
            Code::InvalidArgument | Code::Internal => Self::Malformed,
            _ => Self::Unavailable,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_why_by_its_mark_or_else_by_its_code() {
        let full = || Status::resource_exhausted("full");
        assert_eq!(RejectReason::of(&full()), RejectReason::Overloaded);
        let marked = RejectReason::Quota.mark(full());
        assert_eq!(RejectReason::of(&marked), RejectReason::Quota);
        assert_eq!(marked.code(), Code::ResourceExhausted);
        // The names are in the order of the variants.
        assert_eq!(RejectReason::Unauthenticated.label(), "unauthenticated");
        assert_eq!(RejectReason::Quota.label(), "quota");
        assert_eq!(RejectReason::Cancelled.label(), "cancelled");
    }
}
