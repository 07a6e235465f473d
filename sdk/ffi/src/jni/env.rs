//! The functions of a JVM that the bridge calls, by their positions in JNI's table (specification, chapter 4).
//!
//! No call here runs while a Java exception is pending, and none calls Java code.

use std::{
    ffi::{CStr, c_char, c_void},
    mem, ptr,
};

/// An object, class or array of Java.
pub(super) type Object = *mut c_void;

type Field = *mut c_void;

const FIND_CLASS: usize = 6;
const EXCEPTION_CLEAR: usize = 17;
const DELETE_LOCAL_REF: usize = 23;
const GET_OBJECT_CLASS: usize = 31;
const GET_FIELD_ID: usize = 94;
const GET_LONG_FIELD: usize = 101;
const GET_STATIC_FIELD_ID: usize = 144;
const GET_STATIC_LONG_FIELD: usize = 151;
const GET_ARRAY_LENGTH: usize = 171;
const GET_OBJECT_ARRAY_ELEMENT: usize = 173;
const NEW_BYTE_ARRAY: usize = 176;
const GET_BYTE_ARRAY_REGION: usize = 200;
const GET_LONG_ARRAY_REGION: usize = 204;
const SET_BYTE_ARRAY_REGION: usize = 208;

/// A thread's `JNIEnv*`, for the duration of a call.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Env(*const *const *const c_void);

impl Env {
    /// # Safety
    /// `F` must be the type of the function at this position.
    unsafe fn function<F>(self, at: usize) -> F {
        const { assert!(mem::size_of::<F>() == mem::size_of::<*const c_void>()) };
        // SAFETY: JNI's table has more than 228 functions; the caller guarantees the type.
        unsafe { mem::transmute_copy(&*(*self.0).add(at)) }
    }

    fn length(self, array: Object) -> i32 {
        // SAFETY: `array` is an array that Java passed.
        unsafe {
            let get: unsafe extern "system" fn(Env, Object) -> i32 =
                self.function(GET_ARRAY_LENGTH);
            get(self, array)
        }
    }

    /// Copies a `byte[]`; null is empty.
    pub(super) fn bytes(self, array: Object) -> Vec<u8> {
        if array.is_null() {
            return Vec::new();
        }
        let length = self.length(array);
        let mut bytes = vec![0_u8; usize::try_from(length).unwrap_or(0)];
        // SAFETY: the region is the whole array, and the destination is as long.
        unsafe {
            let get: unsafe extern "system" fn(Env, Object, i32, i32, *mut u8) =
                self.function(GET_BYTE_ARRAY_REGION);
            get(self, array, 0, length, bytes.as_mut_ptr());
        }
        bytes
    }

    /// Copies a `byte[][]`; null is empty.
    pub(super) fn texts(self, array: Object) -> Vec<Vec<u8>> {
        if array.is_null() {
            return Vec::new();
        }
        let texts = (0..self.length(array)).map(|at| {
            // SAFETY: the position is one of the array, and each local reference is deleted once.
            unsafe {
                let get: unsafe extern "system" fn(Env, Object, i32) -> Object =
                    self.function(GET_OBJECT_ARRAY_ELEMENT);
                let delete: unsafe extern "system" fn(Env, Object) =
                    self.function(DELETE_LOCAL_REF);
                let text = get(self, array, at);
                let bytes = self.bytes(text);
                delete(self, text);
                bytes
            }
        });
        texts.collect()
    }

    /// Copies `into.len()` elements of a `long[]`. `false` if the array is shorter.
    pub(super) fn longs(self, array: Object, from: i32, into: &mut [i64]) -> bool {
        let Ok(length) = i32::try_from(into.len()) else {
            return false;
        };
        let is_inside = !array.is_null()
            && from >= 0
            && from
                .checked_add(length)
                .is_some_and(|end| end <= self.length(array));
        if is_inside {
            // SAFETY: the region is inside the array, and the destination is as long.
            unsafe {
                let get: unsafe extern "system" fn(Env, Object, i32, i32, *mut i64) =
                    self.function(GET_LONG_ARRAY_REGION);
                get(self, array, from, length, into.as_mut_ptr());
            }
        }
        is_inside
    }

    /// Copies a `long[]`; null is empty.
    pub(super) fn all_longs(self, array: Object) -> Vec<i64> {
        if array.is_null() {
            return Vec::new();
        }
        let mut all = vec![0; usize::try_from(self.length(array)).unwrap_or(0)];
        self.longs(array, 0, &mut all);
        all
    }

    /// Makes a `byte[]`; null if memory is short, with Java's exception pending.
    pub(super) fn byte_array(self, bytes: &[u8]) -> Object {
        let Ok(length) = i32::try_from(bytes.len()) else {
            return ptr::null_mut();
        };
        // SAFETY: the new array is as long as the bytes.
        unsafe {
            let new: unsafe extern "system" fn(Env, i32) -> Object = self.function(NEW_BYTE_ARRAY);
            let array = new(self, length);
            if !array.is_null() {
                let set: unsafe extern "system" fn(Env, Object, i32, i32, *const u8) =
                    self.function(SET_BYTE_ARRAY_REGION);
                set(self, array, 0, length, bytes.as_ptr());
            }
            array
        }
    }

    /// Reads a `long` field of an object; `None` if its class has none of this name.
    pub(super) fn long_field(self, object: Object, name: &CStr) -> Option<i64> {
        if object.is_null() {
            return None;
        }
        // SAFETY: the field is of the object's class, and a long.
        unsafe {
            let class_of: unsafe extern "system" fn(Env, Object) -> Object =
                self.function(GET_OBJECT_CLASS);
            let class = class_of(self, object);
            let field = self.field(GET_FIELD_ID, class, name)?;
            let get: unsafe extern "system" fn(Env, Object, Field) -> i64 =
                self.function(GET_LONG_FIELD);
            Some(get(self, object, field))
        }
    }

    /// Reads a static `long` field; `None` if there is none.
    pub(super) fn static_long_field(self, class: &CStr, name: &CStr) -> Option<i64> {
        // SAFETY: both names are NUL-terminated; the field is of this class, and a long.
        unsafe {
            let find: unsafe extern "system" fn(Env, *const c_char) -> Object =
                self.function(FIND_CLASS);
            let class = find(self, class.as_ptr());
            if class.is_null() {
                self.clear_exception();
                return None;
            }
            let field = self.field(GET_STATIC_FIELD_ID, class, name)?;
            let get: unsafe extern "system" fn(Env, Object, Field) -> i64 =
                self.function(GET_STATIC_LONG_FIELD);
            Some(get(self, class, field))
        }
    }

    /// # Safety
    /// `class` must be a class, and `at` the position of a function that finds fields.
    unsafe fn field(self, at: usize, class: Object, name: &CStr) -> Option<Field> {
        // SAFETY: guaranteed by the caller.
        let field = unsafe {
            let find: unsafe extern "system" fn(
                Env,
                Object,
                *const c_char,
                *const c_char,
            ) -> Field = self.function(at);
            find(self, class, name.as_ptr(), c"J".as_ptr())
        };
        if field.is_null() {
            self.clear_exception();
            return None;
        }
        Some(field)
    }

    fn clear_exception(self) {
        // SAFETY: this function may be called at any time.
        unsafe {
            let clear: unsafe extern "system" fn(Env) = self.function(EXCEPTION_CLEAR);
            clear(self);
        }
    }
}
