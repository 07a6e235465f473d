//! Values of `SelfTest.error_code` that are not ORT's status codes, which are above 0. If the NPU's hash exists and
//! the CPU's does not, the CPU's side failed.

/// The SDK itself failed.
pub const INTERNAL: i32 = -1;
/// The CPU session could not be made, for a reason other than an error of ORT.
pub const CPU_SESSION: i32 = -2;
/// The sessions' outputs differ in number, names, types or shapes.
pub const OUTPUTS_DIFFER: i32 = -3;
/// One output has a NaN or an infinity where the other has none.
pub const NOT_FINITE: i32 = -4;
/// An output is not a tensor of numbers.
pub const UNSUPPORTED_OUTPUT: i32 = -5;
/// The outputs take more than 64 MiB.
pub const OUTPUT_TOO_LARGE: i32 = -6;
