//! CPU affinity. Either the client runs on one CPU and the server under load on another, so that neither takes the
//! other's time or caches. Or both run on any CPU.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rustix::thread::CpuSet;

/// The variable that names the CPU of a server's process. If it is unset, the server runs on the CPUs of its parent.
pub(crate) const CPU: &str = "EPWATCH_BENCH_CPU";
const ANY: usize = usize::MAX;

static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
static SERVERS: AtomicUsize = AtomicUsize::new(ANY);

/// The CPUs of this process at its start. A child inherits its parent's current set, not this one.
fn allowed() -> &'static [usize] {
    ALLOWED.get_or_init(|| {
        let Ok(set) = rustix::thread::sched_getaffinity(None) else {
            return Vec::new();
        };
        (0..CpuSet::MAX_CPU)
            .filter(|&cpu| set.is_set(cpu))
            .collect()
    })
}

fn stay_on(cpus: &[usize]) {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu);
    }
    rustix::thread::sched_setaffinity(None, &set).expect("CPUs that the process was allowed");
}

/// Puts this process on one CPU, and each server that it starts from now on another. On a machine with one CPU they
/// share it.
pub(crate) fn apart() {
    if let [client, server, ..] = *allowed() {
        stay_on(&[client]);
        SERVERS.store(server, Relaxed);
    }
}

/// Lets the kernel choose the CPUs of this process and of those that it starts from now on.
pub(crate) fn together() {
    if !allowed().is_empty() {
        stay_on(allowed());
    }
    SERVERS.store(ANY, Relaxed);
}

/// The CPU of a server that is started now, as the value of the variable [`CPU`].
pub(crate) fn of_server() -> Option<String> {
    let cpu = SERVERS.load(Relaxed);
    (cpu != ANY).then(|| cpu.to_string())
}

/// Moves this process to the CPU that its parent chose.
pub(crate) fn take_place() {
    if let Some(cpu) = std::env::var(CPU).ok().and_then(|cpu| cpu.parse().ok()) {
        stay_on(&[cpu]);
    }
}
