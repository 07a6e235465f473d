//! Texts and structs that cross the border between C and Rust.

use std::{
    cell::Cell,
    ffi::{c_char, c_void},
    marker::PhantomData,
    mem::MaybeUninit,
    ptr::{self, NonNull},
    slice,
};

use crate::status::{EpwStatus, Failure, guarded, last_error};

/// UTF-8 text. It need not end in NUL.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct EpwText {
    /// NULL if the text is empty.
    pub data: *const c_char,
    /// Bytes.
    pub length: usize,
}

/// Longest text that is read, in bytes. Every text of a report is far shorter.
const MAX_BYTES: usize = 1 << 20;

/// Bound on the size of a struct; none will ever be as large.
const MAX_STRUCT_BYTES: usize = 64 << 10;

impl EpwText {
    /// A text that lives as long as the bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self {
            data: bytes.as_ptr().cast(),
            length: bytes.len(),
        }
    }

    /// # Safety
    /// The text must be valid.
    pub(crate) unsafe fn bytes<'a>(self, most: usize) -> Result<&'a [u8], Failure> {
        // SAFETY: guaranteed by the caller.
        unsafe { array(self.data.cast::<u8>(), self.length, most) }
    }

    /// # Safety
    /// The text must be valid.
    pub(crate) unsafe fn get<'a>(self) -> Result<&'a str, Failure> {
        // SAFETY: guaranteed by the caller.
        let bytes = unsafe { self.bytes(MAX_BYTES)? };
        let text = std::str::from_utf8(bytes);
        text.map_err(|error| Failure::new(EpwStatus::NotUtf8, format!("no UTF-8: {error}")))
    }
}

/// Reads the texts of a struct. A refused text reads as empty, and [`Self::checked`] returns its error.
#[derive(Default)]
pub(crate) struct Texts {
    /// The first.
    refused: Cell<Option<Failure>>,
}

impl Texts {
    /// # Safety
    /// The text must be valid.
    pub(crate) unsafe fn get<'a>(&self, text: EpwText) -> &'a str {
        // SAFETY: guaranteed by the caller.
        unsafe { text.get() }.unwrap_or_else(|failure| {
            let first = self.refused.take().unwrap_or(failure);
            self.refused.set(Some(first));
            ""
        })
    }

    pub(crate) fn checked(self) -> Result<(), Failure> {
        self.refused.into_inner().map_or(Ok(()), Err)
    }
}

/// # Safety
/// `data` must be null or hold `length` values.
pub(crate) unsafe fn array<'a, T>(
    data: *const T,
    length: usize,
    most: usize,
) -> Result<&'a [T], Failure> {
    if length == 0 {
        return Ok(&[]);
    }
    if data.is_null() || length > most || !data.is_aligned() {
        let text =
            format!("an array or text of {length} is null, misaligned or longer than {most}");
        return Err(Failure::invalid(text));
    }
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { slice::from_raw_parts(data, length) })
}

/// A struct whose bytes may all be 0, and whose first field is its size as the caller has compiled it.
///
/// # Safety
/// It must be `repr(C)`, with only numbers, pointers and functions that may be absent.
pub(crate) unsafe trait Versioned: Copy {
    /// The struct's name in error messages.
    const NAME: &'static str;
}

/// Returns the size that a struct names; `None` for null.
///
/// # Safety
/// `given` must be null or point to a struct of the size that it names.
unsafe fn size_of_given<T: Versioned>(given: *const T) -> Result<Option<usize>, Failure> {
    let name = T::NAME;
    if given.is_null() {
        return Ok(None);
    }
    if !given.is_aligned() {
        return Err(Failure::invalid(format!("{name} is misaligned")));
    }
    // SAFETY: guaranteed by the caller: the size is its first field.
    let size = unsafe { *given.cast::<usize>() };
    if !(size_of::<usize>()..=MAX_STRUCT_BYTES).contains(&size) {
        let text = format!("{name}.size is {size}; set it to sizeof({name})");
        return Err(Failure::new(EpwStatus::StructSize, text));
    }
    Ok(Some(size))
}

/// Copies a struct. A shorter struct of an older header is filled up with zeros. A longer struct of a later header is
/// accepted if the rest is 0.
///
/// # Safety
/// `given` must be null or point to a struct of the size that it names.
pub(crate) unsafe fn read<T: Versioned>(given: *const T) -> Result<T, Failure> {
    // SAFETY: guaranteed by the caller.
    let Some(size) = (unsafe { size_of_given(given)? }) else {
        return Err(Failure::invalid(format!("{} is null", T::NAME)));
    };
    let (bytes, ours, name) = (given.cast::<u8>(), size_of::<T>(), T::NAME);
    let mut copy = MaybeUninit::<T>::zeroed();
    // SAFETY: the caller's struct has `size` bytes, and ours holds the smaller number of bytes.
    let rest = unsafe {
        ptr::copy_nonoverlapping(bytes, copy.as_mut_ptr().cast(), size.min(ours));
        slice::from_raw_parts(bytes.add(size.min(ours)), size.saturating_sub(ours))
    };
    if rest.iter().any(|byte| *byte != 0) {
        let text = format!("{name} sets a field that this library does not have");
        return Err(Failure::new(EpwStatus::StructSize, text));
    }
    // SAFETY: any bytes are valid numbers and pointers.
    Ok(unsafe { copy.assume_init() })
}

/// Copies bytes to the caller.
///
/// # Safety
/// `buffer` must be null or hold `capacity` bytes; `length` must be null or valid.
pub(crate) unsafe fn copy_out(
    bytes: &[u8],
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Result<EpwStatus, Failure> {
    if length.is_null() {
        return Err(Failure::invalid("length is null"));
    }
    let n = if buffer.is_null() {
        0
    } else {
        bytes.len().min(capacity)
    };
    // SAFETY: guaranteed by the caller.
    unsafe {
        ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), n);
        *length = bytes.len();
    }
    // NULL asks for the length.
    let is_cut = !buffer.is_null() && n < bytes.len();
    Ok(match is_cut {
        true => EpwStatus::BufferTooSmall,
        false => EpwStatus::Ok,
    })
}

/// The header's version: major * 10000 + minor * 100 + patch.
pub const EPW_VERSION: u32 = 100;

/// Returns the library's version, in the form of EPW_VERSION. A library of a later version takes the structs of an
/// earlier header.
#[unsafe(no_mangle)]
pub extern "C" fn epw_version() -> u32 {
    EPW_VERSION
}

/// Copies the sentence that explains this thread's last status other than 0, 1 and 15.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epw_last_error(
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> EpwStatus {
    guarded(|| {
        // SAFETY: the header's first comment states the caller's duties.
        unsafe { copy_out(last_error().as_bytes(), buffer, capacity, length) }
    })
}

/// Where a call writes its result.
#[derive(Clone, Copy)]
pub(crate) struct ResultPlace<T>(NonNull<T>);

impl<T> ResultPlace<T> {
    /// Refuses null. Calls begin with it: the caller could not close a handle that it never gets.
    ///
    /// # Safety
    /// `place` must be null or valid.
    pub(crate) unsafe fn of(place: *mut T) -> Result<Self, Failure> {
        let place = NonNull::new(place);
        let place = place.ok_or_else(|| Failure::invalid("the place for the result is null"))?;
        Ok(Self(place))
    }

    /// Writes a result to the caller.
    pub(crate) fn write(self, value: T) -> EpwStatus {
        // SAFETY: guaranteed by the caller of [`Self::of`].
        unsafe { self.0.write(value) };
        EpwStatus::Ok
    }
}

/// Where a call writes a struct that begins with its size, which the caller has set. A caller of an older header gets
/// the fields of that header.
pub(crate) struct SizedPlace<T> {
    place: NonNull<u8>,
    size: usize,
    of: PhantomData<T>,
}

impl<T: Versioned> SizedPlace<T> {
    /// `None` for null, which asks for no result.
    ///
    /// # Safety
    /// `place` must be null or point to a struct of the size that it names.
    pub(crate) unsafe fn of(place: *mut T) -> Result<Option<Self>, Failure> {
        // SAFETY: guaranteed by the caller.
        let Some(size) = (unsafe { size_of_given(place.cast_const())? }) else {
            return Ok(None);
        };
        let place = NonNull::new(place.cast());
        let of = PhantomData;
        Ok(place.map(|place| Self { place, size, of }))
    }

    /// Writes all fields that the caller knows, except the size.
    pub(crate) fn write(&self, value: &T) -> EpwStatus {
        let (first, end) = (size_of::<usize>(), self.size.min(size_of::<T>()));
        // SAFETY: both structs have `end` bytes, and begin with their size.
        unsafe {
            let from = ptr::from_ref(value).cast::<u8>().add(first);
            ptr::copy_nonoverlapping(from, self.place.as_ptr().add(first), end - first);
        }
        EpwStatus::Ok
    }
}

/// An opaque pointer that only ONNX Runtime may follow.
pub(crate) type Foreign = *const c_void;

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Old {
        size: usize,
        a: u64,
    }

    #[repr(C)]
    #[derive(Clone, Copy)]
    struct New {
        size: usize,
        a: u64,
        b: u64,
    }

    // SAFETY: all fields are numbers.
    unsafe impl Versioned for Old {
        const NAME: &'static str = "Old";
    }

    // SAFETY: all fields are numbers.
    unsafe impl Versioned for New {
        const NAME: &'static str = "New";
    }

    fn status<T>(result: Result<T, Failure>) -> EpwStatus {
        result.map_or_else(|failure| failure.status, |_| EpwStatus::Ok)
    }

    #[test]
    fn a_result_has_the_fields_that_the_caller_knows() {
        let ours = New {
            size: size_of::<New>(),
            a: 7,
            b: 8,
        };
        let given = |size| New { size, a: 1, b: 2 };
        for (size, a, b) in [
            (size_of::<usize>(), 1, 2),
            (size_of::<Old>(), 7, 2),
            (size_of::<New>(), 7, 8),
            (size_of::<New>() + 8, 7, 8),
        ] {
            // The caller's struct may be longer than ours.
            let mut callers = [given(size); 2];
            // SAFETY: each size is at most the size of the two structs.
            let place = unsafe { SizedPlace::of(callers.as_mut_ptr()) };
            let status = place.map(|place| place.unwrap().write(&ours));
            assert_eq!(status.ok(), Some(EpwStatus::Ok));
            let [first, second] = callers;
            assert_eq!((first.size, first.a, first.b), (size, a, b));
            assert_eq!((second.a, second.b), (1, 2));
        }
        for size in [0, size_of::<usize>() - 1, MAX_STRUCT_BYTES + 1] {
            // SAFETY: a wrong size is refused before anything is written.
            let place = unsafe { SizedPlace::of(&mut given(size)) };
            assert_eq!(status(place.map(|_| ())), EpwStatus::StructSize);
        }
        // SAFETY: null is allowed.
        assert!(unsafe { SizedPlace::<New>::of(ptr::null_mut()) }.is_ok_and(|none| none.is_none()));
    }

    #[test]
    fn structs_of_other_versions_are_read_by_their_size() {
        let size = size_of::<Old>();
        let old = Old { size, a: 7 };
        // SAFETY: only as many bytes of a New are read as its size says.
        let read_as_new = unsafe { read(ptr::from_ref(&old).cast::<New>()) };
        let new = read_as_new.unwrap();
        assert_eq!((new.a, new.b), (7, 0));
        let size = size_of::<New>();
        let mut new = New { size, a: 7, b: 0 };
        // SAFETY: an Old is the beginning of a New.
        let read_as_old = unsafe { read(ptr::from_ref(&new).cast::<Old>()) };
        assert_eq!(read_as_old.unwrap().a, 7);
        new.b = 1;
        // SAFETY: as before.
        let refused = unsafe { read(ptr::from_ref(&new).cast::<Old>()) };
        assert_eq!(status(refused), EpwStatus::StructSize);
        for size in [0, 7, usize::MAX] {
            new.size = size;
            // SAFETY: the size is refused before the rest is read.
            let refused = unsafe { read(&raw const new) };
            assert_eq!(status(refused), EpwStatus::StructSize);
        }
        // SAFETY: null is allowed.
        let null = unsafe { read(ptr::null::<New>()) };
        assert_eq!(status(null), EpwStatus::InvalidArgument);
    }

    #[test]
    fn the_version_is_the_packages() {
        let numbers = env!("CARGO_PKG_VERSION").split('.');
        let version = numbers.fold(0, |all, part| all * 100 + part.parse::<u32>().unwrap());
        assert_eq!(epw_version(), version);
    }

    #[test]
    fn texts_are_checked() {
        let text = |data: *const c_char, length| EpwText { data, length };
        // SAFETY: all are null, or bytes of this function.
        let get = |t: EpwText| unsafe { t.get() };
        assert_eq!(get(text(ptr::null(), 0)).unwrap(), "");
        assert_eq!(get(text(c"abc".as_ptr(), 2)).unwrap(), "ab");
        assert_eq!(
            status(get(text(ptr::null(), 1))),
            EpwStatus::InvalidArgument
        );
        assert_eq!(status(get(text(c"\xff".as_ptr(), 1))), EpwStatus::NotUtf8);
    }
}
