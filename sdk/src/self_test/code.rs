//! `SelfTest.error_code` where no run failed with a status code of ORT's, which are above 0. Where the NPU's hash is there and the CPU's is not, it is the CPU's side that failed.

/// The SDK itself failed.
pub const INTERNAL: i32 = -1;
/// The CPU session could not be made, for a reason that is not ORT's.
pub const CPU_SESSION: i32 = -2;
/// The sessions differ in number, names, types or shapes of their outputs.
pub const OUTPUTS_DIFFER: i32 = -3;
/// One side has a NaN or an infinity where the other has not.
pub const NOT_FINITE: i32 = -4;
/// An output is no tensor of numbers.
pub const UNSUPPORTED_OUTPUT: i32 = -5;
/// The outputs take more than 64 MiB.
pub const OUTPUT_TOO_LARGE: i32 = -6;
