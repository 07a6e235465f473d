//! Polls until a condition holds, with one deadline.

use std::{
    thread,
    time::{Duration, Instant},
};

/// Longest wait in a test, however busy the machine is.
pub const DEADLINE: Duration = Duration::from_secs(600);

/// What a condition of [`until`] found: `true`, or `Some` value.
pub trait Finding {
    /// What [`until`] returns.
    type Value;

    /// Returns the value, if the condition holds.
    fn value(self) -> Option<Self::Value>;
}

impl Finding for bool {
    type Value = ();

    fn value(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Finding for Option<T> {
    type Value = T;

    fn value(self) -> Option<T> {
        self
    }
}

/// Polls until `condition` holds, and returns what it found.
///
/// # Panics
/// Panics after [`DEADLINE`] with `what`.
pub async fn until<T: Finding, F: Future<Output = T>>(
    what: &str,
    mut condition: impl FnMut() -> F,
) -> T::Value {
    let began = Instant::now();
    loop {
        if let Some(value) = condition().await.value() {
            return value;
        }
        assert!(began.elapsed() < DEADLINE, "gave up waiting: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Works like [`until`], on a thread that nothing else needs.
///
/// # Panics
/// Panics after [`DEADLINE`].
#[track_caller]
pub fn wait_for(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < DEADLINE, "gave up waiting");
        thread::sleep(Duration::from_millis(50));
    }
}
