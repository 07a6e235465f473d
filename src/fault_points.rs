//! The supervised tasks of a server process. A debug build, which tests run, panics in the task that a file names, and
//! ends only once that file is gone. A release build cannot do this.

use epwatch_server::TaskSet;

/// Returns the tasks of this process.
pub(crate) fn tasks() -> TaskSet {
    #[cfg(debug_assertions)]
    if let Some(file) = std::env::var_os("EPWATCH_TEST_PANIC_IN") {
        return panicking(file.into());
    }
    TaskSet::default()
}

/// Returns a task set in which a task panics once a file exists that names it. A process that ends because of it waits
/// until the file is gone.
#[cfg(debug_assertions)]
fn panicking(file: std::path::PathBuf) -> TaskSet {
    use std::time::Duration;

    const LOOK_EVERY: Duration = Duration::from_millis(20);
    /// More than the number of calls that may wait for the panic in one process.
    const PASSES: usize = 100;
    let faults = epwatch_server::FaultPoints::default();
    let tasks = TaskSet::with_faults(faults.clone(), Duration::from_secs(1));
    faults.hold(epwatch_server::ENDING);
    std::thread::spawn(move || {
        // The file is renamed into its folder, so its content is complete.
        let task = loop {
            if let Ok(task) = std::fs::read_to_string(&file) {
                break task;
            }
            std::thread::sleep(LOOK_EVERY);
        };
        faults.end(task.trim(), epwatch_server::End::Panic);
        while file.exists() {
            std::thread::sleep(LOOK_EVERY);
        }
        faults.pass(epwatch_server::ENDING, PASSES);
    });
    tasks
}
