//! The tasks of a server process, as one supervised set. Collector, detector and page run their long-lived tasks in it.
//!
//! A task may end without being asked, by a return or by a panic. Then it is logged at ERROR, counted by its name,
//! and makes `/readyz` fail. A task of [`TaskSet::restarted`] is started again with growing pauses. A task of
//! [`TaskSet::essential`] fails the set, and the command ends the process with an exit code other than 0. The table
//! in ARCHITECTURE.md lists which task does which.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::backoff::Backoff;
use crate::metrics::MetricTable;

/// The point at which a test holds back a process that ends because one of its tasks ended.
pub const ENDING: &str = "ending";

/// Times of restarts.
#[derive(Debug, Clone, Copy)]
struct Pauses {
    /// The pause before the first restart of a task.
    first: Duration,
    /// The longest pause before a restart: with it, a task that always fails costs next to nothing.
    longest: Duration,
    /// A restarted task must run this long before the process is ready again. A shorter time would show as a flicker of
    /// `/readyz` that no probe sees.
    settled_after: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(60),
            settled_after: Duration::from_secs(30),
        }
    }
}

type TaskLabel = [(&'static str, String); 1];

/// Returns reasons why a component is not ready; nothing if it is.
type Check = Box<dyn Fn() -> Vec<String> + Send + Sync>;

/// The supervised tasks of one process. Cheap to clone; all clones are the same set.
#[derive(Debug, Clone, Default)]
pub struct TaskSet(Arc<Shared>);

#[derive(Default)]
struct Shared {
    states: Mutex<BTreeMap<String, TaskState>>,
    checks: Mutex<Vec<Check>>,
    notes: Mutex<Vec<Check>>,
    failed: CancellationToken,
    ends: Family<TaskLabel, Counter>,
    up: Family<TaskLabel, Gauge>,
    pauses: Pauses,
    faults: Option<FaultPoints>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskSet").finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy)]
enum TaskState {
    Runs,
    /// It ended by itself, and has run again since this time.
    RunsAgain(Instant),
    /// It ended by itself, and waits for its restart.
    Waits,
    /// It ended by itself, and the process ends.
    Failed,
}

/// How a task ended without being asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It panicked.
    Panic,
    /// It returned.
    Return,
}

impl End {
    fn as_str(self) -> &'static str {
        match self {
            End::Panic => "panicked",
            End::Return => "returned",
        }
    }
}

impl TaskSet {
    /// Returns a set whose tasks end when a test says so, and are started again after `pause` at first.
    #[must_use]
    pub fn with_faults(faults: FaultPoints, pause: Duration) -> Self {
        Self(Arc::new(Shared {
            faults: Some(faults),
            pauses: Pauses {
                first: pause,
                settled_after: 30 * pause,
                ..Pauses::default()
            },
            ..Shared::default()
        }))
    }

    /// Returns a task without which the process must not go on. If it ends before `stop` is cancelled, the set fails.
    pub fn essential<F: Future>(
        &self,
        name: &str,
        stop: &CancellationToken,
        task: F,
    ) -> impl Future<Output = ()> + use<F> {
        let guard = self.guard(name, stop);
        async move {
            guard.tasks.unless_ended(&guard.name, task).await;
            guard.returned();
        }
    }

    /// Runs a task that is started again with growing pauses until `stop` is cancelled. `make` returns the task, which
    /// ends by itself once `stop` is cancelled. Dropping the returned future aborts the task.
    pub fn restarted<F, M>(
        self,
        name: String,
        stop: CancellationToken,
        make: M,
    ) -> impl Future<Output = ()> + use<F, M>
    where
        F: Future<Output = ()> + Send + 'static,
        M: FnMut() -> F,
    {
        // Before the first poll, so that a task that waits for its turn is on the metrics' page already.
        self.set_state(&name, TaskState::Runs);
        self.start_over(name, stop, make)
    }

    async fn start_over<F>(self, name: String, stop: CancellationToken, mut make: impl FnMut() -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Pauses { first, longest, .. } = self.0.pauses;
        let mut backoff = Backoff::new(first, longest);
        loop {
            let (tasks, task, of) = (self.clone(), make(), name.clone());
            let began = Instant::now();
            let running = tokio::spawn(async move { tasks.unless_ended(&of, task).await });
            let ended = AbortOnDropHandle::new(running).await;
            let end = match ended {
                _ if stop.is_cancelled() => return,
                Ok(()) => End::Return,
                Err(error) if error.is_panic() => End::Panic,
                // The runtime ends, and this task with it.
                Err(_) => return,
            };
            if began.elapsed() >= longest {
                backoff.reset();
            }
            let pause = backoff.pause();
            self.count_end(&name, TaskState::Waits);
            tracing::error!(
                task = name,
                end = end.as_str(),
                ?pause,
                "a task ended by itself, and is started again after a pause"
            );
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(pause) => self.set_state(&name, TaskState::RunsAgain(Instant::now())),
            }
        }
    }

    /// Watches a thread without which the process must not go on. The set fails if the guard is dropped in a panic,
    /// or consumed by `returned` before `stop` is cancelled.
    #[must_use]
    pub fn guard(&self, name: &str, stop: &CancellationToken) -> TaskGuard {
        let guard = TaskGuard {
            name: name.to_owned(),
            tasks: self.clone(),
            stop: stop.clone(),
        };
        self.set_state(&guard.name, TaskState::Runs);
        guard
    }

    /// Notes the start of a task whose owner reacts to its end.
    pub fn note_start(&self, name: &str) {
        self.set_state(name, TaskState::Runs);
    }

    /// Logs and counts the end of a task that its owner reacts to, because the owner ends with it.
    pub fn note_end(&self, name: &str, end: End) {
        self.count_end(name, TaskState::RunsAgain(Instant::now()));
        tracing::error!(task = name, end = end.as_str(), "a task ended by itself");
    }

    /// Runs a task until it ends, or until a test ends it.
    pub async fn unless_ended<F: Future>(&self, name: &str, task: F) {
        let Some(faults) = &self.0.faults else {
            task.await;
            return;
        };
        tokio::select! {
            biased;
            end = faults.reached(name) => assert!(end == End::Return, "a test ends the task {name}"),
            _ = task => {}
        }
    }

    /// Whether a test demands that this thread returns here. Panics if the test demands a panic.
    #[must_use]
    pub fn must_end(&self, name: &str) -> bool {
        let faults = self.0.faults.as_ref();
        let end = faults.and_then(|faults| faults.take(name));
        assert!(end != Some(End::Panic), "a test ends the thread {name}");
        end.is_some()
    }

    /// Waits while a test holds tasks back at this point.
    pub async fn held_back(&self, point: &str) {
        if let Some(faults) = &self.0.faults {
            faults.held_back(point).await;
        }
    }

    /// Adds what a component says on `/readyz`, whether the process is ready or not.
    pub fn add_note(&self, note: impl Fn() -> Vec<String> + Send + Sync + 'static) {
        self.0.notes.lock().push(Box::new(note));
    }

    /// Returns what the components say.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        self.0.notes.lock().iter().flat_map(|note| note()).collect()
    }

    /// Adds a component's reasons for not being ready.
    pub fn add_check(&self, not_ready: impl Fn() -> Vec<String> + Send + Sync + 'static) {
        self.0.checks.lock().push(Box::new(not_ready));
    }

    /// Returns why the process is not ready: tasks that ended by themselves, and what the components' checks return.
    #[must_use]
    pub fn not_ready(&self) -> Vec<String> {
        let settled_after = self.0.pauses.settled_after;
        let mut reasons = Vec::new();
        for (name, state) in self.0.states.lock().iter() {
            match state {
                TaskState::Runs => {}
                TaskState::RunsAgain(since) if since.elapsed() >= settled_after => {}
                TaskState::RunsAgain(_) => reasons.push(format!(
                    "the task {name} ended by itself and runs again since less than {} s; the log has its end",
                    settled_after.as_secs()
                )),
                TaskState::Waits => reasons.push(format!(
                    "the task {name} ended by itself and is started again; the log has its end"
                )),
                TaskState::Failed => reasons.push(format!(
                    "the task {name} ended by itself, and the process ends; the log has its end"
                )),
            }
        }
        for check in self.0.checks.lock().iter() {
            reasons.extend(check());
        }
        reasons
    }

    /// Waits until an essential task ended by itself; returns the names of the essential tasks that did.
    pub async fn failed(&self) -> String {
        self.0.failed.cancelled().await;
        let states = self.0.states.lock();
        let failed = states
            .iter()
            .filter(|(_, state)| matches!(state, TaskState::Failed));
        failed
            .map(|(name, _)| name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Returns the metrics of the tasks.
    #[must_use]
    pub fn registry(&self) -> Registry {
        let mut table = MetricTable::new("epwatch_task");
        let ends = "Ends of tasks that nobody asked for, by task";
        table.add_metric("ends", ends, self.0.ends.clone());
        let up = "1 while the task runs";
        table.add_metric("up", up, self.0.up.clone());
        table.into_registry()
    }

    fn set_state(&self, name: &str, state: TaskState) {
        let label = [("task", name.to_owned())];
        let is_up = matches!(state, TaskState::Runs | TaskState::RunsAgain(_));
        self.0.up.get_or_create(&label).set(i64::from(is_up));
        drop(self.0.ends.get_or_create(&label));
        self.0.states.lock().insert(name.to_owned(), state);
    }

    fn count_end(&self, name: &str, state: TaskState) {
        self.set_state(name, state);
        let label = [("task", name.to_owned())];
        self.0.ends.get_or_create(&label).inc();
    }

    fn fail(&self, name: &str, end: End) {
        self.count_end(name, TaskState::Failed);
        tracing::error!(
            task = name,
            end = end.as_str(),
            "a task ended by itself; the process cannot go on without it, and ends"
        );
        self.0.failed.cancel();
    }
}

/// Held by a task or thread while it runs. Its drop in a panic fails the set. A drop without a panic comes from the end
/// of the runtime or an abort, which was requested.
#[derive(Debug)]
pub struct TaskGuard {
    name: String,
    tasks: TaskSet,
    stop: CancellationToken,
}

impl TaskGuard {
    /// Notes that the task returned.
    pub fn returned(self) {
        self.ended(End::Return);
    }

    fn ended(&self, end: End) {
        if !self.stop.is_cancelled() {
            self.tasks.fail(&self.name, end);
        }
    }
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.ended(End::Panic);
        }
    }
}

/// Ends tasks of a [`TaskSet`] by name, and holds them back. Only tests use it.
#[derive(Debug, Clone, Default)]
pub struct FaultPoints(Arc<Armed>);

#[derive(Debug, Default)]
struct Armed {
    ends: Mutex<BTreeMap<String, End>>,
    holds: Mutex<BTreeMap<String, HeldTasks>>,
    changed: Notify,
}

/// A point at which a test holds tasks back.
#[derive(Debug, Default)]
struct HeldTasks {
    /// How often tasks may pass.
    passes: usize,
    waiting: usize,
}

impl FaultPoints {
    /// Ends a task once: at its next await, or at the next fault point of a thread.
    pub fn end(&self, task: &str, end: End) {
        self.0.ends.lock().insert(task.to_owned(), end);
        self.0.changed.notify_waiters();
    }

    /// Holds tasks back at a point, until [`FaultPoints::pass`].
    pub fn hold(&self, point: &str) {
        self.0.holds.lock().entry(point.to_owned()).or_default();
    }

    /// Lets tasks pass the point this often.
    pub fn pass(&self, point: &str, times: usize) {
        if let Some(hold) = self.0.holds.lock().get_mut(point) {
            hold.passes += times;
        }
        self.0.changed.notify_waiters();
    }

    /// Whether a task is held back at the point.
    #[must_use]
    pub fn is_waiting(&self, point: &str) -> bool {
        let holds = self.0.holds.lock();
        holds.get(point).is_some_and(|hold| hold.waiting > 0)
    }

    async fn held_back(&self, point: &str) {
        let mut is_waiting = false;
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(hold) = self.0.holds.lock().get_mut(point) {
                if hold.passes > 0 {
                    hold.passes -= 1;
                    hold.waiting -= usize::from(is_waiting);
                    return;
                }
                hold.waiting += usize::from(!is_waiting);
                is_waiting = true;
            } else {
                return;
            }
            changed.await;
        }
    }

    /// Whether the last end of a task was carried out.
    #[must_use]
    pub fn is_done(&self, task: &str) -> bool {
        !self.0.ends.lock().contains_key(task)
    }

    fn take(&self, task: &str) -> Option<End> {
        self.0.ends.lock().remove(task)
    }

    async fn reached(&self, task: &str) -> End {
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            // Registers first, so that a fault between the check and the wait is not missed.
            changed.as_mut().enable();
            if let Some(end) = self.take(task) {
                return end;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::open_metrics;

    fn ends(tasks: &TaskSet, task: &str) -> String {
        let page = open_metrics([&tasks.registry()]);
        let line = format!("epwatch_task_ends_total{{task=\"{task}\"}} ");
        let mut found = page.lines().filter_map(|found| found.strip_prefix(&line));
        found.next().unwrap_or("none").to_owned()
    }

    /// Polls until `condition` holds; a test that hangs is ended by its runner.
    async fn until(condition: impl Fn() -> bool) {
        while !condition() {
            sleep(Duration::from_millis(1)).await;
        }
    }

    fn with_faults() -> (TaskSet, FaultPoints) {
        let faults = FaultPoints::default();
        let pause = Duration::from_millis(100);
        (TaskSet::with_faults(faults.clone(), pause), faults)
    }

    #[tokio::test]
    async fn a_task_that_ends_by_itself_is_started_again_and_shows() {
        for end in [End::Panic, End::Return] {
            let (tasks, faults) = with_faults();
            let stop = CancellationToken::new();
            let starts = Arc::new(AtomicU32::new(0));
            let (counted, stopped) = (starts.clone(), stop.clone());
            let make = move || {
                counted.fetch_add(1, Ordering::SeqCst);
                let stopped = stopped.clone();
                async move { stopped.cancelled().await }
            };
            let running = tasks
                .clone()
                .restarted("reader".to_owned(), stop.clone(), make);
            let running = tokio::spawn(running);
            until(|| starts.load(Ordering::SeqCst) == 1).await;
            assert_eq!(tasks.not_ready(), Vec::<String>::new());
            for n in 1..=3 {
                faults.end("reader", end);
                until(|| ends(&tasks, "reader") == n.to_string()).await;
                assert!(tasks.not_ready()[0].contains("task reader"), "{tasks:?}");
                until(|| starts.load(Ordering::SeqCst) == n + 1).await;
            }
            until(|| tasks.not_ready().is_empty()).await;
            stop.cancel();
            running.await.unwrap();
            assert_eq!(ends(&tasks, "reader"), "3");
        }
    }

    #[test]
    fn a_task_is_on_the_page_before_its_first_poll() {
        let tasks = TaskSet::default();
        let stop = CancellationToken::new();
        let waits = tasks
            .clone()
            .restarted("reader".to_owned(), stop.clone(), pending::<()>);
        assert_eq!(ends(&tasks, "reader"), "0");
        drop(waits);
    }

    #[tokio::test]
    async fn an_essential_task_that_ends_by_itself_fails_the_set() {
        for end in [End::Panic, End::Return] {
            let (tasks, faults) = with_faults();
            let stop = CancellationToken::new();
            let running = tokio::spawn(tasks.essential("writer", &stop, pending::<()>()));
            assert_eq!(ends(&tasks, "writer"), "0");
            faults.end("writer", end);
            assert_eq!(tasks.failed().await, "writer");
            assert_eq!(running.await.is_err(), end == End::Panic);
            assert_eq!(ends(&tasks, "writer"), "1");
            assert_eq!(tasks.not_ready().len(), 1);
        }
    }

    #[tokio::test]
    async fn an_end_that_was_asked_for_is_none() {
        let tasks = TaskSet::default();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let waits = async move { stopped.cancelled().await };
        let running = tokio::spawn(tasks.essential("writer", &stop, waits));
        let aborted = tokio::spawn(tasks.essential("other", &stop, pending::<()>()));
        tokio::task::yield_now().await;
        aborted.abort();
        assert!(aborted.await.unwrap_err().is_cancelled());
        stop.cancel();
        running.await.unwrap();
        assert_eq!(
            (ends(&tasks, "writer"), ends(&tasks, "other")),
            ("0".into(), "0".into())
        );
        assert_eq!(tasks.not_ready(), Vec::<String>::new());
    }

    #[test]
    fn a_thread_that_panics_fails_the_set() {
        let (tasks, faults) = with_faults();
        let guard = tasks.guard("disk", &CancellationToken::new());
        faults.end("disk", End::Panic);
        let of = tasks.clone();
        let thread = std::thread::spawn(move || {
            let _guard = guard;
            of.must_end("disk")
        });
        assert!(thread.join().is_err());
        assert_eq!(ends(&tasks, "disk"), "1");
        tasks.add_check(|| vec!["the disk is full".to_owned()]);
        assert_eq!(tasks.not_ready().len(), 2);
    }
}
