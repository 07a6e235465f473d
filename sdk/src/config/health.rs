//! The app's function that takes the SDK's problem, in the form that the configuration holds. The SDK's thread calls
//! it.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

type Listener = dyn Fn(Option<&str>) + Send + Sync;

/// The app's function for the SDK's problem.
#[derive(Clone)]
pub(crate) struct HealthListener(Arc<Listener>);

impl HealthListener {
    pub(crate) fn new(listener: impl Fn(Option<&str>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(listener))
    }

    /// Calls the function. A panic in the host's function does not affect the SDK.
    pub(crate) fn call(&self, problem: Option<&str>) {
        let _ = catch_unwind(AssertUnwindSafe(|| (self.0)(problem)));
    }
}

impl fmt::Debug for HealthListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HealthListener")
    }
}
