//! Element types of tensors: their bytes, their numbers, and ONNX Runtime's own types for them.

use half::f16;
use ort::value::{DynValue, Tensor, TensorElementType};

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that golden inputs can be made from.
pub trait GoldenElement: sealed::Sealed + Copy {
    /// Its code.
    const TYPE: ElementType;

    /// Its bytes, little-endian, at the end of `out`.
    #[doc(hidden)]
    fn write(self, out: &mut Vec<u8>);
}

/// A number of an output, without loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Number {
    Float(f64),
    Int(i128),
}

impl Number {
    /// As a float; integers beyond 2^53 are rounded.
    #[expect(clippy::cast_precision_loss, reason = "a distance needs no more")]
    pub(crate) fn as_f64(self) -> f64 {
        match self {
            Self::Float(x) => x,
            Self::Int(x) => x as f64,
        }
    }
}

/// Declares the element types: variant, code in the file, bytes, Rust type, ORT's type.
macro_rules! element_types {
    ($( $(#[$doc:meta])* $variant:ident = $code:literal, $size:literal, $rust:ty, $ort:ident, $to_number:expr; )+) => {
        /// What a tensor's elements are.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum ElementType {
            $( $(#[$doc])* $variant, )+
        }

        impl ElementType {
            /// The number that stands for it in a file.
            pub fn code(self) -> u8 {
                match self { $( Self::$variant => $code, )+ }
            }

            /// Bytes of one element.
            pub fn size(self) -> usize {
                match self { $( Self::$variant => $size, )+ }
            }

            pub(crate) fn from_code(code: u8) -> Option<Self> {
                match code { $( $code => Some(Self::$variant), )+ _ => None }
            }

            pub(crate) fn from_ort(ty: TensorElementType) -> Option<Self> {
                match ty { $( TensorElementType::$ort => Some(Self::$variant), )+ _ => None }
            }

            /// The numbers in bytes of whole elements.
            pub(crate) fn numbers(self, bytes: &[u8]) -> Box<dyn Iterator<Item = Number> + '_> {
                match self {
                    $( Self::$variant => {
                        let (chunks, _) = bytes.as_chunks::<$size>();
                        let to_number: fn([u8; $size]) -> Number = $to_number;
                        Box::new(chunks.iter().map(move |chunk| to_number(*chunk)))
                    } )+
                }
            }

            /// A tensor for ONNX Runtime.
            pub(crate) fn tensor(self, dims: &[i64], bytes: &[u8]) -> ort::Result<DynValue> {
                match self {
                    $( Self::$variant => {
                        let (chunks, _) = bytes.as_chunks::<$size>();
                        let values: Vec<$rust> = chunks.iter().map(|c| <$rust>::of_le(*c)).collect();
                        Ok(Tensor::from_array((dims.to_vec(), values))?.into_dyn())
                    } )+
                }
            }

            /// The bytes of a tensor of this type.
            pub(crate) fn bytes_of(self, value: &DynValue) -> ort::Result<Vec<u8>> {
                match self {
                    $( Self::$variant => {
                        let (_, values) = value.try_extract_tensor::<$rust>()?;
                        let mut bytes = Vec::with_capacity(values.len() * $size);
                        for value in values {
                            value.write(&mut bytes);
                        }
                        Ok(bytes)
                    } )+
                }
            }
        }

        $(
            impl sealed::Sealed for $rust {}
            impl GoldenElement for $rust {
                const TYPE: ElementType = ElementType::$variant;
                fn write(self, out: &mut Vec<u8>) {
                    out.extend(self.le_bytes());
                }
            }
        )+
    };
}

/// Numbers and their little-endian bytes; `bool` has no such methods of its own.
trait LittleEndian<const N: usize>: Sized {
    fn of_le(bytes: [u8; N]) -> Self;
    fn le_bytes(self) -> [u8; N];
}

macro_rules! little_endian {
    ($($ty:ty: $size:literal,)+) => { $(
        impl LittleEndian<$size> for $ty {
            fn of_le(bytes: [u8; $size]) -> Self {
                Self::from_le_bytes(bytes)
            }
            fn le_bytes(self) -> [u8; $size] {
                self.to_le_bytes()
            }
        }
    )+ };
}

little_endian! {
    f16: 2, f32: 4, f64: 8, i8: 1, i16: 2, i32: 4, i64: 8, u8: 1, u16: 2, u32: 4, u64: 8,
}

impl LittleEndian<1> for bool {
    fn of_le(bytes: [u8; 1]) -> Self {
        bytes != [0]
    }
    fn le_bytes(self) -> [u8; 1] {
        [u8::from(self)]
    }
}

element_types! {
    /// IEEE half precision.
    F16 = 1, 2, f16, Float16, |b| Number::Float(f16::from_le_bytes(b).to_f64());
    /// IEEE single precision.
    F32 = 2, 4, f32, Float32, |b| Number::Float(f64::from(f32::from_le_bytes(b)));
    /// IEEE double precision.
    F64 = 3, 8, f64, Float64, |b| Number::Float(f64::from_le_bytes(b));
    /// Signed, 8 bits.
    I8 = 4, 1, i8, Int8, |b| Number::Int(i8::from_le_bytes(b).into());
    /// Signed, 16 bits.
    I16 = 5, 2, i16, Int16, |b| Number::Int(i16::from_le_bytes(b).into());
    /// Signed, 32 bits.
    I32 = 6, 4, i32, Int32, |b| Number::Int(i32::from_le_bytes(b).into());
    /// Signed, 64 bits.
    I64 = 7, 8, i64, Int64, |b| Number::Int(i64::from_le_bytes(b).into());
    /// Unsigned, 8 bits.
    U8 = 8, 1, u8, Uint8, |b| Number::Int(u8::from_le_bytes(b).into());
    /// Unsigned, 16 bits.
    U16 = 9, 2, u16, Uint16, |b| Number::Int(u16::from_le_bytes(b).into());
    /// Unsigned, 32 bits.
    U32 = 10, 4, u32, Uint32, |b| Number::Int(u32::from_le_bytes(b).into());
    /// Unsigned, 64 bits.
    U64 = 11, 8, u64, Uint64, |b| Number::Int(u64::from_le_bytes(b).into());
    /// 0 or 1 in a byte.
    Bool = 12, 1, bool, Bool, |b| Number::Int((b != [0]).into());
}
