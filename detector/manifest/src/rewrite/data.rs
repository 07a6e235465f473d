//! Weights with their values, for rules that have to change them. They are read one at a time, from the model or from
//! the file next to it.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Component, Path},
};

use crate::{
    ManifestError,
    tensor::{element, product},
    wire::{WireReader, Wired},
};

/// Largest weight that is changed, in bytes.
const MOST_DATA: u64 = 256 << 20;

/// A weight.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Data {
    /// The number in `onnx.proto`.
    pub(super) element: u64,
    pub(super) dims: Vec<u64>,
    /// Little-endian.
    pub(super) bytes: Vec<u8>,
}

/// The location of a weight's bytes.
#[derive(Debug, Default)]
struct DataPlace {
    /// Offset and length in the model, for raw data and for packed floats, which have the same bytes.
    raw: Option<(u64, u64)>,
    /// Elements of 8 bits as numbers.
    ints: Vec<i64>,
    /// The entries of external data, by key, for bytes in a file next to the model.
    outside: Vec<(String, String)>,
    is_outside: bool,
}

/// Reads a weight of the graph. `None` if no weight has this name, or its bytes cannot be read. That is so if it is too
/// large, has another form, or is in a file that is not next to the model.
pub(super) fn weight(model: &Path, wanted: &str) -> Result<Option<Data>, ManifestError> {
    let mut wire = WireReader::new(File::open(model)?)?;
    let end = wire.len();
    while let Some((number, wired)) = wire.field(end)? {
        let (7, Wired::Until(until)) = (number, wired) else {
            wire.pass(wired)?;
            continue;
        };
        while let Some((number, wired)) = wire.field(until)? {
            let (5, Wired::Until(until)) = (number, wired) else {
                wire.pass(wired)?;
                continue;
            };
            let (name, mut data, place) = tensor(&mut wire, until)?;
            if name != wanted {
                continue;
            }
            let is_8bit = matches!(data.element, element::U8 | element::I8);
            let Some(bytes) = bytes(model, &place, is_8bit)? else {
                return Ok(None);
            };
            data.bytes = bytes;
            let n = product(&data.dims);
            let fits = n.is_some_and(|n| n > 0 && (data.bytes.len() as u64).is_multiple_of(n));
            return Ok(fits.then_some(data));
        }
    }
    Ok(None)
}

fn tensor<R: Read + Seek>(
    wire: &mut WireReader<R>,
    until: u64,
) -> Result<(String, Data, DataPlace), ManifestError> {
    let (mut name, mut data, mut place) = (String::new(), Data::default(), DataPlace::default());
    let mut dims = Vec::new();
    while let Some((number, wired)) = wire.field(until)? {
        match (number, wired) {
            (1, wired) => wire.numbers(wired, &mut dims)?,
            (2, Wired::Varint(element)) => data.element = element,
            (8, Wired::Until(until)) => name = wire.text(until)?,
            (5, wired) => wire.numbers(wired, &mut place.ints)?,
            (4 | 9, Wired::Until(until)) => {
                place.raw = Some((wire.at(), until - wire.at()));
                wire.pass(wired)?;
            }
            (13, Wired::Until(until)) => {
                let (mut key, mut value) = (String::new(), String::new());
                while let Some((number, wired)) = wire.field(until)? {
                    match (number, wired) {
                        (1, Wired::Until(until)) => key = wire.text(until)?,
                        (2, Wired::Until(until)) => value = wire.text(until)?,
                        _ => wire.pass(wired)?,
                    }
                }
                place.outside.push((key, value));
            }
            (14, Wired::Varint(place_of)) => place.is_outside = place_of == 1,
            _ => wire.pass(wired)?,
        }
    }
    data.dims = dims.into_iter().map(i64::cast_unsigned).collect();
    Ok((name, data, place))
}

fn bytes(model: &Path, place: &DataPlace, is_8bit: bool) -> Result<Option<Vec<u8>>, ManifestError> {
    if !place.is_outside {
        return match place.raw {
            Some((offset, length)) => read(model, offset, length),
            None if is_8bit => Ok(Some(
                place.ints.iter().map(|int| int.to_le_bytes()[0]).collect(),
            )),
            None => Ok(None),
        };
    }
    let value = |key: &str| {
        let mut found = place.outside.iter().filter(|(known, _)| known == key);
        found.next().map(|(_, value)| value.as_str())
    };
    let location = Path::new(value("location").unwrap_or_default());
    let is_beside = location
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    let folder = model.parent().unwrap_or(Path::new("."));
    let length = value("length").and_then(|length| length.parse().ok());
    let (Some(length), true) = (length, is_beside && location.file_name().is_some()) else {
        return Ok(None);
    };
    let offset = value("offset").map_or(Some(0), |offset| offset.parse().ok());
    match offset {
        Some(offset) => read(&folder.join(location), offset, length),
        None => Ok(None),
    }
}

fn read(path: &Path, offset: u64, length: u64) -> Result<Option<Vec<u8>>, ManifestError> {
    if length > MOST_DATA || !path.metadata().is_ok_and(|file| file.is_file()) {
        return Ok(None);
    }
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 == length).then_some(bytes))
}

impl Data {
    /// Returns the weight with its last two dimensions exchanged; `None` for elements of half a byte.
    pub(super) fn transposed(&self) -> Option<Self> {
        let [lead @ .., rows, columns] = self.dims.as_slice() else {
            return None;
        };
        let n = usize::try_from(product(&self.dims)?).ok()?;
        let size = self.bytes.len() / n.max(1);
        let (rows, columns) = (
            usize::try_from(*rows).ok()?,
            usize::try_from(*columns).ok()?,
        );
        if size == 0 || self.bytes.len() != n * size {
            return None;
        }
        let mut bytes = Vec::with_capacity(self.bytes.len());
        for matrix in self.bytes.chunks_exact(rows * columns * size) {
            for column in 0..columns {
                for row in 0..rows {
                    let at = (row * columns + column) * size;
                    bytes.extend_from_slice(&matrix[at..at + size]);
                }
            }
        }
        let mut dims = lead.to_vec();
        dims.extend([columns as u64, rows as u64]);
        Some(Self {
            element: self.element,
            dims,
            bytes,
        })
    }
}

/// Converts a weight of 8 bits with a scale for each index of an axis into one with a single scale. Returns bytes,
/// scale and zero point. The bytes are unsigned, because the NPU requires that next to activations of unsigned bytes.
/// `None` if the numbers of elements and scales do not match.
pub(super) fn with_one_scale(
    weight: &Data,
    scales: &Data,
    zeros: Option<&Data>,
    axis: usize,
) -> Option<(Vec<u8>, f32, u8)> {
    let behind = product(weight.dims.get(axis + 1..)?)?;
    let (channels, behind) = (
        usize::try_from(*weight.dims.get(axis)?).ok()?,
        usize::try_from(behind).ok()?,
    );
    let scales: Vec<f32> = scales
        .bytes
        .as_chunks()
        .0
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes))
        .collect();
    if !scales.iter().all(|scale| scale.is_finite() && *scale > 0.0) {
        return None;
    }
    let is_signed = weight.element == element::I8;
    let number = |byte: u8| match is_signed {
        true => f32::from(byte.cast_signed()),
        false => f32::from(byte),
    };
    if behind == 0 || scales.len() != channels || zeros.is_some_and(|z| z.bytes.len() != channels) {
        return None;
    }
    let value = |(at, byte): (usize, &u8)| {
        let channel = at / behind % channels;
        let zero = zeros.map_or(0.0, |zeros| number(zeros.bytes[channel]));
        (number(*byte) - zero) * scales[channel]
    };
    let values: Vec<f32> = weight.bytes.iter().enumerate().map(value).collect();
    let most = values.iter().fold(0.0_f32, |most, value| most.max(*value));
    let least = values
        .iter()
        .fold(0.0_f32, |least, value| least.min(*value));
    let scale = (most - least) / 255.0;
    if !scale.is_finite() || scale <= 0.0 {
        return None;
    }
    let zero = (-least / scale).round();
    #[expect(clippy::cast_possible_truncation, reason = "clamped to 8 bits")]
    #[expect(clippy::cast_sign_loss, reason = "clamped to 8 bits")]
    let byte = |value: f32| value.round().clamp(0.0, 255.0) as u8;
    let bytes = values.iter().map(|value| byte(value / scale + zero));
    Some((bytes.collect(), scale, byte(zero)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(element: u64, dims: &[u64], bytes: Vec<u8>) -> Data {
        Data {
            element,
            dims: dims.to_vec(),
            bytes,
        }
    }

    #[test]
    fn the_last_two_dimensions_are_exchanged() {
        let found = data(2, &[2, 2, 3], (0..12).collect()).transposed().unwrap();
        assert_eq!(found.dims, [2, 3, 2]);
        assert_eq!(found.bytes, [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]);
        let wide = data(5, &[1, 2], vec![1, 2, 3, 4]).transposed().unwrap();
        assert_eq!((wide.dims, wide.bytes), (vec![2, 1], vec![1, 2, 3, 4]));
        assert_eq!(data(22, &[2, 3], vec![0; 3]).transposed(), None);
        assert_eq!(data(2, &[3], vec![0; 3]).transposed(), None);
    }

    #[test]
    fn one_scale_moves_each_value_by_a_step_at_most() {
        let floats = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let scales = data(1, &[2], floats(&[0.01, 0.1]));
        let weight = data(3, &[2, 3], vec![127, 156, 0, 10, 246, 100]);
        let (bytes, scale, zero) = with_one_scale(&weight, &scales, None, 0).unwrap();
        let values = [1.27, -1.0, 0.0, 1.0, -1.0, 10.0];
        for (byte, value) in bytes.iter().zip(values) {
            let found = (f32::from(*byte) - f32::from(zero)) * scale;
            assert!((found - value).abs() <= scale, "{found} {value}");
        }
        let unsigned = data(2, &[2, 3], vec![200, 100, 150, 0, 255, 10]);
        let zeros = data(2, &[2], vec![150, 10]);
        let (bytes, scale, zero) = with_one_scale(&unsigned, &scales, Some(&zeros), 0).unwrap();
        let values = [0.5, -0.5, 0.0, -1.0, 24.5, 0.0];
        for (byte, value) in bytes.iter().zip(values) {
            let found = (f32::from(*byte) - f32::from(zero)) * scale;
            assert!((found - value).abs() <= scale, "{found} {value}");
        }
        assert_eq!(with_one_scale(&weight, &scales, None, 1), None);
        let none = data(1, &[2], floats(&[f32::NAN, 0.1]));
        assert_eq!(with_one_scale(&weight, &none, None, 0), None);
    }
}
