//! Rows of a report as bytes. Whole numbers are varints; floats and random numbers have eight bytes.

use std::collections::hash_map::Entry;
use std::hash::Hash;

use epwatch_proto::SparseHistogram;
use epwatch_stats::Moments;

use crate::judge::hash::HashMap;
use crate::read::assemble::{DeviceBaseline, SelfQuantiles, SeriesHead, SeriesOrder, SeriesSum};
use crate::read::interner::TextId;
use crate::read::varint;

use super::histogram::{self, PackedBuckets};

/// A session in a report.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::read) struct RecordedSession {
    pub(in crate::read) device: u32,
    pub(in crate::read) group: u32,
    /// Creation of the session, in seconds after the start of its bucket.
    pub(in crate::read) created_after_s: i32,
    pub(in crate::read) is_late: bool,
    pub(in crate::read) is_unproven: bool,
    pub(in crate::read) is_own: bool,
}

/// A clean series in a report.
#[derive(Debug)]
pub(in crate::read) struct Series<'a> {
    pub(in crate::read) device: u32,
    pub(in crate::read) group: u32,
    pub(in crate::read) shape: TextId,
    pub(in crate::read) n: u64,
    rest: &'a [u8],
}

/// The fields of a series that only its own window needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::read) struct SeriesFields {
    pub(in crate::read) order: SeriesOrder,
    pub(in crate::read) device_model: TextId,
    pub(in crate::read) reports_heat: bool,
    pub(in crate::read) sum_us: f64,
    pub(in crate::read) m2_us2: f64,
    pub(in crate::read) earlier: DeviceBaseline,
}

impl RecordedSession {
    pub(in crate::read) fn pack(self, to: &mut Vec<u8>) {
        varint::push(to, self.device.into());
        varint::push(to, self.group.into());
        signed(to, self.created_after_s);
        let late = u8::from(self.is_late);
        let unproven = u8::from(self.is_unproven) << 1;
        to.push(late | unproven | (u8::from(self.is_own) << 2));
    }

    /// Takes the next row from the bytes; `None` at their end.
    pub(in crate::read) fn take(from: &mut &[u8]) -> Option<Self> {
        if from.is_empty() {
            return None;
        }
        let (device, group) = (number(from), number(from));
        let created_after_s = take_signed(from);
        let flags = byte(from);
        Some(Self {
            device,
            group,
            created_after_s,
            is_late: flags & 1 != 0,
            is_unproven: flags & 2 != 0,
            is_own: flags & 4 != 0,
        })
    }
}

impl<'a> Series<'a> {
    /// Appends a series with its length, so that a reader can skip it.
    pub(in crate::read) fn pack(
        (device, group, shape): (u32, u32, TextId),
        fields: &SeriesFields,
        (n, counts): (u64, &SparseHistogram),
        to: &mut Vec<u8>,
    ) {
        varint::push(to, device.into());
        varint::push(to, group.into());
        varint::push(to, shape.number().into());
        varint::push(to, n);
        let mut rest = Vec::with_capacity(160);
        fields.pack(&mut rest);
        histogram::pack(counts, &mut rest);
        varint::push(to, rest.len() as u64);
        to.extend_from_slice(&rest);
    }

    /// Takes the next row from the bytes; `None` at their end.
    pub(in crate::read) fn take(from: &mut &'a [u8]) -> Option<Self> {
        if from.is_empty() {
            return None;
        }
        let (device, group) = (number(from), number(from));
        let shape = text(from);
        let n = varint::take(from);
        let len = number(from) as usize;
        let all: &'a [u8] = from;
        let (rest, next) = all.split_at_checked(len).unwrap_or((all, &[]));
        *from = next;
        Some(Self {
            device,
            group,
            shape,
            n,
            rest,
        })
    }

    /// Returns its fields and its buckets.
    pub(in crate::read) fn unpacked(&self) -> (SeriesFields, PackedBuckets<'a>) {
        let (fields, counts) = self.fields();
        (fields, PackedBuckets::of(counts))
    }

    /// Adds its runs to the sum of its key.
    pub(in crate::read) fn add_to<K: Eq + Hash>(&self, sums: &mut HashMap<K, SeriesSum>, key: K) {
        let (fields, buckets) = self.unpacked();
        match sums.entry(key) {
            Entry::Occupied(slot) => slot.into_mut().add(&fields.head(self.n), buckets),
            Entry::Vacant(slot) => drop(slot.insert(SeriesSum::of(&fields.head(self.n), buckets))),
        }
    }

    /// Returns the other fields, and the packed histogram.
    fn fields(&self) -> (SeriesFields, &'a [u8]) {
        let mut rest = self.rest;
        let fields = SeriesFields::take(&mut rest);
        (fields, rest)
    }
}

const HAS_PREVIOUS: u8 = 1;
const HAS_RUNTIME: u8 = 2;
const REPORTS_HEAT: u8 = 4;

impl SeriesFields {
    /// Returns the sums over `n` runs, without their buckets.
    pub(in crate::read) fn head(&self, n: u64) -> SeriesHead {
        let moments = Moments::from_parts(n, self.sum_us, self.m2_us2);
        SeriesHead {
            moments: moments.unwrap_or_default(),
            order: self.order,
            device_model: self.device_model,
        }
    }

    fn pack(&self, to: &mut Vec<u8>) {
        let (received_ms, stream, sequence, session) = self.order;
        to.extend_from_slice(&received_ms.to_le_bytes());
        to.extend_from_slice(&stream.to_le_bytes());
        varint::push(to, sequence);
        to.extend_from_slice(&session.to_le_bytes());
        varint::push(to, self.device_model.number().into());
        float(to, self.sum_us);
        float(to, self.m2_us2);
        let DeviceBaseline {
            previous,
            runtime,
            absence,
        } = &self.earlier;
        varint::push(to, absence.number().into());
        let previous_flag = u8::from(previous.is_some()) * HAS_PREVIOUS;
        let runtime_flag = u8::from(runtime.is_some()) * HAS_RUNTIME;
        let heat_flag = u8::from(self.reports_heat) * REPORTS_HEAT;
        to.push(previous_flag | runtime_flag | heat_flag);
        if let Some((version, quantiles)) = previous {
            varint::push(to, version.number().into());
            pack_quantiles(quantiles, to);
        }
        if let Some(quantiles) = runtime {
            pack_quantiles(quantiles, to);
        }
    }

    fn take(from: &mut &[u8]) -> Self {
        let received_ms = word(from).cast_signed();
        let stream = word(from);
        let sequence = varint::take(from);
        let order = (received_ms, stream, sequence, word(from));
        let device_model = text(from);
        let (sum_us, m2_us2) = (take_float(from), take_float(from));
        let absence = text(from);
        let flags = byte(from);
        let previous = (flags & HAS_PREVIOUS != 0).then(|| (text(from), take_quantiles(from)));
        let runtime = (flags & HAS_RUNTIME != 0).then(|| take_quantiles(from));
        Self {
            order,
            device_model,
            reports_heat: flags & REPORTS_HEAT != 0,
            sum_us,
            m2_us2,
            earlier: DeviceBaseline {
                previous,
                runtime,
                absence,
            },
        }
    }
}

fn pack_quantiles(quantiles: &SelfQuantiles, to: &mut Vec<u8>) {
    varint::push(to, quantiles.n);
    let SelfQuantiles {
        p10_us,
        p50_us,
        p95_us,
        cv,
        ..
    } = *quantiles;
    [p10_us, p50_us, p95_us, cv]
        .into_iter()
        .for_each(|value| float(to, value));
}

fn take_quantiles(from: &mut &[u8]) -> SelfQuantiles {
    SelfQuantiles {
        n: varint::take(from),
        p10_us: take_float(from),
        p50_us: take_float(from),
        p95_us: take_float(from),
        cv: take_float(from),
    }
}

/// Returns the creation of a session in seconds after the start of its bucket, at most 68 years away.
pub(in crate::read) fn created_after(bucket_s: i64, created_s: i64) -> i32 {
    let after = created_s.saturating_sub(bucket_s);
    i32::try_from(after).unwrap_or(if after < 0 { i32::MIN } else { i32::MAX })
}

/// The sign is the last bit, so that small numbers stay short.
fn signed(to: &mut Vec<u8>, value: i32) {
    let sign = u64::from(value < 0);
    let folded = if value < 0 { !value } else { value };
    varint::push(to, u64::from(folded.unsigned_abs()) << 1 | sign);
}

fn take_signed(from: &mut &[u8]) -> i32 {
    let value = number(from);
    let folded = (value >> 1).cast_signed();
    if value & 1 == 1 { !folded } else { folded }
}

fn float(to: &mut Vec<u8>, value: f64) {
    to.extend_from_slice(&value.to_bits().to_le_bytes());
}

fn take_float(from: &mut &[u8]) -> f64 {
    f64::from_bits(word(from))
}

fn word(from: &mut &[u8]) -> u64 {
    let Some((word, rest)) = from.split_first_chunk() else {
        return 0;
    };
    *from = rest;
    u64::from_le_bytes(*word)
}

pub(in crate::read) fn byte(from: &mut &[u8]) -> u8 {
    let Some((byte, rest)) = from.split_first() else {
        return 0;
    };
    *from = rest;
    *byte
}

#[expect(clippy::cast_possible_truncation, reason = "only 32 bits are packed")]
pub(in crate::read) fn number(from: &mut &[u8]) -> u32 {
    varint::take(from) as u32
}

fn text(from: &mut &[u8]) -> TextId {
    TextId::of_number(number(from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_come_back_as_they_were() {
        let times = [0, 1, -1, -90_000, i32::MAX, i32::MIN];
        let all = times.map(|created_after_s| RecordedSession {
            device: 70_000,
            group: 3,
            created_after_s,
            is_late: created_after_s < 0,
            is_unproven: created_after_s == 1,
            is_own: created_after_s > 1,
        });
        let mut bytes = Vec::new();
        all.into_iter().for_each(|seen| seen.pack(&mut bytes));
        let mut from = &*bytes;
        let back = std::iter::from_fn(|| RecordedSession::take(&mut from));
        assert_eq!(back.collect::<Vec<_>>(), all);
    }

    #[test]
    fn rows_come_back_as_they_were() {
        let quantiles = |n: u64| SelfQuantiles {
            n,
            p10_us: 1.5,
            p50_us: 2.0,
            p95_us: f64::MAX,
            cv: 0.1,
        };
        let fields = |previous, runtime: Option<SelfQuantiles>| SeriesFields {
            order: (i64::MAX, u64::MAX, 7, 8),
            device_model: TextId::of_number(300),
            reports_heat: runtime.is_some(),
            sum_us: 0.1,
            m2_us2: 1e300,
            earlier: DeviceBaseline {
                previous,
                runtime,
                absence: TextId::of_number(4),
            },
        };
        let mut counts = SparseHistogram::default();
        counts.record_n(1_000, 3);
        counts.record_n(70_000, 200);
        let all = [
            fields(None, None),
            fields(Some((TextId::of_number(9), quantiles(20))), None),
            fields(None, Some(quantiles(u64::MAX))),
            fields(
                Some((TextId::of_number(9), quantiles(20))),
                Some(quantiles(5)),
            ),
        ];
        let mut bytes = Vec::new();
        for one in &all {
            let id = (70_000, 3, TextId::of_number(1));
            Series::pack(id, one, (203, &counts), &mut bytes);
        }
        let mut from = &*bytes;
        for one in &all {
            let series = Series::take(&mut from).unwrap();
            assert_eq!((series.device, series.group, series.n), (70_000, 3, 203));
            let (back, packed) = series.fields();
            assert_eq!(back, *one);
            let mut unpacked = SparseHistogram::default();
            unpacked.add_all(PackedBuckets::of(packed));
            assert_eq!(unpacked, counts);
        }
        assert!(Series::take(&mut from).is_none());
    }
}
