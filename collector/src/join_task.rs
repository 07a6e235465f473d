//! Waits for work on other threads. The writer and the loader of admission use it.

use tokio::task::JoinHandle;

/// Returns the task's result. A panic of the task continues in the caller.
pub(crate) async fn join_task<T>(task: &mut JoinHandle<T>) -> T {
    match task.await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // Only a runtime that shuts down cancels a task, and it drops this future too.
        Err(_) => std::future::pending().await,
    }
}
