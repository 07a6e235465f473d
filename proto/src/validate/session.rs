//! Sessions and their placements.

use super::fields::{Few, Once, Value, each_field, known};
use super::{Last, count};
use crate::placement::{
    CPU_EP, GraphKind, MAX_CPU_NODES, MAX_EP_NAME_BYTES, MAX_EPS, MAX_NODE_NAME_BYTES, MAX_NODES,
    MAX_REASONS, MacsSum, NodeCounts, PlacementSource,
};
use crate::reason::ReasonCode;

/// Op types of one EP that one pass keeps track of.
const MOST_OP_TYPES: usize = 32;

/// Parts of the last report's session in the same place.
#[derive(Debug, Default)]
pub(super) struct LastSession<'a> {
    model: Last<'a, ()>,
    options: Last<'a, ()>,
    placement: Last<'a, ()>,
}

/// Its uid.
pub(super) fn session<'a>(bytes: &'a [u8], last: &mut LastSession<'a>) -> Option<u64> {
    let (mut uid, mut n_eps) = (0, 0);
    let (mut model, mut options, mut placement) = (Once::NEVER, Once::NEVER, Once::NEVER);
    each_field(bytes, |number, value| {
        match number {
            1 => uid = value.fixed64()?,
            2 => model.set(last.model.check(value.bytes()?, self::model))?,
            3 => {
                count(&mut n_eps, MAX_EPS)?;
                ep_name(value)?;
            }
            4 => value.is_text(64)?,
            5 => options.set(last.options.check(value.bytes()?, self::options))?,
            6 => placement.set(last.placement.check(value.bytes()?, self::placement))?,
            7 => drop(value.u64()?),
            8 => value.unix_ms()?,
            _ => {}
        }
        Some(())
    })?;
    model.get()?;
    placement.get()?;
    (uid != 0).then_some(uid)
}

pub(super) fn ep_name(value: Value<'_>) -> Option<&str> {
    value.name(MAX_EP_NAME_BYTES)
}

pub(super) fn model(bytes: &[u8]) -> Option<()> {
    let (mut id, mut version) = ("", "");
    each_field(bytes, |number, value| {
        match number {
            1 => id = value.text(128)?,
            2 => version = value.text(64)?,
            3 | 4 => value.hash(32)?,
            5 => value.is_text(512)?,
            _ => {}
        }
        Some(())
    })?;
    (!id.is_empty() && !version.is_empty()).then_some(())
}

fn options(bytes: &[u8]) -> Option<()> {
    each_field(bytes, |number, value| {
        match number {
            1 | 2 => value.is_text(32)?,
            3 | 4 => value.is_text(16)?,
            _ => {}
        }
        Some(())
    })
}

fn placement(bytes: &[u8]) -> Option<()> {
    let (mut n_requested, mut n_reasons, mut n_cpu_nodes) = (0, 0, 0);
    let mut eps = Few::<&str, MAX_EPS>::new("");
    let (mut n_nodes, mut of_eps, mut on_cpu) = (0, 0, 0);
    let mut is_truncated = false;
    let mut attributed = None;
    let mut macs = MacsSum::default();
    let (mut graph_kind, mut source) = (0, 0);
    let (mut exact, mut normalised) = (Once::NEVER, Once::NEVER);
    each_field(bytes, |number, value| {
        match number {
            1 => {
                count(&mut n_requested, MAX_EPS)?;
                ep_name(value)?;
            }
            2 => {
                let share = ep_share(value.bytes()?)?;
                eps.add(share.ep)?;
                of_eps += u64::from(share.n_nodes);
                if share.ep == CPU_EP {
                    on_cpu = share.n_nodes as usize;
                }
                macs.add(share.macs_share);
            }
            3 => n_nodes = value.u32().filter(|n| *n <= MAX_NODES)?,
            4 => {
                count(&mut n_cpu_nodes, MAX_CPU_NODES)?;
                cpu_node(value.bytes()?)?;
            }
            5 => is_truncated = value.bool()?,
            6 => attributed = Some(value.share()?),
            7 => value.hash(32)?,
            8 => graph_kind = value.i32()?,
            9 => source = value.i32()?,
            10 => exact.set(fingerprint(value.bytes()?))?,
            11 => normalised.set(fingerprint(value.bytes()?))?,
            12 => value.each_number(|reason| {
                count(&mut n_reasons, MAX_REASONS)?;
                known!(ReasonCode, i32::try_from(reason).ok()?).map(|_| ())
            })?,
            _ => {}
        }
        Some(())
    })?;
    known!(GraphKind, graph_kind)?;
    let counts = NodeCounts {
        source: known!(PlacementSource, source)?,
        n_eps: eps.entries().len(),
        n_nodes,
        of_eps,
        on_cpu,
        named: n_cpu_nodes,
        is_truncated,
    };
    counts.check().ok()?;
    macs.check(attributed).ok()
}

struct Share<'a> {
    ep: &'a str,
    n_nodes: u32,
    macs_share: Option<f64>,
}

fn ep_share(bytes: &[u8]) -> Option<Share<'_>> {
    let mut share = Share {
        ep: "",
        n_nodes: 0,
        macs_share: None,
    };
    let mut op_types = Few::<&str, MOST_OP_TYPES>::new("");
    let mut counted = 0;
    each_field(bytes, |number, value| {
        match number {
            1 => share.ep = value.text(MAX_EP_NAME_BYTES)?,
            2 => share.n_nodes = value.u32().filter(|n| *n <= MAX_NODES)?,
            3 => drop(value.u32()?),
            4 => {
                let (op_type, n_nodes) = op_count(value.bytes()?)?;
                op_types.add(op_type)?;
                counted += u64::from(n_nodes);
            }
            5 => share.macs_share = Some(value.share()?),
            _ => {}
        }
        Some(())
    })?;
    let is_sound = !share.ep.is_empty() && counted <= u64::from(share.n_nodes);
    is_sound.then_some(share)
}

fn op_count(bytes: &[u8]) -> Option<(&str, u32)> {
    let (mut op_type, mut n_nodes) = ("", 0);
    each_field(bytes, |number, value| {
        match number {
            1 => op_type = value.text(MAX_EP_NAME_BYTES)?,
            2 => n_nodes = value.u32()?,
            _ => {}
        }
        Some(())
    })?;
    (!op_type.is_empty() && n_nodes > 0).then_some((op_type, n_nodes))
}

fn cpu_node(bytes: &[u8]) -> Option<()> {
    let mut op_type = "";
    let mut reason = 0;
    each_field(bytes, |number, value| {
        match number {
            1 | 6 => value.is_text(MAX_NODE_NAME_BYTES)?,
            2 => op_type = value.text(MAX_EP_NAME_BYTES)?,
            3 => value.is_text(MAX_EP_NAME_BYTES)?,
            4 => drop(value.bool()?),
            5 => reason = value.i32()?,
            7 => drop(value.share()?),
            _ => {}
        }
        Some(())
    })?;
    known!(ReasonCode, reason)?;
    (!op_type.is_empty()).then_some(())
}

fn fingerprint(bytes: &[u8]) -> Option<()> {
    let mut algorithm = 0;
    each_field(bytes, |number, value| {
        match number {
            1 => algorithm = value.u32()?,
            2 => drop(value.fixed64()?),
            _ => {}
        }
        Some(())
    })?;
    (algorithm > 0).then_some(())
}
