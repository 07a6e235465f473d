//! Self-tests whose sessions Java runs.
//!
//! A tensor is two entries of an array of bytes: its name and its elements. In the array of numbers it is type, rank
//! and dimensions, one tensor after the other.

use epwatch_sdk::self_test::{GoldenInput, GoldenTensor, Output, code};

use super::{Class, Env, Object, handle, text};
use crate::{
    self_test::{self, Side, refused},
    status::Failure,
};

/// Tensors of `Native.kt`, read one after the other.
struct Tensors<'a> {
    bytes: std::slice::Iter<'a, Vec<u8>>,
    numbers: std::slice::Iter<'a, i64>,
}

/// Name, type, dimensions and elements.
type TensorParts<'a> = (String, i32, Vec<i64>, &'a [u8]);

impl<'a> Tensors<'a> {
    fn of(bytes: &'a [Vec<u8>], numbers: &'a [i64]) -> Self {
        Self {
            bytes: bytes.iter(),
            numbers: numbers.iter(),
        }
    }

    fn number(&mut self) -> Result<i64, Failure> {
        let number = self.numbers.next().copied();
        number.ok_or_else(|| Failure::invalid("the array of numbers is too short"))
    }

    fn small(&mut self) -> Result<i32, Failure> {
        i32::try_from(self.number()?).map_err(|_| Failure::invalid("a number is out of range"))
    }

    /// Reads the next tensor. `None` at the end.
    fn tensor(&mut self) -> Result<Option<TensorParts<'a>>, Failure> {
        let Some(name) = self.bytes.next() else {
            return Ok(None);
        };
        let Some(elements) = self.bytes.next() else {
            return Err(Failure::invalid("a tensor has no elements"));
        };
        let element_type = self.small()?;
        let rank = self.number()?;
        let dims = (0..rank).map(|_| self.number()).collect::<Result<_, _>>()?;
        let name = String::from_utf8_lossy(name).into_owned();
        Ok(Some((name, element_type, dims, elements)))
    }

    /// Reads the outputs of one side: the next `length` tensors, or `error` if it is not 0. An output that the library
    /// does not accept is a result, so that the test ends.
    fn side(&mut self, error: i32, length: i64) -> Result<Side, Failure> {
        let (mut outputs, mut error) = (Vec::new(), error);
        for _ in 0..length {
            let Some((name, element_type, dims, elements)) = self.tensor()? else {
                return Err(Failure::invalid("an output is missing"));
            };
            match Output::new(&name, element_type, &dims, elements) {
                Ok(output) => outputs.push(output),
                Err(_) if error == 0 => error = code::UNSUPPORTED_OUTPUT,
                Err(_) => {}
            }
        }
        Ok(match error {
            0 => Ok(outputs),
            code => Err(code),
        })
    }
}

/// `bytes` begin with the id, `numbers` with the bits of the tolerance. 0 if there is nothing to do.
#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_beginSelfTest(
    env: Env,
    _: Class,
    session: i64,
    bytes: Object,
    numbers: Object,
) -> i64 {
    handle(|| {
        let (bytes, numbers) = (env.texts(bytes), env.all_longs(numbers));
        let Some((id, bytes)) = bytes.split_first() else {
            return Err(Failure::invalid("the input has no id"));
        };
        let mut tensors = Tensors::of(bytes, &numbers);
        let tolerance = f64::from_bits(tensors.number()?.cast_unsigned());
        let mut golden = GoldenInput::new(String::from_utf8_lossy(id));
        if tolerance != 0.0 {
            golden = golden.and_then(|golden| golden.with_tolerance(tolerance));
        }
        let mut golden = golden.map_err(|error| refused(&error))?;
        while let Some((name, element_type, dims, elements)) = tensors.tensor()? {
            let added = GoldenTensor::of_bytes(element_type, &dims, elements)
                .and_then(|tensor| golden.with_input(name, tensor));
            golden = added.map_err(|error| refused(&error))?;
        }
        Ok(self_test::begin(session.cast_unsigned(), &golden)?.unwrap_or(0))
    })
}

/// `numbers` begin with the errors of NPU and CPU, and their numbers of outputs. Returns the result in 24 bytes,
/// little-endian: greatest difference, cosine, equality of the largest element, error code. Null if the call fails.
#[unsafe(no_mangle)]
extern "system" fn Java_dev_epwatch_Native_endSelfTest(
    env: Env,
    _: Class,
    test: i64,
    bytes: Object,
    numbers: Object,
) -> Object {
    text(env, || {
        let (bytes, numbers) = (env.texts(bytes), env.all_longs(numbers));
        let mut tensors = Tensors::of(&bytes, &numbers);
        let errors = [tensors.small()?, tensors.small()?];
        let lengths = [tensors.number()?, tensors.number()?];
        let on_npu = tensors.side(errors[0], lengths[0])?;
        let on_cpu = tensors.side(errors[1], lengths[1])?;
        let tested = self_test::end(test.cast_unsigned(), on_npu, on_cpu)?;
        let mut answer = tested.max_abs.to_le_bytes().to_vec();
        answer.extend(tested.cosine.to_le_bytes());
        answer.extend(tested.top1_equal.to_le_bytes());
        answer.extend(tested.error_code.to_le_bytes());
        Ok(answer)
    })
}
