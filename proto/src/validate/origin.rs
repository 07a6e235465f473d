//! App, device, runtime, SDK and its health.

use super::count;
use super::fields::{Few, each_field, known};
use crate::device::{
    ContextKind, EpBackend, EpLinkage, MAX_ROLLOUT_LABELS, RamClass, VENDOR_FINGERPRINT_HASH_CHARS,
};
use crate::health::{DirectiveRefusal, DropReason, UploadFailureKind};

/// Id and environment.
pub(super) fn app(bytes: &[u8]) -> Option<(&str, &str)> {
    let (mut id, mut environment) = ("", "");
    let mut labels = Few::<&str, MAX_ROLLOUT_LABELS>::new("");
    each_field(bytes, |number, value| {
        match number {
            1 => id = value.text(128)?,
            2 | 3 => value.is_text(64)?,
            4 => environment = value.text(32)?,
            5 => labels.add(label(value.bytes()?)?)?,
            _ => {}
        }
        Some(())
    })?;
    (!id.is_empty() && !environment.is_empty()).then_some((id, environment))
}

/// Its key.
fn label(bytes: &[u8]) -> Option<&str> {
    let mut key = "";
    each_field(bytes, |number, value| {
        match number {
            1 => key = value.text(32)?,
            2 => value.is_text(64)?,
            _ => {}
        }
        Some(())
    })?;
    (!key.is_empty()).then_some(key)
}

pub(super) fn sdk(bytes: &[u8]) -> Option<()> {
    each_field(bytes, |number, value| {
        match number {
            1 | 2 => value.is_text(32)?,
            3 => value.is_text(16)?,
            _ => {}
        }
        Some(())
    })
}

pub(super) fn device(bytes: &[u8]) -> Option<()> {
    let mut ram_class = 0;
    let mut contexts = 0_u64;
    let mut n_contexts = 0;
    each_field(bytes, |number, value| {
        match number {
            1 => value.is_text(128)?,
            2 | 3 | 5 | 7 | 8 | 10 => value.is_text(64)?,
            4 | 11 | 14 => drop(value.u32()?),
            6 | 9 => value.is_text(32)?,
            12 => firmware(value.bytes()?)?,
            13 => value.is_text(16)?,
            15 => ram_class = value.i32()?,
            16 => value.each_number(|context| {
                count(&mut n_contexts, ContextKind::ALL.len())?;
                known!(ContextKind, i32::try_from(context).ok()?)?;
                first(&mut contexts, context)
            })?,
            _ => {}
        }
        Some(())
    })?;
    known!(RamClass, ram_class).map(|_| ())
}

fn firmware(bytes: &[u8]) -> Option<()> {
    let is_hex = |b: &u8| b.is_ascii_digit() || (b'a'..=b'f').contains(b);
    let whole = bytes.len() == VENDOR_FINGERPRINT_HASH_CHARS && bytes.iter().all(is_hex);
    (whole || bytes.is_empty()).then_some(())
}

pub(super) fn runtime(bytes: &[u8]) -> Option<()> {
    let (mut linkage, mut backend) = (0, 0);
    each_field(bytes, |number, value| {
        match number {
            1 | 3 => value.is_text(32)?,
            2 | 6 => value.is_text(64)?,
            4 => linkage = value.i32()?,
            5 => backend = value.i32()?,
            7 => value.is_text(128)?,
            _ => {}
        }
        Some(())
    })?;
    known!(EpLinkage, linkage)?;
    known!(EpBackend, backend).map(|_| ())
}

pub(super) fn health(bytes: &[u8]) -> Option<()> {
    let (mut dropped, mut failures, mut refused) = (0, 0, 0);
    each_field(bytes, |number, value| {
        match number {
            1 | 2 | 4 | 6 | 7 | 8 | 10 => drop(value.u64()?),
            3 => {
                let reason = keyed_count(value.bytes()?)?;
                known!(DropReason, reason)?;
                first(&mut dropped, u64::from(reason.unsigned_abs()))?;
            }
            5 => {
                let kind = keyed_count(value.bytes()?)?;
                known!(UploadFailureKind, kind)?;
                first(&mut failures, u64::from(kind.unsigned_abs()))?;
            }
            9 => {
                let reason = keyed_count(value.bytes()?)?;
                known!(DirectiveRefusal, reason)?;
                first(&mut refused, u64::from(reason.unsigned_abs()))?;
            }
            _ => {}
        }
        Some(())
    })
}

/// The key of a message that is an enum, then counts.
fn keyed_count(bytes: &[u8]) -> Option<i32> {
    let mut key = 0;
    each_field(bytes, |number, value| {
        match number {
            1 => key = value.i32()?,
            2 | 3 => drop(value.u64()?),
            _ => {}
        }
        Some(())
    })?;
    Some(key)
}

/// `None` if the small number was there before.
fn first(seen: &mut u64, number: u64) -> Option<()> {
    let bit = 1_u64.checked_shl(u32::try_from(number).ok()?)?;
    let is_first = *seen & bit == 0;
    *seen |= bit;
    is_first.then_some(())
}
