//! The error of a command line that cannot be used on this device.

/// The command line cannot be used on this device.
#[derive(Debug)]
pub struct WrongUse(pub(crate) String);

impl std::fmt::Display for WrongUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongUse {}
