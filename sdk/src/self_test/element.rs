//! Element types of tensors: their bytes, their numbers, and the types of ONNX and ONNX Runtime for them.

use half::f16;
#[cfg(feature = "ort")]
use ort::value::{DynValue, Tensor, TensorElementType};

mod sealed {
    pub trait Element: Copy {
        const TYPE: super::ElementType;
        /// Appends the element's bytes, little-endian.
        fn write(self, out: &mut Vec<u8>);
    }
}

/// A Rust type that golden inputs can be made from.
pub trait GoldenElement: sealed::Element {}

/// An element of an output as a number, without loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Number {
    Float(f64),
    Int(i128),
}

impl Number {
    /// Converts to a float, which rounds integers beyond 2^53.
    #[expect(clippy::cast_precision_loss, reason = "a distance needs no more")]
    pub(crate) fn as_f64(self) -> f64 {
        match self {
            Self::Float(x) => x,
            Self::Int(x) => x as f64,
        }
    }
}

/// Declares the element types: variant, code in hashes, ONNX's data type, ORT's type, Rust type, bytes of one element.
/// The conversions from and to little-endian bytes and to a number follow.
macro_rules! element_types {
    ($( $variant:ident = $code:literal, $onnx:literal, $ort:ident, $rust:ty, $size:literal,
        $of_le:expr, $to_le:expr, $to_number:expr; )+) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum ElementType {
            $( $variant, )+
        }

        impl ElementType {
            /// The number of this type in hashes. Reports hold these hashes, so the number never changes.
            pub(crate) fn code(self) -> u8 {
                match self { $( Self::$variant => $code, )+ }
            }

            /// Bytes of one element.
            pub(crate) fn size(self) -> usize {
                match self { $( Self::$variant => $size, )+ }
            }

            pub(crate) fn from_onnx(data_type: u64) -> Option<Self> {
                match data_type { $( $onnx => Some(Self::$variant), )+ _ => None }
            }

            #[cfg(feature = "ort")]
            pub(crate) fn from_ort(ty: TensorElementType) -> Option<Self> {
                match ty { $( TensorElementType::$ort => Some(Self::$variant), )+ _ => None }
            }

            /// Reads bytes as whole elements, and returns them as numbers.
            pub(crate) fn numbers(self, bytes: &[u8]) -> Box<dyn Iterator<Item = Number> + '_> {
                match self {
                    $( Self::$variant => {
                        let (chunks, _) = bytes.as_chunks::<$size>();
                        let of_le: fn([u8; $size]) -> $rust = $of_le;
                        let to_number: fn($rust) -> Number = $to_number;
                        Box::new(chunks.iter().map(move |chunk| to_number(of_le(*chunk))))
                    } )+
                }
            }

            /// Makes a tensor for ONNX Runtime.
            #[cfg(feature = "ort")]
            pub(crate) fn tensor(self, dims: &[i64], bytes: &[u8]) -> ort::Result<DynValue> {
                match self {
                    $( Self::$variant => {
                        let (chunks, _) = bytes.as_chunks::<$size>();
                        let of_le: fn([u8; $size]) -> $rust = $of_le;
                        let values: Vec<$rust> = chunks.iter().map(|c| of_le(*c)).collect();
                        Ok(Tensor::from_array((dims.to_vec(), values))?.into_dyn())
                    } )+
                }
            }

            /// The bytes of a tensor of this type.
            #[cfg(feature = "ort")]
            pub(crate) fn bytes_of(self, value: &DynValue) -> ort::Result<Vec<u8>> {
                match self {
                    $( Self::$variant => {
                        let (_, values) = value.try_extract_tensor::<$rust>()?;
                        Ok(bytes_of(values))
                    } )+
                }
            }
        }

        $(
            impl GoldenElement for $rust {}
            impl sealed::Element for $rust {
                const TYPE: ElementType = ElementType::$variant;
                fn write(self, out: &mut Vec<u8>) {
                    let to_le: fn($rust) -> [u8; $size] = $to_le;
                    out.extend(to_le(self));
                }
            }
        )+
    };
}

/// Returns the elements' bytes, little-endian.
pub(crate) fn bytes_of<T: GoldenElement>(elements: &[T]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_of_val(elements));
    for element in elements {
        element.write(&mut bytes);
    }
    bytes
}

element_types! {
    F16 = 1, 10, Float16, f16, 2, f16::from_le_bytes, f16::to_le_bytes, |x| Number::Float(x.to_f64());
    F32 = 2, 1, Float32, f32, 4, f32::from_le_bytes, f32::to_le_bytes, |x| Number::Float(x.into());
    F64 = 3, 11, Float64, f64, 8, f64::from_le_bytes, f64::to_le_bytes, Number::Float;
    I8 = 4, 3, Int8, i8, 1, i8::from_le_bytes, i8::to_le_bytes, |x| Number::Int(x.into());
    I16 = 5, 5, Int16, i16, 2, i16::from_le_bytes, i16::to_le_bytes, |x| Number::Int(x.into());
    I32 = 6, 6, Int32, i32, 4, i32::from_le_bytes, i32::to_le_bytes, |x| Number::Int(x.into());
    I64 = 7, 7, Int64, i64, 8, i64::from_le_bytes, i64::to_le_bytes, |x| Number::Int(x.into());
    U8 = 8, 2, Uint8, u8, 1, u8::from_le_bytes, u8::to_le_bytes, |x| Number::Int(x.into());
    U16 = 9, 4, Uint16, u16, 2, u16::from_le_bytes, u16::to_le_bytes, |x| Number::Int(x.into());
    U32 = 10, 12, Uint32, u32, 4, u32::from_le_bytes, u32::to_le_bytes, |x| Number::Int(x.into());
    U64 = 11, 13, Uint64, u64, 8, u64::from_le_bytes, u64::to_le_bytes, |x| Number::Int(x.into());
    // A byte that is 0 or 1.
    Bool = 12, 9, Bool, bool, 1, |b| b != [0], |x| [u8::from(x)], |x| Number::Int(x.into());
}
