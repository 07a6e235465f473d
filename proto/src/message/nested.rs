//! Messages within messages.

use std::marker::PhantomData;

use super::{Checked, CheckedMessage, Kind, Message};
use crate::error::{Inside, ParseError};
use crate::wire::Value;

/// Protobuf merges a second message of a field into the first. The full parser handles this case.
#[inline]
pub(crate) fn once<T>(seen: &mut Option<T>, value: Option<T>) -> Option<()> {
    seen.replace(value?).is_none().then_some(())
}

/// A message that must be there.
pub(crate) struct Inner<M>(PhantomData<M>);

impl<M: Message> Kind for Inner<M> {
    type Wire = Option<M::Wire>;
    type Parsed = M;

    fn parse(field: &str, value: Option<M::Wire>) -> Result<M, ParseError> {
        let value = value.ok_or_else(|| ParseError::malformed(field, "a value", "nothing"))?;
        M::try_from(value).inside(field)
    }

    fn encode(value: &M) -> Option<M::Wire> {
        Some(value.into())
    }
}

impl<M: CheckedMessage> Checked for Inner<M> {
    type Seen<'a> = Option<M::Kept<'a>>;

    #[inline]
    fn see<'a>(seen: &mut Option<M::Kept<'a>>, value: Value<'a>) -> Option<()> {
        once(seen, M::check(value.bytes()?))
    }

    #[inline]
    fn is_there(seen: &Option<M::Kept<'_>>) -> bool {
        seen.is_some()
    }
}

/// A message that may be absent.
pub(crate) struct MaybeInner<M>(PhantomData<M>);

impl<M: Message> Kind for MaybeInner<M> {
    type Wire = Option<M::Wire>;
    type Parsed = Option<M>;

    fn parse(field: &str, value: Option<M::Wire>) -> Result<Option<M>, ParseError> {
        value.map(M::try_from).transpose().inside(field)
    }

    fn encode(value: &Option<M>) -> Option<M::Wire> {
        value.as_ref().map(Into::into)
    }
}

impl<M: CheckedMessage> Checked for MaybeInner<M> {
    type Seen<'a> = Option<M::Kept<'a>>;

    #[inline]
    fn see<'a>(seen: &mut Option<M::Kept<'a>>, value: Value<'a>) -> Option<()> {
        once(seen, M::check(value.bytes()?))
    }
}

/// A message whose absence means that none of its fields is set.
pub(crate) struct InnerOrDefault<M>(PhantomData<M>);

impl<M: Message<Wire: Default>> Kind for InnerOrDefault<M> {
    type Wire = Option<M::Wire>;
    type Parsed = M;

    fn parse(field: &str, value: Option<M::Wire>) -> Result<M, ParseError> {
        M::try_from(value.unwrap_or_default()).inside(field)
    }

    fn encode(value: &M) -> Option<M::Wire> {
        Some(value.into())
    }
}

impl<M: CheckedMessage<Wire: Default>> Checked for InnerOrDefault<M> {
    type Seen<'a> = Option<M::Kept<'a>>;

    #[inline]
    fn see<'a>(seen: &mut Option<M::Kept<'a>>, value: Value<'a>) -> Option<()> {
        MaybeInner::<M>::see(seen, value)
    }
}
